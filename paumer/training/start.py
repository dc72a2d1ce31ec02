"""What a training starts with: the network, the crops, and options that can work."""

import math
import os
import sys
from dataclasses import replace
from pathlib import Path

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
    decoder = options.decoder or "mask"
    extra: dict[str, float] = {"dropout": options.dropout} if decoder == "mask" else {}
    if decoder == "pup-tiny":
        decoder, extra = "pup", {"channels": 192, "depth": 2, "scale": 4}
    if os.path.isdir(options.init):
        network = _from_model(options, dataset, decoder, extra)
    else:
        weights: dict[str, bool | str] = {"timm": True, "none": False}
        network = build_model(
            options.backbone,
            decoder,
            dataset.class_set.names,
            image_size=parse_size(options.crop)[::-1],
            weights=weights.get(options.init, options.init),
            drop_path=options.drop_path,
            context=options.context,
            decoder_options=extra,
        )
    assert network.config
    network.config = replace(
        network.config,
        classes=dataset.class_set.names,
        colours=dataset.class_set.colours,
        # Images are scaled for inference as they were fitted for training.
        short_side=min(parse_size(options.fit)) if options.fit else None,
        window=options.window,
        stride=options.stride,
    )
    return network


def _from_model(
    options: TrainOptions, dataset: Dataset, decoder: str, extra: dict[str, float]
) -> PausingSegmenter:
    """The network of a trained model directory, to be trained on.

    The backbone is the model's own, whatever the options say. So are its decoder and ``context``
    unless the options set them; another decoder starts afresh.
    """
    config, tensors = load_model(Path(options.init))
    if len(config.classes) != len(dataset.class_set):
        raise ValueError(
            f'"{options.init}" has {len(config.classes)} classes and {dataset.name} '
            f"{len(dataset.class_set)}"
        )
    other = decoder != config.decoder or (decoder == "pup" and extra != config.decoder_options)
    fresh = options.decoder is not None and other
    if fresh:
        config = replace(config, decoder=decoder, decoder_options=extra)
        tensors = {n: t for n, t in tensors.items() if not n.startswith("decoder.")}
    elif config.decoder == "mask":
        extra = {**config.decoder_options, "dropout": options.dropout}
        config = replace(config, decoder_options=extra)
    context = options.context or config.context
    config = replace(config, drop_path=options.drop_path, context=context)
    network = PausingSegmenter.from_config(config)
    load_tensors(network, tensors, options.init, fresh="decoder." if fresh else "")
    return network


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
    crop, scale = parse_size(options.crop)[::-1], parse_span(options.scale)
    fit = parse_size(options.fit) if options.fit else None
    return TrainTransform(crop, network.config.mean, network.config.std, fit, scale)


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
