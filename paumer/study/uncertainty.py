"""How sure the auxiliary head is after each block, where it is right and where it is wrong."""

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paumer.classes import IGNORE
from paumer.criteria import entropy, patch_labels
from paumer.data.samples import Dataset
from paumer.inference.ahead import map_ahead
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import full_labels
from paumer.model.decoders import to_grid
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.progress import Progress
from paumer.study.accuracy import Tally, check_classes, known_value

BINS = 60
HEADS_FILE = "heads.safetensors"

EntropyCounts = Int[np.ndarray, "blocks classes 2 bins"]
"""Patches by block, true class, wrong or right, and entropy: they add up."""


def bin_edges(classes: int) -> Float[np.ndarray, " edges"]:
    """The edges of the bins, in nats: evenly spaced from 0 to the largest possible entropy."""
    return np.linspace(0, math.log(classes), BINS + 1)


def entropy_rows(
    counts: EntropyCounts, names: Sequence[str] | None = None
) -> list[dict[str, object]]:
    """One row for each block, class (where ``names`` are given), correctness and bin in use."""
    edges = bin_edges(counts.shape[1])
    found = counts if names else counts.sum(1, keepdims=True)
    return [
        {
            "block": int(block) + 1,
            **({"class": names[label]} if names else {}),
            "right": bool(right),
            "entropy": float(edges[number] + edges[number + 1]) / 2,
            "patches": int(found[block, label, right, number]),
        }
        for block, label, right, number in zip(*found.nonzero(), strict=True)
    ]


def block_rows(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """One row for each block: mIoU and pixel accuracy of the auxiliary head after it."""
    return [
        {"block": block, "miou": known_value(one.miou), "pixel_accuracy": one.pixel_accuracy}
        for block, one in enumerate(tallies, 1)
    ]


def block_logits(
    network: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    heads: Sequence[nn.Module] | None = None,
) -> Iterator[Float[Tensor, "b n classes"]]:
    """The auxiliary logits after each unpaused block, by the shared head or by ``heads``."""
    for number, tokens in enumerate(network.each_block(images)):
        head = heads[number] if heads else network.aux_head
        yield head(tokens)[:, network.backbone.prefix :]


def read_heads(run: Path, network: PausingSegmenter) -> list[nn.Module]:
    """The heads, one for every block, of a run of ``paumer train --learn block-heads``."""
    path = run / HEADS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f'"{run}" has no {HEADS_FILE}: train one with paumer train --learn block-heads'
        )
    heads = nn.ModuleList(copy.deepcopy(network.aux_head) for _ in range(network.backbone.depth))
    try:
        heads.load_state_dict(load_file(path, device=str(next(network.parameters()).device)))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f'the heads in "{path}" do not fit this model: {error}') from error
    return list(heads)


def study_blocks(
    predictor: Predictor,
    dataset: Dataset,
    indices: Sequence[int],
    heads: Sequence[nn.Module] | None = None,
    progress: Progress | None = None,
) -> tuple[EntropyCounts, list[Tally]]:
    """Entropies of right and wrong patches, and what the auxiliary head gets right, by block.

    A patch is right if its class is the commonest true one in it. Images run whole, scaled as
    the model was trained.
    """
    check_classes(predictor, dataset)
    network, classes, ignore = predictor.weights(), len(predictor.classes), dataset.class_set.ignore
    patch, depth = network.backbone.patch, network.backbone.depth
    counts = np.zeros((depth, classes, 2, BINS), np.int64)
    tallies = [Tally.empty(classes) for _ in range(depth)]
    samples = map_ahead(dataset.__getitem__, indices)
    for done, (index, sample) in enumerate(zip(indices, samples, strict=True), 1):
        truth = torch.from_numpy(predictor.scaled_labels(sample.labels))[None]
        patches = patch_labels(truth, patch, classes, ignore)
        height, width = sample.labels.shape
        geometry = predictor.whole_geometry((height, width))
        images = pad_to_patches(predictor.whole_input(sample.image), patch)
        with torch.inference_mode():
            for block, logits in enumerate(block_logits(network, images, heads)):
                counts[block] += _count_entropies(logits.cpu(), patches)
                coarse = to_grid(logits.cpu(), network.grid(images))[0]
                labels = full_labels([geometry.enlarge({(0, 0): coarse})]).numpy()
                tallies[block] += Tally.of(index, labels, sample.labels, classes, ignore)
        if progress:
            progress(done, len(indices))
    return counts, tallies


def _count_entropies(
    logits: Float[Tensor, "1 n classes"], truth: Int[Tensor, "1 n"]
) -> Int[np.ndarray, "classes 2 bins"]:
    known, classes = truth[0] != IGNORE, logits.shape[-1]
    score = entropy(logits, truth)[0][known]
    bins = (score / math.log(classes) * BINS).long().clamp(0, BINS - 1)
    right = (logits.argmax(-1) == truth)[0][known].long()
    flat = (truth[0][known].long() * 2 + right) * BINS + bins
    found = torch.bincount(flat, minlength=classes * 2 * BINS)
    return found.view(classes, 2, BINS).numpy()
