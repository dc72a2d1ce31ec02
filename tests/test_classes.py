import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.classes import (
    ADE20K,
    CAMVID,
    CITYSCAPES,
    CITYSCAPES_TRAIN_IDS,
    ClassSet,
    distinct_colours,
    paint,
)


def test_camvid_has_its_eleven_classes_in_order():
    assert CAMVID.names == (
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "bicyclist",
    )
    assert CAMVID.colours[CAMVID.names.index("road")] == (176, 112, 216)
    assert CAMVID.colours[CAMVID.names.index("bicyclist")] == (255, 136, 0)


def test_cityscapes_label_ids_map_to_train_ids():
    kept = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    assert CITYSCAPES_TRAIN_IDS.shape == (256,)
    assert CITYSCAPES_TRAIN_IDS.dtype == np.uint8
    assert CITYSCAPES_TRAIN_IDS[kept].tolist() == list(range(19))
    assert np.count_nonzero(CITYSCAPES_TRAIN_IDS == 255) == 256 - 19
    assert CITYSCAPES.names[CITYSCAPES_TRAIN_IDS[26]] == "car"
    assert CITYSCAPES.colours[CITYSCAPES_TRAIN_IDS[26]] == (0, 0, 142)


def test_the_shared_label_map_cannot_be_overwritten():
    with pytest.raises(ValueError, match="read-only"):
        CITYSCAPES_TRAIN_IDS[0] = 3


def test_ade20k_has_150_different_names_in_the_official_order():
    assert len(ADE20K) == len(set(ADE20K.names)) == 150
    by_number = {0: "wall", 12: "person", 20: "car", 93: "pole", 136: "traffic light", 149: "flag"}
    assert {i: ADE20K.names[i] for i in by_number} == by_number


@pytest.mark.parametrize("classes", [CAMVID, CITYSCAPES, ADE20K])
def test_colours_differ_and_none_is_the_black_of_the_ignore_label(classes):
    assert len(set(classes.colours)) == len(classes) == len(classes.names)
    assert (0, 0, 0) not in classes.colours


@pytest.mark.parametrize("count", [0, 1, 2, 19, 150, 400])
def test_made_colours_are_well_apart(count):
    colours = np.array(distinct_colours(count), float).reshape(-1, 3)
    assert len(colours) == count
    everything = np.concatenate([colours, np.zeros((1, 3))])
    gaps = np.linalg.norm(everything[:, None] - everything[None], axis=-1)
    apart = gaps[~np.eye(len(everything), dtype=bool)]
    assert apart.size == 0 or apart.min() >= (30 if count <= 150 else 20)
    assert distinct_colours(count) == distinct_colours(count)
    assert all(np.ptp(colour) >= 70 and colour @ (0.3, 0.59, 0.11) >= 70 for colour in colours)


@given(st.lists(st.sampled_from([*range(11), 77, 255]), min_size=6, max_size=6))
def test_paint_gives_every_pixel_the_colour_of_its_class(values):
    labels = np.array(values, np.uint8).reshape(2, 3)
    image = paint(labels, CAMVID)
    assert image.shape == (2, 3, 3)
    assert image.dtype == np.uint8
    for label, colour in zip(values, image.reshape(-1, 3).tolist(), strict=True):
        assert tuple(colour) == (CAMVID.colours[label] if label < 11 else (0, 0, 0))


def test_paint_refuses_negative_labels():
    with pytest.raises(ValueError, match="from -1 to 3"):
        paint(np.array([[-1, 3]]), CAMVID)


def test_a_class_set_needs_a_colour_per_name_and_an_ignore_label_of_its_own():
    with pytest.raises(ValueError, match="2 class names but 1 colours"):
        ClassSet(("a", "b"), ((1, 1, 1),))
    with pytest.raises(ValueError, match="ignore label 1 is also the class 'b'"):
        ClassSet(("a", "b"), ((1, 1, 1), (2, 2, 2)), ignore=1)


def test_equal_names_are_refused_with_the_name():
    with pytest.raises(ValueError, match='two classes are called "b"'):
        ClassSet(("a", "b", "c", "b"), distinct_colours(4))
