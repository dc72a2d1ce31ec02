"""Training options -> a run directory: started, resumed, and written from step to step."""

import json
import math
import os
import shutil
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from lightning_fabric import Fabric
from lightning_fabric.loggers.logger import Logger
from safetensors.torch import save

from paumer.data.datasets import open_dataset
from paumer.data.groups import hold_out
from paumer.data.samples import Dataset, spread
from paumer.disk import alone_in, new_beside, replace_file
from paumer.drawing import contact_sheet, legend, write_image
from paumer.inference.points import write_points
from paumer.inference.predictor import Predictor
from paumer.measurement import Measurement
from paumer.memory import keep_memory
from paumer.mode import parse_modes
from paumer.model.directory import CONFIG_FILE, POINTS_FILE
from paumer.model.segmenter import PausingSegmenter
from paumer.progress import Say, TrainingProgress
from paumer.study.accuracy import evaluate, iou_of_counts
from paumer.study.figures import draw_training
from paumer.study.sizes import mean_known
from paumer.study.speed import machine
from paumer.study.uncertainty import HEADS_FILE
from paumer.training.checkpoint import UNREADABLE, load_checkpoint, save_checkpoint
from paumer.training.data_record import check_same_data, record_data
from paumer.training.feed import Crops, crop_indices, make_loader
from paumer.training.initial import inherited_points, initial_network, starts_from_model
from paumer.training.loggers import finish, log_metrics, log_options, make_loggers
from paumer.training.loop import Metrics, Training, learning_rate
from paumer.training.metrics import MetricsFile
from paumer.training.options import Callback, TrainOptions, plain_options, read_options
from paumer.training.start import (
    advice,
    bad_list,
    check_options,
    check_samples,
    make_loss,
    make_transform,
    note_side,
    readable,
)


class Listeners(NamedTuple):
    """Who hears of a run: messages, how far it is, and the numbers of each step."""

    say: Say
    progress: TrainingProgress
    callbacks: Sequence[Callback]


def train(
    options: TrainOptions,
    say: Say = lambda _: None,
    progress: TrainingProgress = lambda *_: None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train from the start and fill a new run directory; its path."""
    if is_first() and options.out.exists():
        raise ValueError(
            f'"{options.out}" exists: name another --out, or resume it with --resume {options.out}'
        )
    training, validation = _open_data(options)
    heard = say if is_first() else lambda _: None
    network = initial_network(options, training, heard)
    check_options(options, network)
    make_loggers(options.logger, options.out)  # Raises before anything is written.
    side, _ = (check_samples(dataset, options) for dataset in (training, validation))
    note_side(network, options, side)
    for line in advice(options, side):
        heard(line)
    if is_first():
        with new_beside(options.out) as new:
            _write_options(new, options)
            replace_file(new / "env.json", json.dumps(machine(), indent=2).encode())
            record_data(new, training, validation)
            new.rename(options.out)
    begun = False

    def shown(done: int, steps: int, values: Mapping[str, float]) -> None:
        nonlocal begun
        begun = True
        progress(done, steps, values)

    try:
        with alone_in(options.out) if is_first() else nullcontext():
            listeners = Listeners(say, shown, callbacks)
            return _fit(options, network, training, validation, listeners)
    except BaseException:
        if is_first() and not begun:  # Nothing to resume, and nothing in the way of another try.
            shutil.rmtree(options.out, ignore_errors=True)
        raise


def resume(
    directory: Path,
    say: Say = lambda _: None,
    progress: TrainingProgress = lambda *_: None,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Continue a run from its newest checkpoint, exactly as if it had not stopped.

    ``steps`` makes it a run of so many: what is left of it follows the schedule of such a run.
    """
    options, listeners = read_options(directory), Listeners(say, progress, callbacks)
    with alone_in(directory) if is_first() else nullcontext():
        training, validation = _open_data(options)
        network = initial_network(_without_weights(options), training)
        check_options(options if steps is None else replace(options, steps=steps), network)
        try:
            checkpoint = load_checkpoint(directory / "checkpoints")
        except FileNotFoundError:
            say(f"{directory} has no checkpoint yet: starting from the beginning")
            options = _extend(options, steps, 0, say)
            if is_first():
                record_data(directory, training, validation)
            network = initial_network(options, training)
            note_side(network, options, check_samples(training, options))
            return _fit(options, network, training, validation, listeners)
        check_same_data(directory, training, validation)
        options = _extend(options, steps, checkpoint[0], say)
        if checkpoint[0] >= options.steps:
            say(f"{directory} is complete: {checkpoint[0]} steps; --steps N extends it")
            return directory
        say(f"resuming from step {checkpoint[0]} of {options.steps}")
        note_side(network, options, check_samples(training, options))
        return _fit(options, network, training, validation, listeners, checkpoint)


def _open_data(options: TrainOptions) -> tuple[Dataset, Dataset]:
    """The training and the validation data."""
    training = open_dataset(options.data, "train")
    if options.hold_out is not None:
        return hold_out(training, options.hold_out)
    return training, open_dataset(options.data, "val")


def _without_weights(options: TrainOptions) -> TrainOptions:
    """Options for a network whose weights a checkpoint will replace: no download, no old files."""
    if not starts_from_model(options):
        return replace(options, init="none")
    own = options.out / "model"
    return replace(options, init=str(own)) if (own / CONFIG_FILE).is_file() else options


def _extend(options: TrainOptions, steps: int | None, done: int, say: Say) -> TrainOptions:
    """The options with another number of steps, which the run directory notes."""
    if steps is None or steps == options.steps:
        return options
    if steps <= done:
        raise ValueError(f"{options.out} has done {done} steps: give --steps more than that")
    new = replace(options, steps=steps)
    if is_first():
        _write_options(options.out, new)
    if done:
        rate, before = learning_rate(new, done), learning_rate(options, done - 1)
        say(f"now {steps} steps: the learning rate continues at {rate:.3g} (it was {before:.3g})")
    return new


def _write_options(directory: Path, options: TrainOptions) -> None:
    content = yaml.safe_dump(plain_options(options), sort_keys=False)
    replace_file(directory / "args.yaml", content.encode())


def _fit(
    options: TrainOptions,
    network: PausingSegmenter,
    training: Dataset,
    validation: Dataset,
    listeners: Listeners,
    checkpoint: tuple[int, dict[str, object]] | None = None,
) -> Path:
    """Train from the start, or from a checkpoint, to the end or to a signal."""
    points = inherited_points(_without_weights(options), network)
    loggers = make_loggers(options.logger, options.out) if is_first() else []
    fabric = _launch(options, loggers)
    task = Training(options, fabric, make_loss(options, network, training).train())
    if checkpoint is not None:
        try:
            task.restore(*checkpoint)
        except UNREADABLE as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"the checkpoint of step {checkpoint[0]} does not fit the options in "
                f'"{options.out / "args.yaml"}" ({reason}): bring back the ones it was made with'
            ) from error
    transform, process = make_transform(options, network), (fabric.global_rank, fabric.world_size)
    crops = Crops(training, transform, options.batch, options.seed, bad_list(options))
    indices = crop_indices(task.step, options.steps, options.batch, *process)
    loader = make_loader(crops, indices, options.workers, fabric.device.type == "cuda")
    status = "failed"
    try:
        log_options(loggers, plain_options(options))
        task.run(loader, RunCallback(task, validation, listeners, points))
        status = "success" if task.stopped_by is None else "failed"
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise OSError(
            f"a process that reads images died ({str(error).splitlines()[0]}); usually "
            f"memory ran out: resume with --resume {options.out}"
        ) from error
    finally:
        finish(loggers, status)
    if task.stopped_by is not None:
        name = signal.Signals(task.stopped_by).name
        raise StoppedError(
            f"stopped by {name} after step {task.step}, which is saved: "
            f"resume with --resume {options.out}",
            task.stopped_by,
        )
    return options.out


class StoppedError(InterruptedError):
    """A signal ended a run after a step, which was saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def _launch(options: TrainOptions, loggers: list[Logger]) -> Fabric:
    """Devices, precision and processes."""
    several = options.devices * options.nodes > 1 or "WORLD_SIZE" in os.environ
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its advice is ours to follow or not.
        fabric = Fabric(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.nodes,
            strategy="ddp" if several else "auto",
            precision={"fp32": "32-true", "bf16": "bf16-mixed"}[options.precision],  # type: ignore[arg-type]
            loggers=loggers,
        )
        fabric.launch()
    if fabric.device.type == "cpu":
        keep_memory()  # Every step needs what the last one freed.
    return fabric


@dataclass
class RunCallback:
    """Fills a run directory after each step: metrics, validation, model, images, checkpoints."""

    task: Training
    validation: Dataset
    listeners: Listeners
    points: Mapping[str, Measurement]
    """Operating points to write into the model when it is first written."""

    def __post_init__(self) -> None:
        options = self.task.options
        self.first, self.begin = self.task.step, time.monotonic()
        self.newest: Metrics = {}
        self.metrics = MetricsFile(options.out / "metrics.csv", until=self.task.step)
        chosen = spread(len(self.validation), options.val_images)
        self.indices = readable(self.validation, chosen, options)

    def __call__(self, values: Metrics) -> None:
        """Show progress; note metrics, validate and save when it is time."""
        task, options, step = self.task, self.task.options, self.task.step
        last = step == options.steps
        if task.fabric.is_global_zero:
            pace = (time.monotonic() - self.begin) / (step - self.first)
            rates = {"images_per_second": options.batch / pace}
            rates["seconds_left"] = pace * (options.steps - step)
            self.listeners.progress(step, options.steps, {**values, **rates})
        if step % 20 == 0 or last:
            self._note({**values, "lr": learning_rate(options, step - 1)})
        if step % options.val_every == 0 or last:
            self.validate()
        due = step % options.save_every == 0 or last or task.stopped_by is not None
        if due and task.fabric.is_global_zero:
            self.metrics.write()
            save_checkpoint(options.out / "checkpoints", step, task.state())
        if task.fabric.is_global_zero:
            for callback in self.listeners.callbacks:
                callback(step, {**values, **self.newest})
        self.newest = {}

    def _note(self, values: Metrics) -> None:
        self.newest |= values
        self.metrics.add(self.task.step, values)
        log_metrics(self.task.fabric.loggers, values, self.task.step)

    def validate(self) -> None:
        """Measure the validation modes; write the model, metrics and images."""
        fabric, options, network = self.task.fabric, self.task.options, self.task.result.network
        if options.learn == "block-heads":
            self._write_model()
            return
        predictor, modes = Predictor(network), parse_modes(options.val_mode)
        mine = self.indices[fabric.global_rank :: fabric.world_size]
        totals = evaluate(predictor, self.validation, modes, indices=mine)
        self.task.loss.train()
        values = {}
        for mode, total in zip(modes, totals, strict=True):
            part = torch.from_numpy(total.totals).to(fabric.device)
            counts: Any = fabric.all_reduce(part, reduce_op="sum")
            values[f"miou {mode}"] = float(mean_known(iou_of_counts(counts.cpu().numpy())))
        if not fabric.is_global_zero:
            return
        self._note(values)
        shown = ", ".join(f"{name[5:]} {100 * value:.2f}" for name, value in values.items())
        data = f"{self.validation.name} {self.validation.split}"
        self.listeners.say(f"step {self.task.step}: {data} mIoU {shown}")
        self._write_model()
        if self.best_step() == self.task.step:
            network.save_pretrained(options.out / "best")
            self._write_points(options.out / "best")
        self._draw(predictor)

    def best_step(self) -> int:
        """The step whose validation modes have the best mean mIoU, by the metrics as written."""
        names = [f"miou {mode}" for mode in parse_modes(self.task.options.val_mode)]
        rows = [(step, row) for step, row in self.metrics.rows.items() if row.keys() >= set(names)]
        means = {step: sum(float(row[name]) for name in names) for step, row in rows}
        known = {step: mean for step, mean in means.items() if not math.isnan(mean)}
        return max(known, key=lambda step: (known[step], step), default=0)

    def _write_points(self, directory: Path) -> None:
        if self.points and not (directory / POINTS_FILE).exists():
            write_points(directory, self.points)

    def _write_model(self) -> None:
        loss, out = self.task.result, self.task.options.out
        if self.task.fabric.is_global_zero:
            loss.network.save_pretrained(out / "model")
            self._write_points(out / "model")
            if len(loss.heads):
                replace_file(out / HEADS_FILE, save(dict(loss.heads.state_dict())))

    def _draw(self, predictor: Predictor) -> None:
        plots = self.task.options.out / "plots"
        try:
            draw_training(self.metrics.columns(), plots / "training.png")
        except ImportError as error:
            self.listeners.say(str(error))
        mode = parse_modes(self.task.options.val_mode)[-1]
        samples = [self.validation[self.indices[n]] for n in spread(len(self.indices), 6)]
        results = predictor.predict_batch([s.image for s in samples], mode)
        self.task.loss.train()
        rows = [(result.tinted(), result.blended()) for result in results]
        entries = legend([result.labels for result in results], results[0].classes)
        sheet = contact_sheet(rows, 2, [s.name for s in samples], entries)
        write_image(plots / "samples.png", sheet)


def is_first() -> bool:
    """Whether this is the process that writes the run directory."""
    names = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(int(os.environ.get(name, 0)) == 0 for name in names)
