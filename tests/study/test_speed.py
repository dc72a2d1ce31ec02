import time
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paumer import Mode, Predictor, build_model
from paumer.inference.engines import TorchEngine
from paumer.study import speed
from paumer.study.speed import (
    SpeedSettings,
    best_batch,
    measure_speed,
    pausing_seconds,
    peak_memory,
    time_interleaved,
    time_modes,
)

CPU = torch.device("cpu")


@pytest.fixture
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
    modes = [Mode.parse(text) for text in ("2:0.5", "none")]
    report = measure_speed(model, torch.rand(2, 3, 64, 64), modes, SpeedSettings(rounds=2))
    assert [str(item.mode) for item in report.measurements] == ["none", "2:0.5"]
    assert report.measurements[0].speed_up == 1
    assert report.measurements[0].pausing_ratio == 0
    cheaper = report.measurements[1]
    whole, part = model.macs((64, 64)), model.macs((64, 64), modes[0])
    assert cheaper.mac_ratio == whole / part
    assert cheaper.gmacs == part / 1e9
    assert cheaper.pausing_ratio > 0


def test_threads_and_grad_mode_are_as_before_afterwards(model):
    before = torch.get_num_threads()
    report = measure_speed(model, torch.rand(1, 3, 32, 32), [], SpeedSettings(rounds=1, threads=2))
    assert report.environment["threads"] == 2
    assert torch.get_num_threads() == before
    assert torch.is_grad_enabled()


def test_half_precision_and_early_exit_run(model):
    settings = SpeedSettings(rounds=1, precision="bf16")
    images = torch.rand(1, 3, 32, 32)
    report = measure_speed(model, images, [Mode.parse("3:0.5 exit")], settings)
    assert [item.mode.early_exit for item in report.measurements] == [False, True]
    plain = model.macs((32, 32), "3:0.5")
    assert report.measurements[1].gmacs < plain / 1e9


@pytest.mark.parametrize("full_size", [True, False])
def test_a_mode_of_another_size_runs_on_scaled_images(model, monkeypatch, full_size):
    seen, forward = [], model.forward

    def spy(images, mode, **options):
        seen.append((tuple(images.shape[2:]), str(mode)))
        return forward(images, mode, **options)

    monkeypatch.setattr(model, "forward", spy)
    modes = [Mode.parse(text) for text in ("2:0.5 size=32", "none size=32")]
    settings = SpeedSettings(rounds=1, warmup=0, full_size=full_size)
    report = measure_speed(model, torch.rand(1, 3, 64, 96), modes, settings)
    assert {((64, 96), "none"), ((32, 48), "2:0.5"), ((32, 48), "none")} == set(seen)
    assert [str(m.mode) for m in report.measurements] == ["none", "2:0.5 size=32", "none size=32"]
    small = model.macs((32, 48), "2:0.5")
    assert report.measurements[1].gmacs == small / 1e9
    assert report.measurements[1].mac_ratio == model.macs((64, 96)) / small


@pytest.mark.parametrize("name", ["random", "oracle"])
def test_what_only_a_study_can_run_is_not_timed(model, name):
    with pytest.raises(ValueError, match=f"by={name} is for evaluate and sweep alone"):
        measure_speed(model, torch.rand(1, 3, 32, 32), [Mode.parse(f"2:0.5 by={name}")])


def test_the_cost_of_a_threshold_is_left_open(model):
    report = measure_speed(model, torch.rand(1, 3, 32, 32), [Mode.parse("2:<0.9")])
    assert [item.gmacs is None for item in report.measurements] == [False, True]
    assert [item.mac_ratio is None for item in report.measurements] == [False, True]
    assert report.measurements[1].images_per_second > 0


@pytest.fixture
def slow_pixels(model, monkeypatch):
    """A network whose time, on a clock of its own, is that of the pixels it sees; their sizes."""
    seen, clock = [], [0.0]

    def slow(images, mode, **options):
        seen.append(tuple(images.shape[2:]))
        clock[0] += images.shape[2] * images.shape[3] * 3e-6
        return SimpleNamespace(logits=images)

    monkeypatch.setattr(model, "forward", slow)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return seen


@pytest.mark.parametrize("window", [None, 64])
def test_modes_are_timed_for_whole_images(model, slow_pixels, window):
    """Of all the windows that a mode of that size cuts an image into."""
    model.config = replace(model.config, window=window, stride=window)
    predictor = Predictor(model)
    modes = [Mode.parse(text) for text in ("none", "2:0.5", "none size=64", "none size=192")]
    image = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    settings = SpeedSettings(rounds=3, warmup=1, threads=1, full_size=False)
    found = time_modes(predictor, image, modes, settings)
    assert [item.mode for item in found] == modes
    if window:
        assert set(slow_pixels) == {(64, 64)}
    else:
        assert set(slow_pixels) == {(128, 128), (64, 64), (192, 192)}
    work = [1, 1, 0.25, 2.25]
    for item, part in zip(found, work, strict=True):
        assert item.latency_ms == pytest.approx(part * 128 * 128 * 3e-3)
        assert item.latency_ms_p95 == pytest.approx(item.latency_ms)
        assert item.images_per_second == pytest.approx(1000 / item.latency_ms)
        assert item.speed_up == pytest.approx(1 / part)
        ratio = item.images_per_second / found[0].images_per_second
        assert item.speed_up == pytest.approx(ratio)
        macs = predictor.macs((128, 128), item.mode)
        assert item.gmacs == pytest.approx(macs / 1e9)
        assert item.mac_ratio == pytest.approx(predictor.macs((128, 128)) / macs)


def throughputs(model, monkeypatch, speeds):
    """A machine of such throughputs by batch size, out of memory beyond; the sizes it ran."""
    sizes = []

    def forward(images, full_size):
        if len(images) not in speeds:
            raise RuntimeError("not enough memory: you tried to allocate")
        sizes.append(len(images))

    def timed(runs, *_, **__):
        runs[0]()
        return np.array([[sizes[-1] / speeds[sizes[-1]]]])

    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(speed, "time_interleaved", timed)
    return sizes


@pytest.mark.parametrize(
    ("speeds", "limit", "best", "tried"),
    [
        ({1: 1, 2: 2, 4: 3, 8: 4}, 4, 4, [1, 2, 4]),  # To the limit.
        ({1: 1, 2: 2, 4: 3, 8: 4}, 7, 4, [1, 2, 4]),
        ({1: 1, 2: 2}, 256, 2, [1, 2]),  # To the end of memory.
        ({1: 1, 2: 2, 4: 1.8, 8: 9}, 256, 2, [1, 2, 4]),  # Until it clearly loses.
        ({1: 1, 2: 2, 4: 1.96, 8: 2.1, 16: 1}, 256, 8, [1, 2, 4, 8, 16]),  # Not at a small loss,
        ({1: 2, 2: 1.96, 4: 1.96, 8: 9}, 256, 1, [1, 2, 4]),  # but soon where nothing is gained.
    ],
)
def test_the_batch_of_best_throughput_is_found(model, monkeypatch, speeds, limit, best, tried):
    sizes = throughputs(model, monkeypatch, speeds)
    assert best_batch(model, torch.rand(1, 3, 8, 8), SpeedSettings(), limit) == best
    assert sizes == tried


def test_other_errors_do_not_end_the_search_of_the_batch(model, monkeypatch):
    def forward(images, **_):
        raise RuntimeError("sizes do not fit")

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(RuntimeError, match="do not fit"):
        best_batch(model, torch.rand(1, 3, 8, 8), SpeedSettings())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("none", 1),
        ("2:0.5", 2),
        ("2:0.5,4:0.5 exit", 3),
        ("1-3:~0.2", 4),
        ("1:0.3,2:~0.2,3:0.2", 4),
    ],
)
def test_each_stage_and_assembling_take_time(model, monkeypatch, text, seconds):
    """On a clock that moves on by a second whenever it is read."""
    clock = SimpleNamespace(perf_counter=partial(next, count()))
    monkeypatch.setattr(speed, "time", clock)
    assert pausing_seconds(model, torch.rand(1, 3, 64, 64), Mode.parse(text)) == seconds


def test_merging_takes_its_part_of_the_time(model):
    settings = SpeedSettings(rounds=1, warmup=0, full_size=False)
    modes = [Mode.parse(text) for text in ("1-3:~0.2", "1:0.3,2:~0.2,3:0.2 exit", "3:1 exit")]
    _, *found = measure_speed(model, torch.rand(1, 3, 64, 64), modes, settings).measurements
    assert [item.mode for item in found] == modes
    assert all(item.pausing_ratio > 0 and item.mac_ratio > 1 for item in found)


def test_pausing_is_timed_apart_from_blocks(model, monkeypatch):
    """A slow block is no part of it, a slow pause is."""
    images, mode = torch.rand(1, 3, 60, 64), Mode.parse("2:0.5,4:0.5 exit by=neighbours")

    def slowed(name):
        own = getattr(model, name)

        def slow(*args):
            time.sleep(0.04)
            return own(*args)

        with monkeypatch.context() as patch:
            patch.setattr(model, name, slow)
            return pausing_seconds(model, images, mode, repeats=3)

    assert slowed("run_block") < 0.04
    assert slowed("pause") >= 0.08
    assert slowed("assemble") >= 0.04


def test_peak_memory_sees_a_large_tensor():
    measured = peak_memory(lambda: torch.ones(25_000_000), CPU)
    if measured is None:
        pytest.skip("resident memory is known on Linux only")
    assert 90 < measured < 130


@pytest.mark.parametrize("full_size", [True, False])
def test_engines_take_turns_in_one_run(model, full_size):
    settings = SpeedSettings(rounds=2, warmup=1, threads=1, full_size=full_size)
    engines = {"torch": TorchEngine(model), "onnx": TorchEngine(model)}
    modes = [Mode.parse("2:0.5")]
    report = measure_speed(model, torch.rand(1, 3, 64, 64), modes, settings, engines)
    assert [(m.engine, str(m.mode)) for m in report.measurements] == [
        (engine, text) for engine in ("torch", "onnx") for text in ("none", "2:0.5")
    ]
    assert report.environment["engines"] == ["torch", "onnx"]
    assert (report.reference_ratio is None) == full_size
    for engine in ("torch", "onnx"):
        base, paused = (m for m in report.measurements if m.engine == engine)
        assert base.speed_up == 1
        expected = paused.images_per_second / base.images_per_second
        assert paused.speed_up == pytest.approx(expected)
        assert paused.mac_ratio > 1
        assert (paused.pausing_ratio is None) == (engine == "onnx")
