import time

import numpy as np
import pytest
import torch

from paumer import PauseConfig, build_model
from paumer.engines import TorchEngine
from paumer.study.speed import (
    SpeedSettings,
    best_batch,
    measure_speed,
    pausing_seconds,
    peak_memory,
    time_interleaved,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return build_model("test_vit", "mask", 5, image_size=64).eval()


def test_runs_take_turns_and_warm_up_first():
    order = []
    runs = [lambda name=name: order.append(name) for name in "abc"]
    seconds = time_interleaved(runs, CPU, rounds=3, warmup=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert seconds.shape == (3, 3)
    assert (seconds > 0).all()


def test_a_slower_run_is_measured_slower():
    runs = [lambda: None, lambda: time.sleep(0.004)]
    seconds = time_interleaved(runs, CPU, rounds=3, warmup=0)
    assert np.median(seconds[:, 1]) > 10 * np.median(seconds[:, 0])


def test_no_pausing_leads_and_is_the_measure(model):
    configs = [PauseConfig.parse(text) for text in ("2:0.5", "none")]
    report = measure_speed(model, torch.rand(2, 3, 64, 64), configs, SpeedSettings(rounds=2))
    assert [str(item.pause) for item in report.measurements] == ["none", "2:0.5"]
    assert report.measurements[0].speed_up == 1
    cheaper = report.measurements[1]
    whole, part = model.multiply_adds((64, 64)), model.multiply_adds((64, 64), configs[0])
    assert cheaper.mac_ratio == whole / part
    assert cheaper.gmacs == part / 1e9
    assert cheaper.pausing_share > 0


def test_threads_and_grad_mode_are_as_before_afterwards(model):
    before = torch.get_num_threads()
    report = measure_speed(model, torch.rand(1, 3, 32, 32), [], SpeedSettings(rounds=1, threads=2))
    assert report.environment["threads"] == 2
    assert torch.get_num_threads() == before
    assert torch.is_grad_enabled()


def test_half_precision_and_early_exit_run(model):
    settings = SpeedSettings(rounds=1, precision="bf16", early_exit=True)
    images = torch.rand(1, 3, 32, 32)
    report = measure_speed(model, images, [PauseConfig.parse("3:0.5")], settings)
    assert [item.early_exit for item in report.measurements] == [False, True]
    plain = model.multiply_adds((32, 32), PauseConfig.parse("3:0.5"))
    assert report.measurements[1].gmacs < plain / 1e9


def test_searching_the_batch_stops_at_the_limit(model):
    assert best_batch(model, torch.rand(1, 3, 32, 32), SpeedSettings(), limit=2) in (1, 2)


def test_running_out_of_memory_ends_the_search(model, monkeypatch):
    def forward(images, **_):
        if len(images) > 2:
            raise RuntimeError("not enough memory: you tried to allocate")

    monkeypatch.setattr(model, "forward", forward)
    assert best_batch(model, torch.rand(1, 3, 8, 8), SpeedSettings()) <= 2


def test_pausing_takes_time(model):
    assert pausing_seconds(model, torch.rand(1, 3, 64, 64), PauseConfig.parse("2:0.5")) > 0


def test_peak_memory_sees_a_large_tensor():
    measured = peak_memory(lambda: torch.ones(25_000_000), CPU)
    if measured is None:
        pytest.skip("resident memory is known on Linux only")
    assert 90 < measured < 130


@pytest.mark.parametrize("full_size", [True, False])
def test_engines_take_turns_in_one_run(model, monkeypatch, full_size):
    monkeypatch.setattr(
        "paumer.study.speed.make_engine", lambda name, network, *_: TorchEngine(network)
    )
    settings = SpeedSettings(
        rounds=2, warmup=1, threads=1, engines=("torch", "onnx"), full_size=full_size
    )
    pauses = [PauseConfig.parse("2:0.5")]
    report = measure_speed(model, torch.rand(1, 3, 64, 64), pauses, settings)
    assert [(m.engine, str(m.pause)) for m in report.measurements] == [
        (engine, pause) for engine in ("torch", "onnx") for pause in ("none", "2:0.5")
    ]
    for engine in ("torch", "onnx"):
        base, paused = (m for m in report.measurements if m.engine == engine)
        assert base.speed_up == 1
        expected = paused.images_per_second / base.images_per_second
        assert paused.speed_up == pytest.approx(expected)
        assert paused.mac_ratio > 1
        assert (paused.pausing_share is None) == (engine == "onnx")
