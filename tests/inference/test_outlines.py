"""Outlines and runs say exactly what the mask says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from paumer.inference.outlines import outlines, run_lengths

MASKS = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.booleans())


def area(ring):
    x, y = ring.T
    return ((x * np.roll(y, -1)) - (np.roll(x, -1) * y)).sum() / 2


def fill(rings, shape):
    """The pixels with an odd number of outlines to their left."""
    mask = np.zeros(shape, bool)
    for ring in rings:
        for (x, y), (_, to) in zip(ring, np.roll(ring, -1, 0), strict=True):
            mask[min(y, to) : max(y, to), x:] ^= True
    return mask


@given(MASKS)
def test_filled_outlines_are_the_mask(mask):
    rings = outlines(mask)
    assert np.array_equal(fill(rings, mask.shape), mask)
    assert sum(map(area, rings)) == mask.sum()


@given(MASKS)
def test_a_ring_turns_at_every_corner(mask):
    for ring in outlines(mask):
        steps = np.roll(ring, -1, 0) - ring
        assert ((steps == 0).sum(1) == 1).all()
        assert ((steps != 0) != np.roll(steps != 0, 1, 0)).all()


def test_a_hole_runs_the_other_way_and_corners_do_not_join():
    mask = np.pad(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool), 1)
    assert sorted(map(area, outlines(mask))) == [-1, 9]
    assert list(map(area, outlines(np.eye(2, dtype=bool)))) == [1, 1]
    assert outlines(np.zeros((3, 4), bool)) == []


@given(MASKS)
def test_runs_are_those_of_coco(mask):
    pycocotools = pytest.importorskip("pycocotools.mask")
    runs = {"size": list(mask.shape), "counts": run_lengths(mask)}
    decoded = pycocotools.decode(pycocotools.frPyObjects(runs, *mask.shape))
    assert np.array_equal(decoded, mask)
