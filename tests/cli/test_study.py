import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import PAPER_CONFIGS, Measurement, Mode, build_model
from paumer.cli.main import app
from paumer.pause_config import NO_PAUSE
from paumer.study.grids import one, two


def run(*arguments):
    app(["study", *map(str, arguments)], result_action="return_value")


def sweep(folder, pauses, bias=0.0):
    """A folder as a sweep leaves it."""
    folder.mkdir()
    rows = []
    for pause in [NO_PAUSE, *pauses]:
        work = sum(share * (12 - block) for block, share in pause.stages)
        miou = 0.7 - (work / 40) ** 2 - bias
        item = Measurement(mode=Mode(pause=pause), images_per_second=10 + work, miou=miou)
        rows.append(json.dumps(item.to_json()))
    (folder / "sweep.jsonl").write_text("\n".join(rows))
    return folder


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tradeoff_averages_runs(tmp_path):
    folders = [sweep(tmp_path / str(n), PAPER_CONFIGS, 0.01 * n) for n in range(4)]
    lines = [f"entropy={folders[0]},{folders[2]}", f"random={folders[3]}"]
    command = ("tradeoff", *lines, "--segmenter", folders[1], "--out", tmp_path)
    run(*command, "--title", "Here", "--name", "weight-0.1")
    rows = table(tmp_path / "weight-0.1.csv")
    assert len(rows) == 2 * 14
    assert float(rows[0]["miou"]) == pytest.approx(0.69)
    assert float(rows[0]["miou_low"]) == pytest.approx(0.68)
    assert (tmp_path / "weight-0.1.svg").exists()
    with pytest.raises(ValueError, match='two lines are called "a"'):
        run("tradeoff", f"a={folders[0]}", f"a={folders[1]}")


def test_spline_table(tmp_path, capsys):
    folder = sweep(tmp_path / "a", PAPER_CONFIGS)
    run("spline", f"entropy={folder}", "--most", 1.6, "--out", tmp_path)
    rows = table(tmp_path / "spline.csv")
    assert len(rows) == 8
    assert float(rows[-1]["speed_up"]) == pytest.approx(1.6)
    assert "difference" in capsys.readouterr().out


def test_comparison_wants_a_source_for_every_number(tmp_path):
    folder = sweep(tmp_path / "a", PAPER_CONFIGS)
    points = tmp_path / "points.csv"
    head = "dataset,family,model,miou,images_per_second,source\n"
    points.write_text(head + "City,A,a1,70.5,12,a paper\nOther,B,b1,60,30,another\n")
    run("compare", f"ours={folder}", "--points", points, "--dataset", "City", "--out", tmp_path)
    rows = table(tmp_path / "compare.csv")
    assert [float(row["miou"]) for row in rows[:2]] == [70.5, pytest.approx(70)]
    assert len(rows) == 1 + 14
    points.write_text(head + "City,A,a1,70.5,12,\n")
    with pytest.raises(ValueError, match=r"line 2 .* lacks its source"):
        run("compare", f"ours={folder}", "--points", points, "--out", tmp_path)
    points.write_text(head + "City,A,a1,70.5,fast,a\nOther,B,b1,60,30,b\n")
    with pytest.raises(ValueError, match='images_per_second is "fast", not a number'):
        run("compare", f"ours={folder}", "--points", points, "--out", tmp_path)
    points.write_text(head + "City,A,a1,70.5,12,a\nOther,B,b1,60,30,b\n")
    with pytest.raises(ValueError, match="choose one with --dataset"):
        run("compare", f"ours={folder}", "--points", points, "--out", tmp_path)
    with pytest.raises(ValueError, match="no row of Mars"):
        run("compare", f"ours={folder}", "--points", points, "--dataset", "Mars")


def test_one_and_two_pauses(tmp_path):
    run("one", sweep(tmp_path / "one", one(12)), "--out", tmp_path)
    run("two", sweep(tmp_path / "two", two(12, 3, 5)), "--out", tmp_path)
    assert len(table(tmp_path / "one_pause.csv")) == 1 + 220
    assert len(table(tmp_path / "two_pauses.csv")) == 1 + 300
    with pytest.raises(ValueError, match="--grid two"):
        run("two", tmp_path / "one", "--out", tmp_path)


def test_blocks_over_all_choices(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run("blocks", "--backbone", "test_vit", "--input", 64, "--threads", 1, "--out", tmp_path)
    rows = table(tmp_path / "blocks.csv")
    assert len(rows) == 2**5 - 1
    assert {len(Mode.parse(row["mode"]).pause.stages) for row in rows} == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_entropy_and_method_on_a_model(tmp_path, lively):
    torch.manual_seed(0)
    lively(build_model("test_vit", "mask", 11, image_size=32)).save_pretrained(tmp_path / "model")
    command = ("--model", tmp_path / "model", "--out", tmp_path)
    run("entropy", *command, "--data", "scenes:20@64x48", "--fraction", 0.1)
    rows = table(tmp_path / "entropy_classes.csv")
    patches = sum(int(row["patches"]) for row in rows)
    assert sum(int(row["patches"]) for row in table(tmp_path / "entropy.csv")) == patches
    assert len(table(tmp_path / "blocks.csv")) == 6
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / "street.png")
    run("method", tmp_path / "street.png", *command, "--mode", "2:0.5,4:0.5 by=neighbours")
    assert len(table(tmp_path / "method.csv")) == 12 + 6
    with pytest.raises(ValueError, match="fraction is 0"):
        run("entropy", *command, "--fraction", 0)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not LABEL=FOLDER"):
        run("tradeoff", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="run paumer sweep first"):
        run("tradeoff", f"a={tmp_path / 'nowhere'}")
    (tmp_path / "sweep.jsonl").write_text('{"pause": "none", "miou": 0.5}\n')
    with pytest.raises(ValueError, match="has no speeds"):
        run("tradeoff", f"a={tmp_path}")
    (tmp_path / "sweep.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="cannot read line 1"):
        run("tradeoff", f"a={tmp_path}")
