"""Modes that merge, and modes that let all patches leave, wherever a mode goes."""

import json
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Inference, Measurement, Mode, build_model, load
from paumer.cli.main import app
from paumer.data.images import read_image
from paumer.inference.governor import Pace
from paumer.inference.jobs import Job
from paumer.inference.points import write_points
from paumer.inference.sources import find_sources
from paumer.inference.video import VideoWriter
from paumer.mode import UNPAUSED
from paumer.serve.service import Service
from paumer.study.cost import cost_tables, predict_speed
from paumer.study.speed import SpeedSettings

MERGES, BOTH, LEAVES = "1-3:~0.2", "1-2:~0.2,4:0.9 exit", "3:1 exit"
MODES = (MERGES, BOTH, LEAVES)


@pytest.fixture(scope="module")
def model(tmp_path_factory, lively):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("merging") / "model"
    lively(build_model("test_vit", "mask", ("a", "b", "c"), image_size=64)).save_pretrained(path)
    speeds = {"slow": ("none", 1.0), "merged": (MERGES, 1.3), "both": (BOTH, 2.0)}
    points = {n: Measurement(mode=Mode.parse(m), speed_up=s) for n, (m, s) in speeds.items()}
    write_points(path, points | {"gone": Measurement(mode=Mode.parse(LEAVES), speed_up=2.5)})
    return path


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(1).integers(0, 255, (64, 96, 3), np.uint8)


@pytest.fixture
def data(tmp_path, image):
    for kind, values in (("images", image), ("masks", image[..., 0] % 3)):
        (tmp_path / kind).mkdir()
        Image.fromarray(values).save(tmp_path / kind / "one.png")
    text = "val: {images: images, masks: masks}\nclasses: [a, b, c]\n"
    (tmp_path / "data.yaml").write_text(text)
    return tmp_path


def run(*arguments):
    app([str(argument) for argument in arguments], result_action="return_value")


def rows(path, key):
    return {row["mode"]: row for row in json.loads(path.read_text())[key]}


@pytest.mark.slow
def test_commands_measure_and_predict(model, data, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "cache"))
    given = ("--model", model, "--data", data / "data.yaml")
    run("evaluate", *given, "--mode", *MODES, "--json", data / "e.json")
    counted = rows(data / "e.json", "evaluations")
    assert list(counted) == list(MODES)
    assert len({str(row["confusion"]) for row in counted.values()}) == 3
    run(
        "bench",
        "--model",
        model,
        "--input",
        "64x64",
        "--rounds",
        1,
        "--mode",
        *MODES,
        "--json",
        data / "b.json",
    )
    timed = rows(data / "b.json", "measurements")
    assert list(timed) == ["none", *MODES]
    assert all(timed[mode]["speed_up"] > 0 and timed[mode]["mac_ratio"] > 1 for mode in MODES)
    run("sweep", *given, "--grid", *MODES, "--out", data / "sweep")
    lines = map(json.loads, (data / "sweep/sweep.jsonl").read_text().splitlines())
    swept = {line["mode"]: line for line in lines}
    for mode in MODES:
        assert swept[mode]["miou"] == pytest.approx(counted[mode]["miou"], abs=1e-6)
        assert swept[mode]["speed_up"] > 0
    for mode in (*MODES, "both"):
        out = data / Mode.parse(mode).slug if ":" in mode else data / mode
        run("predict", data / "images", "--model", model, "--mode", mode, "--out", out)
        (line,) = (out / "predictions.jsonl").read_text().splitlines()
        assert json.loads(line)["mode"] == (BOTH if mode == "both" else mode)
        assert read_image(out / "one_paused.png").shape[1] >= 96


def test_points_are_rungs_of_the_service(model, image):
    predictor = load(model, device="cpu")
    service = Service(predictor)
    service.start()
    try:
        assert service.names == ("slow", "merged", "both", "gone")
        assert list(map(str, service.modes)) == ["none", *MODES]
        assert all(seconds > 0 for seconds in service.seconds)
        assert {p["name"]: p["latency_ms"] > 0 for p in service.describe()["points"]} == (
            dict.fromkeys(service.names, True)
        )
        for text in (*MODES, "both"):
            done = service.submit(image, service.read({"mode": text})).result(60)
            alone = predictor.predict(image, text)
            assert np.array_equal(done.result.labels, alone.labels)
            assert np.array_equal(done.result.merged_after, alone.merged_after)
            assert 0 < service.work_ratio(done.result) < 1
    finally:
        service.stop()


def test_a_busy_service_merges(model, image):
    predictor, square = load(model, device="cpu"), image[:, :64]
    service = Service(predictor, target=8.0)
    service.start()
    service.seconds = (1.0, 0.7, 0.5, 0.4)  # A machine so slow that its clock is sure.
    gate, (run,) = threading.Event(), service.batcher.runs
    service.batcher.runs = [lambda *batch: (gate.wait(60), run(*batch))[1]]
    try:
        auto = service.read({})
        crowd = [service.submit(square, auto) for _ in range(9)]
        gate.set()
        results = [done.result(60).result for done in crowd]
        later = service.submit(square, auto).result(60).result
    finally:
        service.stop()
    used = {str(result.mode) for result in results}
    assert {MERGES, BOTH} <= used
    assert str(later.mode) == "none"
    expected = {mode: predictor.predict(square, mode).labels for mode in used}
    assert all(np.array_equal(r.labels, expected[str(r.mode)]) for r in results)


def test_a_video_in_a_hurry_merges(model, image, tmp_path):
    pytest.importorskip("av", reason="video needs PyAV")
    predictor = load(model, device="cpu")
    with VideoWriter(tmp_path / "in.mp4", Fraction(25)) as writer:
        for _ in range(12):
            writer.write(image)
    rungs = [
        Measurement(mode=Mode.parse(text), images_per_second=speed, miou=0.7 - speed / 10)
        for text, speed in (("none", 1.0), (MERGES, 1.3), (BOTH, 2.0))
    ]
    # At first all but the last seem too slow; then the machine is found to be faster.
    job = Job(predictor, UNPAUSED, tmp_path / "out", pace=Pace(rungs, 0.4))
    outcome = job.run_video(find_sources([tmp_path / "in.mp4"])[0])
    assert outcome.written == 12
    line = json.loads((tmp_path / "out/predictions.jsonl").read_text())
    assert line["modes"].keys() >= {MERGES, BOTH}


@pytest.mark.parametrize("text", MODES)
def test_windows_scales_and_sizes(model, image, text):
    predictor = load(model, device="cpu")
    parts = predictor.predict(image, text, window=64, stride=32)
    assert parts.merged_after.shape == parts.paused_after.shape
    assert parts.merged_after.any() == ("~" in text)
    assert predictor.predict(image, text, scales=(1, 0.5), flip=True).labels.shape == (64, 96)
    small = predictor.predict(image, f"{text} size=32")
    assert small.merged_after.size * 4 == predictor.predict(image, text).merged_after.size
    assert predictor.macs((64, 96), text) < predictor.macs((64, 96))
    assert predictor.macs((64, 96), text, Inference(window=64, stride=32)) > 0


@pytest.mark.slow
def test_predicted_speeds(model, image, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    predictor = load(model, device="cpu")
    tables = cost_tables(predictor, image, [None], SpeedSettings(threads=1))
    for text in MODES:
        found = predict_speed(tables, Mode.parse(text))
        assert found.predicted
        assert found.latency_ms > 0
    times = [predict_speed(tables, Mode.parse(f"{b}:1 exit")).latency_ms for b in (2, 3, 5)]
    assert times == sorted(times)
