import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paumer.study.accuracy import Confusion
from paumer.study.sizes import SizeCounts, region_sizes

labels = hnp.arrays(np.uint8, (8, 9), elements=st.integers(0, 2))
truths = hnp.arrays(np.uint8, (8, 9), elements=st.sampled_from([0, 1, 2, 255]))


def flood(image):
    """The size of every pixel's region, by walking from pixel to pixel."""
    height, width = image.shape
    sizes = np.zeros(image.shape, int)
    for start in np.ndindex(image.shape):
        seen, todo = {start}, [start]
        while todo:
            y, x = todo.pop()
            for other in np.ndindex(3, 3):
                there = y + other[0] - 1, x + other[1] - 1
                inside = 0 <= there[0] < height and 0 <= there[1] < width
                if inside and there not in seen and image[there] == image[start]:
                    seen.add(there)
                    todo.append(there)
        sizes[start] = len(seen)
    return sizes


def test_regions_are_small_medium_or_large():
    image = np.zeros((100, 100), np.uint8)
    image[0, :9] = 1  # 9 pixels: below a thousandth.
    image[10:20, 0:5] = 2  # 50 pixels.
    image[50, 50] = image[51, 51] = 3  # Joined over the corner.
    found = region_sizes(image, 4)
    areas = flood(image[45:55, 45:55])
    assert found[0, 0] == 0
    assert found[15, 2] == 1
    assert found[99, 99] == 2
    assert areas[5, 5] == 2
    assert found[50, 50] == 0


@given(labels, truths)
def test_sizes_add_up_to_the_whole(found, truth):
    sizes, whole = SizeCounts.of(found, truth, 3), Confusion.of(found, truth, 3)
    right, wrong, missed = sizes.counts.sum(0)
    assert np.array_equal(right, np.diag(whole.counts))
    assert np.array_equal(right + wrong, whole.counts.sum(0))
    assert np.array_equal(right + missed, whole.counts.sum(1))


def test_iou_of_each_size():
    truth = np.zeros((100, 100), np.uint8)
    truth[0, :8] = 1
    truth[50:70, 50:70] = 1  # 400 pixels: large.
    found = truth.copy()
    found[0, :8] = 0  # The small one is lost.
    found[50:70, 50:60] = 0  # Half the large one too.
    counts = SizeCounts.of(found, truth, 2)
    assert counts.iou[0, 1] == 0
    assert counts.iou[2, 1] == 0.5
    assert np.isnan(counts.iou[1]).all()
    doubled = counts + counts
    assert np.array_equal(doubled.iou, counts.iou, equal_nan=True)
    assert counts.miou[2] == counts.iou[2].mean()
