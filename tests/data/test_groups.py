"""Groups of images by file name, and leaving one out."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paumer.data.datasets import open_dataset
from paumer.data.groups import OTHERS, group_images, hold_out

NAMES = ("a_1", "b_1", "a_2", "c", "b_2")


@pytest.fixture
def dataset(tmp_path):
    """Five images, the last two in a folder of their own; the shade is the number."""
    for number, name in enumerate(NAMES):
        for kind in ("images", "masks"):
            folder = tmp_path / "train" / kind / ("far" if number > 2 else "near")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.full((4, 4, 3)[: 3 if kind == "images" else 2], number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.png")
    yaml = "train: {images: train/images, masks: train/masks}\nclasses: [k, l, m, n, o]\n"
    (tmp_path / "data.yaml").write_text(yaml)
    return open_dataset(str(tmp_path / "data.yaml"))


def stems(dataset):
    return [Path(dataset.files(index)[0]).stem for index in range(len(dataset))]


def members(dataset, groups):
    every = stems(dataset)
    return {n: {every[i] for i in indices} for n, indices in group_images(dataset, groups).items()}


def test_a_group_is_what_the_pattern_finds(dataset):
    drives = {"a": {"a_1", "a_2"}, "b": {"b_1", "b_2"}, OTHERS: {"c"}}
    assert members(dataset, "^(.)_") == drives
    whole = {f"{name}_": images for name, images in drives.items() if name != OTHERS}
    assert members(dataset, "^._") == {**whole, OTHERS: {"c"}}


def test_a_group_can_be_the_folder(dataset):
    assert members(dataset, "folder") == {"far": {"c", "b_2"}, "near": {"a_1", "a_2", "b_1"}}


def test_holding_out_divides_the_images(dataset):
    rest, held = hold_out(dataset, "^b")
    assert set(stems(held)) == {"b_1", "b_2"}
    assert set(stems(rest)) == {"a_1", "a_2", "c"}
    for part in (rest, held):
        for index, stem in enumerate(stems(part)):
            assert part[index].name.endswith(stem)
            assert part[index].labels[0, 0] == NAMES.index(stem)


@pytest.mark.parametrize("call", [group_images, hold_out])
@pytest.mark.parametrize(("pattern", "message"), [("x", "no file name"), ("(", "not a regular")])
def test_a_wrong_pattern_is_named(dataset, call, pattern, message):
    with pytest.raises(ValueError, match=message):
        call(dataset, pattern)


def test_something_must_be_left_to_train_on(dataset):
    with pytest.raises(ValueError, match="all file names"):
        hold_out(dataset, ".")


def test_scenes_have_no_groups():
    with pytest.raises(ValueError, match="matches no file name of scenes"):
        group_images(open_dataset("scenes:3", "val"), ".")
