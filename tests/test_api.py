"""From Python the same calls as from the command line, with the same results."""

import csv
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import paumer
from paumer import Mode, build_model
from paumer.cli.main import app
from paumer.inference.points import read_points
from paumer.study.speed import SpeedSettings
from paumer.study.tuning import TuneSettings
from paumer.training.options import TrainCall, TrainOptions


def run(*words):
    app([str(word) for word in words], exit_on_error=False, result_action="return_value")


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    build_model("test_vit", "linear", list("abc"), image_size=64).save_pretrained(
        tmp_path / "model"
    )
    return tmp_path / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_data):
    return write_data(tmp_path_factory.mktemp("data"), (48, 64), 4, ("train", "val"))


def test_evaluate(model, tmp_path, data):
    modes = ("none", "2:0.5 exit", "4:0.5 by=random")
    run("evaluate", "--model", model, "--data", data, "--limit", 3, "--mode", *modes,
        "--json", tmp_path / "e.json")  # fmt: skip
    rows = json.loads((tmp_path / "e.json").read_text())["evaluations"]
    found = paumer.evaluate(model, data, modes, limit=3)
    assert [str(mode) for mode in found] == list(modes)
    assert [tally.miou for tally in found.values()] == [row["miou"] for row in rows]
    true_pixels = [tally.totals[2].sum() for tally in found.values()]
    assert true_pixels == [true_pixels[0]] * 3
    assert rows[0]["images"] == 3


def test_models_data_and_modes_may_be_objects(model, data):
    from paumer.data.datasets import open_dataset

    dataset, predictor = open_dataset(data, "val"), paumer.load(model)
    mode = Mode.parse("2:0.5")
    (one,) = paumer.evaluate(predictor, dataset, mode).values()
    for same in (data, Path(data)):
        (two,) = paumer.evaluate(str(model), same, "2:0.5").values()
        assert np.array_equal(one.totals, two.totals)


def test_sweep(model, tmp_path, data):
    words = ("--model", model, "--data", data, "--grid", "2:0.5", "4:0.25", "--speed", "none")
    run("sweep", *words, "--out", tmp_path / "command")
    grid = ["2:0.5", Mode.parse("4:0.25")]
    found = paumer.sweep(model, tmp_path / "python", data, grid, speed="none")
    for name in ("sweep.jsonl", "sweep.csv"):
        one, two = ((tmp_path / way / name).read_text() for way in ("command", "python"))
        assert one == two
    assert [str(item.mode) for item in found] == ["none", "2:0.5", "4:0.25"]
    with (tmp_path / "python" / "sweep.csv").open() as file:
        assert [float(row["miou"]) for row in csv.DictReader(file)] == [m.miou for m in found]


@pytest.mark.slow
def test_tune_keeps_its_point(model, data):
    settings = TuneSettings(most=2, finalists=2, speed=SpeedSettings(rounds=2, warmup=0))
    tuned = paumer.tune(
        model, data, "auto exit", max_drop=100, name="mine", limit=2, settings=settings
    )
    assert tuned.met
    assert read_points(model)["mine"].mode == tuned.choice.mode == tuned.points["mine"].mode
    assert paumer.load(model).modes["mine"] == tuned.choice.mode


def test_bench_measures_what_the_command_measures(model, tmp_path):
    modes, common = ("none", "2:0.5"), ("--input", 64, "--rounds", 1, "--warmup", 0)
    run("bench", "--model", model, "--mode", *modes, *common, "--json", tmp_path / "b.json")
    rows = json.loads((tmp_path / "b.json").read_text())["measurements"]
    settings = SpeedSettings(rounds=1, warmup=0)
    report = paumer.bench(model, modes, input="64", settings=settings)
    assert [str(item.mode) for item in report.measurements] == [row["mode"] for row in rows]
    assert [item.gmacs for item in report.measurements] == [row["gmacs"] for row in rows]
    assert all(item.images_per_second > 0 for item in report.measurements)


def test_bench_takes_fresh_networks_and_refuses_empty_batches(tmp_path):
    network = build_model("test_vit", "linear", 3, image_size=64)
    settings = SpeedSettings(rounds=1, warmup=0)
    report = paumer.bench(network, "2:0.5", input=64, settings=settings)
    assert len(report.measurements) == 2
    with pytest.raises(ValueError, match="batch is 0"):
        paumer.bench(network, "2:0.5", input="64", batch=0, images=tmp_path, settings=settings)


def test_an_export_never_replaces_a_script(model, tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text("mine")
    with pytest.raises(ValueError, match=r'm\.py" exists: name another --out'):
        paumer.export(model, tmp_path / "m.onnx", "2:0.5", input="64")
    assert (tmp_path / "m.py").read_text() == "mine"


def test_options_of_a_training_may_be_texts_and_lists():
    texts = TrainCall(
        out="run", val_mode="none", draw=["pause", "merge"], logger="mlflow",
        data=Path("a/data.yaml"), init=Path("runs/a"), crop=96,
    )  # fmt: skip
    assert texts.options() == TrainOptions(
        out=Path("run"), val_mode=("none",), draw=("pause", "merge"), logger=("mlflow",),
        data="a/data.yaml", init="runs/a", crop="96",
    )  # fmt: skip
    assert TrainCall().options() == TrainOptions()


@pytest.mark.slow
def test_train_takes_the_options_of_the_command(tmp_path, data):
    pytest.importorskip("lightning_fabric")
    small = {
        "data": data, "backbone": "test_vit", "decoder": "linear", "init": "none", "steps": 2,
        "batch": 2, "crop": "64", "ranges": "2-4:0.2-0.8", "workers": 0, "val_mode": "none",
    }  # fmt: skip
    words = [part for key, value in small.items() for part in (f"--{key.replace('_', '-')}", value)]
    run("train", *words, "--out", tmp_path / "command")
    out = paumer.train(out=str(tmp_path / "python"), **small)
    assert out == tmp_path / "python"
    weights = [
        (tmp_path / way / "model" / "model.safetensors").read_bytes()
        for way in ("command", "python")
    ]
    assert weights[0] == weights[1]
    with pytest.raises(TypeError, match="stpes"):
        paumer.train(stpes=2)


def test_help_shows_the_options_of_a_training():
    options = list(inspect.signature(TrainOptions).parameters)
    assert list(inspect.signature(paumer.train).parameters) == [*options, "callbacks"]
    assert "run directory" in inspect.getdoc(paumer.train)
