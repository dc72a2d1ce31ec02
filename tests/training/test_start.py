"""What a training starts with beside its network."""

import numpy as np
import pytest
import torch

from paumer.classes import IGNORE, ClassSet, distinct_colours
from paumer.data.samples import Dataset, Sample
from paumer.training.options import TrainOptions
from paumer.training.start import class_weights


class Stripes(Dataset):
    """Images of ``pixels`` of each class, and as many that are ignored; each is read once."""

    name, split = "stripes", "train"
    class_set = ClassSet(("road", "sky", "pole"), distinct_colours(3))

    def __init__(self, pixels, count=3):
        self.labels = np.repeat([0, 1, 2, IGNORE], [*pixels, sum(pixels)]).astype(np.uint8)[None]
        self.count, self.read = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return Sample(str(index), np.zeros((*self.labels.shape, 3), np.uint8), self.labels)


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_rare_classes_weigh_more_by_a_power_and_a_pixel_weighs_one(power):
    shares = torch.tensor([0.9, 0.09, 0.01])
    weights = class_weights(Stripes((90, 9, 1)), TrainOptions(class_weights=power))
    torch.testing.assert_close(weights[1:] / weights[0], (shares[0] / shares[1:]) ** power)
    torch.testing.assert_close((weights * shares).sum(), torch.tensor(1.0))


def test_a_class_that_is_nowhere_weighs_as_a_very_rare_one():
    weights = class_weights(Stripes((50, 50, 0)), TrainOptions(class_weights=1.0))
    torch.testing.assert_close(weights, torch.tensor([1.0, 1.0, 5000.0]))


def test_weights_are_counted_on_images_spread_over_the_data_set():
    data = Stripes((2, 1, 1), count=100)
    class_weights(data, TrainOptions(class_weights=0.5), most=4)
    assert data.read == [0, 33, 66, 99]
