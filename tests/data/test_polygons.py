import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.data.polygons import Shape, draw, read_runs


def polygon(*corners, id=1):
    return Shape(id, (np.array(corners, np.float32),))


def packed(runs):
    """The runs as COCO packs them into a text, written straight from its definition."""
    text = ""
    for i, run in enumerate(runs):
        number = run - runs[i - 2] if i > 2 else run
        more = True
        while more:
            code = number & 31
            number >>= 5
            more = number != (-1 if code & 16 else 0)
            text += chr((code | 32 if more else code) + 48)
    return text


def test_a_pixel_belongs_to_what_its_centre_is_in():
    drawn = draw([polygon((2, 1), (6, 1), (6, 4), (2, 4))], (8, 9))
    expected = np.zeros((8, 9), int)
    expected[1:4, 2:6] = 1
    np.testing.assert_array_equal(drawn.pixels, expected)
    assert drawn.ids == (1,)


@given(st.lists(st.tuples(st.floats(-20, 30), st.floats(-20, 30)), min_size=3, max_size=9))
def test_polygons_agree_with_a_slow_walk_along_each_row(corners):
    points = np.array(corners, np.float32).astype(float)
    drawn = draw([polygon(*corners)], (12, 10)).pixels
    for row in range(12):
        for column in range(10):
            inside = False
            for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, 0), strict=True):
                if (y0 <= row + 0.5) != (y1 <= row + 0.5):
                    crossing = x0 + (row + 0.5 - y0) / (y1 - y0) * (x1 - x0)
                    if abs(crossing - column - 0.5) < 1e-4:
                        break
                    inside ^= crossing < column + 0.5
            else:
                assert drawn[row, column] == inside


def test_small_shapes_lie_on_large_ones():
    small = polygon((2, 2), (4, 2), (4, 4), (2, 4), id=7)
    large = polygon((0, 0), (8, 0), (8, 8), (0, 8))
    for order in ([small, large], [large, small]):
        drawn = draw(order, (8, 8))
        assert (np.array(drawn.ids)[drawn.pixels - 1] == 7).sum() == 4


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_packed_runs_are_unpacked(runs):
    assert read_runs(packed(runs)).tolist() == runs


@pytest.mark.parametrize("counts", ["", "P", "ooooooooooooooo0", "é", "\x01", None, [1, -1], [1.5]])
def test_damaged_runs_are_refused(counts):
    with pytest.raises(ValueError, match="runs"):
        read_runs(counts)


def test_runs_must_cover_the_image():
    shape = Shape(3, runs=np.array([3, 4, 5]), size=(4, 3))
    assert draw([shape], (4, 3)).pixels.T.ravel().tolist() == [0] * 3 + [1] * 4 + [0] * 5
    for runs, size in (([3, 4], (4, 3)), ([3, 4, 5], (3, 4)), ([99], (4, 3))):
        with pytest.raises(ValueError, match="do not cover"):
            draw([Shape(3, runs=np.array(runs), size=size)], (4, 3))


def test_wild_corners_cost_nothing():
    drawn = draw([polygon((-1e30, -1e30), (1e30, -1e30), (0, 1e30))], (5, 5))
    assert drawn.pixels.all()
    with pytest.raises(ValueError, match="not a number"):
        draw([polygon((0, 0), (1, np.nan), (1, 1))], (5, 5))


def test_it_is_what_pycocotools_draws():
    masks = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    rng = np.random.default_rng(0)
    wrong = total = 0
    for _ in range(50):
        angles, radii = np.sort(rng.uniform(0, 6.28, 12)), rng.uniform(20, 60, 12)
        corners = 64 + np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1)
        theirs = masks.frPyObjects([corners.ravel().tolist()], 128, 130)[0]
        expected = masks.decode(theirs)
        ours = draw([polygon(*corners)], (128, 130)).pixels
        wrong, total = wrong + (ours != expected).sum(), total + expected.sum()
        runs = Shape(1, runs=read_runs(theirs["counts"].decode()), size=(128, 130))
        np.testing.assert_array_equal(draw([runs], (128, 130)).pixels, expected)
    assert wrong / total < 0.01  # Pixels whose centre is next to an edge.
