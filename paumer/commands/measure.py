"""`paumer evaluate`, `sweep`, `tune` and `calibrate`: measure configurations and choose one."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from paumer.commands.console import (
    at_least_one,
    console,
    named_progress,
    new_table,
    pick_device,
    progress_bar,
    say,
    spell_points,
    write_csv,
    write_json,
    write_jsonl,
)
from paumer.options import CalibrateOptions, EvaluateOptions, SweepOptions, TuneOptions

if TYPE_CHECKING:
    from torch import Tensor

    from paumer.data.datasets import Dataset
    from paumer.predict import Inference, Predictor
    from paumer.study.accuracy import Tally
    from paumer.study.adaptive import AdaptiveTuned
    from paumer.study.tradeoff import Measurement


def evaluate(options: EvaluateOptions = EvaluateOptions()) -> None:  # noqa: B008
    """Count what a model gets right on a data set, for one or many configurations.

    Started by torchrun, every process counts its share.
    """
    from paumer.criteria import name_of
    from paumer.study.accuracy import check_criterion
    from paumer.study.accuracy import evaluate as count

    predictor, dataset, places = _open(options)
    ways = _ways(predictor, options)
    for name in options.criterion:
        check_criterion(name, predictor, ways[0])
    found: list[tuple[str, Inference, Tally]] = []
    with _processes() as (shard, gather):
        # Without one each way has its own: an operating point's, or entropy.
        criteria: tuple[str | None, ...] = options.criterion or (None,)
        for criterion in criteria:
            with progress_bar(f"counting{f', {criterion}' * bool(criterion)}") as update:
                tallies = count(
                    predictor,
                    dataset,
                    ways,
                    places,
                    update,
                    criterion,
                    shard=shard,
                    by_size=options.by_size,
                )
            tallies = gather(tallies)
            own = [criterion or name_of(way.criterion) or "another" for way in ways]
            found += zip(own, ways, tallies, strict=True)
        if shard[0]:
            return
    names = predictor.classes.names
    rows = [
        {
            "pause": str(way.pause),
            "criterion": who,
            "early_exit": way.early_exit,
            "data": f"{dataset.name} {dataset.split}",
            **tally.to_json(names),
        }
        for who, way, tally in found
    ]
    _print_accuracy(rows)
    values: dict[str, Any] = {"model": options.model, "evaluations": rows}
    if options.blocks:
        values["blocks"] = _blocks(predictor, dataset, places)
    if options.json:
        for row, (_, _, tally) in zip(rows, found, strict=True):
            row["confusion"] = tally.confusion.counts.tolist() if tally.confusion else None
        write_json(options.json, values)
    if options.csv:
        write_csv(options.csv, [_flat(row) for row in rows])
    _say_written(options.json, options.csv)


def sweep(options: SweepOptions) -> None:
    """Evaluate a whole grid of configurations; what they share is computed once.

    Can be stopped at any time and goes on when started again. Started by torchrun, every process
    counts its share.
    """
    from paumer.criteria import CRITERIA
    from paumer.study.grids import grid
    from paumer.study.speed import SpeedSettings, measure_speed
    from paumer.study.sweep import Sweep, describe, save_tallies
    from paumer.study.tradeoff import join, per_picture

    predictor, dataset, places = _open(options)
    network = predictor.network
    names = spell_points(options.grid, predictor.points, options.early_exit, options.criterion)
    who = options.criterion or "entropy"
    pauses = grid(names, network.pausing_depth)
    for pause in pauses:
        network.check(pause, options.early_exit and bool(pause))
    ways = [_way(pause, options.early_exit, options.batch) for pause in pauses]
    # What timing needs is made before hours of counting, so that a mistake shows at once.
    # Random pausing and the oracle are timed as entropy: what they know costs nothing.
    timed = who if who in CRITERIA else "entropy"
    settings = SpeedSettings(
        threads=options.threads, early_exit=options.early_exit, criterion=timed
    )
    images = _timed_input(predictor, dataset, options.speed_batch)
    windows = predictor.windows(dataset[0].labels.shape, ways[0])
    if options.speed == "measure":
        for pause in pauses:
            network.multiply_adds((images.shape[2], images.shape[3]), pause, options.early_exit)
    task = Sweep(predictor, dataset, ways, options.out, who, places)
    shard = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with progress_bar(f"{len(ways)} configurations") as update:
        tallies = task.run(shard, update)
    if tallies is None:  # The first process writes the results.
        return
    size = (images.shape[2], images.shape[3])
    table = None
    if options.speed == "predict":
        table = replace(_cost_table(predictor, images, settings), windows=windows)
    name = f"{dataset.name} {dataset.split}"
    found = describe(predictor, ways, tallies, size, who, table, name)
    if options.speed == "measure":
        with progress_bar("timing") as update:
            report = measure_speed(predictor.network, images, pauses, settings, update)
        found = [
            join(accuracy, per_picture(speed, windows))
            for accuracy, speed in zip(found, report.measurements, strict=True)
        ]
    rows = [item.to_json() for item in found]
    save_tallies(options.out / "sweep.npz", ways, tallies)
    write_jsonl(options.out / "sweep.jsonl", rows)
    write_csv(options.out / "sweep.csv", rows)
    _print_measurements(found)
    _say_written(options.out / "sweep.jsonl", options.out / "sweep.csv")


def tune(options: TuneOptions) -> None:
    """Find the best configuration for a budget and keep it as an operating point of the model."""
    from paumer.predict import check_point_name, write_points
    from paumer.study.adaptive import tune_adaptive
    from paumer.study.speed import SpeedSettings
    from paumer.study.tradeoff import Budget
    from paumer.study.tuning import TuneSettings
    from paumer.study.tuning import tune as find

    budget = Budget(
        latency_ms=options.latency_ms, speed_up=options.speed_up, max_drop=options.max_drop
    )
    name = options.name or f"{'adaptive-' * options.adaptive}{budget}"
    check_point_name(name)
    if name == "unpaused":
        raise ValueError('no pausing is called "unpaused": choose another --name')
    settings = TuneSettings(
        procedure=options.procedure,
        early_exit=options.early_exit,
        criterion=options.criterion,
        most=options.most,
        speed=SpeedSettings(threads=options.threads, rounds=options.rounds),
    )
    directory = _own_directory(options.model, "operating points")
    if options.adaptive and options.batch != 1:
        raise ValueError("--adaptive times pictures one by one: leave --batch at 1")
    if options.adaptive and options.criterion != "entropy":
        raise ValueError("--adaptive looks for thresholds of entropy: leave --criterion")
    predictor, dataset, places = _open(options)
    out = options.out or directory / "tune"
    with named_progress() as update:
        if options.adaptive:
            adaptive = tune_adaptive(predictor, dataset, budget, out, settings, places, update)
            result = replace(adaptive.tuned, points={})
        else:
            images = _timed_input(predictor, dataset, options.batch)
            result = find(predictor, dataset, budget, out, images, settings, places, update)
    write_jsonl(out / f"{name}.jsonl", [item.to_json() for item in result.evaluated])
    if options.adaptive:
        _report_adaptive(adaptive, out / name)
    points = dict(result.points)
    if result.met:
        points[name] = result.choice
    if points:
        write_points(directory, points)
        _print_measurements([*points.values()], names=list(points))
        say(f"wrote {len(points)} operating points to {directory}")
    if not result.met:
        say(f"nothing meets {budget}; the nearest is {result.choice.pause}:")
        _print_measurements([result.choice])
        sys.exit(1)


def calibrate(options: CalibrateOptions) -> None:
    """Fit temperatures that make early exit's two heads as sure as they are right.

    They become part of the model, and every early exit uses them. Fit again after training it on.
    """
    from paumer.study.temperature import fit_temperatures

    directory = _own_directory(options.model, "temperatures")
    predictor, dataset, places = _open(options)
    network = predictor.network
    with progress_bar("early exits") as update:
        fits = fit_temperatures(predictor, dataset, places, update)
    table = new_table("head", "patches", "loss", "calibrated", "temperature")
    for fit in fits:
        head = f"auxiliary, block {fit.block}" if fit.block else "decoder"
        losses = (f"{fit.before:.4f}", f"{fit.after:.4f}")
        table.add_row(head, str(fit.patches), *losses, f"{fit.temperature:g}")
    console.print(table)
    temperatures = tuple(fit.temperature for fit in fits)
    network.config = replace(predictor.config, temperatures=temperatures)
    network.save_pretrained(directory)
    say(f"wrote {len(fits)} temperatures to {directory}")
    if stale := [name for name, point in predictor.points.items() if point.early_exit]:
        say(f"measured before with other temperatures: {', '.join(stale)}; tune them again")


def _own_directory(model: str, what: str) -> Path:
    """The directory of a model on disk, into which something can be written."""
    from paumer.model.weights import find_model

    if not Path(model).is_dir():
        raise ValueError(
            f'"{model}" is no folder: {what} are written into the model, so save it to disk first'
        )
    return find_model(model)


def _report_adaptive(found: "AdaptiveTuned", path: Path) -> None:
    """Thresholds beside fixed shares of the same predicted cost: a table, a figure, a verdict."""
    from paumer.study.paper_figures import draw_tradeoff

    table = new_table("blocks", "speed-up", "threshold", "mIoU", "share", "mIoU", "difference")
    rows = []
    for pair in found.pairs:
        adaptive, fixed = pair.adaptive, pair.fixed
        difference = 100 * ((adaptive.miou or 0) - (fixed.miou or 0))
        table.add_row(
            ",".join(map(str, adaptive.pause.blocks)),
            f"~{adaptive.speed_up:.2f}x",
            str(adaptive.pause.stages[0][1]),
            _percent(adaptive.miou),
            str(fixed.pause.stages[0][1]),
            _percent(fixed.miou),
            f"{difference:+.2f}",
        )
        rows += [adaptive.to_json(), fixed.to_json()]
    console.print(table)
    base = found.tuned.evaluated[0]
    series = {
        "threshold": [base, *(pair.adaptive for pair in found.pairs)],
        "fixed share": [base, *(pair.fixed for pair in found.pairs)],
    }
    file = path.with_name(f"{path.name}.csv")
    write_csv(file, rows)
    draw_tradeoff(series, path, "predicted average speed", only_skyline=True)
    _say_written(file, path.with_name(f"{path.name}.png"))
    better = "win" if found.gain > 0 else "do not win"
    say(f"thresholds {better}: {100 * found.gain:+.2f} points of mIoU on average at equal cost")


def _open(
    options: EvaluateOptions | SweepOptions | TuneOptions | CalibrateOptions,
) -> "tuple[Predictor, Dataset, list[int]]":
    """The model, the data, and which pictures count."""
    import numpy as np
    import torch

    from paumer.data.datasets import open_dataset
    from paumer.predict import load

    if options.threads is not None:
        torch.set_num_threads(at_least_one(options.threads, "threads"))
    dataset = open_dataset(options.data, options.split)
    predictor = load(options.model, pick_device(options.device))
    wanted = len(dataset) if options.pictures is None else options.pictures
    count = min(len(dataset), at_least_one(wanted, "pictures"))
    places = np.linspace(0, len(dataset) - 1, count).round().astype(int).tolist()
    return predictor, dataset, places


def _ways(predictor: "Predictor", options: EvaluateOptions) -> "list[Inference]":
    """How to run each configuration asked for; an operating point brings its own way."""
    from paumer.pause_config import parse_pauses

    names = ("window", "stride", "short_side", "batch", "scales", "flip", "protect")
    how = {name: getattr(options, name) for name in names}
    found = []
    for text in options.pause:
        if text in predictor.points:
            found.append(predictor.way(text, **how))
            continue
        for pause in parse_pauses([text]):
            early_exit = options.early_exit and bool(pause)
            predictor.network.check(pause, early_exit)
            found.append(predictor.way(pause, early_exit=early_exit, **how))
    return list(dict.fromkeys(found))


def _way(pause: Any, early_exit: bool, batch: int) -> "Inference":
    from paumer.predict import Inference

    return Inference(pause=pause, early_exit=early_exit and bool(pause), batch=batch)


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


def _timed_input(predictor: "Predictor", dataset: "Dataset", batch: int) -> "Tensor":
    """One batch of the first picture, or of its first window, as the network sees it."""
    image = predictor.network_inputs(dataset[0].image)[:1]
    return image.repeat(at_least_one(batch, "batch"), 1, 1, 1)


def _cost_table(predictor: "Predictor", images: "Tensor", settings: Any) -> Any:
    from paumer.study.cost import cached_cost

    with progress_bar("timing parts") as update:
        return cached_cost(predictor.network, images, settings, progress=update)


def _blocks(
    predictor: "Predictor", dataset: "Dataset", places: Sequence[int]
) -> list[dict[str, Any]]:
    """Accuracy and mIoU of the auxiliary head after every block, printed too."""
    from paumer.study.accuracy import known_value
    from paumer.study.uncertainty import study_blocks

    with progress_bar("auxiliary head") as update:
        _, confusions = study_blocks(predictor, dataset, places, progress=update)
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
    table = new_table(
        "pause", "criterion", "exit", "mIoU", "95% interval", "pixels", "classes", *sizes
    )
    for row in rows:
        table.add_row(
            row["pause"],
            row["criterion"],
            "early" if row["early_exit"] else "",
            _percent(row["miou"]),
            f"{_percent(row['miou_low'])} to {_percent(row['miou_high'])}",
            _percent(row["pixel_accuracy"]),
            _percent(row["mean_accuracy"]),
            *(_percent(row["miou_by_size"][size]) for size in sizes),
        )
    say(f"{rows[0]['data']}, {rows[0]['pictures']} pictures; accuracy over pixels and classes, %")
    console.print(table)
    shown = rows[:6]
    several = len({row["criterion"] for row in rows}) > 1
    heads = [f"{row['pause']} {row['criterion']}" if several else row["pause"] for row in shown]
    more = f" (the first {len(shown)} of {len(rows)})" if len(rows) > len(shown) else ""
    classes = new_table(f"IoU, %{more}", *heads)
    for name in rows[0]["iou"]:
        classes.add_row(escape(name), *(_percent(row["iou"][name]) for row in shown))
    console.print(classes)


def _print_measurements(found: "Sequence[Measurement]", names: Sequence[str] = ()) -> None:
    """The skyline of what was found, or all of it when it has names."""
    from paumer.study.tradeoff import skyline

    shown = list(found)
    if not names and len(found) > 20 and all(item.images_per_second for item in found):
        shown = skyline(found)
        say(f"the skyline of {len(found)} configurations:")
    table = new_table(
        *(["point"] * bool(names)), "pause", "mIoU", "speed-up", "images/s", "multiply-adds"
    )
    for number, item in enumerate(shown):
        predicted = "~" * item.predicted
        table.add_row(
            *([escape(names[number])] if names else []),
            item.how,
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
