"""The front door: a command is one of these calls, and its options are the call's arguments."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Literal, ParamSpec, get_type_hints

import numpy as np
import torch
from PIL import Image

from paumer.arguments import at_least_one, checked
from paumer.data.datasets import open_dataset
from paumer.data.images import read_folder
from paumer.data.samples import Dataset, spread
from paumer.exporting import onnx, verify
from paumer.exporting.description import describe
from paumer.exporting.rounding import Rounding, round_layers
from paumer.inference.engines import Engine, FileEngine, make_engine
from paumer.inference.exported import is_exported, keep_points
from paumer.inference.opening import open_file, open_model
from paumer.inference.points import check_point_name, read_points, write_points
from paumer.inference.predictor import Predictor
from paumer.inference.processes import process_number
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement
from paumer.mode import Mode, ModeLike, check_runnable, parse_modes
from paumer.model.pretrained import pick_device
from paumer.model.segmenter import PausingSegmenter
from paumer.pause_config import PauseConfig
from paumer.progress import Progress, StepProgress
from paumer.tables import write_csv, write_jsonl
from paumer.training.options import Callback, TrainCall, parse_size

if TYPE_CHECKING:
    from paumer.study.accuracy import Tally
    from paumer.study.rounding import Rounded
    from paumer.study.speed import SpeedReport, SpeedSettings
    from paumer.study.tuning import Tuned, TuneSettings

ModelLike = str | Path | Predictor
"""A model: loaded, or what `load` takes."""

DataLike = str | Path | Dataset
"""A data set: opened, or what ``--data`` takes."""

Modes = ModeLike | Sequence[ModeLike]
"""One or several modes, operating points, or names of grids."""

Device = str | torch.device | None
"""Where to run, such as ``cuda:1``. None: where the model is; one that is not loaded, auto."""

P = ParamSpec("P")


@checked
def evaluate(  # The options of the command, by their names.
    model: ModelLike,
    data: DataLike = "scenes",
    mode: Modes = "none",
    *,
    split: str = "val",
    limit: int | None = None,
    inference: Inference | None = None,
    by_size: bool = False,
    device: Device = None,
    progress: Progress | None = None,
) -> "dict[Mode, Tally]":
    """What a model gets right on a data set in each mode: ``.miou``, ``.iou``, ``.to_json()``.

        tallies = model.evaluate("photos/data.yaml", ["none", "fast"])

    ``model`` is a loaded one or what `load` takes; ``data`` is a data set, or what ``--data`` takes
    and its ``split``; ``mode`` is one or several. ``limit`` counts on so many images, spread over
    the split. ``inference`` cuts, repeats and batches them, ``by_size`` also counts objects by
    their size, and ``device`` moves the model. ``progress`` is called with the images done and all.
    Started by torchrun, every process counts its part and all get the sum.
    """
    from paumer.study import accuracy

    predictor, dataset = _opened(model, device), _opened_data(data, split)
    modes = parse_modes(_texts(mode), predictor.modes)
    indices, rank, world = spread(len(dataset), limit), *process_number()
    tallies = accuracy.evaluate(
        predictor, dataset, modes, inference, indices, progress, by_size, (rank, world)
    )
    if world > 1:
        tallies = accuracy.add_up(tallies, world)
    return dict(zip(modes, tallies, strict=True))


@checked
def sweep(  # The options of the command, by their names.
    model: ModelLike,
    out: str | Path,
    data: DataLike = "scenes",
    grid: Modes = "paper",
    *,
    split: str = "val",
    limit: int | None = None,
    batch: int = 8,
    speed: Literal["predict", "measure", "none"] = "predict",
    speed_batch: int = 1,
    device: Device = None,
    progress: StepProgress = lambda *_: None,
) -> list[Measurement]:
    """The accuracy and speed of a whole grid of modes, also written to the folder ``out``.

        found = model.sweep("runs/sweep", "photos/data.yaml", ["none", "3:0.4", "3:0.4 exit"])

    ``grid`` is paper, one, two or count, or modes. ``batch`` images are counted together. ``speed``
    is predicted from this machine's cost table, measured, or none, with ``speed_batch`` images at a
    time. ``progress`` is called with what is done, how much of it and of how much. ``model``,
    ``data``, ``split``, ``limit`` and ``device`` are as in `evaluate`.

    What modes share is computed once. A sweep that was stopped resumes. Started by torchrun, every
    process counts its part, and the first one times, writes and returns the measurements.
    """
    from paumer.study import cost, grids
    from paumer.study import sweep as sweeping

    at_least_one(speed_batch, "speed-batch")
    out, predictor, dataset = Path(out), _opened(model, device), _opened_data(data, split)
    modes = grids.grid(_texts(grid), predictor.network.backbone.depth, predictor.modes)
    image = dataset[0].image
    size = image.shape[:2]
    if speed == "measure":  # What has no fixed cost shows before hours of counting.
        for mode in modes:
            predictor.macs(size, mode)
    how, indices = Inference(batch=batch), spread(len(dataset), limit)
    task = sweeping.Sweep(predictor, dataset, modes, out, how, indices)
    tallies = task.run(process_number(), lambda *done: progress(f"{len(modes)} modes", *done))
    if tallies is None:
        return []
    source = f"{dataset.name} {dataset.split}"
    found = sweeping.describe(predictor, modes, tallies, size, source, how)
    if speed != "none":
        found = cost.with_speeds(
            found, predictor, image, speed, None, speed_batch, lambda *d: progress("timing", *d)
        )
    rows = [item.to_json() for item in found]
    sweeping.save_tallies(out / "sweep.npz", modes, tallies)
    write_jsonl(out / "sweep.jsonl", rows)
    write_csv(out / "sweep.csv", rows)
    return found


@checked
def tune(  # The options of the command, by their names.
    model: ModelLike,
    data: DataLike = "scenes",
    mode: str = "auto",
    *,
    latency_ms: float | None = None,
    speed_up: float | None = None,
    max_drop: float | None = None,
    name: str | None = None,
    split: str = "val",
    limit: int | None = 50,
    device: Device = None,
    out: str | Path | None = None,
    settings: "TuneSettings | None" = None,
    progress: StepProgress = lambda *_: None,
) -> "Tuned":
    """The best mode for a budget, kept as an operating point of the model and in its directory.

        model.tune("photos/data.yaml", speed_up=1.5, name="quick")
        model.predict("street.jpg", "quick")

    Give one of ``latency_ms``, ``speed_up`` and ``max_drop`` (points of mIoU). In ``mode`` the word
    auto stands for the stages that are searched, as in ``auto exit by=neighbours``. ``name`` is
    that of the point (default: the budget), ``out`` a folder for counts (default: in the model's),
    ``settings`` a `TuneSettings`. The others are as in `sweep`: ``model``, ``data``, ``split``,
    ``limit``, ``device``, ``progress``. The points of a built-in or hub model go to a copy in the
    working directory.
    """
    from paumer.study import tuning
    from paumer.study.tradeoff import Budget

    budget = Budget(latency_ms=latency_ms, speed_up=speed_up, max_drop=max_drop)
    name = name or str(budget)
    check_point_name(name)
    if name == "unpaused":
        raise ValueError('no pausing is called "unpaused": choose another --name')
    stages, _, words = mode.strip().partition(" ")
    if stages != "auto":
        raise ValueError(
            f'tune searches for the stages itself ("{mode}"): '
            f'write auto for them, as in --mode "auto exit"'
        )
    template = Mode.parse(f"1:0.5 {words}")  # Its stages stand for those that are searched.
    settings = replace(settings or tuning.TuneSettings(), template=template)
    predictor, dataset = _opened(model, device), _opened_data(data, split)
    indices, source = spread(len(dataset), limit), predictor.known_source()
    directory = tuning.own_copy(source)
    out = Path(out or directory / "tune")
    tuned = tuning.tune(predictor, dataset, budget, out, settings, indices, progress)
    write_jsonl(out / f"{name}.jsonl", [item.to_json() for item in tuned.evaluated])
    points = {**tuned.points, **({name: tuned.choice} if tuned.met else {})}
    if is_exported(source):
        keep_points(Path(source), {n: point.to_json() for n, point in points.items()})
        predictor.points |= points
    else:
        write_points(directory, points)
        predictor.points, predictor.source = read_points(directory, predictor.network), directory
    return replace(tuned, points=points)


@checked
def bench(  # The options of the command, by their names.
    model: ModelLike | PausingSegmenter,
    mode: Modes = "paper",
    *,
    input: str | int = "512",
    batch: int | Literal["auto"] = 1,
    images: str | Path | None = None,
    engine: str | Sequence[str] = "torch",
    device: Device = None,
    settings: "SpeedSettings | None" = None,
    progress: Progress | None = None,
) -> "SpeedReport":
    """The speed of modes in one interleaved run: ``.measurements``.

        report = model.bench(["3:0.4", "fast"], input="640x480")

    ``model`` is a loaded one, what `load` takes, or a network; ``mode`` is one or several, or
    paper. ``input`` is a side or WIDTHxHEIGHT: noise of that size runs, or the ``images`` of a
    folder, ``batch`` at a time; auto takes the fastest number. ``engine`` is one or several of
    those of `load`. ``settings`` is a `SpeedSettings`: rounds, threads, precision. ``device`` and
    ``progress`` are as in `evaluate`.
    """
    from paumer.study import speed

    settings, points = settings or speed.SpeedSettings(), {}
    own: dict[str, Engine] = {}
    if isinstance(model, PausingSegmenter):
        where = pick_device(device or next(model.parameters()).device)
        network = model.to(where).eval()
    else:
        predictor = _opened(model, device)
        network, where, points = predictor.network, predictor.device, predictor.modes
        if isinstance(predictor.engine, FileEngine):
            own = {predictor.engine.name: predictor.engine}
    modes = parse_modes(_texts(mode), points)
    width, height = parse_size(input)
    for one in modes:
        check_runnable(one)
        network.macs((height, width), replace(one, size=None))  # Raises by threshold too.
    most = 8 if batch == "auto" else at_least_one(batch, "batch")
    if images is None:
        seen = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    else:
        assert network.config
        read = read_folder(Path(images), most)
        seen = speed.network_inputs(read, (height, width), network.config)
    if batch == "auto":
        batch = speed.best_batch(network, seen[:1].to(where), settings)
    seen = seen.repeat(-(-batch // len(seen)), 1, 1, 1)[:batch].to(where)
    names = [engine] if isinstance(engine, str) else list(dict.fromkeys(engine))
    if not names:
        raise ValueError("engine is an empty list: give at least one, such as torch")
    with TemporaryDirectory() as folder:
        engines = own or {
            name: make_engine(name, network, settings.threads, onnx.export_onnx, Path(folder))
            for name in names
        }
        return speed.measure_speed(network, seen, modes, settings, engines, progress)


@dataclass(frozen=True)
class Exported:
    """A verified file: the least ratio of pixels with the model's label over the modes tried.

    ``script`` uses the file without paumer, and ``script_agreement`` is the same of it.
    ``rounded`` is what 8 bits cost and gain, where labels told.
    """

    path: Path
    modes: tuple[Mode, ...]
    images: int
    agreement: float
    script: Path | None
    script_agreement: float | None
    rounded: "tuple[Rounded, ...]" = ()

    def __repr__(self) -> str:
        return (
            f'Exported("{self.path}", {self.agreement:.2%} of the labels of {self.images} images)'
        )


@checked
def export(  # The options of the command, by their names.
    model: ModelLike,
    out: str | Path,
    mode: ModeLike = "none",
    *,
    format: Literal["onnx", "onnx-int8", "openvino", "program"] = "onnx",
    output: Literal["labels", "logits", "probabilities"] = "labels",
    pixels: Literal["uint8", "normalised"] = "uint8",
    input: str | int | None = None,
    images: str | Path | None = None,
    calibrate: DataLike | None = None,
    split: str = "val",
    limit: int | None = 100,
    max_drop: float = 0.5,
    progress: Progress | None = None,
) -> Exported:
    """Write a model as one verified file for any image size and mode, and a script that uses it.

        model.export("mine.onnx", "fast")

    ``model`` is a loaded one or what `load` takes. Other programs get the ``output`` from
    ``pixels`` that are RGB bytes or normalised. The file ``out`` runs in ``mode`` where none is
    given; in the ``format`` openvino in that mode alone, and with ``input`` on images of that size
    too. It is verified on 20 ``images`` of a folder, or on the sample set and synthetic scenes.
    With ``calibrate`` it is in 8 bits, by ranges seen on 24 images of that data's train split, and
    refused if it loses more than ``max_drop`` points of mIoU on ``limit`` images of ``split``.
    ``progress`` is called with the steps done and all.
    """
    out, script = Path(out), verify.script_of(Path(out), format == "program")
    predictor = _opened(model)
    chosen = predictor.mode(mode)
    if chosen.size is not None:
        raise ValueError(f'a file scales no images: leave out the size of "{chosen}"')
    size = None if input is None else parse_size(input)[::-1]
    runtime = {"onnx-int8": "onnx"}.get(format, format)
    points = {name: point.to_json() for name, point in predictor.points.items()}
    info = describe(predictor.weights(), chosen, size, runtime, output, pixels, points)
    samples = [open_dataset("sample", name) for name in ("train", "val", "test")]
    seen = read_folder(Path(images), 20) if images else verify.sample_images(samples)
    if size is not None:
        seen = [np.asarray(Image.fromarray(image).resize(size[::-1])) for image in seen]
    modes = [chosen]
    if info.free:
        modes = list(dict.fromkeys([chosen, Mode(), *info.modes.values()]))
    if calibrate is not None and format == "program":
        raise ValueError("a torch.export program has no 8 bits: calibrate another --format")
    rounding: Rounding | None = round_layers if format == "onnx-int8" else None
    rounded: tuple[Rounded, ...] = ()
    if calibrate is not None:
        learned, counted = (_opened_data(calibrate, name) for name in ("train", split))
        looked = [learned[index].image for index in spread(len(learned), 24)]
        rounding = partial(verify.rounded_by, predictor, info, looked, modes)
    reopen = partial(open_file, Predictor, threads=torch.get_num_threads())
    how = (seen, modes, reopen, rounding, progress)
    with verify.new_file(predictor, out, info, *how) as (file, agreed):
        if calibrate is not None:
            from paumer.study.rounding import compare_rounded

            task = (counted, modes, limit, max_drop, progress)
            rounded = tuple(compare_rounded(predictor, file, *task))
    used = script if "script" in agreed else None
    ratios = (agreed["file"], used, agreed.get("script"))
    return Exported(out, tuple(modes), len(seen), *ratios, rounded)


def _by_fields(options: Callable[P, TrainCall]) -> Callable[P, Path]:
    """The training, called with the fields of its options, which editors then complete."""

    def train(*args: P.args, **kwargs: P.kwargs) -> Path:
        """Train a segmenter once for many modes and return the run directory.

            run = paumer.train(data="photos/data.yaml", out="runs/mine", init="street-tiny")

        The arguments are the options of `paumer train`, of which `paumer train --help` tells, and
        ``callbacks``: functions that are called after each step with its number and its loss, after
        a validation also with the mIoU of each mode. Messages go to the logger ``paumer``.
        """
        log, call = logging.getLogger("paumer").info, options(*args, **kwargs)
        return Path(training_module().train(call.options(), log, callbacks=call.callbacks))

    plain = get_type_hints(TrainCall)  # What help shows: types without what the commands add.
    shown = [p.replace(annotation=plain[p.name]) for p in signature(options).parameters.values()]
    train.__signature__ = Signature(shown, return_annotation=Path)  # type: ignore[attr-defined]
    return train


train = _by_fields(TrainCall)


@checked
def resume(
    directory: str | Path, steps: int | None = None, callbacks: Sequence[Callback] = ()
) -> Path:
    """Resume the training in a run ``directory``, exactly as if it had not stopped.

    ``steps`` extends it to so many; ``callbacks`` are called after each step.
    """
    log = logging.getLogger("paumer").info
    return Path(training_module().resume(Path(directory), log, steps=steps, callbacks=callbacks))


def training_module() -> ModuleType:
    """``paumer.training.run``, which needs more than the rest."""
    try:
        from paumer.training import run
    except ImportError as error:
        raise ImportError(f"training needs more ({error}): pip install 'paumer[train]'") from error
    return run


def _opened(model: ModelLike, device: Device = None) -> Predictor:
    if isinstance(model, Predictor):
        return model if device is None else model.to(device)
    return open_model(Predictor, model, onnx.export_onnx, device or "auto")


def _opened_data(data: DataLike, split: str) -> Dataset:
    return data if isinstance(data, Dataset) else open_dataset(str(data), split)


def _texts(modes: Modes) -> list[str]:
    if not (several := [modes] if isinstance(modes, str | Mode | PauseConfig) else modes):
        raise ValueError("mode is an empty list: give at least one mode, such as none or 3:0.4")
    return [str(mode) for mode in several]
