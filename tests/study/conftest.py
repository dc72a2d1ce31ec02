import weakref

import numpy as np
import pytest
import torch

from paumer import Predictor, build_model
from paumer.classes import ClassSet, distinct_colours
from paumer.data.samples import Dataset, Sample


class Pictures(Dataset):
    """A small data set in memory."""

    name, split = "images", "val"
    class_set = ClassSet(("a", "b", "c"), distinct_colours(3))

    def __init__(self, count=5):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (count, 32, 48, 3), np.uint8)
        self.truths = rng.choice([0, 1, 2, 255], (count, 32, 48)).astype(np.uint8)
        self.given = []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        sample = Sample(str(index), self.images[index], self.truths[index])
        self.given.append(weakref.ref(sample.image))
        return sample


@pytest.fixture(scope="session")
def images():
    """A function that gives a small data set of so many images."""
    return Pictures


@pytest.fixture(scope="session")
def predictor():
    """A predictor of three classes whose answers depend on the image."""
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", ["a", "b", "c"], image_size=32))
