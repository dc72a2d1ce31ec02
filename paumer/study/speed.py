"""Images per second, latency and memory of modes, in one interleaved run."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from paumer.arguments import check_fields
from paumer.data.transforms import normalise
from paumer.inference.engines import Engine, TorchEngine
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import scaled_size
from paumer.measurement import Measurement, per_image
from paumer.memory import give_back_memory
from paumer.mode import UNPAUSED, Mode, check_runnable
from paumer.model.config import ModelConfig
from paumer.model.decoders import upsample
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.pause_config import Threshold
from paumer.progress import Progress


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """How speed is measured."""

    rounds: int = 15
    warmup: int = 2
    threads: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    full_size: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("rounds", 1), ("warmup", 0), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}: give at least {least}")


@dataclass(frozen=True)
class SpeedReport:
    """Measured modes, and timm's own forward plus the decoder beside them.

    ``reference_ratio`` is the time of timm's forward over that of the unpaused segmenter, from
    the fastest rounds of the same run: 1.00 means that being able to pause costs nothing.
    """

    measurements: tuple[Measurement, ...]
    reference_ratio: float | None
    environment: dict[str, Any]

    def __repr__(self) -> str:
        return f"SpeedReport(measurements: {len(self.measurements)}; {in_words(self.environment)})"

    def to_json(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "environment": self.environment,
            "reference_ratio": self.reference_ratio,
            "measurements": [measurement.to_json() for measurement in self.measurements],
        }


def measure_speed(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    modes: Sequence[Mode],
    settings: SpeedSettings | None = None,
    engines: Mapping[str, Engine] | None = None,
    progress: Progress | None = None,
    at_size: Callable[[int], Float[Tensor, "b 3 _h _w"]] | None = None,
) -> SpeedReport:
    """The speed of each mode on one batch, next to no pausing, which always leads.

    Every round runs every mode in every engine (default: torch) once: a slow moment of the machine
    touches all. A mode of another size runs on what ``at_size`` gives, by default on scaled images.
    """
    settings, device = settings or SpeedSettings(), images.device
    modes = list(dict.fromkeys([UNPAUSED, *modes]))
    model = model.eval()
    engines = engines or {"torch": TorchEngine(model)}
    for mode in modes:
        check_runnable(mode)
    scale = at_size or partial(_scaled, images)
    inputs = {m: (scale(m.size) if m.size else images, replace(m, size=None)) for m in modes}
    macs = {m: model.macs(_size(inputs[m][0]), inputs[m][1]) for m in modes if has_fixed_cost(m)}
    size = _size(images) if settings.full_size else None
    runs: dict[tuple[str, Mode], Callable[[], Tensor]] = {
        (name, mode): partial(_run, model if name == "torch" else engine, *inputs[mode], size)
        for name, engine in engines.items()
        for mode in modes
    }
    whole = all(side % p == 0 for side, p in zip(_size(images), model.backbone.patch, strict=True))
    if whole and size is None and "torch" in engines:
        runs["timm", UNPAUSED] = partial(_reference, model, images)
    with setting(device, settings):
        calls = list(runs.values())
        seconds = time_interleaved(calls, device, settings.rounds, settings.warmup, progress)
        times = {key: column.tolist() for key, column in zip(runs, seconds.T, strict=True)}
        timm, where = times.pop(("timm", UNPAUSED), None), environment(images, settings, engines)
        pausing = {
            m: pausing_seconds(model, *inputs[m]) for m in modes if m.stages and "torch" in engines
        }
        memory = {key: peak_memory(runs[key], device) for key in times}
    measurements = [
        Measurement(
            mode=mode,
            engine=engine,
            images_per_second=len(images) / min(rounds),
            latency_ms=1000 * float(np.median(rounds)),
            latency_ms_p95=1000 * float(np.percentile(rounds, 95)),
            speed_up=min(times[engine, UNPAUSED]) / min(rounds),
            mac_ratio=macs[UNPAUSED] / macs[mode] if mode in macs else None,
            gmacs=macs[mode] / 1e9 if mode in macs else None,
            pausing_ratio=pausing.get(mode, 0.0) / min(rounds) if engine == "torch" else None,
            peak_memory_mb=memory[engine, mode],
            where=in_words(where),
            when=where["when"],
        )
        for (engine, mode), rounds in times.items()
    ]
    ratio = min(timm) / min(times["torch", UNPAUSED]) if timm else None
    return SpeedReport(tuple(measurements), ratio, where)


def has_fixed_cost(mode: Mode) -> bool:
    """Whether the cost of a mode is the same for all images: by threshold it is not."""
    return not any(isinstance(amount, Threshold) for _, amount in mode.pause.stages)


def _scaled(images: Tensor, side: int) -> Float[Tensor, "b 3 _h _w"]:
    """The images with their shorter side of that length."""
    size = scaled_size(_size(images), side)
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _size(images: Tensor) -> tuple[int, int]:
    return images.shape[2], images.shape[3]


def _run(
    runner: PausingSegmenter | Engine, images: Tensor, mode: Mode, size: tuple[int, int] | None
) -> Tensor:
    """The logits of one batch, enlarged to ``size`` if there is one."""
    if isinstance(runner, PausingSegmenter):
        logits: Tensor = runner(images, mode, full_size=False).logits
    else:
        ((_, logits, *_),) = runner.answers(images, [mode], {})
    return logits if size is None else upsample(logits, size)


def _reference(model: PausingSegmenter, images: Float[Tensor, "b 3 h w"]) -> Tensor:
    """Timm's own forward plus the decoder."""
    features = model.backbone.vit.forward_features(images)[:, model.backbone.prefix :]
    logits: Tensor = model.decoder(features, model.grid(images))
    return logits


def time_modes(
    predictor: Predictor,
    image: UInt8[np.ndarray, "h w 3"],
    modes: Sequence[Mode],
    settings: SpeedSettings | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> list[Measurement]:
    """The speed of modes in one interleaved run, of whole images like this one."""

    def seen(side: int | None) -> Float[Tensor, "b 3 _h _w"]:
        return predictor.network_inputs(image, Mode(size=side))[:1].repeat(batch, 1, 1, 1)

    engines = {predictor.engine.name: predictor.engine}
    report = measure_speed(
        predictor.network, seen(None), modes, settings, engines, progress, at_size=seen
    )
    size = (image.shape[0], image.shape[1])
    whole = predictor.windows(size)
    return [per_image(m, predictor.windows(size, m.mode), whole) for m in report.measurements]


def time_interleaved(
    runs: Sequence[Callable[[], object]],
    device: torch.device,
    rounds: int,
    warmup: int,
    progress: Progress | None = None,
) -> Float[np.ndarray, "rounds runs"]:
    """Seconds of each run in each round; every round starts with another one."""
    seconds = np.empty((rounds, len(runs)))
    for number in range(warmup + rounds):
        for turn in range(len(runs)):
            chosen = (turn + number) % len(runs)
            _synchronise(device)
            begin = time.perf_counter()
            runs[chosen]()
            _synchronise(device)
            if number >= warmup:
                seconds[number - warmup, chosen] = time.perf_counter() - begin
            if progress:
                progress(number * len(runs) + turn + 1, (warmup + rounds) * len(runs))
    return seconds


def best_batch(
    model: PausingSegmenter,
    image: Float[Tensor, "1 3 h w"],
    settings: SpeedSettings,
    limit: int = 256,
) -> int:
    """The batch size with the best unpaused throughput, by doubling until it no longer gains."""
    best_size, best_speed = 1, 0.0
    for size in (2**power for power in range(limit.bit_length())):
        images = image.expand(size, -1, -1, -1).contiguous()
        try:
            with setting(images.device, settings):
                call = partial(model, images, full_size=settings.full_size)
                seconds = time_interleaved([call], images.device, rounds=3, warmup=1)
        except RuntimeError as error:  # Out of memory, which has no class of its own on the CPU.
            if "memory" not in str(error).lower():
                raise
            break
        speed = size / float(seconds.min())
        if speed > best_speed:
            best_size, best_speed = size, speed
        elif speed < 0.95 * best_speed or size >= 4 * best_size:
            break
    return best_size


def pausing_seconds(
    model: PausingSegmenter, images: Float[Tensor, "b 3 h w"], mode: Mode, repeats: int = 6
) -> float:
    """Seconds spent on pausing and merging themselves, and on assembling what they left."""
    fastest = float("inf")
    images = pad_to_patches(images, model.backbone.patch)
    branch = model.plan([mode], model.grid(images), {})
    for _ in range(repeats):
        spent, begin = 0.0, time.perf_counter()
        for step in model.steps(images, branch):
            _synchronise(images.device)
            spent += step.paused * (time.perf_counter() - begin)
            begin = time.perf_counter()
        for walk in step.walks:
            _ = walk.come_apart() if walk.merges else model.assemble(walk)
        _synchronise(images.device)
        fastest = min(fastest, spent + time.perf_counter() - begin)
    return fastest


def peak_memory(call: Callable[[], object], device: torch.device) -> float | None:
    """Megabytes that a call needs at its peak; on the CPU resident ones, known on Linux only."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return float(torch.cuda.max_memory_allocated(device) - before) / 1e6
    try:
        give_back_memory()
        # Writing 5 makes Linux forget the process's highest resident size so far.
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_kilobytes("VmRSS")
        call()
        return max(0, _status_kilobytes("VmHWM") - before) / 1000
    except (OSError, KeyError):
        return None


def environment(
    images: Float[Tensor, "b 3 h w"], settings: SpeedSettings, engines: Iterable[str] = ("torch",)
) -> dict[str, Any]:
    """Where, when and how something was measured."""
    return {
        **machine(images.device),
        "threads": settings.threads or torch.get_num_threads(),
        "size": list(images.shape[2:]),
        "batch": len(images),
        "precision": settings.precision,
        "full_size": settings.full_size,
        "engines": list(engines),
        "rounds": settings.rounds,
    }


def in_words(where: Mapping[str, Any]) -> str:
    """An environment in one line."""
    height, width = where["size"]
    return (
        f"{where['device']}, {where['threads']} thread{'s' * (where['threads'] != 1)}, "
        f"{where['precision']}, {width}x{height}, batch {where['batch']}, "
        f"{'with' if where['full_size'] else 'without'} the final upsampling"
    )


def machine(device: torch.device | None = None) -> dict[str, object]:
    """The hardware and versions at hand, and the time."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "device_type": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "timm", "numpy", "paumer")},
    }


@contextmanager
def setting(device: torch.device, settings: SpeedSettings) -> Iterator[None]:
    """Inside, threads, precision and inference mode are as set; afterwards as they were."""
    threads = torch.get_num_threads()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    half = torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")
    try:
        with torch.inference_mode(), half:
            yield
    finally:
        torch.set_num_threads(threads)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status_kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0])


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def network_inputs(
    images: Sequence[UInt8[np.ndarray, "_ _ 3"]], size: tuple[int, int], config: ModelConfig
) -> Float[Tensor, "b 3 h w"]:
    """Images as the network sees them, all scaled to one size."""
    normal = [normalise(image, config.mean, config.std)[None] for image in images]
    return torch.cat([F.interpolate(image, size, mode="bilinear") for image in normal])
