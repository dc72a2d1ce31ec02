"""What a training starts with beside its network: loss, crops, and checks of options and data."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median_low

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paumer.data.samples import Dataset, spread
from paumer.data.transforms import TrainTransform
from paumer.inference.tiles import Inference
from paumer.mode import check_runnable, parse_modes
from paumer.model.segmenter import PausingSegmenter
from paumer.pause_config import parse_ranges
from paumer.training.feed import crop_indices, read
from paumer.training.initial import starts_from_model
from paumer.training.losses import HeadsLoss, LossSettings, PausingLoss, PixelLoss
from paumer.training.options import TrainOptions, parse_size, parse_span


def make_loss(options: TrainOptions, network: PausingSegmenter, dataset: Dataset) -> PixelLoss:
    """What learns, and from what."""
    weights = class_weights(dataset, options) if options.class_weights else None
    settings = LossSettings(options.focal, options.label_smoothing, bool(options.dice))
    if options.learn != "all":
        return HeadsLoss(network, weights, settings, own=options.learn == "block-heads")
    network.aux_head.requires_grad_(options.criterion != "none")
    return PausingLoss(network, weights, settings)


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
    names = ("colour", "blur", "noise", "compress", "cutout", "balance")
    more = {name: getattr(options, name) for name in names}
    return TrainTransform(crop, network.config.mean, network.config.std, fit, scale, **more)


_BOUNDS = (
    ("steps batch accumulate val_every val_images save_every", 1, math.inf, "at least 1"),
    ("devices nodes", 1, math.inf, "at least 1"),
    ("lr head_lr min_lr aux_weight", 0, sys.float_info.max, "0 or more"),
    ("weight_decay warmup workers", 0, sys.float_info.max, "0 or more"),
    ("clip", sys.float_info.min, math.inf, "a norm above 0"),
    ("class_weights", 0, 1, "a power from 0 (all alike) to 1"),
    ("blur compress cutout balance", 0, 1, "a probability from 0 (never) to 1"),
    ("colour", 0, 2, "a strength from 0 (none) to 2, such as 1"),
    ("noise", 0, 1, "a part of the range from 0 (none) to 1, such as 0.05"),
    ("dice focal", 0, 1000, "0 (none) or more, such as 1"),
    ("label_smoothing", 0, 0.999, "a part from 0 (none) to below 1, such as 0.1"),
    ("layer_decay", 0.001, 1, "a factor from 0.001 to 1 (all alike), such as 0.75"),
    ("ema", 0, 0.999999, "a part from 0 (none) to below 1, such as 0.999"),
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
    _check_draw(options, depth)
    if not options.val_mode:
        raise ValueError("val_mode is empty: name at least one mode, such as none")
    for mode in parse_modes(options.val_mode):
        check_runnable(mode)
        network.check(replace(mode, size=None))
    if options.stride and not options.window:
        raise ValueError(f"a stride of {options.stride} means nothing without a window: give both")
    Inference(window=options.window, stride=options.stride)
    make_transform(options, network)
    if min(parse_size(options.crop)) < (patch := max(network.backbone.patch)):
        raise ValueError(f"crop is {options.crop}: give at least {patch}, the side of a patch")
    if options.learn != "all" and not starts_from_model(options):
        raise ValueError(f"--learn {options.learn} needs a trained model as --init")
    if options.learn != "all" and options.dice:
        raise ValueError(f"--dice is for the decoder: leave it out with --learn {options.learn}")


KINDS = ("pause", "merge", "both", "none")


def _check_draw(options: TrainOptions, depth: int) -> None:
    """Raise unless a step can be drawn."""
    if not options.draw or not set(options.draw) <= set(KINDS):
        given = " ".join(options.draw)
        raise ValueError(f'draw is "{given}": choose from {", ".join(KINDS)}, one or several')
    merging = parse_ranges(options.merging) if {"merge", "both"} & set(options.draw) else {}
    if merging and (max(merging) >= depth or max(most for _, most in merging.values()) > 0.5):
        raise ValueError(
            f'merging "{options.merging}" cannot be: blocks before the last one, {depth}, merge '
            f"at most half of the patches, such as 1-6:0.02-0.15"
        )


LOOK_AT = 20
"""How many images of a split are read before the first step."""


def check_samples(dataset: Dataset, options: TrainOptions) -> int | None:
    """The median of the shorter sides of some images, spread over the split.

    Raises for the first that cannot be used, so that a mask with unknown ids shows at once,
    not when its turn comes; with ``skip_bad`` such images are left out.
    """
    sides: list[int] = []
    for index in spread(len(dataset), LOOK_AT):
        if sides and not dataset.files(index):
            continue  # Synthetic images are all of one size, and slower to draw than to read.
        sample = read(dataset, index, None)
        if not isinstance(sample, str):
            sides.append(min(sample.labels.shape))
        elif not options.skip_bad:
            raise ValueError(
                f"{sample} (fix or remove it, or train with --skip-bad to skip it; "
                f"`paumer check-data {options.data}` lists all such files)"
            )
    return median_low(sides) if sides else None


def note_side(network: PausingSegmenter, options: TrainOptions, side: int | None) -> None:
    """Write the shorter side of the images into the model: larger ones are scaled down to it."""
    assert network.config
    if not options.fit:
        network.config = replace(network.config, trained_side=side)


def advice(options: TrainOptions, side: int | None) -> Iterator[str]:
    """What is likely to go better with other options, in sentences."""
    crop = min(parse_size(options.crop))
    if side and not options.fit and side >= 4 * crop:
        yield (
            f"the images' shorter side has {side} pixels and a crop's {crop}, so a crop shows "
            f"little of an image: --fit {8 * crop // 3}x{2 * crop} scales them down first"
        )
    usual = options.optimizer == "adamw" and options.learn == "all"
    if usual and starts_from_model(options) and options.lr >= 1e-3:
        yield (
            f"a rate of {options.lr:g} may make a trained model forget: try a lower one, such as "
            f"--lr 0.0002 --head-lr 3"
        )
