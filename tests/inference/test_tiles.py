import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from paumer.inference.tiles import (
    STRIP,
    TILE,
    Axis,
    Geometry,
    Inference,
    Plan,
    anchors,
    blending,
    full_labels,
    scaled_size,
)

sides = st.integers(1, 200)


def full_logits(coarse, down, across):
    """Logits of every pixel at once."""
    return dense(down, coarse.shape[1]) @ coarse @ dense(across, coarse.shape[2]).T


def dense(pieces, columns):
    """The pieces as one matrix."""
    whole = []
    for matrix, used in pieces:
        whole.append(torch.zeros(len(matrix), columns))
        whole[-1][:, used] = matrix
    return torch.cat(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "^window is 0: give at least 1$"),
        ({"stride": -1}, "^stride is -1: give at least 1$"),
        ({"batch": 0}, "^batch is 0: give at least 1$"),
        ({"window": 8, "stride": 9}, "a stride of 9 leaves gaps between windows of 8"),
        ({"scales": ()}, r"scales are \(\): give at least one"),
        ({"scales": (1.0, 0.0)}, "all above 0 and finite"),
        ({"scales": (math.inf,)}, "all above 0 and finite"),
        ({"scales": (math.nan,)}, "all above 0 and finite"),
    ],
)
def test_impossible_inference_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Inference(**options)


def test_inference_settings_are_a_value():
    assert {Inference(window=8): 1}[Inference(window=8, scales=(1.0,))] == 1
    with pytest.raises(FrozenInstanceError):
        Inference().batch = 3


@given(
    st.tuples(sides, sides),
    st.none() | st.integers(2, 100),
    st.none() | sides,
    st.sampled_from((0.5, 1.0, 1.75)),
    st.booleans(),
)
def test_the_windows_of_a_plan_cover_the_scaled_image(size, short_side, window, scale, mirror):
    whole = scaled_size(size, short_side)
    target = tuple(max(1, int(side * scale + 0.5)) for side in whole)
    assume(1 < math.prod(target) < 10**6)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    geometry = Geometry.of(size, (16, 16), short_side, Inference(window=window), scale)
    assume(len(geometry.corners) < 1000)
    plan = Plan.of(image, geometry, mirror)
    assert plan.pixels.shape[1:] == geometry.scaled == target
    assert short_side is None or min(whole) == short_side
    covered = torch.zeros(plan.pixels.shape[1:], dtype=torch.bool)
    for top, left in geometry.corners:
        crop = plan.crop((top, left))
        assert crop.shape[1:] == geometry.window
        covered[top : top + crop.shape[1], left : left + crop.shape[2]] = True
        assert torch.equal(crop, plan.pixels[:, top:, left:][:, : crop.shape[1], : crop.shape[2]])
    assert covered.all()
    if whole == size and scale == 1:
        pixels = plan.pixels.flip(2) if mirror else plan.pixels
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), image)


@given(side=sides, window=sides, stride=sides)
def test_windows_cover_every_pixel_and_stay_inside(side, window, stride):
    stride = min(stride, window)
    starts = anchors(side, window, stride)
    covered = set()
    for start in starts:
        covered |= set(range(start, min(start + window, side)))
        assert 0 <= start <= max(0, side - window)
    assert covered == set(range(side))
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize(
    ("side", "window", "stride", "expected"),
    [(1024, 768, 512, (0, 256)), (2048, 768, 512, (0, 512, 1024, 1280)), (500, 512, 480, (0,))],
)
def test_windows_lie_where_segmenter_puts_them(side, window, stride, expected):
    assert anchors(side, window, stride) == expected


def naive_logits(parts, starts, window, padded, side, size):
    """Enlarge each window, crop its padding, add up, divide by the count, scale to the image."""
    classes = parts[0][0].shape[0]
    total, count = torch.zeros(classes, *side), torch.zeros(side)
    for i, top in enumerate(starts[0]):
        for j, left in enumerate(starts[1]):
            large = F.interpolate(parts[i][j][None], size=padded, mode="bilinear")[0]
            rows, columns = slice(top, top + window[0]), slice(left, left + window[1])
            total[:, rows, columns] += large[:, : window[0], : window[1]]
            count[rows, columns] += 1
    return F.interpolate((total / count)[None], size=size, mode="bilinear")[0]


CASES = [
    ((48, 48), (32, 32), 24, (48, 48)),
    ((50, 90), (40, 40), 17, (50, 90)),
    ((50, 90), (40, 40), 30, (123, 201)),
    ((90, 50), (64, 50), 64, (33, 40)),
    ((20, 600), (20, 600), 1, (20, 600)),
]


@pytest.mark.parametrize(("side", "window", "stride", "size"), CASES)
def test_blending_equals_the_naive_way(side, window, stride, size):
    generator = torch.Generator().manual_seed(1)
    starts = tuple(anchors(s, w, stride) for s, w in zip(side, window, strict=True))
    geometry = Geometry(size, side, window, starts, (16, 16))
    padded = tuple(-(-w // 16) * 16 for w in window)
    assert geometry.padded == padded
    cells = [p // 16 for p in padded]
    parts = [[torch.randn(5, *cells, generator=generator) for _ in starts[1]] for _ in starts[0]]
    expected = naive_logits(parts, starts, window, padded, side, size)
    in_order = [part for row in parts for part in row]
    logits = dict(zip(geometry.corners, in_order, strict=True))
    coarse, down, across = geometry.enlarge(logits)
    assert torch.allclose(full_logits(coarse, down, across), expected, atol=1e-5)
    best = expected.topk(2, dim=0).values
    clear = best[0] - best[1] > 1e-4
    labels = full_labels([(coarse, down, across)])
    assert labels.shape == size
    assert clear.float().mean() > 0.95
    assert torch.equal(labels[clear].long(), expected.argmax(0)[clear])


def test_many_classes_get_labels_beyond_a_byte():
    coarse = torch.zeros(300, 1, 1)
    coarse[299] = 1
    pieces = [(torch.ones(4, 1), slice(0, 1))]
    assert full_labels([(coarse, pieces, pieces)]).unique().tolist() == [299]


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_thin_image_takes_memory_for_its_pixels(mirrored):
    side = 2**18
    axis = Axis((0,), side, side // 16, side, side, side)
    pieces = blending(axis, 512, mirrored)
    assert sum(matrix.numel() for matrix, _ in pieces) < 40 * side
    assert all(torch.allclose(matrix.sum(1), torch.ones(512)) for matrix, _ in pieces)
    assert [used.start for _, used in pieces] == sorted(
        (used.start for _, used in pieces), reverse=mirrored
    )


def test_passes_are_averaged_by_probability():
    rng = torch.Generator().manual_seed(0)
    sizes = [(3, 4), (5, 6)]
    passes = [
        (
            3 * torch.randn(4, *size, generator=rng),
            blending(Axis((0,), size[0] * 8, size[0], size[0] * 8, size[0] * 8, 40), STRIP),
            blending(Axis((0,), size[1] * 8, size[1], size[1] * 8, size[1] * 8, 700), TILE),
        )
        for size in sizes
    ]
    mean = sum(full_logits(*one).softmax(0) for one in passes)
    assert (full_labels(passes) == mean.argmax(0)).float().mean() > 0.999
    assert not torch.equal(full_labels(passes), full_labels(passes[:1]))
