"""What a step gets to see: which crops, in what order, in which process."""

from itertools import islice

import numpy as np
import pytest
import torch

from paumer.classes import ClassSet
from paumer.data.samples import Dataset, Sample
from paumer.data.transforms import TrainTransform
from paumer.training.feed import Crops, crop_indices, make_loader

TRANSFORM = TrainTransform((8, 8), (0.5,) * 3, (0.5,) * 3, None, (1.0, 1.0))


class Numbers(Dataset):
    """Images that are filled with their number; those in ``bad`` cannot be read."""

    name, split = "numbers", "train"
    class_set = ClassSet(("a", "b"), ((0, 0, 0), (1, 1, 1)))

    def __init__(self, count, bad=()):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"{index}.png is broken")
        image = np.full((8, 8, 3), index, np.uint8)
        return Sample(str(index), image, np.zeros((8, 8), np.uint8))


def names(crops, steps, rank=0, world=1):
    indices = crop_indices(0, steps, crops.batch, rank, world)
    return [tuple(batch.names) for batch in make_loader(crops, indices, 0, False)]


def test_each_pass_sees_every_image_once_in_an_order_of_its_own():
    crops = Crops(Numbers(6), TRANSFORM, batch=3, seed=0)
    seen = [name for batch in names(crops, 4) for name in batch]
    first, second = seen[:6], seen[6:]
    assert sorted(first) == sorted(second) == list("012345")
    assert first != second
    other = Crops(Numbers(6), TRANSFORM, batch=3, seed=1)
    assert [name for batch in names(other, 2) for name in batch] != first


def test_processes_split_every_step_between_them():
    crops = Crops(Numbers(7), TRANSFORM, batch=6, seed=0)
    parts = zip(*(names(crops, 5, rank, 3) for rank in range(3)), strict=True)
    assert [sum(part, ()) for part in parts] == names(crops, 5)


def test_a_crop_does_not_depend_on_what_was_read_before():
    crops = Crops(Numbers(5), TRANSFORM, batch=2, seed=0)
    batches = list(make_loader(crops, crop_indices(0, 6, 2, 0, 1), 0, False))
    resumed = list(make_loader(crops, crop_indices(4, 6, 2, 0, 1), 0, False))
    assert [batch.step for batch in resumed] == [4, 5]
    for one, other in zip(batches[4:], resumed, strict=True):
        assert one.names == other.names
        assert torch.equal(one.images, other.images)


def test_a_batch_that_cannot_be_split_is_refused_at_once():
    with pytest.raises(ValueError, match="a batch of 4 cannot be shared by 3 processes equally"):
        crop_indices(0, 10, 4, 0, 3)


def test_long_runs_cost_no_memory_ahead():
    assert len(list(islice(crop_indices(0, 10**9, 2, 0, 1), 3))) == 3


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="numbers has no training images"):
        Crops(Numbers(0), TRANSFORM, batch=2, seed=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_problem_arrives_as_it_was_worded(workers):
    crops = Crops(Numbers(3, bad={1}), TRANSFORM, batch=3, seed=0)
    (batch,) = make_loader(crops, crop_indices(0, 1, 3, 0, 1), workers, False)
    assert batch == "1.png is broken"


def test_the_next_image_stands_in_for_one_that_cannot_be_read(tmp_path):
    path = tmp_path / "bad_images.txt"
    crops = Crops(Numbers(4, bad={1, 2}), TRANSFORM, batch=4, seed=0, bad_list=path)
    (seen, again) = names(crops, 2)
    assert {*seen, *again} == {"0", "3"}
    assert sorted(path.read_text().splitlines()) == ["1.png is broken", "2.png is broken"]


def test_where_no_image_can_be_read_it_is_a_problem(tmp_path):
    crops = Crops(Numbers(2, bad={0, 1}), TRANSFORM, 1, 0, bad_list=tmp_path / "bad_images.txt")
    assert crops[[(0, 0)]] in ("0.png is broken", "1.png is broken")


def test_crops_become_a_batch_in_their_order():
    crops = Crops(Numbers(9, bad={7, 8}), TRANSFORM, batch=9, seed=0)
    good = [(0, index) for index in range(9) if not isinstance(crops[[(0, index)]], str)]
    whole, parts = crops[good], [crops[[key]] for key in good]
    assert len(good) == 7
    assert (whole.step, whole.names) == (0, sum((part.names for part in parts), ()))
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
    first, second = ((0, index) for index in range(9) if (0, index) not in good)
    assert crops[[good[0], second, first]] == crops[[second]]
