"""Sliding windows, and full-size labels without full-size logits.

Enlarging coarse logits, averaging where windows overlap, cropping the padding and scaling back to
the picture's own size are all linear, and act on rows and columns apart. So the full-size logits
are ``down @ coarse @ across.T``, with the coarse logits of all windows side by side, and a strip
of labels needs only a slice of ``down``.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

STRIP, TILE = 32, 512
"""Rows and columns of labels made at a time: their logits stay small, whatever the picture."""


def anchors(side: int, window: int, stride: int) -> tuple[int, ...]:
    """Where windows begin so that they cover a side: every ``stride``, the last one at its end."""
    last = max(0, side - window)
    return (*range(0, last, stride), last)


@lru_cache(maxsize=64)
def blending(
    starts: tuple[int, ...], window: int, cells: int, padded: int, side: int, size: int
) -> Float[Tensor, "size columns"]:
    """How rows of all windows' coarse cells, one window after the other, make rows of the picture.

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
"""Coarse logits of a picture, and how their rows and columns make those of the picture."""


def full_labels(passes: Sequence[Pass]) -> UInt8[Tensor, "h w"] | Int[Tensor, "h w"]:
    """The likeliest class of every pixel, made strip by strip.

    Of several passes over one picture, at other scales or mirrored, the probabilities are averaged.
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


def full_logits(
    coarse: Float[Tensor, "classes gh gw"],
    down: Float[Tensor, "h gh"],
    across: Float[Tensor, "w gw"],
) -> Float[Tensor, "classes h w"]:
    """Logits of every pixel at once: for small pictures."""
    return down @ coarse @ across.T


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
