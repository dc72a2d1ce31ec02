import csv
import json
import sys

import numpy as np
import pytest
import torch

from paumer import PAPER_CONFIGS, Measurement, Mode, build_model, load
from paumer.cli.main import app, main
from paumer.inference.points import write_points


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_data):
    return write_data(tmp_path_factory.mktemp("data"), (32, 48), 5, ("val",))


@pytest.fixture
def model(model, tmp_path, monkeypatch):
    """A small model in a folder, and caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(model)


def run(*arguments):
    app([str(argument) for argument in arguments], result_action="return_value")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_evaluate_prints_and_writes(model, data, tmp_path, capsys):
    modes = ("none", "2:0.5", "2:0.5 by=random", "2:0.5 by=oracle", "2:0.5 size=64")
    run(
        *("evaluate", "--model", model, "--data", data, "--mode", *modes),
        *("--by-size", "--blocks", "--batch", 2, "--groups", "[01]"),
        *("--json", tmp_path / "e.json", "--csv", tmp_path / "e.csv"),
    )
    printed = capsys.readouterr().out
    assert "95% interval" in printed
    assert "auxiliary head after block" in printed
    values = json.loads((tmp_path / "e.json").read_text())
    rows = values["evaluations"]
    assert [row["mode"] for row in rows] == list(modes)
    assert all(np.sum(row["confusion"]) == 5 * 32 * 48 for row in rows)
    counted = [str(row["confusion"]) for row in rows]
    assert len(set(counted)) == len(modes)
    assert len(values["blocks"]) == 6
    assert {name: found["none"]["images"] for name, found in values["groups"].items()} == {
        "0": 1, "1": 1, "others": 3,
    }  # fmt: skip
    alone = [found["2:0.5"]["miou"] for found in values["groups"].values()]
    assert len({*alone, rows[1]["miou"]}) == 4
    assert "mIoU by group" in printed
    with (tmp_path / "e.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["mode"] for row in table] == list(modes)
    assert float(table[0]["iou a"]) == rows[0]["iou"]["a"]


def test_what_pauses_nothing_is_one_mode(model, data, tmp_path):
    modes = ("none", "none by=random", "none exit by=oracle", "2:0.5", "2: 0.50 by=entropy")
    out = tmp_path / "e.json"
    run("evaluate", "--model", model, "--data", data, "--mode", *modes, "--json", out)
    rows = json.loads(out.read_text())["evaluations"]
    assert [row["mode"] for row in rows] == ["none", "2:0.5"]


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    """A model that has the paper's twelve blocks."""
    path = tmp_path_factory.mktemp("deep") / "model"
    torch.manual_seed(0)
    network = build_model("vit_tiny_patch16_384", "linear", ("a", "b", "c"), image_size=32)
    network.save_pretrained(path)
    return str(path)


def test_the_paper_with_more_words_is_thirteen_modes(deep_model, data, tmp_path):
    common = ("--model", deep_model, "--data", data, "--limit", 2)
    texts = ("none", "paper exit by=neighbours")
    wanted = ["none", *(f"{pause} exit by=neighbours" for pause in PAPER_CONFIGS)]
    run("evaluate", *common, "--mode", *texts, "--json", tmp_path / "e.json")
    rows = json.loads((tmp_path / "e.json").read_text())["evaluations"]
    assert [row["mode"] for row in rows] == wanted
    out = tmp_path / "sweep"
    run("sweep", *common, "--grid", texts[1], "--speed", "none", "--out", out)
    swept = read_lines(out / "sweep.jsonl")
    assert [row["mode"] for row in swept] == wanted
    assert [row["miou"] for row in swept] == [row["miou"] for row in rows]


def test_evaluate_averages_scales_and_mirror_images(model, data, tmp_path):
    common = ("evaluate", "--model", model, "--data", data, "--batch", 1)
    run(*common, "--json", tmp_path / "plain.json")
    run(*common, "--scales", 0.75, 1, 1.5, "--flip", "--json", tmp_path / "many.json")
    plain, many = (
        json.loads((tmp_path / name).read_text())["evaluations"][0]["confusion"]
        for name in ("plain.json", "many.json")
    )
    assert np.sum(plain) == np.sum(many)
    assert plain != many


def test_processes_of_torchrun_count_as_one(model, data, tmp_path, two_processes):
    command = ["evaluate", "--model", model, "--data", data, "--mode", "none", "2:0.5"]
    command += ["--batch", "1", "--threads", "1"]
    run(*command, "--json", tmp_path / "one.json")
    two_processes(lambda: run(*command, "--json", tmp_path / "two.json"))
    one, two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("one", "two"))
    assert one == two


def test_sweep_resumes_and_reports_speed(model, data, tmp_path, capsys):
    out = tmp_path / "sweep"
    command = ("sweep", "--model", model, "--data", data, "--grid", "2:0.5", "one", "--out", out)
    command += ("--threads", 1, "--limit", 2)
    run(*command)
    assert "the Pareto front of" in capsys.readouterr().out
    rows = read_lines(out / "sweep.jsonl")
    assert rows[0]["mode"] == "none"
    assert len(rows) == 1 + 1 + 5 * 20
    assert all(row["predicted"] and row["speed_up"] > 0 for row in rows)
    before = (out / "sweep.csv").read_text()
    run(*command)
    assert (out / "sweep.csv").read_text() == before
    with pytest.raises(ValueError, match="another sweep"):
        run("sweep", "--model", model, "--data", data, "--grid", "3:0.5", "--out", out)


def test_sweep_can_time_for_real(model, data, tmp_path):
    out = tmp_path / "sweep"
    run(
        *("sweep", "--model", model, "--data", data, "--out", out, "--limit", 3),
        *("--grid", "2:0.5 exit by=random", "2:0.5 size=64", "--speed", "measure"),
    )
    rows = read_lines(out / "sweep.jsonl")
    assert [row["mode"] for row in rows] == ["none", "2:0.5 exit by=random", "2:0.5 size=64"]
    assert all(not row["predicted"] and row["latency_ms"] > 0 for row in rows)
    assert all(row["images"] == 3 for row in rows)
    assert rows[1]["mac_ratio"] > 1 > rows[2]["mac_ratio"]


def test_tune_writes_operating_points(model, data, tmp_path, capsys):
    run(
        *("tune", "--model", model, "--data", data, "--max-drop", 50, "--name", "mine"),
        *("--procedure", "filter", "--most", 4, "--rounds", 3, "--threads", 1),
    )
    assert "mine" in capsys.readouterr().out
    points = load(model).points
    assert set(points) == {"unpaused", "accurate", "balanced", "fast", "mine"}
    assert points["mine"].speed_up > 0
    assert points["mine"].data.endswith("val")
    image = np.zeros((32, 48, 3), np.uint8)
    assert load(model).predict(image, "mine").mode == points["mine"].mode
    with pytest.raises(ValueError, match='no pausing is called "unpaused"'):
        run("tune", "--model", model, "--data", data, "--max-drop", 50, "--name", "unpaused")


@pytest.mark.slow
def test_tune_searches_with_the_words_of_its_mode(model, data, tmp_path):
    run(
        *("tune", "--model", model, "--data", data, "--latency-ms", 1e6, "--name", "some"),
        *("--mode", "auto exit by=neighbours", "--most", 4, "--rounds", 2, "--threads", 1),
    )
    tried = read_lines(tmp_path / "model" / "tune" / "some.jsonl")
    modes = [Mode.parse(row["mode"]) for row in tried]
    assert any(mode.pause for mode in modes)
    assert all(str(mode) == f"{mode.pause} exit by=neighbours" for mode in modes if mode.pause)
    best = max(tried, key=lambda item: item["mac_ratio"])
    write_points(tmp_path / "model", {"mine": Measurement.from_json(best)})
    run("evaluate", "--model", model, "--data", data, "--mode", "mine", "--json", tmp_path / "e")
    (row,) = json.loads((tmp_path / "e").read_text())["evaluations"]
    assert (row["mode"], row["miou"]) == (best["mode"], best["miou"])


def test_tune_without_a_budget_says_nothing_else(capsys):
    with pytest.raises(ValueError, match="give exactly one budget, above 0: --latency-ms"):
        run("tune", "--model", "street-tiny")
    assert capsys.readouterr().out == ""


def test_tune_says_how_near_it_gets(model, data, monkeypatch, capsys):
    command = ["tune", "--model", model, "--data", data, "--speed-up", "900", "--most", "2"]
    monkeypatch.setattr(sys, "argv", ["paumer", *command, "--rounds", "1", "--threads", "1"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "nothing meets 900x; the nearest is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "--mode", "2:0.5 by=luck"), 'no criterion "luck"'),
        (("evaluate", "--mode", "2:0.5 by=borders"), '"borders" was removed in 0.2'),
        (("evaluate", "--mode", "2:0.5 by=oracle", "--flip"), "oracle needs whole images, once"),
        (("tune", "--speed-up", "2", "--mode", "auto by=random"), "for evaluate and sweep alone"),
        (("tune", "--speed-up", "2", "--mode", "auto by=luck"), 'no criterion "luck"'),
        (("tune", "--speed-up", "2", "--mode", "3:0.4 exit"), "searches for the stages itself"),
        (("evaluate", "--mode", "9:0.5"), "cannot pause after block 9"),
        (("evaluate", "--mode", "quick"), 'cannot read "quick"'),
        (("evaluate", "--scales", "0"), "all above 0"),
        (("evaluate", "--limit", "-1"), "limit is -1"),
        (("sweep", "--speed-batch", "0", "--out", "s"), "speed-batch is 0"),
        (("sweep", "--grid", "three exit", "--out", "x"), 'cannot read "three"'),
        (("tune",), "exactly one budget, above 0: --latency-ms, --speed-up or"),
        (("tune", "--speed-up", "2", "--max-drop", "1"), "exactly one budget"),
    ],
)
def test_mistakes_end_with_one_clear_line(model, data, arguments, message, complaint):
    verb, *rest = arguments
    assert message in complaint(verb, "--model", model, "--data", data, *rest)


def test_operating_points_are_known_by_name_everywhere(model, data, tmp_path):
    points = {
        "mine": Measurement(mode=Mode.parse("2:0.5")),
        "early": Measurement(mode=Mode.parse("3:0.5 exit by=neighbours size=64")),
    }
    write_points(tmp_path / "model", points)
    words = ("--model", model, "--threads", 1)
    common = ("bench", *words, "--input", 32, "--rounds", 1, "--json", tmp_path / "b")
    run(*common, "--mode", "mine", "early")
    timed = json.loads((tmp_path / "b").read_text())["measurements"]
    wanted = ["none", "2:0.5", "3:0.5 exit by=neighbours size=64"]
    assert [item["mode"] for item in timed] == wanted
    grid = ("--grid", "mine", "early", "--speed", "none")
    run("sweep", *words, "--data", data, *grid, "--out", tmp_path / "s")
    assert [row["mode"] for row in read_lines(tmp_path / "s" / "sweep.jsonl")] == wanted
    run("evaluate", *words, "--data", data, "--mode", *points, "--json", tmp_path / "e")
    rows = json.loads((tmp_path / "e").read_text())["evaluations"]
    assert [row["mode"] for row in rows] == wanted[1:]
