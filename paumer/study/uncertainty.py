"""How sure the auxiliary head is after each block, where it is right and where it is wrong."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paumer.classes import IGNORE
from paumer.criteria import entropy, patch_labels
from paumer.data.samples import Dataset, Sample
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import blending, full_labels
from paumer.model.decoders import to_grid
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.progress import Progress
from paumer.study.accuracy import Confusion, check_classes, read_ahead

BINS = 60
HEADS_FILE = "heads.safetensors"


@dataclass(frozen=True, eq=False)
class EntropyCounts:
    """Patches by block, true class, right or wrong, and entropy: integer counts, which add up.

    Bins are evenly spaced from 0 to the largest possible entropy, log of the number of classes.
    """

    counts: Int[np.ndarray, "blocks classes 2 bins"]

    @classmethod
    def empty(cls, blocks: int, classes: int) -> Self:
        """Counts of nothing."""
        return cls(np.zeros((blocks, classes, 2, BINS), np.int64))

    def __add__(self, other: "EntropyCounts") -> "EntropyCounts":
        return EntropyCounts(self.counts + other.counts)

    @property
    def edges(self) -> Float[np.ndarray, " edges"]:
        """The borders of the bins, in nats."""
        return np.linspace(0, math.log(self.counts.shape[1]), BINS + 1)

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, object]]:
        """One row for each block, class, correctness and bin that has patches."""
        for block, label, right, place in zip(*self.counts.nonzero(), strict=True):
            yield {
                "block": int(block) + 1,
                "class": names[label],
                "right": bool(right),
                "entropy": float(self.edges[place] + self.edges[place + 1]) / 2,
                "patches": int(self.counts[block, label, right, place]),
            }


def block_logits(
    network: PausingSegmenter,
    images: Float[Tensor, "b 3 h w"],
    heads: Sequence[nn.Module] | None = None,
) -> Iterator[Float[Tensor, "b n classes"]]:
    """The auxiliary logits of all patches after each block, when nothing pauses.

    ``heads`` gives every block a head of its own instead of the shared one.
    """
    whole = pad_to_patches(images, network.backbone.patch)
    for number, tokens in enumerate(network.each_block(whole)):
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


def whole_image(
    predictor: Predictor, dataset: Dataset, sample: Sample
) -> tuple[Float[Tensor, "1 3 h w"], Int[Tensor, "1 n"]]:
    """An image whole as the network sees it, and the commonest true class of each patch."""
    images, network = predictor.whole_input(sample.image), predictor.network
    labels = torch.from_numpy(predictor.scaled_labels(sample.labels))[None]
    classes = dataset.class_set
    return images, patch_labels(labels, network.backbone.patch, len(classes), classes.ignore)


def study_blocks(
    predictor: Predictor,
    dataset: Dataset,
    indices: Sequence[int],
    heads: Sequence[nn.Module] | None = None,
    progress: Progress | None = None,
) -> tuple[EntropyCounts, list[Confusion]]:
    """Entropies of right and wrong patches, and the auxiliary head's pixel confusion, by block.

    A patch is right if its class is the commonest true one in it. Images run whole, scaled as
    the model was trained.
    """
    network, classes = predictor.network, len(dataset.class_set)
    depth = network.backbone.depth
    counts = EntropyCounts.empty(depth, classes)
    confusions = [Confusion.empty(classes) for _ in range(depth)]
    check_classes(predictor, dataset)
    for done, (sample,) in enumerate(read_ahead(dataset, [[place] for place in indices])):
        images, truth = whole_image(predictor, dataset, sample)
        with torch.inference_mode():
            for block, logits in enumerate(block_logits(network, images, heads)):
                _count_entropies(counts, block, logits.cpu(), truth)
                labels = _pixel_labels(predictor, logits[0].cpu(), sample.labels.shape, images[0])
                ignore = dataset.class_set.ignore
                confusions[block] += Confusion.of(labels, sample.labels, classes, ignore)
        if progress:
            progress(done + 1, len(indices))
    return counts, confusions


def _count_entropies(
    counts: EntropyCounts,
    block: int,
    logits: Float[Tensor, "1 n classes"],
    truth: Int[Tensor, "1 n"],
) -> None:
    known = truth[0] != IGNORE
    score = entropy(logits, truth)[0][known]
    classes = logits.shape[-1]
    bins = (score / math.log(classes) * BINS).long().clamp(0, BINS - 1)
    right = (logits.argmax(-1) == truth)[0][known].long()
    flat = (truth[0][known].long() * 2 + right) * BINS + bins
    found = torch.bincount(flat, minlength=classes * 2 * BINS)
    counts.counts[block] += found.view(classes, 2, BINS).numpy()


def _pixel_labels(
    predictor: Predictor,
    logits: Float[Tensor, "n classes"],
    size: tuple[int, ...],
    pixels: Tensor,
) -> Any:
    patch = predictor.network.backbone.patch
    grid = [-(-side // p) for side, p in zip(pixels.shape[1:], patch, strict=True)]
    down, across = (
        blending((0,), side, cells, cells * p, side, whole)
        for side, cells, p, whole in zip(pixels.shape[1:], grid, patch, size, strict=True)
    )
    coarse = to_grid(logits[None], (grid[0], grid[1]))[0]
    return full_labels([(coarse, down, across)]).numpy()
