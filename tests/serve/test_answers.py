import base64
import io
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paumer import Mode
from paumer.classes import ClassSet
from paumer.inference.result import Segmentation
from paumer.serve import answers

CLASSES = ClassSet(("a", "b", "c"), ((1, 2, 3), (40, 50, 60), (200, 100, 0)))


def segmentation(labels):
    labels = np.asarray(labels, np.uint8)
    grid = np.array([[0, 3], [3, 5]], np.uint8)
    return Segmentation(
        image=np.zeros((*labels.shape, 3), np.uint8),
        labels=labels,
        entropy=np.zeros((2, 2), np.float32),
        paused_after=grid,
        merged_after=grid // 5,
        patch=(labels.shape[0] / 2, labels.shape[1] / 2),
        mode=Mode.parse("1:~0.3,3:0.5,5:0.5 exit size=8"),
        seconds=0.1,
        classes=CLASSES,
    )


LABELS = [[0, 0, 1, 1], [1, 1, 2, 2], [2, 2, 2, 2], [0, 1, 0, 1]]


def test_the_mask_holds_the_ids():
    content, kind = answers.encode(segmentation(LABELS), "mask")
    image = Image.open(io.BytesIO(content))
    assert kind == "image/png"
    assert image.mode == "P"
    assert np.array_equal(np.array(image), LABELS)


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=6))
def test_run_lengths_give_the_labels_back(labels):
    content, kind = answers.encode(segmentation(labels), "rle")
    values = json.loads(content)
    flat = [number for number, length in values["runs"] for _ in range(length)]
    assert kind == "application/json"
    assert np.array_equal(np.reshape(flat, values["size"][::-1]), labels)
    numbers = [number for number, _ in values["runs"]]
    assert all(a != b for a, b in pairwise(numbers))


def test_everything_at_once():
    details = answers.everything(segmentation(LABELS))
    assert details["blocks"] == {"0": 0.25, "3": 0.5, "5": 0.25}
    assert details["merged"] == 0.25
    assert details["shares"] == {"a": 0.25, "b": 0.375, "c": 0.375}
    assert (details["width"], details["height"]) == (4, 4)
    images = details["images"]
    assert list(images) == ["labels", "paused", "merged", "entropy"]
    decoded = {}
    for name, url in images.items():
        start, data = url.split(",")
        assert start == "data:image/png;base64"
        decoded[name] = np.array(Image.open(io.BytesIO(base64.b64decode(data))))
    assert np.array_equal(decoded["labels"], LABELS)
    # A pixel for each patch, of the first and the second pause; what never paused is clear.
    assert decoded["paused"][..., 3].tolist() == [[0, 153], [153, 153]]
    assert decoded["paused"][0, 1].tolist() == [0, 158, 115, 153]
    assert decoded["paused"][1, 1].tolist() == [204, 121, 167, 153]
    assert decoded["merged"][..., 3].tolist() == [[0, 0], [0, 153]]
    assert decoded["entropy"].shape == (2, 2, 3)
    assert details["patch"] == (2, 2)


def test_too_many_classes_for_a_palette():
    result = segmentation(LABELS)
    object.__setattr__(result, "labels", np.full((4, 4), 300))
    with pytest.raises(ValueError, match="a palette holds 0 to 255"):
        answers.encode(result, "mask")
