import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from paumer.windows import anchors, blending, full_labels, full_logits, side_by_side

sides = st.integers(1, 200)


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
    """Enlarge each window, crop its padding, add up, divide by the count, scale to the picture."""
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
    padded = tuple(-(-w // 16) * 16 for w in window)
    cells = [p // 16 for p in padded]
    parts = [[torch.randn(5, *cells, generator=generator) for _ in starts[1]] for _ in starts[0]]
    expected = naive_logits(parts, starts, window, padded, side, size)
    down, across = (
        blending(starts[i], window[i], cells[i], padded[i], side[i], size[i]) for i in (0, 1)
    )
    coarse = side_by_side(parts)
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
    matrix = torch.ones(4, 1)
    assert full_labels([(coarse, matrix, matrix)]).unique().tolist() == [299]


def test_passes_are_averaged_by_probability():
    dice = torch.Generator().manual_seed(0)
    sizes = [(3, 4), (5, 6)]
    passes = [
        (
            3 * torch.randn(4, *size, generator=dice),
            blending((0,), size[0] * 8, size[0], size[0] * 8, size[0] * 8, 40),
            blending((0,), size[1] * 8, size[1], size[1] * 8, size[1] * 8, 700),
        )
        for size in sizes
    ]
    mean = sum(full_logits(*one).softmax(0) for one in passes)
    assert (full_labels(passes) == mean.argmax(0)).float().mean() > 0.999
    assert not torch.equal(full_labels(passes), full_labels(passes[:1]))
