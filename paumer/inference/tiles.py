"""Sliding windows, and full-size labels without full-size logits.

Enlarging coarse logits, averaging where windows overlap, cropping the padding and scaling back to
the image's own size are all linear, and act on rows and columns apart. So the full-size logits
are ``down @ coarse @ across.T``, with the coarse logits of all windows side by side, and a strip
of labels needs only a slice of ``down``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

from paumer.data.images import PIXEL_LIMIT

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
        for name in ("window", "stride", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
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


@lru_cache(maxsize=64)
def blending(
    starts: tuple[int, ...], window: int, cells: int, padded: int, side: int, size: int
) -> Float[Tensor, "size columns"]:
    """How rows of all windows' coarse cells, one window after the other, make rows of the image.

    Each window's ``cells`` cover ``padded`` pixels, of which the first ``window`` count. The
    windows cover ``side`` pixels, scaled to ``size`` at the end.
    """
    enlarge = _linear(torch.eye(cells), padded)[:window]
    count = torch.zeros(side)
    for start in starts:
        count[start : start + window] += 1
    blend = torch.zeros(side, len(starts) * cells)
    for number, start in enumerate(starts):
        rows = slice(start, start + window)
        blend[rows, number * cells : (number + 1) * cells] = enlarge / count[rows, None]
    return blend if side == size else _linear(blend, size)


Pass = tuple[Float[Tensor, "classes _ _"], Float[Tensor, "h _"], Float[Tensor, "w _"]]
"""Coarse logits of an image, and how their rows and columns make those of the image."""


def full_labels(passes: Sequence[Pass]) -> UInt8[Tensor, "h w"] | Int[Tensor, "h w"]:
    """The likeliest class of every pixel, made strip by strip.

    Of several passes of one image, at other scales or mirrored, the probabilities are averaged.
    """
    coarse, down, across = passes[0]
    classes, height, width = len(coarse), len(down), len(across)
    labels = torch.empty(height, width, dtype=torch.uint8 if classes <= 256 else torch.int32)
    for left in range(0, width, TILE):
        columns, tiles = slice(left, left + TILE), []
        for coarse, down, across in passes:  # Across first: there are few coarse rows.
            matrix, used = _used_columns(across[columns])
            tiles.append((coarse[:, :, used].permute(1, 0, 2) @ matrix.T, down))
        for top in range(0, height, STRIP):
            rows, strips = slice(top, top + STRIP), []
            for tile, down in tiles:
                matrix, used = _used_columns(down[rows])
                logits = (matrix @ tile[used].flatten(1)).view(len(matrix), *tile.shape[1:])
                strips.append(logits if len(tiles) == 1 else logits.softmax(1))
            labels[rows, columns] = sum(strips[1:], strips[0]).max(1).indices
    return labels


def _linear(matrix: Float[Tensor, "n c"], size: int) -> Float[Tensor, "size c"]:
    """The rows of a matrix resampled to ``size`` rows, as bilinear enlarging does."""
    return F.interpolate(matrix.T[None], size=size, mode="linear")[0].T.contiguous()


def _used_columns(matrix: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n u"], slice]:
    """The matrix without the empty columns at both ends, and which columns are left."""
    filled = matrix.any(0).nonzero()
    used = slice(int(filled[0]), int(filled[-1]) + 1)
    return matrix[:, used], used


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

    def enlarge(self, logits: Mapping[Corner, Float[Tensor, "classes gh gw"]]) -> Pass:
        """The coarse logits of all windows, and how they make those of the image."""
        rows = [[logits[top, left] for left in self.starts[1]] for top in self.starts[0]]
        coarse, cells = torch.cat([torch.cat(row, 2) for row in rows], 1), rows[0][0].shape[1:]
        down, across = map(
            blending, self.starts, self.window, cells, self.padded, self.scaled, self.size
        )
        return coarse, down, across

    def paste(self, grids: Mapping[Corner, Shaped[Tensor, "gh gw"]]) -> Shaped[Tensor, "_ _"]:
        """The windows' grids as one grid of the image; where they overlap the first counts."""
        first = grids[0, 0]
        cells = [count / side for count, side in zip(first.shape, self.padded, strict=True)]
        height, width = (math.ceil(s * c) for s, c in zip(self.scaled, cells, strict=True))
        whole = first.new_zeros(height, width)
        for corner, grid in reversed(list(grids.items())):
            top, left = (round(start * c) for start, c in zip(corner, cells, strict=True))
            part = whole[top : top + grid.shape[0], left : left + grid.shape[1]]
            part.copy_(grid[: part.shape[0], : part.shape[1]])
        return whole


@dataclass
class Plan:
    """One pass of an image: what the network sees of it, and what it answers to each window."""

    geometry: Geometry
    pixels: UInt8[Tensor, "3 h w"]
    mirrored: bool = False
    logits: dict[Corner, Float[Tensor, "classes gh gw"]] = field(default_factory=dict)
    paused: dict[Corner, Int[Tensor, "ph pw"]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, image: UInt8[np.ndarray, "h w 3"], geometry: Geometry, mirrored: bool = False
    ) -> Self:
        """The plan of an image, scaled and mirrored."""
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        size = geometry.scaled
        if size != geometry.size:  # Smoothed when it gets smaller, as training crops are.
            pixels = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
        return cls(geometry, pixels.flip(2) if mirrored else pixels, mirrored)

    def crop(self, corner: Corner) -> UInt8[Tensor, "3 h w"]:
        """The window that begins at a corner."""
        (top, left), (height, width) = corner, self.geometry.window
        return self.pixels[:, top : top + height, left : left + width]

    def enlarge(self) -> Pass:
        """The coarse logits, and how they make those of the image as it came in."""
        coarse, down, across = self.geometry.enlarge(self.logits)
        return coarse, down, across.flip(0) if self.mirrored else across

    def entropy(self) -> Float[np.ndarray, "gh gw"]:
        """The entropy of the final prediction on the image's coarse grid."""
        logs = {corner: logits.log_softmax(0) for corner, logits in self.logits.items()}
        grids = {corner: -(log.exp() * log).sum(0) for corner, log in logs.items()}
        return self.geometry.paste(grids).numpy()

    def paused_after(self) -> UInt8[np.ndarray, "ph pw"]:
        """The block after which each patch of the image paused."""
        return self.geometry.paste(self.paused).to(torch.uint8).numpy()


def scaled_size(size: Size, short_side: int | None) -> Size:
    """The size at which the shorter side is ``short_side`` long."""
    if short_side is None:
        return size
    height, width = (max(1, round(side * short_side / min(size))) for side in size)
    return height, width
