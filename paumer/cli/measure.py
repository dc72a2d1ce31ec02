"""`paumer evaluate`, `sweep`, `tune` and `bench`: measure modes and choose one."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paumer.cli.console import (
    call,
    errors,
    print_table,
    progress_bar,
    say,
    set_threads,
    step_progress,
)
from paumer.cli.options import BenchOptions, EvaluateOptions, SweepOptions, TuneOptions
from paumer.measurement import Measurement, pareto_front
from paumer.tables import write_csv, write_json
from paumer.training.options import parse_size

if TYPE_CHECKING:
    from paumer.inference.predictor import Predictor
    from paumer.inference.tiles import Inference
    from paumer.mode import Mode
    from paumer.study.accuracy import Tally
    from paumer.study.speed import SpeedReport
    from paumer.study.tuning import Tuned


def evaluate(options: EvaluateOptions = EvaluateOptions()) -> None:  # noqa: B008
    """Measure the accuracy of a model on a data set, in one or many modes.

    Started by torchrun, every process counts its part.
    """
    from paumer import api
    from paumer.data.datasets import open_dataset
    from paumer.data.groups import group_images
    from paumer.data.samples import spread
    from paumer.inference.processes import process_number
    from paumer.inference.tiles import Inference
    from paumer.loaded import load
    from paumer.study.uncertainty import block_rows, study_blocks

    set_threads(options.threads)
    dataset = open_dataset(options.data, options.split)
    predictor = load(options.model, options.device)
    with progress_bar("counting") as update:
        given = {"model": predictor, "data": dataset, "inference": call(Inference, options)}
        tallies = call(api.evaluate, options, progress=update, **given)
    if process_number()[0]:  # The first process writes the results.
        return
    names, data = predictor.classes.names, f"{dataset.name} {dataset.split}"
    rows: list[dict[str, Any]] = [
        {"mode": str(mode), "data": data, **tally.to_json(names)} for mode, tally in tallies.items()
    ]
    _print_accuracy(rows)
    _say_size(predictor, dataset[0].image.shape, call(Inference, options))
    values: dict[str, Any] = {"model": options.model, "evaluations": rows}
    if options.groups is not None:
        values["groups"] = _print_groups(tallies, group_images(dataset, options.groups))
    if options.blocks:
        with progress_bar("auxiliary head") as update:
            indices = spread(len(dataset), options.limit)
            _, confusions = study_blocks(predictor, dataset, indices, progress=update)
        values["blocks"] = blocks = block_rows(confusions)
        print_table(
            ("auxiliary head after block", "mIoU", "pixel accuracy"),
            [(str(b["block"]), _percent(b["miou"]), _percent(b["pixel_accuracy"])) for b in blocks],
        )
    flat = [_flat(row) for row in rows]
    for row, tally in zip(rows, tallies.values(), strict=True):
        row["confusion"] = None if tally.confusion is None else tally.confusion.tolist()
    _write(options, values, flat)


def sweep(options: SweepOptions) -> None:
    """Evaluate a grid of modes; common computation runs once.

    Can be stopped at any time and resumes when started again. Started by torchrun, every process
    counts its part.
    """
    from paumer import api

    set_threads(options.threads)
    with step_progress() as update:
        found = call(api.sweep, options, progress=update)
    if found:
        print_measurements(found)
        say(f"wrote {options.out / 'sweep.jsonl'}\nwrote {options.out / 'sweep.csv'}")


def tune(options: TuneOptions = TuneOptions()) -> None:  # noqa: B008
    """Find the best mode for a budget and save it as an operating point of the model."""
    from paumer import api
    from paumer.study.speed import SpeedSettings
    from paumer.study.tradeoff import Budget
    from paumer.study.tuning import TuneSettings, copy_path

    call(Budget, options)  # What is wrong with it comes before all else.
    set_threads(options.threads)
    settings = TuneSettings(
        procedure=options.procedure,
        most=options.most,
        groups=options.groups,
        shifts=options.shifts,
        timed_batch=options.batch,
        speed=call(SpeedSettings, options),
    )
    if (copy := copy_path(options.model)) and not copy.exists():
        say(f"{options.model} stays as it is: its operating points go to a copy, ./{copy}")
    with step_progress() as update:
        tuned = call(api.tune, options, settings=settings, progress=update)
    print_measurements(tuned.points)
    _print_losses(tuned)
    where = f"{options.model}" if copy is None else f"./{copy}, a copy of {options.model}"
    say(f"wrote {len(tuned.points)} operating points to {where}")
    if not tuned.met:
        say(f"nothing meets {tuned.budget}; the nearest is {tuned.choice.mode}:")
        print_measurements([tuned.choice])
        sys.exit(1)


def bench(options: BenchOptions = BenchOptions()) -> None:  # noqa: B008
    """Measure the speed of modes in one interleaved run."""
    from paumer import api
    from paumer.model.build import build_model
    from paumer.study.speed import SpeedSettings

    settings = call(SpeedSettings, options, full_size=options.upsample)
    with progress_bar("timing") as update:
        width, height = parse_size(options.input)
        # Position embeddings are stored for the size, unless it is smaller than any real grid.
        stored = (height, width) if min(height, width) >= 32 else None
        model = options.model or build_model(
            options.backbone, options.decoder, options.classes, image_size=stored
        )
        report = call(api.bench, options, model=model, settings=settings, progress=update)
    _print_speed(report)
    _write(options, report.to_json(), [item.to_json() for item in report.measurements])
    if options.plot:
        from paumer.study.figures import draw_speed

        where = report.environment
        title = f"{options.model or options.backbone}, {options.input}, {where['device']}"
        first = [m for m in report.measurements if m.engine == where["engines"][0]]
        draw_speed(first, title, options.plot)
        say(f"wrote {options.plot}")


def _print_accuracy(rows: Sequence[dict[str, Any]]) -> None:
    sizes = list(rows[0].get("miou_by_size", ()))
    cells = [
        (
            row["mode"],
            _percent(row["miou"]),
            f"{_percent(row['miou_low'])} to {_percent(row['miou_high'])}",
            _percent(row["pixel_accuracy"]),
            _percent(row["mean_accuracy"]),
            *(_percent(row["miou_by_size"][size]) for size in sizes),
        )
        for row in rows
    ]
    say(f"{rows[0]['data']}, {rows[0]['images']} images; accuracy over pixels and classes, %")
    print_table(("mode", "mIoU", "95% interval", "pixels", "classes", *sizes), cells)
    shown = rows[:6]
    more = f" (the first {len(shown)} of {len(rows)})" if len(rows) > len(shown) else ""
    classes = [(n, *(_percent(row["iou"][n]) for row in shown)) for n in rows[0]["iou"]]
    print_table([f"IoU, %{more}", *(row["mode"] for row in shown)], classes)


def _print_groups(
    tallies: "Mapping[Mode, Tally]", groups: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, object]]:
    """The mIoU of each group of images in each mode, printed and as JSON values."""
    found: dict[str, dict[str, object]] = {}
    rows = []
    for name, indices in groups.items():
        parts = {str(mode): tally.of_images(indices) for mode, tally in tallies.items()}
        images = len(next(iter(parts.values())).images)
        if images:
            found[name] = {mode: {**part.summary()} for mode, part in parts.items()}
            rows.append((name, str(images), *(_percent(part.miou) for part in parts.values())))
    print_table(("mIoU by group, %", "images", *map(str, tallies)), rows)
    return found


def _print_losses(tuned: "Tuned") -> None:
    """What each operating point loses against no pausing under each condition, in points."""
    conditions = tuned.losses.get(tuned.choice.mode, {})
    if conditions:
        rows = [
            (name, *(f"{100 * tuned.losses[point.mode][one]:.2f}" for one in conditions))
            for name, point in tuned.points.items()
        ]
        print_table(("points of mIoU lost", *conditions), rows)


def _say_size(predictor: "Predictor", shape: tuple[int, ...], inference: "Inference") -> None:
    height, width = predictor.scaled((shape[0], shape[1]), inference=inference)
    if (height, width) != shape[:2]:
        say(f"images such as {shape[1]}x{shape[0]} ran at {width}x{height} (size=full keeps them)")


def print_measurements(found: Mapping[str, Measurement] | Sequence[Measurement]) -> None:
    """The Pareto front of what was found, or all of it when it has names."""
    if isinstance(found, Mapping):
        rows = [(name, *measurement_cells(item)) for name, item in found.items()]
        print_table(("point", *MEASUREMENT_TITLES), rows)
        return
    if len(found) > 20 and all(item.images_per_second for item in found):
        say(f"the Pareto front of {len(found)} modes:")
        found = pareto_front(found)
    print_table(MEASUREMENT_TITLES, map(measurement_cells, found))


MEASUREMENT_TITLES = ("mode", "mIoU, %", "on", "speed-up", "images/s", "MACs")


def measurement_cells(item: Measurement) -> tuple[str, ...]:
    """A measurement as a row of a table: mIoU with its data; a predicted speed begins with ~."""
    predicted = "~" * item.predicted
    return (
        str(item.mode),
        _percent(item.miou),
        (item.data or "") if item.miou is not None else "",
        f"{predicted}{item.speed_up:.2f}x" if item.speed_up else "",
        f"{predicted}{item.images_per_second:.2f}" if item.images_per_second else "",
        f"{item.mac_ratio:.2f}x" if item.mac_ratio else "",
    )


def _print_speed(report: "SpeedReport") -> None:
    from paumer.study.speed import in_words

    where = report.environment
    say(f"{in_words(where)}, best of {where['rounds']} interleaved rounds")
    engines = where["engines"]
    for engine in engines:
        if len(engines) > 1:
            say(f"engine {engine}:")
        _print_engine(report.measurements, engine)
    if (ratio := report.reference_ratio) is not None:
        say(f"timm's own forward plus the decoder takes {ratio:.3f} of the unpaused time")


def _print_engine(measurements: Sequence[Measurement], engine: str) -> None:
    eager = {m.mode: m.images_per_second for m in measurements if m.engine == "torch"}
    titles = ("mode", "images/s", "median ms", "p95 ms", "speed-up", "MACs", "efficiency")
    rows, efficiency, slower = [], [], []
    for item in (item for item in measurements if item.engine == engine):
        speed, speed_up = item.images_per_second or 0.0, item.speed_up or 0.0
        efficiency.append(speed_up / (item.mac_ratio or 1.0))
        base, ratio, memory = eager.get(item.mode), item.pausing_ratio, item.peak_memory_mb
        last = f"{speed / base:.2f}x" if base else ""
        row = (
            str(item.mode),
            f"{speed:.2f}",
            f"{item.latency_ms:.1f}",
            f"{item.latency_ms_p95:.1f}",
            f"{speed_up:.2f}x",
            f"{item.mac_ratio:.2f}x",
            f"{efficiency[-1]:.2f}",
            last if ratio is None else f"{100 * ratio:.1f}%",
            "" if memory is None else f"{memory:.0f}",
        )
        rows.append(row)
        if item.mode.pause and speed_up < 1:
            slower.append(row[0])
    last_title = "pausing" if engine == "torch" else "against torch"
    print_table((*titles, last_title, "peak MB"), rows)
    if len(efficiency) > 1:
        say(
            f"efficiency (measured over theoretical speed-up): lowest {min(efficiency[1:]):.3f}, "
            f"mean {sum(efficiency[1:]) / len(efficiency[1:]):.3f}"
        )
    if slower:
        errors.print(f"warning: slower than no pausing: {', '.join(slower)}", highlight=False)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with one column for each class and size."""
    flat = {key: value for key, value in row.items() if not isinstance(value, dict | list)}
    flat |= {f"iou {name}": value for name, value in row["iou"].items()}
    return flat | {f"miou {size}": value for size, value in row.get("miou_by_size", {}).items()}


def _write(
    options: BenchOptions | EvaluateOptions, values: object, rows: Sequence[Mapping[str, object]]
) -> None:
    if options.json:
        write_json(options.json, values)
        say(f"wrote {options.json}")
    if options.csv:
        write_csv(options.csv, rows)
        say(f"wrote {options.csv}")
