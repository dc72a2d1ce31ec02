"""`paumer study ...`: the paper's figures, each with its data as CSV beside it."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App

from paumer.commands.console import (
    at_least_one,
    console,
    new_table,
    pick_device,
    progress_bar,
    say,
    write_csv,
)
from paumer.options import BUILT_IN, Several

if TYPE_CHECKING:
    from paumer.study.tradeoff import Measurement

study = App(name="study", help="Draw the paper's figures, each with its data as CSV beside it.")
Sweeps = Annotated[tuple[str, ...], Several]


@study.command
def method(
    picture: Path,
    /,
    *,
    model: str = BUILT_IN,
    pause: str = "3:0.4,5:0.4,7:0.4",
    out: Path = Path("figures"),
    device: str = "auto",
) -> None:
    """The method on a picture: entropy, who pauses after each block, the result.

    Parameters
    ----------
    picture
        A picture file.
    model
        A model directory, a training run, a built-in name or a hub id.
    pause
        A configuration, or the name of an operating point.
    out
        Folder to write to.
    device
        cpu, cuda, or auto.
    """
    from paumer.media import read_image
    from paumer.predict import load
    from paumer.study.illustration import illustrate
    from paumer.study.paper_figures import draw_method

    predictor = load(model, pick_device(device))
    panels = illustrate(predictor, read_image(picture), predictor.way(pause))
    draw_method(panels, out / "method", math.log(len(predictor.classes)))
    maps = [panel for panel in panels if panel.image.ndim == 2]
    rows = [
        {"map": panel.title, "row": row, "column": column, "entropy": float(value)}
        for panel in maps
        for row, line in enumerate(panel.image)
        for column, value in enumerate(line)
        if value == value  # Paused patches have none.
    ]
    _finish(out / "method", rows)


@study.command
def tradeoff(
    sweeps: Sweeps,
    /,
    *,
    segmenter: str | None = None,
    skyline: bool = False,
    title: str = "",
    name: str = "tradeoff",
    out: Path = Path("figures"),
) -> None:
    """MIoU against images per second: criteria, decoders, early exit, ranges, weights, starts.

    Parameters
    ----------
    sweeps
        LABEL=FOLDER of each line; several folders with commas between them are averaged.
    segmenter
        FOLDER of a sweep of the plain Segmenter: its unpaused point is marked.
    skyline
        Only what no other configuration of the line beats.
    title
        Title of the figure.
    name
        Name of the files.
    out
        Folder to write to.
    """
    from paumer.study.paper_figures import draw_tradeoff
    from paumer.study.tradeoff import baseline

    series = _series(sweeps)
    reference = baseline(_timed(_mean_of(segmenter), segmenter)) if segmenter else None
    draw_tradeoff(series, out / name, title, reference, skyline)
    _finish(out / name, _rows(series))


@study.command
def spline(
    sweeps: Sweeps,
    /,
    *,
    segmenter: str | None = None,
    most: float = 2.0,
    out: Path = Path("figures"),
) -> None:
    """The table of mIoU over throughput by a linear spline, in eight columns.

    Parameters
    ----------
    sweeps
        LABEL=FOLDER of each line; several folders with commas between them are averaged.
    segmenter
        FOLDER of a sweep of the plain Segmenter, to which differences are taken (default: each
        line's own unpaused point).
    most
        The speed-up of the last column.
    out
        Folder to write to.
    """
    from paumer.study.tradeoff import baseline, spline_table

    reference = baseline(_mean_of(segmenter)) if segmenter else None
    rows = []
    for label, items in _series(sweeps).items():
        columns = spline_table(items, reference, most=most)
        table = new_table(label, *(f"{column.speed_up:.2f}x" for column in columns))
        table.add_row("images/s", *(f"{column.images_per_second:.2f}" for column in columns))
        table.add_row("mIoU", *(_or_dash(column.miou) for column in columns))
        table.add_row("difference", *(_or_dash(column.difference, "+") for column in columns))
        console.print(table)
        rows += [{"label": label, **vars(column)} for column in columns]
    write_csv(out / "spline.csv", rows)
    say(f"wrote {out / 'spline.csv'}")


@study.command
def compare(
    sweeps: Sweeps,
    /,
    *,
    points: Path,
    dataset: str | None = None,
    title: str = "",
    out: Path = Path("figures"),
) -> None:
    """Other models beside the skyline of ours.

    Parameters
    ----------
    sweeps
        LABEL=FOLDER of each line of ours.
    points
        A CSV with the columns model, family, miou (in %), images_per_second and source.
    dataset
        Only rows with this in their column dataset.
    title
        Title of the figure.
    out
        Folder to write to.
    """
    from paumer.study.paper_figures import draw_comparison

    rows = _published(points, dataset)
    series = _series(sweeps)
    draw_comparison(rows, series, out / "compare", title)
    ours = [
        {
            "model": row["label"],
            "family": "paumer",
            "source": "measured here",
            **row,
            "miou": 100 * row["miou"],
        }
        for row in _rows(series)
    ]
    _finish(out / "compare", [*rows, *ours])


@study.command
def entropy(
    *,
    model: str = BUILT_IN,
    data: str = "scenes",
    split: Literal["train", "val", "test"] = "val",
    share: float = 0.1,
    heads: Path | None = None,
    out: Path = Path("figures"),
    device: str = "auto",
) -> None:
    """Entropies of right and wrong patches after every second block, together and by class.

    Parameters
    ----------
    model
        A model directory, a training run, a built-in name or a hub id.
    data
        scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, or a data.yaml.
    split
        Pictures to count on.
    share
        Share of the pictures, spread evenly.
    heads
        A run of `paumer train --learn block-heads`: a head of its own for every block instead of
        the shared one.
    out
        Folder to write to.
    device
        cpu, cuda, or auto.
    """
    import numpy as np

    from paumer.data.datasets import open_dataset
    from paumer.predict import load
    from paumer.study.paper_figures import draw_class_entropies, draw_entropies
    from paumer.study.uncertainty import read_heads, study_blocks

    if not 0 < share <= 1:
        raise ValueError(f"a share of {share:g} of the pictures: give one above 0 and at most 1")
    dataset = open_dataset(data, split)
    predictor = load(model, pick_device(device))
    count = max(1, round(share * len(dataset)))
    places = np.linspace(0, len(dataset) - 1, count).round().astype(int).tolist()
    own = read_heads(heads, predictor.network) if heads else None
    with progress_bar("counting") as update:
        counts, confusions = study_blocks(predictor, dataset, places, own, update)
    names = predictor.classes.names
    draw_entropies(counts, out / "entropy")
    draw_class_entropies(counts, names, out / "entropy_classes")
    rows = list(counts.rows(names))
    write_csv(out / "entropy_classes.csv", rows)
    blocks = [
        {"block": number, "miou": one.miou, "pixel_accuracy": one.pixel_accuracy}
        for number, one in enumerate(confusions, 1)
    ]
    write_csv(out / "blocks.csv", blocks)
    _finish(out / "entropy", _without_class(rows))
    say(f"wrote {out}/entropy_classes.png, .svg and .csv, and blocks.csv")


@study.command
def blocks(
    *,
    model: str | None = None,
    backbone: str = "vit_tiny_patch16_384",
    size: str = "512",
    share: float = 0.4,
    batch: int = 1,
    threads: int | None = None,
    out: Path = Path("figures"),
    device: str = "auto",
) -> None:
    """Throughput against the number of pausing blocks, over all choices of blocks (predicted).

    Parameters
    ----------
    model
        A model directory, a training run or a hub id (default: fresh weights).
    backbone
        timm name of the backbone when no model is given.
    size
        Picture size: a side, or WIDTHxHEIGHT.
    share
        The share that pauses each time.
    batch
        Pictures per batch.
    threads
        CPU threads (default: torch's).
    out
        Folder to write to.
    device
        cpu, cuda, or auto.
    """
    import torch

    from paumer.model.segmenter import build_model
    from paumer.options import parse_size
    from paumer.pause_config import PauseConfig
    from paumer.predict import load
    from paumer.study.cost import cached_cost
    from paumer.study.grids import NO_PAUSE, count
    from paumer.study.paper_figures import draw_block_counts
    from paumer.study.speed import SpeedSettings, in_words

    where = pick_device(device)
    network = load(model, where).network if model else build_model(backbone).to(where).eval()
    width, height = parse_size(size)
    images = torch.randn(at_least_one(batch, "batch"), 3, height, width, device=where)
    with progress_bar("timing parts") as update:
        table = cached_cost(network, images, SpeedSettings(threads=threads), progress=update)
    found = [table.predict(pause) for pause in count(network.pausing_depth, share)]
    speeds: dict[int, list[float]] = {}
    for item in found:
        assert item.images_per_second
        speeds.setdefault(len(item.pause.stages), []).append(item.images_per_second)
    lines = {}
    for chosen in ((3, 5, 7), (4, 7, 10)):
        if chosen[-1] < network.pausing_depth:
            steps = [PauseConfig(tuple((b, share) for b in chosen[:k])) for k in (1, 2, 3)]
            points = [(k, table.predict(p).images_per_second) for k, p in enumerate(steps, 1)]
            lines[", ".join(map(str, chosen))] = [(k, speed or 0.0) for k, speed in points]
    unpaused = table.predict(NO_PAUSE).images_per_second or 0.0
    title = in_words(table.environment)
    draw_block_counts(speeds, lines, unpaused, out / "blocks", title)
    _finish(out / "blocks", [item.to_json() for item in found])


@study.command
def one(sweep: Path, /, *, title: str = "", out: Path = Path("figures")) -> None:
    """One pause over blocks and shares, from a sweep of the grid `one`.

    Parameters
    ----------
    sweep
        Folder of the sweep.
    title
        Title of the figure.
    out
        Folder to write to.
    """
    from paumer.study.paper_figures import draw_one_pause
    from paumer.study.tradeoff import read_measurements

    found = _with_stages(read_measurements(sweep), 1, sweep)
    draw_one_pause(found, out / "one_pause", title)
    _finish(out / "one_pause", [item.to_json() for item in found])


@study.command
def two(sweep: Path, /, *, title: str = "", out: Path = Path("figures")) -> None:
    """The skyline of two pauses, from a sweep of the grid `two`.

    Parameters
    ----------
    sweep
        Folder of the sweep.
    title
        Title of the figure.
    out
        Folder to write to.
    """
    from paumer.study.paper_figures import draw_two_pauses
    from paumer.study.tradeoff import read_measurements

    found = _with_stages(read_measurements(sweep), 2, sweep)
    draw_two_pauses(found, out / "two_pauses", title)
    _finish(out / "two_pauses", [item.to_json() for item in found])


def _published(points: Path, dataset: str | None) -> list[dict[str, str]]:
    """The rows of a CSV of other models, each with all it needs, of one data set."""
    with points.open(encoding="utf-8", newline="") as file:
        lines = list(enumerate(csv.DictReader(file), 2))
    rows = []
    for number, row in lines:
        if dataset in (None, row.get("dataset")):
            for column in ("model", "family", "miou", "images_per_second", "source"):
                if not row.get(column):
                    raise ValueError(f'line {number} of "{points}" lacks its {column}')
            for column in ("miou", "images_per_second"):
                try:
                    float(row[column])
                except ValueError:
                    raise ValueError(
                        f'line {number} of "{points}": {column} is "{row[column]}", no number'
                    ) from None
            rows.append(row)
    if not rows:
        raise ValueError(f'"{points}" has no row{f" of {dataset}" if dataset else ""}')
    several = sorted({row.get("dataset") or "" for row in rows})
    if len(several) > 1:
        raise ValueError(f'"{points}" has {", ".join(several)}: choose one with --dataset')
    return rows


def _series(sweeps: Sequence[str]) -> "dict[str, list[Measurement]]":
    """The measurements of each LABEL=FOLDER."""
    found = {}
    for text in sweeps:
        label, mark, folders = text.partition("=")
        if not mark:
            raise ValueError(f'"{text}" is not LABEL=FOLDER, such as entropy=runs/sweep')
        if label in found:
            raise ValueError(f'two lines are called "{label}": give each its own name')
        found[label] = _timed(_mean_of(folders), folders)
    return found


def _mean_of(folders: str) -> "list[Measurement]":
    from paumer.study.tradeoff import average, read_measurements

    return average([read_measurements(Path(folder)) for folder in folders.split(",")])


def _timed(items: "list[Measurement]", source: object) -> "list[Measurement]":
    if any(item.images_per_second is None for item in items):
        raise ValueError(f'"{source}" has no speeds: sweep it again with --speed predict')
    return items


def _with_stages(items: "list[Measurement]", stages: int, source: Path) -> "list[Measurement]":
    """The measurements with that many pauses, and the one without."""
    found = [item for item in items if len(item.pause.stages) in (0, stages)]
    if len(found) < 2:
        name = {1: "one", 2: "two"}[stages]
        raise ValueError(f'"{source}" lacks such configurations: sweep with --grid {name}')
    return _timed(found, source)


def _rows(series: "dict[str, list[Measurement]]") -> list[dict[str, Any]]:
    return [{"label": label, **m.to_json()} for label, items in series.items() for m in items]


def _without_class(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    totals: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = (row["block"], row["right"], row["entropy"])
        totals[key] = totals.get(key, 0) + row["patches"]
    return [
        {"block": block, "right": right, "entropy": value, "patches": patches}
        for (block, right, value), patches in sorted(totals.items())
    ]


def _or_dash(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.2f}"


def _finish(stem: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_csv(stem.with_name(f"{stem.name}.csv"), rows)
    say(f"wrote {stem}.png, .svg and .csv")
