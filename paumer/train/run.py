"""Training options -> a run directory: trainer, validation, checkpoints, resume."""

import json
import logging
import math
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from jaxtyping import Float
from lightning.pytorch.loggers import TensorBoardLogger
from safetensors.torch import save
from torch import Tensor

from paumer.data.datasets import Dataset, open_dataset
from paumer.data.labels import paint
from paumer.data.transforms import TrainTransform
from paumer.disk import alone_in, replace_file
from paumer.media import contact_sheet, overlay, write_image
from paumer.memory import keep_memory
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter, build_model
from paumer.model.weights import load_model, load_tensors
from paumer.options import TrainOptions, parse_size, parse_span
from paumer.pause_config import parse_pauses, parse_ranges
from paumer.predict import Inference, Predictor
from paumer.study.accuracy import evaluate, union_share
from paumer.study.figures import draw_training
from paumer.study.sizes import mean_known
from paumer.study.speed import machine
from paumer.study.uncertainty import HEADS_FILE
from paumer.train.checkpoint import load_checkpoint, save_checkpoint
from paumer.train.feed import Crops, StepBatches, make_loader, mix, note_bad
from paumer.train.metrics import MetricsFile
from paumer.train.task import TrainTask, learning_rate

Say = Callable[[str], None]


def train(options: TrainOptions, say: Say = lambda _: None) -> Path:
    """Train from the start and fill a new run directory; its path."""
    if _is_first() and options.out.exists():
        raise ValueError(
            f'"{options.out}" exists: name another --out, or go on with --resume {options.out}'
        )
    training, validation = _open(options, "train"), _open(options, "val")
    network = initial_network(options, training)
    check_options(options, network)
    if _is_first():
        options.out.mkdir(parents=True)
        content = yaml.safe_dump(_plain(options), sort_keys=False)
        replace_file(options.out / "args.yaml", content.encode())
        replace_file(options.out / "env.json", json.dumps(machine(), indent=2).encode())
    with _alone(options.out):
        return _fit(options, network, training, validation, 0, None, say)


def resume(directory: Path, say: Say = lambda _: None) -> Path:
    """Go on with a run from its newest checkpoint, exactly as if it had not stopped."""
    options = read_options(directory)
    with _alone(directory):
        return _go_on(options, say)


def _go_on(options: TrainOptions, say: Say) -> Path:
    directory = options.out
    training, validation = _open(options, "train"), _open(options, "val")
    network = initial_network(replace(options, init=_offline(options.init)), training)
    check_options(options, network)
    try:
        step, state = load_checkpoint(directory / "checkpoints")
    except FileNotFoundError:
        say(f"{directory} has no checkpoint yet: starting from the beginning")
        network = initial_network(options, training)
        return _fit(options, network, training, validation, 0, None, say)
    if step >= options.steps:
        say(f"{directory} is complete: {step} steps")
        return directory
    say(f"going on from step {step} of {options.steps}")
    return _fit(options, network, training, validation, step, state, say)


def _alone(directory: Path) -> AbstractContextManager[None]:
    """The run directory is held by the process that looks after it."""
    return alone_in(directory) if _is_first() else nullcontext()


def read_options(directory: Path) -> TrainOptions:
    """The options a run was started with; its directory may have moved."""
    path = directory / "args.yaml"
    if not path.is_file():
        raise FileNotFoundError(f'"{directory}" is no run directory: args.yaml is missing')
    values = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f'"{path}" holds no options: bring back what the run was started with')
    known = {item.name for item in fields(TrainOptions)}
    if unknown := sorted(set(values) - known):
        raise ValueError(f'"{path}" names options that are not known: {", ".join(unknown)}')
    for name in ("steps", "batch", "save_every", "val_every", "lr"):
        if not isinstance(values.get(name, 0), int | float):
            raise ValueError(f'{name} is "{values[name]}" in "{path}": give a number')
    pauses = values.get("val_pause", TrainOptions.val_pause)
    return TrainOptions(**{**values, "val_pause": tuple(pauses), "out": directory})


def initial_network(options: TrainOptions, dataset: Dataset) -> PausingSegmenter:
    """The network before the first step."""
    torch.manual_seed(mix(options.seed, 5))
    if os.path.isdir(options.init):
        return _from_model(options, dataset)
    decoder, extra = _decoder(options)
    width, height = parse_size(options.crop)
    weights: bool | str = options.init == "timm"
    if options.init not in ("timm", "none"):
        weights = options.init
    network = build_model(
        options.backbone,
        decoder,
        dataset.class_set.names,
        image_size=(height, width),
        weights=weights,
        drop_path=options.drop_path,
        rejoin=options.rejoin,
        context=options.context,
        aux_norm=options.aux_norm,
        **extra,
    )
    assert network.config
    network.config = replace(network.config, colours=dataset.class_set.colours, **_sizes(options))
    return network


def _decoder(options: TrainOptions) -> tuple[str, dict[str, float]]:
    """The decoder's name and its options."""
    match options.decoder or "mask":
        case "pup-tiny":
            return "pup", _PUP_TINY
        case "mask":
            return "mask", {"dropout": options.dropout}
        case other:
            return other, {}


def _from_model(options: TrainOptions, dataset: Dataset) -> PausingSegmenter:
    """The network of a trained model directory, to be trained on.

    The backbone is the model's own, whatever the options say. So are its decoder, ``rejoin``,
    ``context`` and ``aux_norm`` unless the options set them; another decoder starts afresh, and so
    does an auxiliary head that is to normalise now.
    """
    config, tensors = load_model(Path(options.init))
    names = tuple(dataset.class_set.names)
    if len(config.classes) != len(names):
        raise ValueError(
            f'"{options.init}" has {len(config.classes)} classes and {dataset.name} {len(names)}'
        )
    afresh = ["aux_head."] if options.aux_norm and not config.aux_norm else []
    config = replace(
        config,
        classes=names,
        colours=dataset.class_set.colours,
        drop_path=options.drop_path,
        rejoin=options.rejoin or config.rejoin,
        context=options.context or config.context,
        aux_norm=options.aux_norm or config.aux_norm,
        temperatures=(),  # They fitted the weights as they were.
        **_sizes(options),
    )
    decoder, extra = _decoder(options)
    other = decoder != config.decoder or (decoder == "pup" and extra != config.decoder_options)
    if options.decoder is not None and other:
        afresh.append("decoder.")
        config = replace(config, decoder=decoder, decoder_options=extra)
    elif config.decoder == "mask":
        config = replace(
            config, decoder_options={**config.decoder_options, "dropout": options.dropout}
        )
    network = PausingSegmenter.from_config(config)
    if afresh:
        fresh = tuple(afresh)
        tensors = {n: t for n, t in tensors.items() if not n.startswith(fresh)} | {
            n: t for n, t in network.state_dict().items() if n.startswith(fresh)
        }
    load_tensors(network, tensors, options.init)
    return network


class Keeper(lightning.Callback):
    """Looks after a run: checkpoints, validation, metrics, and an orderly stop on a signal."""

    def __init__(
        self, options: TrainOptions, validation: Dataset, metrics: MetricsFile, say: Say
    ) -> None:
        self.options = options
        self.validation = validation
        self.metrics = metrics
        self.say = say
        count = min(len(validation), options.val_pictures or len(validation))
        chosen = np.linspace(0, len(validation) - 1, count).round().astype(int).tolist()
        self.places = readable(validation, chosen, options)
        self.stopped_by: int | None = None
        self.saved = -1
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """From here on a signal ends the run after the step at hand."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        if self.stopped_by is not None:
            raise KeyboardInterrupt
        self.stopped_by = number

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        task: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """After each step: note, validate, save, stop, when it is time."""
        assert isinstance(task, TrainTask)
        step, options = task.step, self.options
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        last = step == options.steps
        if step % 20 == 0 or last:
            rate = learning_rate(options, step - 1)
            self.metrics.add(step, {**values, "lr": rate})
            if trainer.logger:
                trainer.logger.log_metrics({**values, "lr": rate}, step)
        if step % options.val_every == 0 or last:
            self.validate(trainer, task)
        if step % options.save_every == 0 or last or self.stopped_by is not None:
            self.save(trainer, task)
        if self.stopped_by is not None:
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, task: lightning.LightningModule) -> None:
        """Signals mean again what they meant before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def save(self, trainer: lightning.Trainer, task: TrainTask) -> None:
        """Write a checkpoint and the metrics."""
        if trainer.is_global_zero and self.saved != task.step:
            save_checkpoint(self.options.out / "checkpoints", task.step, task.state())
            self.metrics.write()
            self.saved = task.step

    def validate(self, trainer: lightning.Trainer, task: TrainTask) -> None:
        """Measure the configurations asked for; write the model, metrics and pictures."""
        options, network = self.options, task.network
        if options.learn == "block-heads":
            self._write_model(trainer, task)
            return
        predictor = Predictor(network)
        pauses = parse_pauses(options.val_pause)
        ways = [Inference(pause=pause) for pause in pauses]
        mine = self.places[trainer.global_rank :: trainer.world_size]
        totals = evaluate(predictor, self.validation, ways, mine)
        network.train()
        named = {}
        for pause, total in zip(pauses, totals, strict=True):
            counts = torch.from_numpy(total.pictures.sum(0)).to(task.device)
            summed = trainer.strategy.reduce(counts, reduce_op="sum").cpu().numpy()
            named[f"miou {pause}"] = float(mean_known(union_share(summed)))
        if not trainer.is_global_zero:
            return
        self.metrics.add(task.step, named)
        if trainer.logger:
            trainer.logger.log_metrics(named, task.step)
        told = ", ".join(f"{name[5:]} {100 * value:.2f}" for name, value in named.items())
        self.say(f"step {task.step}: val mIoU {told}")
        self._write_model(trainer, task)
        self._draw(predictor)

    def _write_model(self, trainer: lightning.Trainer, task: TrainTask) -> None:
        if trainer.is_global_zero:
            task.network.save_pretrained(self.options.out / "model")
            if task.heads:
                heads = {key: value.detach() for key, value in task.heads.state_dict().items()}
                replace_file(self.options.out / HEADS_FILE, save(heads))

    def _draw(self, predictor: Predictor) -> None:
        plots = self.options.out / "plots"
        try:
            draw_training(self.metrics.columns(), plots / "training.png")
        except ImportError as error:
            self.say(str(error))
        pause = parse_pauses(self.options.val_pause)[-1]
        few = np.linspace(0, len(self.places) - 1, min(6, len(self.places))).astype(int)
        samples = [self.validation[self.places[number]] for number in few]
        results = predictor.predict_batch([s.image for s in samples], Inference(pause=pause))
        predictor.network.train()
        rows = [
            (r.tinted(), overlay(s.image, paint(r.labels, r.classes)))
            for s, r in zip(samples, results, strict=True)
        ]
        sheet = contact_sheet(rows, columns=2, captions=[s.name for s in samples])
        write_image(plots / "samples.png", sheet)


_PUP_TINY: dict[str, float] = {"channels": 192, "depth": 2, "scale": 4}


def _fit(
    options: TrainOptions,
    network: PausingSegmenter,
    training: Dataset,
    validation: Dataset,
    start: int,
    state: dict[str, Any] | None,
    say: Say,
) -> Path:
    weights = class_weights(training, options) if options.class_weights else None
    task = TrainTask(network, options, parse_ranges(options.ranges), weights)
    if state is not None:
        task.restore(start, state)
    metrics = MetricsFile(options.out / "metrics.csv", until=start)
    keeper = Keeper(options, validation, metrics, say)
    trainer = _trainer(options, keeper, options.steps - start)
    kind = trainer.accelerator.name()
    if kind == "cpu":
        keep_memory()  # Every step needs what the last one freed.
    crops = Crops(
        training, make_transform(options, network), options.batch, options.seed, _bad_list(options)
    )
    rank, world = trainer.global_rank, trainer.world_size
    places = StepBatches(start, options.steps, options.batch, rank, world)
    loader = make_loader(crops, places, options.workers, kind == "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice; ours to follow or not.
        try:
            trainer.fit(task.train(), loader)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise OSError(
                f"a process that reads pictures died ({str(error).splitlines()[0]}); usually "
                f"memory ran out: go on with --resume {options.out}"
            ) from error
    if keeper.stopped_by is not None:
        name = signal.Signals(keeper.stopped_by).name
        raise InterruptedError(
            f"stopped by {name} after step {task.step}: go on with --resume {options.out}"
        )
    return options.out


def _trainer(options: TrainOptions, keeper: Keeper, steps: int) -> lightning.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    world = options.devices * options.nodes
    return lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.nodes,
        strategy="ddp" if world > 1 or "WORLD_SIZE" in os.environ else "auto",
        precision={"fp32": "32-true", "bf16": "bf16-mixed"}[options.precision],  # type: ignore[arg-type]
        max_steps=steps,
        max_epochs=1,
        logger=TensorBoardLogger(options.out, name="", version="tensorboard"),
        callbacks=[keeper],
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=20,
        num_sanity_val_steps=0,
    )


def class_weights(
    dataset: Dataset, options: TrainOptions, most: int = 200
) -> Float[Tensor, " classes"]:
    """Weights that grow with a power of a class's rarity; their mean over pixels is 1."""
    places = np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int).tolist()
    counts = np.zeros(256)
    for place in readable(dataset, places, options):
        counts += np.bincount(dataset[place].labels.ravel(), minlength=256)
    shares = counts[: len(dataset.class_set)] / counts[: len(dataset.class_set)].sum()
    weights = np.maximum(shares, 1e-4) ** -options.class_weights
    return torch.tensor(weights / (weights * shares).sum(), dtype=torch.float32)


def readable(dataset: Dataset, places: list[int], options: TrainOptions) -> list[int]:
    """The places themselves, or with ``skip_bad`` those that can be read, the others noted."""
    path = _bad_list(options)
    if path is None:
        return places
    good = []
    for place in places:
        try:
            dataset[place]
            good.append(place)
        except (ValueError, OSError) as error:
            note_bad(path, str(error))
    return good


def make_transform(options: TrainOptions, network: PausingSegmenter) -> TrainTransform:
    """The training crops that the options ask for, normalised as the network reads them."""
    assert network.config
    width, height = parse_size(options.crop)
    fit = parse_size(options.fit) if options.fit else None
    return TrainTransform(
        (height, width), network.config.mean, network.config.std, fit, parse_span(options.scale)
    )


def _open(options: TrainOptions, split: str) -> Dataset:
    return open_dataset(options.data, split)


def check_options(options: TrainOptions, network: PausingSegmenter) -> None:
    """Say what is wrong before anything long begins and before anything is written."""
    for name in ("steps", "batch", "accumulate", "val_every", "save_every", "devices", "nodes"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least 1")
    for name in ("lr", "head_lr", "min_lr", "aux_weight", "weight_decay", "warmup", "distil"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ValueError(f"{name} is {getattr(options, name)}: give 0 or more")
    if options.clip is not None and not options.clip > 0:
        raise ValueError(f"clip is {options.clip}: give a norm above 0")
    if not 0 <= options.class_weights <= 1:
        raise ValueError(
            f"class_weights is {options.class_weights:g}: give a power from 0 (all alike) to 1"
        )
    if not 0 <= options.exits <= 1:
        raise ValueError(f"exits is {options.exits:g}: give a share of the steps from 0 to 1")
    if options.exits and (options.criterion == "none" or options.learn != "all"):
        raise ValueError("exits means nothing where no patches pause in training: leave it out")
    if options.exits:
        network.check(NO_PAUSE, early_exit=True)
    if options.workers < 0 or (options.val_pictures or 1) < 1:
        raise ValueError("workers must be 0 or more and val_pictures 1 or more")
    world = options.devices * options.nodes
    if options.batch % world:
        raise ValueError(
            f"a batch of {options.batch} cannot be shared by {world} processes equally"
        )
    depth, ranges = network.pausing_depth, parse_ranges(options.ranges)
    if options.criterion != "none" and max(ranges) >= depth:
        raise ValueError(
            f'ranges "{options.ranges}" reach block {max(ranges)}: the last block after which '
            f"patches of this backbone can pause is {depth - 1}"
        )
    if not 1 <= options.stages <= len(ranges):
        raise ValueError(
            f"stages is {options.stages}: give 1 to {len(ranges)}, the number of blocks in ranges"
        )
    if not options.val_pause:
        raise ValueError("val_pause is empty: name at least one configuration, such as none")
    for pause in parse_pauses(options.val_pause):
        network.check(pause, early_exit=False)
    if options.stride and not options.window:
        raise ValueError(f"a stride of {options.stride} means nothing without a window: give both")
    Inference(window=options.window, stride=options.stride)
    make_transform(options, network)
    if options.learn != "all" and not os.path.isdir(options.init):
        raise ValueError(f"--learn {options.learn} needs a trained model directory as --init")


def _bad_list(options: TrainOptions) -> Path | None:
    return options.out / "bad_pictures.txt" if options.skip_bad else None


def _sizes(options: TrainOptions) -> dict[str, Any]:
    """Pictures are scaled for inference as they were fitted for training."""
    short_side = min(parse_size(options.fit)) if options.fit else None
    return {"short_side": short_side, "window": options.window, "stride": options.stride}


def _offline(init: str) -> str:
    # The checkpoint replaces all weights, so a resumed run needs no download.
    return "none" if init == "timm" else init


def _plain(options: TrainOptions) -> dict[str, Any]:
    values = asdict(options)
    return {**values, "out": str(options.out), "val_pause": list(options.val_pause)}


def _is_first() -> bool:
    """Whether this is the process that looks after the run directory."""
    names = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(int(os.environ.get(name, 0)) == 0 for name in names)
