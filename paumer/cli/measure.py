"""`paumer evaluate`, `sweep` and `tune`: measure modes and choose one."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from paumer.cli.console import (
    at_least_one,
    console,
    named_progress,
    new_table,
    pick_device,
    progress_bar,
    say,
    tiling,
    write_csv,
    write_json,
    write_jsonl,
)
from paumer.cli.options import EvaluateOptions, SweepOptions, TuneOptions

if TYPE_CHECKING:
    from paumer.data.samples import Dataset
    from paumer.inference.predictor import Predictor
    from paumer.measurement import Measurement
    from paumer.study.accuracy import Tally


def evaluate(options: EvaluateOptions = EvaluateOptions()) -> None:  # noqa: B008
    """Count what a model gets right on a data set, in one or many modes.

    Started by torchrun, every process counts its share.
    """
    from paumer.mode import parse_modes
    from paumer.study.accuracy import evaluate as count

    predictor, dataset, indices = _open(options)
    modes = parse_modes(options.mode, predictor.modes)
    how = tiling(options)
    with _processes() as (shard, gather):
        with progress_bar("counting") as update:
            tallies = count(predictor, dataset, modes, how, indices, update, options.by_size, shard)
        tallies = gather(tallies)
        if shard[0]:
            return
    names, data = predictor.classes.names, f"{dataset.name} {dataset.split}"
    rows = [
        {"mode": str(mode), "data": data, **tally.to_json(names)}
        for mode, tally in zip(modes, tallies, strict=True)
    ]
    _print_accuracy(rows)
    values: dict[str, Any] = {"model": options.model, "evaluations": rows}
    if options.blocks:
        values["blocks"] = _blocks(predictor, dataset, indices)
    if options.json:
        for row, tally in zip(rows, tallies, strict=True):
            row["confusion"] = tally.confusion.counts.tolist() if tally.confusion else None
        write_json(options.json, values)
    if options.csv:
        write_csv(options.csv, [_flat(row) for row in rows])
    _say_written(options.json, options.csv)


def sweep(options: SweepOptions) -> None:
    """Evaluate a whole grid of modes; what they share is computed once.

    Can be stopped at any time and resumes when started again. Started by torchrun, every process
    counts its share.
    """
    from paumer.inference.tiles import Inference
    from paumer.study.grids import grid
    from paumer.study.speed import SpeedSettings
    from paumer.study.sweep import Sweep, describe, save_tallies

    predictor, dataset, indices = _open(options)
    modes = grid(options.grid, predictor.network.backbone.depth, predictor.modes)
    how = Inference(batch=options.batch)
    size = dataset[0].labels.shape
    if options.speed == "measure":  # What has no fixed cost shows before hours of counting.
        for mode in modes:
            predictor.macs(size, mode)
    settings = SpeedSettings(threads=options.threads)
    task = Sweep(predictor, dataset, modes, options.out, how, indices)
    shard = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with progress_bar(f"{len(modes)} modes") as update:
        tallies = task.run(shard, update)
    if tallies is None:  # The first process writes the results.
        return
    found = describe(predictor, modes, tallies, size, f"{dataset.name} {dataset.split}", how)
    if options.speed != "none":
        found = _with_speeds(found, predictor, dataset, settings, options)
    rows = [item.to_json() for item in found]
    save_tallies(options.out / "sweep.npz", modes, tallies)
    write_jsonl(options.out / "sweep.jsonl", rows)
    write_csv(options.out / "sweep.csv", rows)
    _print_measurements(found)
    _say_written(options.out / "sweep.jsonl", options.out / "sweep.csv")


def _with_speeds(
    found: "list[Measurement]",
    predictor: "Predictor",
    dataset: "Dataset",
    settings: Any,
    options: SweepOptions,
) -> "list[Measurement]":
    """The measurements with predicted or real speeds; one that has no fixed cost keeps none.

    Random pausing and the oracle are timed as entropy: what they know costs nothing.
    """
    from paumer.measurement import join
    from paumer.mode import CRITERIA
    from paumer.pause_config import Threshold
    from paumer.study.cost import cost_tables
    from paumer.study.speed import time_modes
    from paumer.study.tuning import predict_speed

    image, batch = dataset[0].image, at_least_one(options.speed_batch, "speed-batch")
    timed = {}
    for mode in (item.mode for item in found):
        if not any(isinstance(amount, Threshold) for _, amount in mode.pause.stages):
            known = mode.criterion in CRITERIA
            timed[mode] = mode if known else replace(mode, criterion="entropy")
    if options.speed == "predict":
        with progress_bar("timing parts") as update:
            sizes = [mode.size for mode in timed]
            tables = cost_tables(predictor, image, sizes, settings, batch, update)
        speeds = {mode: predict_speed(tables, mode) for mode in timed.values()}
    else:
        with progress_bar("timing") as update:
            items = time_modes(predictor, image, list(timed.values()), settings, batch, update)
        speeds = {item.mode: item for item in items}
    own = {mode: replace(speeds[same], mode=mode) for mode, same in timed.items()}
    return [join(item, own[item.mode]) if item.mode in own else item for item in found]


def tune(options: TuneOptions) -> None:
    """Find the best mode for a budget and keep it as an operating point of the model."""
    from paumer.inference.points import check_point_name, write_points
    from paumer.study.speed import SpeedSettings
    from paumer.study.tradeoff import Budget
    from paumer.study.tuning import TuneSettings
    from paumer.study.tuning import tune as find

    budget = Budget(
        latency_ms=options.latency_ms, speed_up=options.speed_up, max_drop=options.max_drop
    )
    name = options.name or str(budget)
    check_point_name(name)
    if name == "unpaused":
        raise ValueError('no pausing is called "unpaused": choose another --name')
    stages, _, words = options.mode.strip().partition(" ")
    if stages != "auto":
        raise ValueError(
            f'tune searches for the stages itself ("{options.mode}"): '
            f'write auto for them, as in --mode "auto exit"'
        )
    settings = TuneSettings(
        procedure=options.procedure,
        words=words,
        most=options.most,
        timed_batch=options.batch,
        speed=SpeedSettings(threads=options.threads, rounds=options.rounds),
    )
    directory = _own_directory(options.model, "operating points")
    predictor, dataset, indices = _open(options)
    out = options.out or directory / "tune"
    with named_progress() as update:
        result = find(predictor, dataset, budget, out, settings, indices, update)
    write_jsonl(out / f"{name}.jsonl", [item.to_json() for item in result.evaluated])
    points = dict(result.points)
    if result.met:
        points[name] = result.choice
    write_points(directory, points)
    _print_measurements([*points.values()], names=list(points))
    say(f"wrote {len(points)} operating points to {directory}")
    if not result.met:
        say(f"nothing meets {budget}; the nearest is {result.choice.mode}:")
        _print_measurements([result.choice])
        sys.exit(1)


def _own_directory(model: str, what: str) -> Path:
    """The directory of a model on disk, into which something can be written."""
    from paumer.model.directory import find_model

    if not Path(model).is_dir():
        raise ValueError(
            f'"{model}" is not a folder: {what} are written into the model, save it to disk first'
        )
    return find_model(model)


def _open(
    options: EvaluateOptions | SweepOptions | TuneOptions,
) -> "tuple[Predictor, Dataset, list[int]]":
    """The model, the data, and which images count."""
    import numpy as np
    import torch

    from paumer.api import load
    from paumer.data.datasets import open_dataset

    if options.threads is not None:
        torch.set_num_threads(at_least_one(options.threads, "threads"))
    dataset = open_dataset(options.data, options.split)
    predictor = load(options.model, pick_device(options.device))
    wanted = len(dataset) if options.limit is None else options.limit
    count = min(len(dataset), at_least_one(wanted, "limit"))
    indices = np.linspace(0, len(dataset) - 1, count).round().astype(int).tolist()
    return predictor, dataset, indices


@contextmanager
def _processes() -> Iterator[tuple[tuple[int, int], Any]]:
    """This process's number and how many there are, and how to add up what they counted."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield (0, 1), lambda tallies: tallies
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def gather(tallies: "Sequence[Tally]") -> "list[Tally]":
        parts: list[Any] = [None] * world
        dist.all_gather_object(parts, list(tallies))
        return [sum(same[1:], same[0]) for same in zip(*parts, strict=True)]

    try:
        yield (dist.get_rank(), world), gather
    finally:
        dist.destroy_process_group()


def _blocks(
    predictor: "Predictor", dataset: "Dataset", indices: Sequence[int]
) -> list[dict[str, Any]]:
    """Accuracy and mIoU of the auxiliary head after every block, printed too."""
    from paumer.study.accuracy import known_value
    from paumer.study.uncertainty import study_blocks

    with progress_bar("auxiliary head") as update:
        _, confusions = study_blocks(predictor, dataset, indices, progress=update)
    rows = [
        {"block": n, "miou": known_value(one.miou), "pixel_accuracy": one.pixel_accuracy}
        for n, one in enumerate(confusions, 1)
    ]
    table = new_table("auxiliary head after block", "mIoU", "pixel accuracy")
    for row in rows:
        table.add_row(str(row["block"]), _percent(row["miou"]), _percent(row["pixel_accuracy"]))
    console.print(table)
    return rows


def _print_accuracy(rows: Sequence[dict[str, Any]]) -> None:
    sizes = list(rows[0].get("miou_by_size", ()))
    table = new_table("mode", "mIoU", "95% interval", "pixels", "classes", *sizes)
    for row in rows:
        table.add_row(
            row["mode"],
            _percent(row["miou"]),
            f"{_percent(row['miou_low'])} to {_percent(row['miou_high'])}",
            _percent(row["pixel_accuracy"]),
            _percent(row["mean_accuracy"]),
            *(_percent(row["miou_by_size"][size]) for size in sizes),
        )
    say(f"{rows[0]['data']}, {rows[0]['images']} images; accuracy over pixels and classes, %")
    console.print(table)
    shown = rows[:6]
    heads = [row["mode"] for row in shown]
    more = f" (the first {len(shown)} of {len(rows)})" if len(rows) > len(shown) else ""
    classes = new_table(f"IoU, %{more}", *heads)
    for name in rows[0]["iou"]:
        classes.add_row(escape(name), *(_percent(row["iou"][name]) for row in shown))
    console.print(classes)


def _print_measurements(found: "Sequence[Measurement]", names: Sequence[str] = ()) -> None:
    """The Pareto front of what was found, or all of it when it has names."""
    from paumer.measurement import pareto_front

    shown = list(found)
    if not names and len(found) > 20 and all(item.images_per_second for item in found):
        shown = pareto_front(found)
        say(f"the Pareto front of {len(found)} modes:")
    table = new_table(*(["point"] * bool(names)), "mode", "mIoU", "speed-up", "images/s", "MACs")
    for number, item in enumerate(shown):
        predicted = "~" * item.predicted
        table.add_row(
            *([escape(names[number])] if names else []),
            str(item.mode),
            _percent(item.miou),
            f"{predicted}{item.speed_up:.2f}x" if item.speed_up else "",
            f"{predicted}{item.images_per_second:.2f}" if item.images_per_second else "",
            f"{item.mac_ratio:.2f}x" if item.mac_ratio else "",
        )
    console.print(table)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with one column for each class and size."""
    flat = {key: value for key, value in row.items() if not isinstance(value, dict | list)}
    flat |= {f"iou {name}": value for name, value in row["iou"].items()}
    return flat | {f"miou {size}": value for size, value in row.get("miou_by_size", {}).items()}


def _say_written(*paths: Any) -> None:
    for path in paths:
        if path:
            say(f"wrote {path}")
