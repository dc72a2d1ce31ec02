import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paumer import Inference, PauseConfig, Predictor, build_model
from paumer.data.datasets import Sample
from paumer.data.labels import ClassSet, distinct_colours
from paumer.study.accuracy import Confusion, evaluate

labels = hnp.arrays(np.uint8, (6, 7), elements=st.integers(0, 3))
truths = hnp.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 2, 3, 255]))


def brute_force(pairs, classes):
    """MIoU, pixel accuracy and mean accuracy, counted pixel by pixel."""
    right, union, there = [0] * classes, [0] * classes, [0] * classes
    for found, truth in pairs:
        for a, b in zip(found.ravel().tolist(), truth.ravel().tolist(), strict=True):
            if b == 255:
                continue
            there[b] += 1
            right[b] += a == b
            union[b] += 1
            union[a] += a != b
    ious = [r / u for r, u in zip(right, union, strict=True) if u]
    recalls = [r / t for r, t in zip(right, there, strict=True) if t]
    return (
        sum(ious) / len(ious) if ious else float("nan"),
        sum(right) / max(1, sum(there)),
        sum(recalls) / len(recalls) if recalls else float("nan"),
    )


@given(st.lists(st.tuples(labels, truths), min_size=1, max_size=4))
def test_figures_equal_a_count_pixel_by_pixel(pairs):
    total = Confusion.empty(4)
    for found, truth in pairs:
        total += Confusion.of(found, truth, 4)
    expected = brute_force(pairs, 4)
    assert np.allclose(
        [total.miou, total.pixel_accuracy, total.mean_accuracy], expected, atol=1e-9, equal_nan=True
    )


class Pictures:
    """A small data set in memory."""

    name, split, problems = "pictures", "val", ()
    class_set = ClassSet(("a", "b", "c"), distinct_colours(3))

    def __init__(self, count=5):
        dice = np.random.default_rng(0)
        self.images = dice.integers(0, 256, (count, 32, 48, 3), np.uint8)
        self.truths = dice.choice([0, 1, 2, 255], (count, 32, 48)).astype(np.uint8)
        self.given = []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        sample = Sample(str(index), self.images[index], self.truths[index])
        self.given.append(weakref.ref(sample))
        return sample

    def files(self, index):
        return None


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", 3, image_size=32))


def ways(batch=2):
    return [
        Inference(pause=PauseConfig.parse(t), batch=batch) for t in ("none", "2:0.4", "2:0.4,4:0.5")
    ]


def test_evaluation_counts_what_the_predictor_says(predictor):
    data = Pictures()
    for way, tally in zip(ways(), evaluate(predictor, data, ways()), strict=True):
        results = [predictor.predict_batch([image], way)[0].labels for image in data.images]
        expected = brute_force(zip(results, data.truths, strict=True), 3)
        assert abs(tally.confusion.miou - expected[0]) < 0.005
        assert tally.pictures.shape == (5, 3, 3)
        assert np.array_equal(tally.pictures.sum(0)[0], np.diag(tally.confusion.counts))


def test_any_split_of_the_data_gives_the_same_counts(predictor):
    data = Pictures(6)
    whole = evaluate(predictor, data, ways())
    parts = [evaluate(predictor, data, ways(), indices) for indices in ([0, 1], [2, 3, 4, 5])]
    for number, tally in enumerate(whole):
        summed = parts[0][number].confusion + parts[1][number].confusion
        assert np.array_equal(tally.confusion.counts, summed.counts)


def test_pictures_are_let_go_of(predictor):
    data = Pictures(12)
    alive = []

    def progress(done, total):
        alive.append(sum(reference() is not None for reference in data.given))

    evaluate(predictor, data, ways(1)[:1], progress=progress)
    assert max(alive) <= 4


@pytest.mark.parametrize("criterion", ["entropy", "confidence", "margin", "random", "oracle"])
def test_every_criterion_can_be_named(predictor, criterion):
    (tally,) = evaluate(predictor, Pictures(2), ways()[1:2], criterion=criterion)
    assert 0 <= tally.confusion.miou <= 1
    (again,) = evaluate(predictor, Pictures(2), ways()[1:2], criterion=criterion)
    assert np.array_equal(tally.confusion.counts, again.confusion.counts)


def test_unknown_criteria_and_other_classes_are_refused(predictor):
    with pytest.raises(ValueError, match="choose one of entropy"):
        evaluate(predictor, Pictures(1), ways(), criterion="luck")
    data = Pictures(1)
    data.class_set = ClassSet(("a", "b"), distinct_colours(2))
    with pytest.raises(ValueError, match="3 classes and pictures has 2"):
        evaluate(predictor, data, ways())


def test_the_interval_holds_the_estimate_and_narrows_with_pictures(predictor):
    (tally,) = evaluate(predictor, Pictures(8), ways()[:1])
    low, high = tally.interval()
    assert low < tally.confusion.miou < high
    many = type(tally)(tally.confusion, np.tile(tally.pictures, (20, 1, 1)))
    narrow = many.interval()
    assert narrow[1] - narrow[0] < (high - low) / 2
    assert np.array_equal(tally.resampled(seed=1), tally.resampled(seed=1))
