"""`paumer study ...`: the paper's figures, each with its data as CSV."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from paumer.arguments import at_least_one
from paumer.cli.console import print_table, progress_bar, say, set_threads
from paumer.cli.options import (
    BlocksOptions,
    EntropyOptions,
    FigureOptions,
    MethodOptions,
    TradeoffOptions,
)
from paumer.measurement import Measurement, baseline, read_measurements, speed_of, timed
from paumer.mode import UNPAUSED, Mode
from paumer.tables import write_csv
from paumer.training.options import Several, parse_size

study = App(name="study", help="Draw the paper's figures, each with its data as CSV.")
_LINES = "LABEL=FOLDER of each line; several folders with commas between them are averaged."
Sweeps = Annotated[tuple[str, ...], Several, Parameter(help=_LINES)]
Image = Annotated[Path, Parameter(help="An image file.")]
Sweep = Annotated[Path, Parameter(help="Folder of the sweep.")]
FIGURES = Path("figures")


@study.command
def method(image: Image, /, options: MethodOptions = MethodOptions()) -> None:  # noqa: B008
    """The method on an image: entropy, what pauses after each block, the result."""
    import numpy as np

    from paumer.data.images import read_image
    from paumer.loaded import load
    from paumer.study.illustration import illustrate
    from paumer.study.paper_figures import draw_method

    set_threads(options.threads)
    predictor = load(options.model, options.device)
    panels = illustrate(predictor, read_image(image), predictor.mode(options.mode))
    draw_method(panels, options.out / "method", math.log(len(predictor.classes)))
    rows = [
        {"map": panel.title, "row": row, "column": column, "entropy": float(value)}
        for panel in panels
        if panel.image.ndim == 2
        for (row, column), value in np.ndenumerate(panel.image)
        if value == value  # Paused patches have none.
    ]
    _finish(options.out / "method", rows)


@study.command
def tradeoff(sweeps: Sweeps, /, options: TradeoffOptions = TradeoffOptions()) -> None:  # noqa: B008
    """MIoU against images per second: criteria, decoders, early exit, ranges, weights, starts."""
    from paumer.study.paper_figures import draw_tradeoff

    series, segmenter = _series(sweeps), options.segmenter
    reference = baseline(timed(_mean_of(segmenter), segmenter)) if segmenter else None
    path = options.out / options.name
    draw_tradeoff(series, path, options.title, reference, options.pareto)
    _finish(path, _rows(series))


@study.command
def spline(  # noqa: D417
    sweeps: Sweeps, /, *, segmenter: str | None = None, most: float = 2.0, out: Path = FIGURES
) -> None:
    """The table of mIoU over throughput by a linear spline, in eight columns.

    Args:
        segmenter: FOLDER of a sweep of the plain Segmenter, to which differences are taken
            (default: each line's own unpaused point).
        most: The speed-up of the last column.
        out: Folder to write to.
    """
    from paumer.study.tradeoff import spline_table

    reference = baseline(_mean_of(segmenter)) if segmenter else None
    rows = []
    for label, items in _series(sweeps).items():
        columns = spline_table(items, reference, most=most)
        cells = [
            ("images/s", *(f"{column['images_per_second']:.2f}" for column in columns)),
            ("mIoU", *(_or_dash(column["miou"]) for column in columns)),
            ("difference", *(_or_dash(column["difference"], "+") for column in columns)),
        ]
        print_table([label, *(f"{column['speed_up']:.2f}x" for column in columns)], cells)
        rows += [{"label": label, **column} for column in columns]
    write_csv(out / "spline.csv", rows)
    say(f"wrote {out / 'spline.csv'}")


@study.command
def compare(  # noqa: D417
    sweeps: Sweeps,
    /,
    *,
    points: Path,
    dataset: str | None = None,
    options: FigureOptions = FigureOptions(),  # noqa: B008
) -> None:
    """Other models beside the Pareto front of ours.

    Args:
        points: A CSV with the columns model, family, miou (in %), images_per_second and source.
        dataset: Only rows with this in their column dataset.
    """
    from paumer.study.paper_figures import draw_comparison

    rows, series = _published(points, dataset), _series(sweeps)
    draw_comparison(rows, series, options.out / "compare", options.title)
    here = {"family": "paumer", "source": "measured here"}
    ours = [
        {"model": row["label"], **here, **row, "miou": 100 * row["miou"]} for row in _rows(series)
    ]
    _finish(options.out / "compare", [*rows, *ours])


@study.command
def entropy(options: EntropyOptions = EntropyOptions()) -> None:  # noqa: B008
    """Entropies of right and wrong patches after every second block, together and by class."""
    from paumer.data.datasets import open_dataset
    from paumer.data.samples import spread
    from paumer.loaded import load
    from paumer.study.paper_figures import draw_class_entropies, draw_entropies
    from paumer.study.uncertainty import block_rows, entropy_rows, read_heads, study_blocks

    fraction, out = options.fraction, options.out
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction:g}: give one above 0 and at most 1")
    set_threads(options.threads)
    dataset = open_dataset(options.data, options.split)
    predictor = load(options.model, options.device)
    indices = spread(len(dataset), max(1, round(fraction * len(dataset))))
    own = read_heads(options.heads, predictor.network) if options.heads else None
    with progress_bar("counting") as update:
        counts, confusions = study_blocks(predictor, dataset, indices, own, update)
    names = predictor.classes.names
    draw_entropies(counts, out / "entropy")
    draw_class_entropies(counts, names, out / "entropy_classes")
    write_csv(out / "entropy_classes.csv", entropy_rows(counts, names))
    write_csv(out / "blocks.csv", block_rows(confusions))
    _finish(out / "entropy", entropy_rows(counts))
    say(f"wrote {out}/entropy_classes.png, .svg and .csv, and blocks.csv")


@study.command
def blocks(options: BlocksOptions = BlocksOptions()) -> None:  # noqa: B008
    """Throughput against the number of pausing blocks, over all choices of blocks (predicted)."""
    import torch

    from paumer.loaded import load
    from paumer.model.build import build_model
    from paumer.model.pretrained import pick_device
    from paumer.study.cost import cached_cost, predict_speed
    from paumer.study.grids import count
    from paumer.study.paper_figures import draw_block_counts
    from paumer.study.speed import SpeedSettings, in_words

    where, model = pick_device(options.device), options.model
    network = load(model, where).weights() if model else build_model(options.backbone).to(where)
    width, height = parse_size(options.input)
    images = torch.randn(at_least_one(options.batch, "batch"), 3, height, width, device=where)
    settings = SpeedSettings(threads=options.threads)
    with progress_bar("timing parts") as update:
        table = cached_cost(network.eval(), images, settings, progress=update)
    modes = [Mode(pause=pause) for pause in count(network.backbone.depth, options.ratio)]
    found = {m.pause.blocks: predict_speed({None: table}, m) for m in (UNPAUSED, *modes)}
    unpaused = speed_of(found.pop(()))
    speeds: dict[int, list[float]] = {}
    for chosen, item in found.items():
        speeds.setdefault(len(chosen), []).append(speed_of(item))
    lines = {
        ", ".join(map(str, chosen)): [(k, speed_of(found[chosen[:k]])) for k in (1, 2, 3)]
        for chosen in ((3, 5, 7), (4, 7, 10))
        if chosen in found
    }
    path = options.out / "blocks"
    draw_block_counts(speeds, lines, unpaused, path, options.title or in_words(table.environment))
    _finish(path, [item.to_json() for item in found.values()])


@study.command
def one(sweep: Sweep, /, options: FigureOptions = FigureOptions()) -> None:  # noqa: B008
    """One pause over blocks and ratios, from a sweep of the grid `one`."""
    _draw_stages(sweep, 1, "one", "one_pause", options)


@study.command
def two(sweep: Sweep, /, options: FigureOptions = FigureOptions()) -> None:  # noqa: B008
    """The Pareto front of two pauses, from a sweep of the grid `two`."""
    _draw_stages(sweep, 2, "two", "two_pauses", options)


def _published(points: Path, dataset: str | None) -> list[dict[str, str]]:
    """The rows of a CSV of other models, each with all it needs, of one data set."""
    rows = []
    with points.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            if dataset not in (None, row.get("dataset")):
                continue
            for column in ("model", "family", "miou", "images_per_second", "source"):
                if not row.get(column):
                    raise ValueError(f'line {number} of "{points}" lacks its {column}')
                if column in ("miou", "images_per_second") and not _is_number(row[column]):
                    raise ValueError(
                        f'line {number} of "{points}": {column} is "{row[column]}", not a number'
                    )
            rows.append(row)
    several = sorted({row.get("dataset") or "" for row in rows})
    if not rows:
        raise ValueError(f'"{points}" has no row{f" of {dataset}" if dataset else ""}')
    if len(several) > 1:
        raise ValueError(f'"{points}" has {", ".join(several)}: choose one with --dataset')
    return rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _series(sweeps: Sequence[str]) -> dict[str, list[Measurement]]:
    """The measurements of each LABEL=FOLDER."""
    found: dict[str, list[Measurement]] = {}
    for text in sweeps:
        label, mark, folders = text.partition("=")
        if not mark:
            raise ValueError(f'"{text}" is not LABEL=FOLDER, such as entropy=runs/sweep')
        if label in found:
            raise ValueError(f'two lines are called "{label}": give each its own name')
        found[label] = timed(_mean_of(folders), folders)
    return found


def _mean_of(folders: str) -> list[Measurement]:
    from paumer.study.tradeoff import average

    return average([read_measurements(Path(folder)) for folder in folders.split(",")])


def _draw_stages(sweep: Path, stages: int, grid: str, name: str, options: FigureOptions) -> None:
    """Draw the measurements of a sweep with that many pauses, and the one without."""
    from paumer.study.paper_figures import draw_pauses

    items = [m for m in read_measurements(sweep) if len(m.mode.pause.stages) in (0, stages)]
    if len(items) < 2:
        raise ValueError(f'"{sweep}" lacks such modes: sweep with --grid {grid}')
    found = timed(items, sweep)
    draw_pauses(found, stages, options.out / name, options.title)
    _finish(options.out / name, [item.to_json() for item in found])


def _rows(series: dict[str, list[Measurement]]) -> list[dict[str, Any]]:
    return [{"label": label, **m.to_json()} for label, items in series.items() for m in items]


def _or_dash(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.2f}"


def _finish(stem: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_csv(stem.with_name(f"{stem.name}.csv"), rows)
    say(f"wrote {stem}.png, .svg and .csv")
