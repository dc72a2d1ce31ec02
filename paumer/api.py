"""The front door: a command is one of these calls, and its options are the call's arguments."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Literal, ParamSpec

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from paumer import DEFAULT_MODEL
from paumer.data.datasets import open_dataset
from paumer.data.images import read_folder
from paumer.data.samples import Dataset, spread
from paumer.data.transforms import normalise
from paumer.exporting import onnx, verify
from paumer.inference.engines import make_engine
from paumer.inference.points import check_point_name, read_points, write_points
from paumer.inference.predictor import Predictor
from paumer.inference.processes import process_number
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement
from paumer.mode import Mode, ModeLike, check_runnable, parse_modes
from paumer.model.config import ModelConfig
from paumer.model.directory import find_model
from paumer.model.pretrained import pick_device
from paumer.model.segmenter import PausingSegmenter
from paumer.pause_config import PauseConfig
from paumer.progress import Progress, StepProgress
from paumer.scenes.scene import scene
from paumer.tables import write_csv, write_jsonl
from paumer.training.options import TrainOptions, parse_size

if TYPE_CHECKING:
    from paumer.study.accuracy import Tally
    from paumer.study.speed import SpeedReport, SpeedSettings
    from paumer.study.tuning import Tuned, TuneSettings

ModelLike = str | Path | Predictor
"""A model: loaded, or what `load` takes."""

DataLike = str | Dataset
"""A data set: opened, or what ``--data`` takes."""

Modes = ModeLike | Sequence[ModeLike]
"""One or several modes, operating points, or names of grids."""

DIAL = "3:0.4,5:0.4,7:0.4"
"""The mode of an exported file for all ratios, where none is named."""

P = ParamSpec("P")


def load(
    name: str | Path = DEFAULT_MODEL,
    device: str | torch.device = "auto",
    engine: str = "torch",
    threads: int | None = None,
) -> Predictor:
    """The predictor of a model directory, a training run, a built-in name or a hub model.

    ``engine`` runs it: torch, compile, onnx, onnx-int8 or openvino; the last three with so many
    ``threads``.
    """
    directory = find_model(str(name))
    network = PausingSegmenter.from_pretrained(directory, map_location=device)
    runner = make_engine(engine, network, threads, onnx.export_onnx)
    return Predictor(network, read_points(directory, network), runner)


def evaluate(
    model: ModelLike = DEFAULT_MODEL,
    data: DataLike = "scenes",
    mode: Modes = "none",
    *,
    split: str = "val",
    limit: int | None = None,
    inference: Inference | None = None,
    by_size: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> "dict[Mode, Tally]":
    """What a model gets right on a data set in each mode: ``.miou``, ``.iou``, ``.to_json()``.

    ``limit`` counts on so many images, spread over the split. Started by torchrun, every process
    counts its part and all get the sum.
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


def sweep(
    out: str | Path,
    model: ModelLike = DEFAULT_MODEL,
    data: DataLike = "scenes",
    grid: Modes = "paper",
    *,
    split: str = "val",
    limit: int | None = None,
    batch: int = 8,
    speed: Literal["predict", "measure", "none"] = "predict",
    speed_batch: int = 1,
    device: str = "auto",
    progress: StepProgress = lambda *_: None,
) -> list[Measurement]:
    """The accuracy and speed of a whole grid of modes, also written to the folder ``out``.

    What modes share is computed once. A sweep that was stopped resumes. Started by torchrun, every
    process counts its part, and the first one times, writes and returns the measurements.
    """
    from paumer.study import cost, grids
    from paumer.study import sweep as sweeping

    if speed_batch < 1:
        raise ValueError(f"speed-batch is {speed_batch}: give at least 1")
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


def tune(
    model: str | Path,
    data: DataLike = "scenes",
    mode: str = "auto",
    *,
    latency_ms: float | None = None,
    speed_up: float | None = None,
    max_drop: float | None = None,
    name: str | None = None,
    split: str = "val",
    limit: int | None = 50,
    device: str = "auto",
    out: str | Path | None = None,
    settings: "TuneSettings | None" = None,
    progress: StepProgress = lambda *_: None,
) -> "Tuned":
    """The best mode for a budget, kept as an operating point of the model.

    A built-in or hub model stays as it is: its points go to a copy in the working directory.
    Give one of ``latency_ms``, ``speed_up`` and ``max_drop`` (points of mIoU). In ``mode`` the word
    auto stands for the stages that are searched, as in ``auto exit by=neighbours``.
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
    predictor, dataset = load(model, device), _opened_data(data, split)
    directory, indices = tuning.own_copy(model), spread(len(dataset), limit)
    out = Path(out or directory / "tune")
    tuned = tuning.tune(predictor, dataset, budget, out, settings, indices, progress)
    write_jsonl(out / f"{name}.jsonl", [item.to_json() for item in tuned.evaluated])
    points = {**tuned.points, **({name: tuned.choice} if tuned.met else {})}
    write_points(directory, points)
    return replace(tuned, points=points)


def bench(
    model: ModelLike | PausingSegmenter = DEFAULT_MODEL,
    mode: Modes = "paper",
    *,
    input: str = "512",
    batch: int | Literal["auto"] = 1,
    images: str | Path | None = None,
    engine: str | Sequence[str] = "torch",
    device: str = "auto",
    settings: "SpeedSettings | None" = None,
    progress: Progress | None = None,
) -> "SpeedReport":
    """The speed of modes in one interleaved run, on noise or on the ``images`` of a folder."""
    from paumer.study import speed

    settings, points = settings or speed.SpeedSettings(), {}
    if isinstance(model, PausingSegmenter):
        network = model
    else:
        predictor = _opened(model, device)
        network, points = predictor.network, predictor.modes
    modes = parse_modes(_texts(mode), points)
    width, height = parse_size(input)
    for one in modes:
        check_runnable(one)
        network.macs((height, width), replace(one, size=None))  # Raises by threshold too.
    most = 8 if batch == "auto" else batch
    if most < 1:
        raise ValueError(f"batch is {batch}: give at least 1")
    where = pick_device(device)
    network.to(where).eval()
    if images is None:
        seen = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    else:
        assert network.config
        seen = _network_inputs(read_folder(Path(images), most), (height, width), network.config)
    if batch == "auto":
        batch = speed.best_batch(network, seen[:1].to(where), settings)
    seen = seen.repeat(-(-batch // len(seen)), 1, 1, 1)[:batch].to(where)
    names = [engine] if isinstance(engine, str) else list(dict.fromkeys(engine))
    with TemporaryDirectory() as folder:
        engines = {
            name: make_engine(name, network, settings.threads, onnx.export_onnx, Path(folder))
            for name in names
        }
        return speed.measure_speed(network, seen, modes, settings, engines, progress)


@dataclass(frozen=True)
class Exported:
    """A verified file: the least agreement with the network over the modes it was tried in."""

    path: Path
    size: tuple[int, int]
    modes: tuple[Mode, ...]
    images: int
    agreement: float
    script: Path | None


def export(
    out: str | Path,
    model: ModelLike = DEFAULT_MODEL,
    mode: ModeLike | None = None,
    *,
    format: Literal["onnx", "onnx-int8", "openvino", "program"] = "onnx",
    dial: bool = False,
    input: str | None = None,
    images: str | Path | None = None,
) -> Exported:
    """Write a model as one verified file, and beside an ONNX file a script that uses it.

    Without ``mode``, or with ``dial``, how many patches continue after each block is an input.
    It is verified on the ``images`` of a folder, or on synthetic scenes.
    """
    out = Path(out)
    script = out.with_suffix(".py")
    if out == script:
        raise ValueError(f'"{script}" is where its script goes: name another --out, as m.onnx')
    for path in (out, script):
        if path.exists():
            raise ValueError(f'"{path}" exists: name another --out')
    predictor = _opened(model)
    network, size = predictor.network, predictor.config.image_size
    if input is not None:
        size = parse_size(input)[::-1]
    dial = dial or mode is None
    chosen = predictor.mode(mode or _dial(network.backbone.depth))
    if chosen.size is not None:
        raise ValueError(f'a file takes images of one size: give --input instead of "{chosen}"')
    if format == "program" and dial:
        raise ValueError("a torch.export program holds one mode: give --mode, without --dial")
    if images is None:
        shape = max(64, size[1]), max(48, size[0])
        samples = [scene(seed, shape)[0] for seed in range(4)]
    else:
        samples = read_folder(Path(images), 50)
    seen = _network_inputs(samples, size, predictor.config)
    modes, agreement = verify.write_verified(network, out, size, chosen, dial, format, seen)
    if format == "program":
        return Exported(out, size, modes, len(seen), agreement, None)
    verify.write_script(script, out.name)
    return Exported(out, size, modes, len(seen), agreement, script)


def _by_fields(options: Callable[P, TrainOptions]) -> Callable[P, Path]:
    """The training, called with the fields of its options, which editors then complete."""

    def train(*args: P.args, **kwargs: P.kwargs) -> Path:
        """Train a segmenter once for many modes and return the run directory.

        The arguments are the options of `paumer train`. Messages go to the logger ``paumer``.
        """
        # As elsewhere, a path may be text and several modes one.
        if isinstance(out := kwargs.get("out"), str):
            kwargs["out"] = Path(out)
        if isinstance(mode := kwargs.get("val_mode"), str):
            kwargs["val_mode"] = (mode,)
        log = logging.getLogger("paumer").info
        return Path(training_module().train(options(*args, **kwargs), log))

    train.__signature__ = signature(options)  # type: ignore[attr-defined]  # What help shows.
    return train


train = _by_fields(TrainOptions)


def resume(directory: str | Path, steps: int | None = None) -> Path:
    """Resume the training in a run directory, exactly as if it had not stopped.

    ``steps`` extends it to so many.
    """
    log = logging.getLogger("paumer").info
    return Path(training_module().resume(Path(directory), log, steps=steps))


def training_module() -> ModuleType:
    """``paumer.training.run``, which needs more than the rest."""
    try:
        from paumer.training import run
    except ImportError as error:
        raise ImportError(f"training needs more ({error}): pip install 'paumer[train]'") from error
    return run


def _opened(model: ModelLike, device: str = "auto") -> Predictor:
    return model if isinstance(model, Predictor) else load(model, device)


def _opened_data(data: DataLike, split: str) -> Dataset:
    return open_dataset(data, split) if isinstance(data, str) else data


def _texts(modes: Modes) -> list[str]:
    several = [modes] if isinstance(modes, str | Mode | PauseConfig) else modes
    return [str(mode) for mode in several]


def _dial(depth: int) -> str:
    """The stages of `DIAL` that a network of so many blocks has."""
    return ",".join(stage for stage in DIAL.split(",") if int(stage.split(":")[0]) < depth)


def _network_inputs(
    images: Sequence[UInt8[np.ndarray, "_ _ 3"]], size: tuple[int, int], config: ModelConfig
) -> Float[Tensor, "b 3 h w"]:
    """Images as the network sees them, all scaled to one size."""
    normal = [normalise(image, config.mean, config.std)[None] for image in images]
    return torch.cat([F.interpolate(image, size, mode="bilinear") for image in normal])
