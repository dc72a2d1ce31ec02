"""Sliding windows, and full-size labels without full-size logits.

Enlarging coarse logits, averaging where windows overlap, cropping the padding and scaling back to
the image's own size are all linear, and act on rows and columns apart. So the full-size logits
are ``down @ coarse @ across.T``, with the coarse logits of all windows side by side, and a strip
of labels needs only a slice of ``down``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from paumer.data.images import PIXEL_LIMIT

STRIP, TILE = 32, 512
"""Rows and columns of labels made at a time: their logits stay small, whatever the image."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How the predictor cuts, repeats and batches; the mode says the rest.

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

    Of several passes over one image, at other scales or mirrored, the probabilities are averaged.
    """
    (coarse, down, across), *more = passes
    classes, height, width = len(coarse), len(down), len(across)
    labels = torch.empty(height, width, dtype=torch.uint8 if classes <= 256 else torch.int32)
    for left in range(0, width, TILE):
        columns = slice(left, left + TILE)
        tiles = [_tile(coarse, across[columns]) for coarse, _, across in passes]
        for top in range(0, height, STRIP):
            rows = slice(top, top + STRIP)
            strips = [
                _strip(tile, down[rows]) for tile, (_, down, _) in zip(tiles, passes, strict=True)
            ]
            best = (
                sum((strip.softmax(1) for strip in strips[1:]), strips[0].softmax(1))
                if more
                else strips[0]
            )
            labels[rows, columns] = best.max(1).indices
    return labels


def _tile(
    coarse: Float[Tensor, "classes gh gw"], across: Float[Tensor, "w gw"]
) -> Float[Tensor, "gh classes w"]:
    """The coarse logits' rows, enlarged to some columns: few enough to do before the rows."""
    matrix, used = _used_columns(across)
    return coarse[:, :, used].permute(1, 0, 2) @ matrix.T


def _strip(
    tile: Float[Tensor, "gh classes w"], down: Float[Tensor, "r gh"]
) -> Float[Tensor, "r classes w"]:
    """The logits of some rows of a tile."""
    matrix, needed = _used_columns(down)
    return (matrix @ tile[needed].flatten(1)).view(len(down), *tile.shape[1:])


def side_by_side(grids: Sequence[Sequence[Tensor]]) -> Tensor:
    """Grids of windows, row by row, as one large grid."""
    return torch.cat([torch.cat(list(row), -1) for row in grids], -2)


def _linear(matrix: Float[Tensor, "n c"], size: int) -> Float[Tensor, "size c"]:
    """The rows of a matrix resampled to ``size`` rows, as bilinear enlarging does."""
    return F.interpolate(matrix.T[None], size=size, mode="linear")[0].T.contiguous()


def _used_columns(matrix: Float[Tensor, "n c"]) -> tuple[Float[Tensor, "n u"], slice]:
    """The matrix without the empty columns at both ends, and which columns are left."""
    filled = matrix.any(0).nonzero()
    used = slice(int(filled[0]), int(filled[-1]) + 1)
    return matrix[:, used], used


@dataclass
class Plan:
    """One image on its way: where its windows lie, and what the network said of each."""

    pixels: UInt8[Tensor, "3 h w"]
    size: tuple[int, int]
    window: tuple[int, int]
    starts: tuple[tuple[int, ...], tuple[int, ...]]
    logits: dict[tuple[int, int], Float[Tensor, "classes gh gw"]] = field(default_factory=dict)
    paused: dict[tuple[int, int], Int[Tensor, "ph pw"]] = field(default_factory=dict)
    mirrored: bool = False

    @classmethod
    def all_of(
        cls, image: UInt8[np.ndarray, "h w 3"], size: int | None, how: Inference
    ) -> list[Self]:
        """A plan for each scale, and for the mirrored image where it is asked for."""
        mirrors = (False, True) if how.flip else (False,)
        return [
            cls.of(image, size, how, scale, mirror) for scale in how.scales for mirror in mirrors
        ]

    @classmethod
    def of(
        cls,
        image: UInt8[np.ndarray, "h w 3"],
        short_side: int | None,
        how: Inference,
        scale: float = 1.0,
        mirror: bool = False,
    ) -> Self:
        """The plan of an image whose shorter side is scaled to ``short_side``, then by a factor."""
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        size = (image.shape[0], image.shape[1])
        whole = scaled_size(size, short_side)
        target = (max(1, int(whole[0] * scale + 0.5)), max(1, int(whole[1] * scale + 0.5)))
        if target != size:
            if not 1 < target[0] * target[1] <= PIXEL_LIMIT:
                raise ValueError(
                    f"an image of {size[1]}x{size[0]} pixels would be scaled to {target[1]}x"
                    f"{target[0]}: give another size or scale"
                )
            # Smoothed when it gets smaller, as training crops are.
            pixels = F.interpolate(pixels[None], size=target, mode="bilinear", antialias=True)[0]
        if mirror:
            pixels = pixels.flip(2)
        shape = (pixels.shape[1], pixels.shape[2])
        return cls(
            pixels, size, window_size(shape, how), window_starts(shape, how), mirrored=mirror
        )

    def patch(self, own: tuple[int, int]) -> tuple[float, float]:
        """Pixels of the image, as it came in, that a patch covers."""
        height, width = self.pixels.shape[1:]
        return own[0] * self.size[0] / height, own[1] * self.size[1] / width

    def corners(self) -> list[tuple[int, int]]:
        """Where each window begins: its top and left."""
        return [(top, left) for top in self.starts[0] for left in self.starts[1]]

    def crop(self, key: tuple[int, int]) -> UInt8[Tensor, "3 h w"]:
        """The window that begins at a corner."""
        top, left = key
        return self.pixels[:, top : top + self.window[0], left : left + self.window[1]]

    def blended(self, patch: tuple[int, int]) -> Pass:
        """The coarse logits, and how they make those of the image as it came in."""
        grids = [[self.logits[top, left] for left in self.starts[1]] for top in self.starts[0]]
        cells = grids[0][0].shape[1:]
        down, across = (
            blending(
                self.starts[axis],
                self.window[axis],
                cells[axis],
                -(-self.window[axis] // patch[axis]) * patch[axis],
                self.pixels.shape[1 + axis],
                self.size[axis],
            )
            for axis in (0, 1)
        )
        return side_by_side(grids), down, across.flip(0) if self.mirrored else across

    def entropy(self, patch: tuple[int, int]) -> Float[np.ndarray, "gh gw"]:
        """The entropy of the final prediction on the image's coarse grid."""
        parts = {key: _grid_entropy(value) for key, value in self.logits.items()}
        return self._paste(parts, patch).numpy()

    def paused_after(self, patch: tuple[int, int]) -> UInt8[np.ndarray, "ph pw"]:
        """The block after which each patch of the image paused."""
        parts = {key: value.to(torch.uint8) for key, value in self.paused.items()}
        return self._paste(parts, patch).numpy()

    def _paste(self, parts: dict[tuple[int, int], Tensor], patch: tuple[int, int]) -> Tensor:
        """The windows' grids as one grid of the image; where they overlap the first counts."""
        first = parts[0, 0]
        cells = [
            number / (-(-side // p) * p)
            for number, side, p in zip(first.shape, self.window, patch, strict=True)
        ]
        size = [math.ceil(side * c) for side, c in zip(self.pixels.shape[1:], cells, strict=True)]
        whole = first.new_zeros(size)
        for key, part in reversed(list(parts.items())):
            top, left = (round(start * c) for start, c in zip(key, cells, strict=True))
            rows, columns = size[0] - top, size[1] - left
            whole[top : top + len(part), left : left + part.shape[1]] = part[:rows, :columns]
        return whole


def window_starts(size: tuple[int, int], how: Inference) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the windows of an image begin, down and across."""
    if how.window is None:
        return (0,), (0,)
    stride = how.stride or max((how.window + 1) // 2, how.window - 32)
    return anchors(size[0], how.window, stride), anchors(size[1], how.window, stride)


def window_size(size: tuple[int, int], how: Inference) -> tuple[int, int]:
    """The part of an image that the network sees at once."""
    largest = how.window or max(size)
    return min(size[0], largest), min(size[1], largest)


def scaled_size(size: tuple[int, int], short_side: int | None) -> tuple[int, int]:
    """The size at which the shorter side is ``short_side`` long."""
    if short_side is None:
        return size
    height, width = (max(1, round(side * short_side / min(size))) for side in size)
    return height, width


def _grid_entropy(logits: Float[Tensor, "classes gh gw"]) -> Float[Tensor, "gh gw"]:
    log_p = logits.log_softmax(0)
    return -(log_p.exp() * log_p).sum(0)
