"""Images per second, latency and memory of pause configurations, in one interleaved run."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paumer.criteria import name_of, named, on_grid
from paumer.engines import make_engine
from paumer.memory import give_back_memory
from paumer.model.decoders import upsample
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter, pad_to_patches
from paumer.pause_config import PauseConfig
from paumer.predict import Inference
from paumer.study.tradeoff import Measurement

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """How speed is measured; several engines run in turns."""

    rounds: int = 15
    warmup: int = 2
    threads: int | None = None
    precision: str = "fp32"
    full_size: bool = True
    engines: tuple[str, ...] = ("torch",)
    early_exit: bool = False
    criterion: str = "entropy"

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("warmup", 0), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}: give at least {least}")
        named(self.criterion)


@dataclass(frozen=True)
class SpeedReport:
    """Measured configurations, and timm's own forward plus the decoder beside them.

    ``reference_ratio`` is the time of timm's forward over that of the unpaused segmenter, from
    the fastest rounds of the same run: 1.00 means that being able to pause costs nothing.
    """

    measurements: tuple[Measurement, ...]
    reference_ratio: float | None
    environment: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "environment": self.environment,
            "reference_ratio": self.reference_ratio,
            "measurements": [measurement.to_json() for measurement in self.measurements],
        }


def measure_speed(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    pauses: Sequence[PauseConfig],
    settings: SpeedSettings | None = None,
    progress: Progress | None = None,
) -> SpeedReport:
    """The speed of each configuration on one batch, next to no pausing, which always leads.

    Every round runs every configuration once, so that a slow moment of the machine touches all.
    """
    settings = settings or SpeedSettings()
    configs = tuple(dict.fromkeys([NO_PAUSE, *pauses]))
    model = model.eval()
    size = (images.shape[2], images.shape[3])
    exits = [settings.early_exit and bool(config) for config in configs]
    costs = [model.multiply_adds(size, c, e) for c, e in zip(configs, exits, strict=True)]
    whole = all(side % p == 0 for side, p in zip(size, model.backbone.patch, strict=True))
    compare = whole and not settings.full_size and "torch" in settings.engines
    with TemporaryDirectory() as folder, setting(images.device, settings):
        runs: dict[tuple[str, PauseConfig], Callable[[], Any]] = {}
        for engine in settings.engines:
            call = _caller(engine, model, images, settings, Path(folder))
            for config, exit_ in zip(configs, exits, strict=True):
                runs[engine, config] = partial(call, config, exit_)
        calls = list(runs.values())
        if compare:
            calls.append(partial(_reference, model, images))
        seconds = time_interleaved(calls, images.device, settings.rounds, settings.warmup, progress)
        memory = [peak_memory(call, images.device) for call in runs.values()]
        extra = {
            config: pausing_seconds(model, images, config, criterion=settings.criterion)
            for config in configs
            if config and "torch" in settings.engines
        }
    fastest = dict(zip(runs, seconds.min(0).tolist(), strict=False))
    where = environment(images, settings)
    measurements = [
        Measurement(
            pause=config,
            engine=engine,
            early_exit=settings.early_exit and bool(config),
            criterion=settings.criterion if config else "entropy",
            images_per_second=len(images) / best,
            latency_ms=1000 * float(np.median(seconds[:, number])),
            latency_ms_p95=1000 * float(np.percentile(seconds[:, number], 95)),
            speed_up=fastest[engine, NO_PAUSE] / best,
            mac_ratio=costs[0] / costs[number % len(configs)],
            gmacs=costs[number % len(configs)] / 1e9,
            pausing_share=extra.get(config, 0.0) / best if engine == "torch" else None,
            peak_memory_mb=memory[number],
            where=in_words(where),
            when=where["when"],
        )
        for number, ((engine, config), best) in enumerate(fastest.items())
    ]
    ratio = seconds.min(0)[-1] / fastest["torch", NO_PAUSE] if compare else None
    return SpeedReport(tuple(measurements), ratio, where)


def _caller(
    engine: str,
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    settings: SpeedSettings,
    folder: Path,
) -> Callable[[PauseConfig, bool], Any]:
    """A function that runs one batch in an engine at a configuration, with early exit or not."""
    who = named(settings.criterion)
    if engine == "torch":
        return lambda config, exits: model(
            images, config, who, early_exit=exits, full_size=settings.full_size
        )
    runner = make_engine(engine, model, settings.threads, folder)

    def call(config: PauseConfig, exits: bool) -> Tensor:
        ((_, logits, _),) = runner.answers(images, [(config, exits)], who)
        return upsample(logits, tuple(images.shape[2:])) if settings.full_size else logits

    return call


def _reference(model: PausingSegmenter, images: Float[Tensor, "b 3 h w"]) -> Tensor:
    """Timm's own forward plus the decoder."""
    features = model.backbone.vit.forward_features(images)[:, model.backbone.prefix :]
    logits: Tensor = model.decoder(features, model.grid(images))
    return logits


def measure_pictures(
    model: PausingSegmenter,
    pictures: Sequence[Float[Tensor, "windows 3 h w"]],
    ways: Sequence[Inference],
    settings: SpeedSettings,
    progress: Progress | None = None,
) -> list[Measurement]:
    """The speed of some ways (who pauses and exits early, and by what), averaged over pictures.

    Pictures run one by one, window by window; the first way is what speed-ups are taken to.
    """

    def run(way: Inference) -> None:
        for windows in pictures:
            for window in windows:
                model(
                    window[None],
                    way.pause,
                    way.criterion,
                    way.early_exit,
                    full_size=settings.full_size,
                )

    device, model = pictures[0].device, model.eval()
    with setting(device, settings):
        seconds = time_interleaved(
            [partial(run, way) for way in ways],
            device,
            settings.rounds,
            settings.warmup,
            progress,
        ) / len(pictures)
    best = seconds.min(0)
    where = environment(pictures[0][:1], settings)
    return [
        Measurement(
            pause=way.pause,
            early_exit=way.early_exit,
            criterion=name_of(way.criterion) or "another",
            images_per_second=float(1 / best[number]),
            latency_ms=float(1000 * np.median(seconds[:, number])),
            latency_ms_p95=float(1000 * np.percentile(seconds[:, number], 95)),
            speed_up=float(best[0] / best[number]),
            where=f"{in_words(where)}, mean of {len(pictures)}",
            when=where["when"],
        )
        for number, way in enumerate(ways)
    ]


def time_interleaved(
    runs: Sequence[Callable[[], Any]],
    device: torch.device,
    rounds: int,
    warmup: int,
    progress: Progress | None = None,
) -> Float[np.ndarray, "rounds runs"]:
    """Seconds of each run in each round; every round starts with another one."""
    seconds = np.empty((rounds, len(runs)))
    for number in range(warmup + rounds):
        for place in range(len(runs)):
            chosen = (place + number) % len(runs)
            _synchronise(device)
            begin = time.perf_counter()
            runs[chosen]()
            _synchronise(device)
            if number >= warmup:
                seconds[number - warmup, chosen] = time.perf_counter() - begin
            if progress:
                progress(number * len(runs) + place + 1, (warmup + rounds) * len(runs))
    return seconds


def best_batch(
    model: PausingSegmenter,
    image: Float[Tensor, "1 3 h w"],
    settings: SpeedSettings,
    limit: int = 256,
) -> int:
    """The batch size with the best unpaused throughput, by doubling until it no longer gains."""
    best_size, best_speed, size = 1, 0.0, 1
    quick = replace(settings, rounds=3, warmup=1)
    while size <= limit:
        images = image.expand(size, -1, -1, -1).contiguous()
        try:
            with setting(images.device, quick):
                call = lambda: model(images, full_size=quick.full_size)  # noqa: E731, B023
                seconds = time_interleaved([call], images.device, quick.rounds, quick.warmup)
        except RuntimeError as error:  # Out of memory, which has no class of its own on the CPU.
            if "memory" not in str(error).lower():
                raise
            break
        speed = size / float(seconds.min())
        if speed > best_speed:
            best_size, best_speed = size, speed
        elif speed < 0.95 * best_speed or size >= 4 * best_size:
            break
        size *= 2
    return best_size


def pausing_seconds(
    model: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    config: PauseConfig,
    repeats: int = 6,
    criterion: str = "entropy",
) -> float:
    """Seconds spent on pausing itself: scoring, choosing, gathering and assembling."""
    fastest = float("inf")
    images = pad_to_patches(images, model.backbone.patch)
    judge = on_grid(named(criterion), model.grid(images))
    for _ in range(repeats):
        walk, done, spent = model.start(images), 0, 0.0
        for block, amount in config.stages:
            walk = model.advance(walk, done, block)
            _synchronise(images.device)
            begin = time.perf_counter()
            (walk,) = model.pause(walk, block, amount, judge)
            _synchronise(images.device)
            spent += time.perf_counter() - begin
            done = block
        begin = time.perf_counter()
        model.assemble(walk)
        _synchronise(images.device)
        fastest = min(fastest, spent + time.perf_counter() - begin)
    return fastest


def peak_memory(call: Callable[[], Any], device: torch.device) -> float | None:
    """Megabytes that one call needs at its peak beyond what was there before it.

    On the CPU this is resident memory and known on Linux only.
    """
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


def environment(images: Float[Tensor, "b 3 h w"], settings: SpeedSettings) -> dict[str, Any]:
    """Where, when and how something was measured."""
    return {
        **machine(images.device),
        "threads": settings.threads or torch.get_num_threads(),
        "size": [images.shape[2], images.shape[3]],
        "batch": len(images),
        "precision": settings.precision,
        "full_size": settings.full_size,
        "engines": list(settings.engines),
        "rounds": settings.rounds,
    }


def in_words(where: dict[str, Any]) -> str:
    """An environment in one line."""
    height, width = where["size"]
    return (
        f"{where['device']}, {where['threads']} thread{'s' * (where['threads'] != 1)}, "
        f"{where['precision']}, {width}x{height}, batch {where['batch']}, "
        f"{'with' if where['full_size'] else 'without'} the final upsampling"
    )


def machine(device: torch.device | None = None) -> dict[str, Any]:
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
    """Threads, precision and inference mode as asked for, and as they were afterwards."""
    threads = torch.get_num_threads()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    autocast = (
        torch.autocast(device.type, dtype=torch.bfloat16)
        if settings.precision == "bf16"
        else nullcontext()
    )
    try:
        with torch.inference_mode(), autocast:
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
