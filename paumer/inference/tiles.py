"""Sliding windows, and full-size labels without full-size logits.

Enlarging coarse logits, averaging where windows overlap, cropping the padding and scaling back to
the image's own size are all linear, and act on rows and columns apart. So the full-size logits
are ``down @ coarse @ across.T``, with the coarse logits of all windows side by side, and a strip
of labels needs only a slice of ``down``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

from paumer.arguments import at_least_one, check_fields
from paumer.data.images import PIXEL_LIMIT
from paumer.mode import FULL_SIZE

STRIP, TILE = 32, 512
"""Rows and columns of labels made at a time: their logits stay small, whatever the image."""

Size = tuple[int, int]
"""Height and width."""

Corner = tuple[int, int]
"""Where a window begins: its top and left."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How the predictor cuts, repeats and batches; the mode decides the rest.

    ``window`` cuts an image into overlapping squares of that side, ``stride`` apart (default: the
    window less 32, at least half of it), whose logits are averaged, as Segmenter and
    mmsegmentation do; None is as the model was trained. At several ``scales`` (factors on the
    size), or with ``flip`` also mirrored, the probabilities are averaged. ``batch`` is how many
    images or windows of one size run together.
    """

    window: int | None = None
    stride: int | None = None
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    batch: int = 8

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("window", "stride", "batch"):
            if (value := getattr(self, name)) is not None:
                at_least_one(value, name)
        if not self.scales or not all(0 < scale < math.inf for scale in self.scales):
            raise ValueError(f"scales are {self.scales}: give at least one, all above 0 and finite")
        if self.stride and self.window and self.stride > self.window:
            raise ValueError(
                f"a stride of {self.stride} leaves gaps between windows of {self.window}: "
                f"give a window at least as large"
            )


def anchors(side: int, window: int, stride: int) -> tuple[int, ...]:
    """Where windows begin so that they cover a side: every ``stride``, the last one at its end."""
    last = max(0, side - window)
    return (*range(0, last, stride), last)


Piece = tuple[Float[Tensor, "_ _"], slice]
"""How some rows of an image are made of coarse rows, and of which."""


Taps = tuple[Int[Tensor, " _"], Int[Tensor, " _"], Float[Tensor, " _"]]
"""A sparse matrix: rows, which rise, columns and weights; equal places add up."""


class Axis(NamedTuple):
    """One side of an image, cut into windows that begin at ``starts``.

    Each window's ``cells`` cover ``padded`` pixels, of which the first ``window`` count. The
    windows cover ``side`` pixels, scaled to ``size`` at the end.
    """

    starts: tuple[int, ...]
    window: int
    cells: int
    padded: int
    side: int
    size: int


@lru_cache(maxsize=64)
def blending(axis: Axis, length: int, mirrored: bool = False) -> tuple[Piece, ...]:
    """How rows of all windows' coarse cells, one window after the other, make rows of the image.

    Each piece makes ``length`` rows, ``mirrored`` from the last one. A row needs few cells, and
    only those are kept.
    """
    starts, window, cells, padded, side, size = axis
    rows, columns, weights = (taps[: 2 * window] for taps in _linear(cells, padded))
    count = torch.zeros(side)
    for start in starts:
        count[start : start + window] += 1
    rows = torch.cat([rows + start for start in starts])
    columns = torch.cat([columns + number * cells for number in range(len(starts))])
    weights = weights.repeat(len(starts)) / count[rows]
    order = rows.argsort(stable=True)
    rows, columns, weights = rows[order], columns[order], weights[order]
    if side != size:
        rows, columns, weights = _chain(_linear(side, size), (rows, columns, weights))
    if mirrored:
        rows, columns, weights = size - 1 - rows.flip(0), columns.flip(0), weights.flip(0)
    ends = torch.searchsorted(rows, torch.arange(0, size + length, length)).tolist()
    pieces = []
    for top, (first, last) in zip(range(0, size, length), pairwise(ends), strict=True):
        part = slice(first, last)
        begin, end = int(columns[part].min()), int(columns[part].max()) + 1
        piece = torch.zeros(min(length, size - top), end - begin)
        index = rows[part] - top, columns[part] - begin
        pieces.append((piece.index_put_(index, weights[part], True), slice(begin, end)))
    return tuple(pieces)


def _linear(before: int, after: int) -> Taps:
    """How linear interpolation makes ``after`` values of ``before``: two taps for each."""
    rows = torch.arange(after)
    place = ((rows + 0.5) * (before / after) - 0.5).clamp(min=0)
    first = place.long().clamp(max=before - 1)
    weight = place - first
    # Nothing is taken of a second one that does not exist.
    second = torch.where(weight > 0, first + 1, first).clamp(max=before - 1)
    columns, weights = torch.stack([first, second], 1), torch.stack([1 - weight, weight], 1)
    return rows.repeat_interleave(2), columns.flatten(), weights.flatten()


def _chain(outer: Taps, inner: Taps) -> Taps:
    """The product of two sparse matrices."""
    first = torch.searchsorted(inner[0], outer[1])
    many = torch.searchsorted(inner[0], outer[1], right=True) - first
    which = torch.arange(len(many)).repeat_interleave(many)
    taken = first[which] + torch.arange(len(which)) - (many.cumsum(0) - many)[which]
    return outer[0][which], inner[1][taken], outer[2][which] * inner[2][taken]


Pass = tuple[Float[Tensor, "classes _ _"], Sequence[Piece], Sequence[Piece]]
"""Coarse logits of an image, and how they make strips of its rows and of its columns."""


def full_labels(passes: Sequence[Pass]) -> UInt8[Tensor, "h w"] | Int[Tensor, "h w"]:
    """The likeliest class of every pixel, made strip by strip.

    Of several passes of one image, at other scales or mirrored, the probabilities are averaged.
    """
    kind = torch.uint8 if len(passes[0][0]) <= 256 else torch.int32
    labels = torch.empty(_full_size(passes), dtype=kind)
    for part, values in _strips(passes):
        labels[part] = values.max(1).indices
    return labels


def full_logits(one: Pass) -> Float[Tensor, "classes h w"]:
    """The logits of every pixel."""
    logits = torch.empty(len(one[0]), *_full_size([one]))
    for part, values in _strips([one]):
        logits[:, *part] = values.transpose(0, 1)
    return logits


def full_probabilities(passes: Sequence[Pass]) -> Float[Tensor, "classes h w"]:
    """The probability of every class at every pixel."""
    if len(passes) == 1:
        return full_logits(passes[0]).softmax(0)
    probabilities = torch.empty(len(passes[0][0]), *_full_size(passes))
    for part, values in _strips(passes):
        probabilities[:, *part] = values.transpose(0, 1) / len(passes)
    return probabilities


def _full_size(passes: Sequence[Pass]) -> Size:
    height, width = (sum(len(matrix) for matrix, _ in pieces) for pieces in passes[0][1:])
    return height, width


def _strips(
    passes: Sequence[Pass],
) -> Iterator[tuple[tuple[slice, slice], Float[Tensor, "rows classes columns"]]]:
    """Strip by strip: where it is, and its logits; of several passes the sum of probabilities."""
    height, width = _full_size(passes)
    for number, left in enumerate(range(0, width, TILE)):
        tiles = []
        for coarse, down, across in passes:  # Across first: there are few coarse rows.
            matrix, used = across[number]
            tiles.append((coarse[:, :, used].permute(1, 0, 2) @ matrix.T, down))
        for place, top in enumerate(range(0, height, STRIP)):
            strips = []
            for tile, down in tiles:
                matrix, used = down[place]
                logits = (matrix @ tile[used].flatten(1)).view(len(matrix), *tile.shape[1:])
                strips.append(logits if len(tiles) == 1 else logits.softmax(1))
            yield (slice(top, top + STRIP), slice(left, left + TILE)), sum(strips[1:], strips[0])


@dataclass(frozen=True)
class Geometry:
    """How an image is scaled and cut into windows, and how their coarse cells make its pixels.

    Everything is (height, width): of the image as it comes in, as it is scaled, of a window, and of
    a patch. ``starts`` are where windows begin, down and across.
    """

    size: Size
    scaled: Size
    window: Size
    starts: tuple[tuple[int, ...], tuple[int, ...]]
    patch: Size

    @classmethod
    def of(
        cls,
        size: Size,
        patch: Size,
        short_side: int | None = None,
        inference: Inference | None = None,
        scale: float = 1.0,
    ) -> Self:
        """That of an image whose shorter side is scaled to ``short_side``, then by a factor."""
        if min(size) < 1:
            raise ValueError(f"an image of {size[1]}x{size[0]} pixels is empty: give at least 1x1")
        height, width = (max(1, int(side * scale + 0.5)) for side in scaled_size(size, short_side))
        if (height, width) != size and not 1 < height * width <= PIXEL_LIMIT:
            raise ValueError(
                f"an image of {size[1]}x{size[0]} pixels would be scaled to {width}x{height}: "
                f"give another size or scale"
            )
        inference = inference or Inference()
        largest = inference.window or max(height, width)
        stride = inference.stride or max((largest + 1) // 2, largest - 32)
        starts = anchors(height, largest, stride), anchors(width, largest, stride)
        window = min(height, largest), min(width, largest)
        return cls(size, (height, width), window, starts, patch)

    @property
    def corners(self) -> list[Corner]:
        """Where each window begins: its top and left."""
        return [(top, left) for top in self.starts[0] for left in self.starts[1]]

    @property
    def padded(self) -> Size:
        """The size of a window in whole patches."""
        (height, width), (down, across) = self.window, self.patch
        return -(-height // down) * down, -(-width // across) * across

    @property
    def patch_pixels(self) -> tuple[float, float]:
        """Pixels of the image, as it comes in, that a patch covers down and across."""
        (height, width), (down, across) = self.scaled, self.patch
        return down * self.size[0] / height, across * self.size[1] / width

    def enlarge(
        self, logits: Mapping[Corner, Float[Tensor, "classes gh gw"]], mirrored: bool = False
    ) -> Pass:
        """The coarse logits of all windows, and how they make those of the image."""
        rows = [[logits[top, left] for left in self.starts[1]] for top in self.starts[0]]
        coarse, cells = torch.cat([torch.cat(row, 2) for row in rows], 1), rows[0][0].shape[1:]
        down, across = map(
            Axis, self.starts, self.window, cells, self.padded, self.scaled, self.size
        )
        return coarse, blending(down, STRIP), blending(across, TILE, mirrored)

    def paste(
        self, grids: Mapping[Corner, Shaped[Tensor, "*many gh gw"]]
    ) -> Shaped[Tensor, "*many _ _"]:
        """The windows' grids as one grid of the image; where they overlap the first counts."""
        first = grids[0, 0]
        cells = [count / side for count, side in zip(first.shape[-2:], self.padded, strict=True)]
        height, width = (math.ceil(s * c) for s, c in zip(self.scaled, cells, strict=True))
        whole = first.new_zeros(*first.shape[:-2], height, width)
        for corner, grid in reversed(list(grids.items())):
            top, left = (round(start * c) for start, c in zip(corner, cells, strict=True))
            part = whole[..., top : top + grid.shape[-2], left : left + grid.shape[-1]]
            part.copy_(grid[..., : part.shape[-2], : part.shape[-1]])
        return whole


@dataclass(frozen=True, eq=False)
class Answer:
    """The network's logits of all windows in one pass of an image."""

    geometry: Geometry
    logits: Mapping[Corner, Float[Tensor, "classes gh gw"]] = field(repr=False)
    mirrored: bool = False

    def enlarge(self) -> Pass:
        """The coarse logits, and how they make those of the image as it came in."""
        return self.geometry.enlarge(self.logits, self.mirrored)

    def probabilities(self) -> Float[Tensor, "classes gh gw"]:
        """The probability of every class on the image's coarse grid."""
        return self.geometry.paste({at: part.softmax(0) for at, part in self.logits.items()})

    def entropy(self) -> Float[np.ndarray, "gh gw"]:
        """The entropy of the prediction on the image's coarse grid."""
        logs = {corner: logits.log_softmax(0) for corner, logits in self.logits.items()}
        grids = {corner: -(log.exp() * log).sum(0) for corner, log in logs.items()}
        return self.geometry.paste(grids).numpy()


@dataclass
class Plan:
    """One pass of an image: what the network sees of it, and what it answers to each window."""

    geometry: Geometry
    pixels: UInt8[Tensor, "3 h w"]
    mirrored: bool = False
    logits: dict[Corner, Float[Tensor, "classes gh gw"]] = field(default_factory=dict)
    paused: dict[Corner, Int[Tensor, "ph pw"]] = field(default_factory=dict)
    merged: dict[Corner, Int[Tensor, "ph pw"]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, image: UInt8[np.ndarray, "h w 3"], geometry: Geometry, mirrored: bool = False
    ) -> Self:
        """The plan of an image, scaled and mirrored."""
        pixels = torch.from_numpy(np.require(image.transpose(2, 0, 1), requirements=["C", "W"]))
        size = geometry.scaled
        if size != geometry.size:  # Smoothed when it gets smaller, as training crops are.
            pixels = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
        return cls(geometry, pixels.flip(2) if mirrored else pixels, mirrored)

    def crop(self, corner: Corner) -> UInt8[Tensor, "3 h w"]:
        """The window that begins at a corner."""
        (top, left), (height, width) = corner, self.geometry.window
        return self.pixels[:, top : top + height, left : left + width]

    def answer(self) -> "Answer":
        """What the network answered to all windows."""
        return Answer(self.geometry, dict(self.logits), self.mirrored)

    def paused_after(self) -> UInt8[np.ndarray, "ph pw"]:
        """The block after which each patch of the image paused."""
        return self.geometry.paste(self.paused).to(torch.uint8).numpy()

    def merged_after(self) -> UInt8[np.ndarray, "ph pw"]:
        """The block after which each patch of the image became part of another one."""
        return self.geometry.paste(self.merged).to(torch.uint8).numpy()


def scaled_size(size: Size, short_side: int | None) -> Size:
    """The size at which the shorter side is ``short_side`` long; None or FULL_SIZE leave it."""
    if short_side in (None, FULL_SIZE):
        return size
    height, width = (max(1, round(side * short_side / min(size))) for side in size)
    return height, width
