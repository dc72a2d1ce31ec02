"""What a training starts with: the network, the crops, and options that can work."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paumer.data.samples import Dataset, spread
from paumer.data.transforms import TrainTransform
from paumer.inference.tiles import Inference
from paumer.mode import check_runnable, parse_modes
from paumer.model.build import build_model
from paumer.model.directory import load_model, load_tensors
from paumer.model.segmenter import PausingSegmenter
from paumer.pause_config import parse_ranges
from paumer.training.feed import mix, note_bad
from paumer.training.losses import HeadsLoss, PausingLoss, PixelLoss
from paumer.training.options import TrainOptions, parse_size, parse_span

_PUP_TINY: dict[str, float] = {"channels": 192, "depth": 2, "scale": 4}


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
        context=options.context,
        decoder_options=extra,
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

    The backbone is the model's own, whatever the options say. So are its decoder and ``context``
    unless the options set them; another decoder starts afresh.
    """
    config, tensors = load_model(Path(options.init))
    names = tuple(dataset.class_set.names)
    if len(config.classes) != len(names):
        raise ValueError(
            f'"{options.init}" has {len(config.classes)} classes and {dataset.name} {len(names)}'
        )
    config = replace(
        config,
        classes=names,
        colours=dataset.class_set.colours,
        drop_path=options.drop_path,
        context=options.context or config.context,
        **_sizes(options),
    )
    decoder, extra = _decoder(options)
    other = decoder != config.decoder or (decoder == "pup" and extra != config.decoder_options)
    fresh = options.decoder is not None and other
    if fresh:
        config = replace(config, decoder=decoder, decoder_options=extra)
    elif config.decoder == "mask":
        config = replace(
            config, decoder_options={**config.decoder_options, "dropout": options.dropout}
        )
    network = PausingSegmenter.from_config(config)
    if fresh:
        tensors = {n: t for n, t in tensors.items() if not n.startswith("decoder.")}
    load_tensors(network, tensors, options.init, fresh="decoder." if fresh else "")
    return network


def _sizes(options: TrainOptions) -> dict[str, Any]:
    """Images are scaled for inference as they were fitted for training."""
    short_side = min(parse_size(options.fit)) if options.fit else None
    return {"short_side": short_side, "window": options.window, "stride": options.stride}


def make_loss(options: TrainOptions, network: PausingSegmenter, dataset: Dataset) -> PixelLoss:
    """What learns, and from what."""
    weights = class_weights(dataset, options) if options.class_weights else None
    if options.learn != "all":
        return HeadsLoss(network, weights, own=options.learn == "block-heads")
    network.aux_head.requires_grad_(options.criterion != "none")
    return PausingLoss(network, weights)


def class_weights(
    dataset: Dataset, options: TrainOptions, most: int = 200
) -> Float[Tensor, " classes"]:
    """Weights that grow with a power of a class's rarity; their mean over pixels is 1."""
    indices = spread(len(dataset), most)
    counts = np.zeros(256)
    for place in readable(dataset, indices, options):
        counts += np.bincount(dataset[place].labels.ravel(), minlength=256)
    shares = counts[: len(dataset.class_set)] / counts[: len(dataset.class_set)].sum()
    weights = np.maximum(shares, 1e-4) ** -options.class_weights
    return torch.tensor(weights / (weights * shares).sum(), dtype=torch.float32)


def readable(dataset: Dataset, indices: list[int], options: TrainOptions) -> list[int]:
    """The places themselves, or with ``skip_bad`` those that can be read, the others noted."""
    path = bad_list(options)
    if path is None:
        return indices
    good = []
    for place in indices:
        try:
            dataset[place]
            good.append(place)
        except (ValueError, OSError) as error:
            note_bad(path, str(error))
    return good


def bad_list(options: TrainOptions) -> Path | None:
    """The file that lists images which cannot be read, where they are skipped."""
    return options.out / "bad_images.txt" if options.skip_bad else None


def make_transform(options: TrainOptions, network: PausingSegmenter) -> TrainTransform:
    """The training crops that the options ask for, normalised as the network reads them."""
    assert network.config
    width, height = parse_size(options.crop)
    fit = parse_size(options.fit) if options.fit else None
    return TrainTransform(
        (height, width), network.config.mean, network.config.std, fit, parse_span(options.scale)
    )


def check_options(options: TrainOptions, network: PausingSegmenter) -> None:
    """Say what is wrong before anything long begins and before anything is written."""
    for name in ("steps", "batch", "accumulate", "val_every", "save_every", "devices", "nodes"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give at least 1")
    for name in ("lr", "head_lr", "min_lr", "aux_weight", "weight_decay", "warmup"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ValueError(f"{name} is {getattr(options, name)}: give 0 or more")
    if options.clip is not None and not options.clip > 0:
        raise ValueError(f"clip is {options.clip}: give a norm above 0")
    if not 0 <= options.class_weights <= 1:
        raise ValueError(
            f"class_weights is {options.class_weights:g}: give a power from 0 (all alike) to 1"
        )
    if options.workers < 0 or (options.val_images or 1) < 1:
        raise ValueError("workers must be 0 or more and val_images 1 or more")
    world = options.devices * options.nodes
    if options.batch % world:
        raise ValueError(
            f"a batch of {options.batch} cannot be shared by {world} processes equally"
        )
    depth, ranges = network.backbone.depth, parse_ranges(options.ranges)
    if options.criterion != "none" and max(ranges) >= depth:
        raise ValueError(
            f'ranges "{options.ranges}" reach block {max(ranges)}: the last block after which '
            f"patches of this backbone can pause is {depth - 1}"
        )
    if not options.val_mode:
        raise ValueError("val_mode is empty: name at least one mode, such as none")
    for mode in parse_modes(options.val_mode):
        check_runnable(mode)
        network.check(replace(mode, size=None))
    if options.stride and not options.window:
        raise ValueError(f"a stride of {options.stride} means nothing without a window: give both")
    Inference(window=options.window, stride=options.stride)
    make_transform(options, network)
    if options.learn != "all" and not os.path.isdir(options.init):
        raise ValueError(f"--learn {options.learn} needs a trained model directory as --init")
