"""`paumer bench`: the speed of modes."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from paumer.cli.console import (
    at_least_one,
    console,
    errors,
    new_table,
    pick_device,
    progress_bar,
    say,
    write_csv,
    write_json,
)
from paumer.cli.options import BenchOptions
from paumer.mode import Mode, check_runnable, parse_modes
from paumer.training.options import parse_size

if TYPE_CHECKING:
    from torch import Tensor

    from paumer.model.segmenter import PausingSegmenter
    from paumer.study.speed import SpeedReport


def bench(options: BenchOptions = BenchOptions()) -> None:  # noqa: B008
    """Measure the speed of modes in one interleaved run."""
    import torch

    from paumer.exporting.onnx import export_onnx
    from paumer.inference.engines import Engine, make_engine
    from paumer.study.speed import SpeedSettings, best_batch, measure_speed

    modes = parse_modes(options.mode, _points(options))
    width, height = parse_size(options.input)
    model = _bench_model(options, (height, width))
    device = torch.device(pick_device(options.device))
    model.to(device).eval()
    for mode in modes:
        check_runnable(mode)
        model.macs((height, width), replace(mode, size=None))  # Raises by threshold too.
    settings = SpeedSettings(
        rounds=options.rounds,
        warmup=options.warmup,
        threads=options.threads,
        precision=options.precision,
        full_size=options.upsample,
    )
    images = _bench_images(options, model, (height, width)).to(device)
    if options.batch == "auto":
        batch = best_batch(model, images[:1], settings)
        say(f"best batch size: {batch}")
    else:
        batch = at_least_one(options.batch, "batch")
    images = images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]
    with TemporaryDirectory() as folder, progress_bar("timing") as update:
        engines: dict[str, Engine] = {
            name: make_engine(name, model, options.threads, export_onnx, Path(folder))
            for name in dict.fromkeys(options.engine)
        }
        report = measure_speed(model, images, modes, settings, engines, update)
    _print_speed(report)
    _write_speed(report, options)


def _points(options: BenchOptions) -> dict[str, Mode]:
    """Operating points, which may be named where a model is given."""
    if options.model is None:
        return {}
    from paumer.inference.points import read_points
    from paumer.model.directory import find_model

    return {name: point.mode for name, point in read_points(find_model(options.model)).items()}


def _bench_model(options: BenchOptions, size: tuple[int, int]) -> "PausingSegmenter":
    from paumer.model.build import build_model
    from paumer.model.segmenter import PausingSegmenter

    if options.model is not None:
        return PausingSegmenter.from_pretrained(options.model)
    # Position embeddings are stored for the size, unless it is smaller than any real patch grid.
    stored = size if min(size) >= 32 else None
    return build_model(options.backbone, options.decoder, options.classes, image_size=stored)


def _bench_images(
    options: BenchOptions, model: "PausingSegmenter", size: tuple[int, int]
) -> "Tensor":
    import torch

    if options.images is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(1, 3, *size, generator=generator)
    from paumer.data.images import SUFFIXES, read_image
    from paumer.data.transforms import normalise

    assert model.config
    files = sorted(p for p in options.images.glob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f'no images in "{options.images}"')
    mean, std = model.config.mean, model.config.std
    wanted = 8 if options.batch == "auto" else options.batch
    images = (normalise(read_image(file), mean, std) for file in files[:wanted])
    scaled = [torch.nn.functional.interpolate(p[None], size, mode="bilinear") for p in images]
    return torch.cat(scaled)


def _print_speed(report: "SpeedReport") -> None:
    from paumer.study.speed import in_words

    where = report.environment
    say(f"{in_words(where)}, best of {where['rounds']} interleaved rounds")
    engines = where["engines"]
    for engine in engines:
        if len(engines) > 1:
            say(f"engine {engine}:")
        _print_engine(report, engine)
    if report.reference_ratio is not None:
        say(
            f"timm's own forward plus the decoder takes {report.reference_ratio:.3f} "
            f"of the unpaused time"
        )


def _print_engine(report: "SpeedReport", engine: str) -> None:
    items = [item for item in report.measurements if item.engine == engine]
    eager = {m.mode: m.images_per_second for m in report.measurements if m.engine == "torch"}
    titles = ("mode", "images/s", "median ms", "p95 ms", "speed-up", "MACs", "efficiency")
    table = new_table(*titles, "pausing" if engine == "torch" else "against torch", "peak MB")
    reached, slower = [], []
    for item in items:
        assert item.images_per_second
        assert item.speed_up
        assert item.mac_ratio
        reached.append(item.speed_up / item.mac_ratio)
        base, share, memory = eager.get(item.mode), item.pausing_ratio, item.peak_memory_mb
        last = f"{item.images_per_second / base:.2f}x" if base else ""
        table.add_row(
            str(item.mode),
            f"{item.images_per_second:.2f}",
            f"{item.latency_ms:.1f}",
            f"{item.latency_ms_p95:.1f}",
            f"{item.speed_up:.2f}x",
            f"{item.mac_ratio:.2f}x",
            f"{reached[-1]:.2f}",
            last if share is None else f"{100 * share:.1f}%",
            "" if memory is None else f"{memory:.0f}",
        )
        if item.mode.pause and item.speed_up < 1:
            slower.append(str(item.mode))
    console.print(table)
    if len(reached) > 1:
        say(
            f"efficiency (measured over theoretical speed-up): lowest {min(reached[1:]):.3f}, "
            f"mean {sum(reached[1:]) / len(reached[1:]):.3f}"
        )
    if slower:
        errors.print(f"warning: slower than no pausing: {', '.join(slower)}", highlight=False)


def _write_speed(report: "SpeedReport", options: BenchOptions) -> None:
    if options.json:
        write_json(options.json, report.to_json())
    if options.csv:
        write_csv(options.csv, [item.to_json() for item in report.measurements])
    if options.plot:
        from paumer.study.figures import draw_speed

        where = report.environment
        title = f"{options.model or options.backbone}, {options.input}, {where['device']}"
        engine = where["engines"][0]
        draw_speed([m for m in report.measurements if m.engine == engine], title, options.plot)
    for path in (options.json, options.csv, options.plot):
        if path:
            say(f"wrote {path}")
