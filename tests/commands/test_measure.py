import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import PauseConfig, build_model
from paumer.cli import app, main
from paumer.predict import write_points
from paumer.study.tradeoff import Measurement


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small data set of one's own."""
    path = tmp_path_factory.mktemp("data")
    dice = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (path / kind).mkdir()
    for number in range(5):
        image = dice.integers(0, 255, (32, 48, 3), np.uint8)
        Image.fromarray(image).save(path / "images" / f"{number}.png")
        Image.fromarray(image[..., 0] % 3).save(path / "masks" / f"{number}.png")
    text = "val: {images: images, masks: masks}\nclasses: [a, b, c]\n"
    (path / "data.yaml").write_text(text)
    return str(path / "data.yaml")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A small model in a folder, and caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    build_model("test_vit", "mask", ("a", "b", "c"), image_size=32).save_pretrained(
        tmp_path / "model"
    )
    return str(tmp_path / "model")


def run(*arguments):
    app([str(argument) for argument in arguments], result_action="return_value")


def test_evaluate_prints_and_writes(model, data, tmp_path, capsys):
    run(
        *("evaluate", "--model", model, "--data", data, "--pause", "none", "2:0.5"),
        *("--criterion", "entropy", "random", "oracle", "--by-size", "--blocks", "--batch", 2),
        *("--json", tmp_path / "e.json", "--csv", tmp_path / "e.csv"),
    )
    printed = capsys.readouterr().out
    assert "95% interval" in printed
    assert "auxiliary head after block" in printed
    values = json.loads((tmp_path / "e.json").read_text())
    rows = values["evaluations"]
    assert [(row["pause"], row["criterion"]) for row in rows] == [
        (pause, criterion)
        for criterion in ("entropy", "random", "oracle")
        for pause in ("none", "2:0.5")
    ]
    unpaused = [row["confusion"] for row in rows if row["pause"] == "none"]
    assert unpaused[0] == unpaused[1] == unpaused[2]
    assert np.sum(unpaused[0]) == 5 * 32 * 48
    assert len(values["blocks"]) == 6
    with (tmp_path / "e.csv").open() as file:
        assert float(next(csv.DictReader(file))["iou a"]) == rows[0]["iou"]["a"]


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
    command = ["evaluate", "--model", model, "--data", data, "--pause", "none", "2:0.5"]
    command += ["--batch", "1", "--threads", "1"]
    run(*command, "--json", tmp_path / "one.json")
    two_processes(lambda: run(*command, "--json", tmp_path / "two.json"))
    one, two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("one", "two"))
    assert one == two


def test_sweep_goes_on_and_tells_speed(model, data, tmp_path, capsys):
    out = tmp_path / "sweep"
    command = ("sweep", "--model", model, "--data", data, "--grid", "2:0.5", "one", "--out", out)
    run(*command, "--threads", 1)
    assert "the skyline of" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "sweep.jsonl").read_text().splitlines()]
    assert rows[0]["pause"] == "none"
    assert len(rows) == 1 + 1 + 5 * 20
    assert all(row["predicted"] and row["speed_up"] > 0 for row in rows)
    before = (out / "sweep.csv").read_text()
    run(*command, "--threads", 1)
    assert (out / "sweep.csv").read_text() == before
    with pytest.raises(ValueError, match="another sweep"):
        run("sweep", "--model", model, "--data", data, "--grid", "3:0.5", "--out", out)


def test_sweep_can_time_for_real(model, data, tmp_path):
    out = tmp_path / "sweep"
    run(
        *("sweep", "--model", model, "--data", data, "--grid", "2:0.5", "--out", out),
        *("--speed", "measure", "--early-exit", "--criterion", "random", "--pictures", 3),
    )
    rows = [json.loads(line) for line in (out / "sweep.jsonl").read_text().splitlines()]
    assert [row["early_exit"] for row in rows] == [False, True]
    assert all(not row["predicted"] and row["latency_ms"] > 0 for row in rows)
    assert all(row["criterion"] == "random" and row["pictures"] == 3 for row in rows)


def test_tune_writes_operating_points(model, data, tmp_path, capsys):
    run(
        *("tune", "--model", model, "--data", data, "--max-drop", 50, "--name", "mine"),
        *("--procedure", "filter", "--most", 4, "--rounds", 3, "--threads", 1),
    )
    assert "mine" in capsys.readouterr().out
    from paumer import load

    points = load(model).points
    assert set(points) == {"unpaused", "accurate", "balanced", "fast", "mine"}
    assert points["mine"].speed_up > 0
    assert points["mine"].data.endswith("val")
    image = np.zeros((32, 48, 3), np.uint8)
    assert load(model).predict(image, "mine").pause == points["mine"].pause
    with pytest.raises(ValueError, match='no pausing is called "unpaused"'):
        run("tune", "--model", model, "--data", data, "--max-drop", 50, "--name", "unpaused")


def test_tune_by_threshold_compares_with_fixed_shares(
    model, data, tmp_path, capsys, monkeypatch, plain_table
):
    table = plain_table(6, 1, 6)  # On a real machine pausing gains nothing with six patches.
    monkeypatch.setattr("paumer.study.adaptive.cached_cost", lambda *_, **__: table)
    monkeypatch.setattr("paumer.study.adaptive.SPEED_UPS", (1.05,))
    monkeypatch.setattr("paumer.study.adaptive.BLOCKS", ((1,), (1, 2)))
    run(
        *("tune", "--model", model, "--data", data, "--max-drop", 90, "--adaptive"),
        *("--rounds", 1, "--out", tmp_path / "tune"),
    )
    printed = capsys.readouterr().out
    assert "points of mIoU on average at equal cost" in printed
    points = json.loads((tmp_path / "model" / "operating_points.json").read_text())
    assert list(points) == ["adaptive-drop-90"]
    assert (tmp_path / "tune" / "adaptive-drop-90.csv").is_file()
    assert (tmp_path / "tune" / "adaptive-drop-90.png").is_file()
    with pytest.raises(ValueError, match="one by one"):
        run("tune", "--model", model, "--adaptive", "--speed-up", 2, "--batch", 4)


def test_points_keep_who_pauses(model, data, tmp_path):
    run(
        *("tune", "--model", model, "--data", data, "--latency-ms", 1e6, "--name", "some"),
        *("--criterion", "borders", "--early-exit", "--most", 4, "--rounds", 2, "--threads", 1),
    )
    tried = (tmp_path / "model" / "tune" / "some.jsonl").read_text().splitlines()
    told = max((json.loads(line) for line in tried), key=lambda item: item["mac_ratio"])
    assert (told["criterion"], told["early_exit"]) == ("borders", True)
    write_points(tmp_path / "model", {"mine": Measurement.from_json(told)})
    run("evaluate", "--model", model, "--data", data, "--pause", "mine", "--json", tmp_path / "e")
    (row,) = json.loads((tmp_path / "e").read_text())["evaluations"]
    assert (row["criterion"], row["miou"]) == ("borders", told["miou"])
    run(
        *("bench", "--model", model, "--pause", "mine", "--early-exit", "--criterion", "borders"),
        *("--size", 32, "--rounds", 1, "--threads", 1, "--json", tmp_path / "b"),
    )
    told = json.loads((tmp_path / "b").read_text())["measurements"]
    assert [item["criterion"] for item in told] == ["entropy", "borders"]
    for verb, grid in (("bench", "--pause"), ("sweep", "--grid")):
        out = ("--out", tmp_path / "s", "--data", data) if verb == "sweep" else ("--size", 32)
        with pytest.raises(ValueError, match="pauses by borders: add --criterion borders"):
            run(verb, "--model", model, grid, "mine", "--early-exit", *out)


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
        (("evaluate", "--criterion", "luck"), 'no criterion "luck"'),
        (("tune", "--speed-up", "2", "--criterion", "random"), 'no criterion "random"'),
        (("tune", "--speed-up", "2", "--criterion", "borders", "--adaptive"), "leave --criterion"),
        (("evaluate", "--pause", "9:0.5"), "cannot pause after block 9"),
        (("evaluate", "--pause", "quick"), "quick"),
        (("evaluate", "--scales", "0"), "all above 0"),
        (("evaluate", "--pictures", "-1"), "pictures is -1"),
        (("sweep", "--grid", "three", "--out", "x"), "three"),
        (("tune",), "exactly one of latency_ms, speed_up and max_drop"),
        (("tune", "--speed-up", "2", "--max-drop", "1"), "exactly one of"),
    ],
)
def test_mistakes_end_with_one_clear_line(model, data, arguments, message, monkeypatch, capsys):
    verb, *rest = arguments
    command = ["paumer", verb, "--model", model, "--data", data, *rest]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    complaint = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in complaint
    assert len(complaint.strip().splitlines()) == 1


def test_operating_points_are_known_by_name_everywhere(model, data, tmp_path, capsys):
    points = {
        "mine": Measurement(pause=PauseConfig.parse("2:0.5")),
        "early": Measurement(pause=PauseConfig.parse("3:0.5"), early_exit=True),
    }
    write_points(tmp_path / "model", points)
    words = ("--model", model, "--threads", 1)
    run("bench", *words, "--size", 32, "--rounds", 1, "--pause", "mine", "--json", tmp_path / "b")
    timed = json.loads((tmp_path / "b").read_text())["measurements"]
    assert [item["pause"] for item in timed] == ["none", "2:0.5"]
    run(
        "sweep",
        *words,
        "--data",
        data,
        "--grid",
        "mine",
        "--speed",
        "none",
        "--out",
        tmp_path / "s",
    )
    lines = (tmp_path / "s" / "sweep.jsonl").read_text().splitlines()
    assert "2:0.5" in [json.loads(line)["pause"] for line in lines]
    with pytest.raises(ValueError, match='"early" exits early: add --early-exit'):
        run("bench", *words, "--pause", "early")


def test_calibrate_keeps_temperatures_in_the_model_and_evaluate_uses_them(
    model, data, tmp_path, capsys
):
    common = ("evaluate", "--model", model, "--data", data, "--pause", "2:0.5", "--early-exit")
    run(*common, "--json", tmp_path / "before.json")
    weights = (tmp_path / "model/model.safetensors").read_bytes()
    point = Measurement(pause=PauseConfig.parse("2:0.5"), early_exit=True)
    write_points(tmp_path / "model", {"quick": point})
    capsys.readouterr()
    run("calibrate", "--model", model, "--data", data, "--pictures", 3)
    printed = capsys.readouterr().out
    assert "auxiliary, block 6" in printed
    assert "measured before with other temperatures: quick" in printed
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert len(config["temperatures"]) == 7
    assert any(value != 1 for value in config["temperatures"])
    assert (tmp_path / "model/model.safetensors").read_bytes() == weights
    run(*common, "--json", tmp_path / "after.json")
    before, after = (
        json.loads((tmp_path / name).read_text())["evaluations"][0]["confusion"]
        for name in ("before.json", "after.json")
    )
    assert before != after
    with pytest.raises(ValueError, match="is no folder: temperatures are written into the model"):
        run("calibrate", "--model", "street-tiny")
