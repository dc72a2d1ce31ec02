"""What a training starts with: the network, the crops, and options that can work."""

import math
import os
import sys
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
from paumer.training.feed import crop_indices, mix, read
from paumer.training.losses import HeadsLoss, PausingLoss, PixelLoss
from paumer.training.options import TrainOptions, parse_size, parse_span


def initial_network(options: TrainOptions, dataset: Dataset) -> PausingSegmenter:
    """The network before the first step."""
    torch.manual_seed(mix(options.seed, 5))
    if os.path.isdir(options.init):
        return _from_model(options, dataset)
    decoder, extra = _decoder(options)
    width, height = parse_size(options.crop)
    weights: dict[str, bool | str] = {"timm": True, "none": False}
    network = build_model(
        options.backbone,
        decoder,
        dataset.class_set.names,
        image_size=(height, width),
        weights=weights.get(options.init, options.init),
        drop_path=options.drop_path,
        context=options.context,
        decoder_options=extra,
    )
    assert network.config
    network.config = replace(network.config, colours=dataset.class_set.colours, **_sizes(options))
    return network


def _decoder(options: TrainOptions) -> tuple[str, dict[str, float]]:
    """The decoder's name and its options."""
    name = options.decoder or "mask"
    if name == "pup-tiny":
        return "pup", {"channels": 192, "depth": 2, "scale": 4}
    return name, {"dropout": options.dropout} if name == "mask" else {}


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
        tensors = {n: t for n, t in tensors.items() if not n.startswith("decoder.")}
    elif config.decoder == "mask":
        config = replace(
            config, decoder_options={**config.decoder_options, "dropout": options.dropout}
        )
    network = PausingSegmenter.from_config(config)
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
    counts = np.zeros(256)
    for index in readable(dataset, spread(len(dataset), most), options):
        counts += np.bincount(dataset[index].labels.ravel(), minlength=256)
    shares = counts[: len(dataset.class_set)] / counts[: len(dataset.class_set)].sum()
    weights = np.maximum(shares, 1e-4) ** -options.class_weights
    return torch.tensor(weights / (weights * shares).sum(), dtype=torch.float32)


def readable(dataset: Dataset, indices: list[int], options: TrainOptions) -> list[int]:
    """The indices themselves; with ``skip_bad`` those that can be read, the others listed."""
    path = bad_list(options)
    if path is None:
        return indices
    return [index for index in indices if not isinstance(read(dataset, index, path), str)]


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


_BOUNDS = (
    ("steps batch accumulate val_every val_images save_every", 1, math.inf, "at least 1"),
    ("devices nodes", 1, math.inf, "at least 1"),
    ("lr head_lr min_lr aux_weight", 0, sys.float_info.max, "0 or more"),
    ("weight_decay warmup workers", 0, sys.float_info.max, "0 or more"),
    ("clip", sys.float_info.min, math.inf, "a norm above 0"),
    ("class_weights", 0, 1, "a power from 0 (all alike) to 1"),
)
"""Options, the least and the most they can be, and what to give."""


def check_options(options: TrainOptions, network: PausingSegmenter) -> None:
    """Raise for what is wrong, before anything long begins and before anything is written."""
    for names, least, most, wanted in _BOUNDS:
        for name in names.split():
            value = getattr(options, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value:g}: give {wanted}")
    crop_indices(0, options.steps, options.batch, 0, options.devices * options.nodes)
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
