"""`paumer bench`: the speed of pause configurations."""

from typing import TYPE_CHECKING

from paumer.commands.console import (
    at_least_one,
    console,
    errors,
    new_table,
    pick_device,
    progress_bar,
    say,
    spell_points,
    write_csv,
    write_json,
)
from paumer.options import BenchOptions, parse_size
from paumer.pause_config import parse_pauses

if TYPE_CHECKING:
    from torch import Tensor

    from paumer.model.segmenter import PausingSegmenter
    from paumer.study.speed import SpeedReport


def bench(options: BenchOptions = BenchOptions()) -> None:  # noqa: B008
    """Measure the speed of pause configurations in one interleaved run."""
    import torch

    from paumer.study.speed import SpeedSettings, best_batch, measure_speed

    pauses = parse_pauses(_configurations(options))
    width, height = parse_size(options.size)
    model = _bench_model(options, (height, width))
    device = torch.device(pick_device(options.device))
    model.to(device).eval()
    for pause in pauses:
        model.check(pause, options.early_exit and bool(pause))
    settings = SpeedSettings(
        rounds=options.rounds,
        warmup=options.warmup,
        threads=options.threads,
        precision=options.precision,
        full_size=options.upsample,
        engines=tuple(dict.fromkeys(options.engine)),
        early_exit=options.early_exit,
        criterion=options.criterion or "entropy",
    )
    images = _bench_images(options, model, (height, width)).to(device)
    if options.batch == "auto":
        batch = best_batch(model, images[:1], settings)
        say(f"best batch size: {batch}")
    else:
        batch = at_least_one(options.batch, "batch")
    images = images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]
    with progress_bar("timing") as update:
        report = measure_speed(model, images, pauses, settings, update)
    _print_speed(report)
    _write_speed(report, options)


def _configurations(options: BenchOptions) -> list[str]:
    """What to time; of a model with operating points they may be named."""
    if options.model is None:
        return list(options.pause)
    from paumer.model.weights import find_model
    from paumer.predict import read_points

    points = read_points(find_model(options.model))
    return spell_points(options.pause, points, options.early_exit, options.criterion)


def _bench_model(options: BenchOptions, size: tuple[int, int]) -> "PausingSegmenter":
    from paumer.model.segmenter import PausingSegmenter, build_model

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
    from paumer.data.transforms import normalise
    from paumer.media import SUFFIXES, read_image

    assert model.config
    files = sorted(p for p in options.images.glob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f'no pictures in "{options.images}"')
    mean, std = model.config.mean, model.config.std
    wanted = 8 if options.batch == "auto" else options.batch
    pictures = (normalise(read_image(file), mean, std) for file in files[:wanted])
    scaled = [torch.nn.functional.interpolate(p[None], size, mode="bilinear") for p in pictures]
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
    eager = {m.pause: m.images_per_second for m in report.measurements if m.engine == "torch"}
    titles = ("pause", "images/s", "median ms", "p95 ms", "speed-up", "multiply-adds", "reached")
    table = new_table(*titles, "pausing" if engine == "torch" else "against torch", "peak MB")
    reached, slower = [], []
    for item in items:
        assert item.images_per_second
        assert item.speed_up
        assert item.mac_ratio
        reached.append(item.speed_up / item.mac_ratio)
        base, share, memory = eager.get(item.pause), item.pausing_share, item.peak_memory_mb
        last = f"{item.images_per_second / base:.2f}x" if base else ""
        table.add_row(
            str(item.pause),
            f"{item.images_per_second:.2f}",
            f"{item.latency_ms:.1f}",
            f"{item.latency_ms_p95:.1f}",
            f"{item.speed_up:.2f}x",
            f"{item.mac_ratio:.2f}x",
            f"{reached[-1]:.2f}",
            last if share is None else f"{100 * share:.1f}%",
            "" if memory is None else f"{memory:.0f}",
        )
        if item.pause and item.speed_up < 1:
            slower.append(str(item.pause))
    console.print(table)
    if len(reached) > 1:
        say(
            f"reached of the multiply-add speed-up: lowest {min(reached[1:]):.3f}, "
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
        title = f"{options.model or options.backbone}, {options.size}, {where['device']}"
        engine = where["engines"][0]
        draw_speed([m for m in report.measurements if m.engine == engine], title, options.plot)
    for path in (options.json, options.csv, options.plot):
        if path:
            say(f"wrote {path}")
