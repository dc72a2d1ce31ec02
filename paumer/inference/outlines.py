"""A mask as rings of corners, and as runs: how other tools keep it. Needs numpy only."""

import numpy as np
from jaxtyping import Bool, Int

Ring = Int[np.ndarray, "corners 2"]
"""Corners (x, y) between pixels; the last one is joined to the first."""


def outlines(mask: Bool[np.ndarray, "h w"]) -> list[Ring]:
    """The outlines of a mask, exact to the pixel.

    Seen on the image, an outer ring runs clockwise and that of a hole the other way, so the areas
    add up to the mask's. Pixels that meet at a corner alone are apart.
    """
    width, padded = mask.shape[1] + 1, np.pad(mask, 1)
    # The edges of pixels where the mask ends: above, right, below and left, walked clockwise. Each
    # is the number of the corner where it begins, times four, plus its direction.
    beside = padded[:-2, 1:-1], padded[1:-1, 2:], padded[2:, 1:-1], padded[1:-1, :-2]
    moves, edges = np.array((1, width, -1, -width)), []
    for turn, (other, (down, right)) in enumerate(
        zip(beside, ((0, 0), (0, 1), (1, 1), (1, 0)), strict=True)
    ):
        rows, columns = np.nonzero(mask & ~other)
        edges.append(4 * ((rows + down) * width + columns + right) + turn)
    keys = np.sort(np.concatenate(edges))
    turns, ends = keys % 4, keys // 4 + moves[keys % 4]
    following = np.full(len(keys), -1)
    for change in (-1, 0, 1):  # To the right, where there is a choice: around the same pixel.
        wanted = 4 * ends + (turns + change) % 4
        found = np.searchsorted(keys, wanted).clip(max=max(0, len(keys) - 1))
        following = np.where(keys[found] == wanted, found, following)
    bends = (turns != turns[following]).tolist()
    new, steps, corners = [True] * len(keys), following.tolist(), ends.tolist()
    rings = []
    for first in range(len(keys)):
        ring, edge = [], first
        while new[edge]:
            new[edge] = False
            if bends[edge]:
                ring.append(corners[edge])
            edge = steps[edge]
        if ring:
            rings.append(np.stack([np.array(ring) % width, np.array(ring) // width], 1))
    return rings


def run_lengths(mask: Bool[np.ndarray, "h w"]) -> list[int]:
    """How many pixels are out, in, out, ... of a mask, column by column: COCO's plain runs."""
    flat = mask.ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff([0, *changes.tolist(), flat.size]).tolist()
    return [0, *runs] if flat[0] else list(runs)
