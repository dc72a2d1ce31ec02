import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paumer.study.accuracy import Tally, iou_of_counts
from paumer.study.sizes import count_sizes, region_sizes

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
    whole = Tally.of(0, found, truth, 3, by_size=True)
    assert np.array_equal(whole.sizes.sum(0), whole.totals)
    assert np.array_equal((whole + whole).sizes, 2 * whole.sizes)
    assert (whole + Tally.of(1, found, truth, 3)).sizes is None


def test_iou_of_each_size():
    truth = np.zeros((100, 100), np.uint8)
    truth[0, :8] = 1
    truth[50:70, 50:70] = 1  # 400 pixels: large.
    found = truth.copy()
    found[0, :8] = 0  # The small one is lost.
    found[50:70, 50:60] = 0  # Half the large one too.
    iou = iou_of_counts(count_sizes(found, truth, 2))
    assert iou[0, 1] == 0
    assert iou[2, 1] == 0.5
    assert np.isnan(iou[1]).all()
    values = Tally.of(0, found, truth, 2, by_size=True).to_json("ab")
    assert values["miou_by_size"] == {"small": 0, "medium": None, "large": iou[2].mean()}
    assert values["iou_by_size"]["large"] == {"a": iou[2, 0], "b": 0.5}
    assert values["iou_by_size"]["medium"] == {"a": None, "b": None}
