"""Labels given as outlines: polygons and runs of pixels become a mask. Needs numpy only.

A pixel belongs to a polygon if its centre does, which is how COCO counts up to pixels whose centre
lies on an edge. What is drawn later hides what is below it, so large shapes come first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paumer.data.folders import Drawn

_FARTHEST = 1e7
_MOST_CROSSINGS = 2**25
_CHARACTERS_PER_RUN = 7


class Shape(NamedTuple):
    """What covers a part of an image: polygons, (points 2) each in pixels, or runs of pixels.

    Runs count pixels down the columns from the left, the first of them outside. They belong to an
    image of `size`, its height and width.
    """

    id: int
    polygons: tuple[NDArray[np.float32], ...] = ()
    runs: NDArray[np.int64] | None = None
    size: tuple[int, int] | None = None

    def area(self) -> float:
        """How many pixels it covers, about."""
        if self.runs is not None:
            return float(self.runs[1::2].sum())
        return sum(_area(points.astype(np.float64)) for points in self.polygons)


def draw(shapes: Sequence[Shape], size: tuple[int, int], whose: str = "an image") -> Drawn:
    """The mask of an image of that height and width; errors say whose outlines cannot be drawn."""
    ids = sorted({shape.id for shape in shapes})
    pixels = np.zeros(size, np.min_scalar_type(len(ids)))
    try:
        if not all(np.isfinite(points).all() for shape in shapes for points in shape.polygons):
            raise ValueError("a polygon has a corner that is not a number")
        for shape in sorted(shapes, key=Shape.area, reverse=True):
            number = ids.index(shape.id) + 1
            if shape.runs is not None:
                pixels[_unpack(shape, size)] = number
            for points in shape.polygons:
                (top, left), inside = _fill(points.astype(np.float64), size)
                pixels[top : top + inside.shape[0], left : left + inside.shape[1]][inside] = number
    except ValueError as error:
        raise ValueError(f"the outlines of {whose}: {error}") from error
    return Drawn(pixels, tuple(ids))


def read_runs(counts: object) -> NDArray[np.int64]:
    """The runs of COCO's run-length code: a list of them, or the text they are packed into.

    In the text a number has 5 bits in each character, the lowest first, and from the fourth on it
    is the difference from the one two before.
    """
    if isinstance(counts, list):
        if not all(type(count) is int and 0 <= count < 2**40 for count in counts):
            raise ValueError("the runs must be numbers of pixels")
        return np.array(counts, np.int64)
    if not isinstance(counts, str) or not counts.isascii():
        raise ValueError("the runs must be a list or a text")
    codes = np.frombuffer(counts.encode(), np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero(codes & 32 == 0)
    starts = np.append(0, ends[:-1] + 1)
    if not len(ends) or ends[-1] + 1 != len(codes) or codes.min() < 0 or codes.max() > 63:
        raise ValueError("the packed runs are damaged")
    lengths = ends - starts + 1
    if lengths.max() > _CHARACTERS_PER_RUN:
        raise ValueError("the packed runs are damaged")
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, lengths))
    runs: NDArray[np.int64] = np.add.reduceat((codes & 31) << shifts, starts)
    runs -= np.where(codes[ends] & 16, 1 << 5 * lengths, 0)
    runs[1::2], runs[2::2] = runs[1::2].cumsum(), runs[2::2].cumsum()
    if runs.min() < 0:
        raise ValueError("the packed runs are damaged")
    return runs


def _unpack(shape: Shape, size: tuple[int, int]) -> NDArray[np.bool_]:
    runs = shape.runs
    assert runs is not None
    if shape.size != size or runs.sum() != size[0] * size[1]:
        raise ValueError(
            f"runs of {runs.sum()} pixels for a size of {shape.size} do not cover an image of "
            f"height and width {size}"
        )
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return inside.reshape(size[1], size[0]).T


def _area(points: NDArray[np.float64]) -> float:
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _fill(
    points: NDArray[np.float64], size: tuple[int, int]
) -> tuple[tuple[int, int], NDArray[np.bool_]]:
    """The corner (top, left) of the part of an image a polygon may cover, and what it covers."""
    # From here on a pixel's centre has whole numbers.
    points = (points - 0.5).clip(-_FARTHEST, _FARTHEST)
    (left, top), (right, bottom) = (
        np.ceil(edge).clip(0, size[::-1]).astype(int).tolist()
        for edge in (points.min(0), points.max(0))
    )
    height, width = bottom - top, right - left
    x, y = (points - (left, top)).T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    # An edge crosses the rows from its upper end to above its lower end.
    first, last = (np.ceil(f(y, next_y)).clip(0, height) for f in (np.minimum, np.maximum))
    rows = (last - first).astype(np.int64)
    if rows.sum() > _MOST_CROSSINGS:
        raise ValueError(f"a polygon of {len(points)} corners is too long to draw")
    edge = np.repeat(np.arange(len(points)), rows)
    row = np.arange(len(edge)) - np.repeat(rows.cumsum() - rows - first.astype(np.int64), rows)
    along = (row - y[edge]) / (next_y - y)[edge]
    column = np.ceil(x[edge] + along * (next_x - x)[edge]).clip(0, width).astype(np.int64)
    # Right of an odd number of crossings is inside.
    crossings = np.bincount(row * (width + 1) + column, minlength=height * (width + 1))
    odd = (crossings & 1).astype(np.bool_).reshape(height, width + 1)
    return (top, left), np.logical_xor.accumulate(odd, axis=1)[:, :width]
