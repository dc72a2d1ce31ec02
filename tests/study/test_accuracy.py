import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paumer import Inference, Mode
from paumer.classes import ClassSet, distinct_colours
from paumer.mode import CRITERIA, STUDY_CRITERIA
from paumer.study.accuracy import Tally, evaluate

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
    total = Tally.empty(4)
    for number, (found, truth) in enumerate(pairs):
        total += Tally.of(number, found, truth, 4)
    expected = brute_force(pairs, 4)
    assert np.allclose(
        [total.miou, total.pixel_accuracy, total.mean_accuracy], expected, atol=1e-9, equal_nan=True
    )


STAGES = ("none", "2:0.4", "2:0.4,4:0.5")
PAIRS = Inference(batch=2)


def parse(*texts):
    return [Mode.parse(text) for text in texts]


@pytest.mark.parametrize("words", ["", " exit", " exit by=neighbours protect=b size=48"])
def test_evaluation_counts_what_the_predictor_says(predictor, images, words):
    data, modes = images(), parse(*(f"{stages}{words}" for stages in STAGES))
    for mode, tally in zip(modes, evaluate(predictor, data, modes, PAIRS), strict=True):
        results = [result.labels for result in predictor.predict_batch(list(data.images), mode)]
        expected = brute_force(zip(results, data.truths, strict=True), 3)
        assert np.allclose(
            [tally.miou, tally.pixel_accuracy, tally.mean_accuracy], expected, atol=1e-6
        )
        assert tally.images.shape == (5, 3, 3)
        right, labelled, truly = tally.totals
        assert np.array_equal(right, np.diag(tally.confusion))
        assert np.array_equal(labelled, tally.confusion.sum(0))
        assert np.array_equal(truly, tally.confusion.sum(1))


def test_any_split_of_the_data_gives_the_same_counts(predictor, images):
    data, modes = images(6), parse(*STAGES)
    whole = evaluate(predictor, data, modes, PAIRS)
    parts = [evaluate(predictor, data, modes, PAIRS, indices) for indices in ([0, 1], [2, 3, 4, 5])]
    for number, tally in enumerate(whole):
        summed = parts[0][number].confusion + parts[1][number].confusion
        assert np.array_equal(tally.confusion, summed)


def test_images_are_let_go_of(predictor, images):
    data = images(12)
    alive = []

    def progress(done, total):
        alive.append(sum(reference() is not None for reference in data.given))

    evaluate(predictor, data, parse("none"), Inference(batch=1), progress=progress)
    assert max(alive) <= 4


@pytest.mark.parametrize("criterion", [*CRITERIA, *STUDY_CRITERIA])
def test_every_criterion_can_be_named(predictor, images, criterion):
    modes = parse(f"2:0.4 by={criterion}")
    (tally,) = evaluate(predictor, images(2), modes, PAIRS)
    assert 0 <= tally.miou <= 1
    (again,) = evaluate(predictor, images(2), modes, PAIRS)
    assert np.array_equal(tally.confusion, again.confusion)


def test_modes_of_all_criteria_and_sizes_are_counted_as_each_alone(predictor, images):
    data = images(3)
    modes = parse(
        "none",
        "2:0.4",
        "2:0.4 by=random",
        "2:0.4 by=oracle",
        "2:0.4 exit by=oracle protect=b size=48",
        "2:0.4 by=neighbours size=48",
        "none size=48",
    )
    for mode, tally in zip(modes, evaluate(predictor, data, modes), strict=True):
        # One image at a time, as all are where one mode is random.
        (alone,) = evaluate(predictor, data, [mode], Inference(batch=1))
        assert np.array_equal(tally.images, alone.images)


def test_classes_that_do_not_fit_are_refused(predictor, images):
    with pytest.raises(ValueError, match='no class "tree" to protect: the model knows'):
        evaluate(predictor, images(1), parse("2:0.4 protect=tree"))
    data = images(1)
    data.class_set = ClassSet(("a", "b"), distinct_colours(2))
    with pytest.raises(ValueError, match="3 classes and images has 2"):
        evaluate(predictor, data, parse("none"))


def test_the_interval_holds_the_estimate_and_narrows_with_images(predictor, images):
    (tally,) = evaluate(predictor, images(8), parse("none"))
    low, high = tally.interval()
    assert low < tally.miou < high
    many = Tally(np.arange(160), np.tile(tally.images, (20, 1, 1)))
    narrow = many.interval()
    assert narrow[1] - narrow[0] < (high - low) / 2
    assert np.array_equal(tally.resampled(seed=1), tally.resampled(seed=1))


@pytest.mark.parametrize("criterion", ["entropy", "random"])
def test_any_number_of_processes_gives_the_same_tally(predictor, images, criterion):
    data, modes = images(7), parse(*(f"{stages} by={criterion}" for stages in STAGES))
    whole = evaluate(predictor, data, modes, PAIRS)
    parts = [evaluate(predictor, data, modes, PAIRS, shard=(rank, 3)) for rank in range(3)]
    for tally, *others in zip(whole, *parts, strict=True):
        summed = others[2] + others[0] + others[1]
        assert summed.indices.tolist() == list(range(7))
        assert np.array_equal(summed.images, tally.images)
        assert np.array_equal(summed.confusion, tally.confusion)


def test_a_tally_says_what_people_report(predictor, images):
    (tally,) = evaluate(predictor, images(3), parse("none"), by_size=True)
    values = tally.to_json("abc")
    assert values["miou"] == tally.miou
    assert values["miou_low"] <= values["miou"] <= values["miou_high"]
    assert list(values["iou"]) == ["a", "b", "c"]
    assert list(values["iou_by_size"]) == list(values["miou_by_size"])
    assert values["images"] == 3


@pytest.mark.parametrize("criterion", ["entropy", "random"])
def test_odd_splits_give_the_same_counts_too(predictor, images, criterion):
    data, modes, one = images(6), parse(f"2:0.4 by={criterion}"), Inference(batch=1)
    (whole,) = evaluate(predictor, data, modes, one)
    parts = [
        evaluate(predictor, data, modes, one, indices)[0] for indices in ([0], [2, 4, 5], [1, 3])
    ]
    summed = parts[0] + parts[1] + parts[2]
    assert np.array_equal(summed.images, whole.images)


@pytest.mark.parametrize("how", [{"flip": True}, {"scales": (0.5,)}, {"window": 16}])
def test_the_oracle_refuses_what_it_cannot_see(predictor, images, how):
    with pytest.raises(ValueError, match=r'oracle needs whole images, once \("2:0.5 by=oracle"\)'):
        evaluate(predictor, images(2), parse("2:0.5 by=oracle"), Inference(batch=1, **how))


def test_the_oracle_knows_the_scale(predictor, images):
    (tally,) = evaluate(predictor, images(2), parse("2:0.5 by=oracle size=64"))
    assert tally.images.sum() > 0


def test_the_oracle_wants_images_of_one_size_in_a_batch(predictor, images):
    data = images(2)
    data.images = [data.images[0], data.images[1][:, :32]]
    data.truths = [data.truths[0], data.truths[1][:, :32]]
    with pytest.raises(ValueError, match="images of one size in a batch: use a batch of 1"):
        evaluate(predictor, data, parse("2:0.5 by=oracle"), PAIRS)
    (tally,) = evaluate(predictor, data, parse("2:0.5 by=oracle"), Inference(batch=1))
    assert len(tally.images) == 2


def test_images_without_labels_leave_the_figures_known(predictor, images):
    data = images(5)
    data.truths[1:] = 255
    (tally,) = evaluate(predictor, data, parse("none"))
    values = tally.to_json("abc")
    assert values["miou_low"] == values["miou"] == values["miou_high"]
    data.truths[:] = 255
    (tally,) = evaluate(predictor, data, parse("none"))
    assert tally.to_json("abc")["miou"] is None


def tally(right, count=30, seed=0):
    """Images of two classes of which so many pixels are right, with noise that seeds share."""
    noise = np.random.default_rng(seed).integers(0, 30, (count, 1))
    good = np.clip(right - noise, 1, 100) * np.ones((1, 2), np.int64)
    whole = np.full_like(good, 100)
    return Tally(np.arange(count), np.stack([good, whole, whole], 1))


def test_paired_runs_differ_by_less_than_their_own_spread(reading):
    better, worse = tally(90), tally(88)
    found, low, high = reading.paired_difference([better], [worse])
    assert found == pytest.approx(better.miou - worse.miou)
    assert 0 < low < found < high
    # Apart, their intervals overlap: what hard images cost both hides the difference.
    assert worse.interval()[1] > better.interval()[0]
    assert reading.paired_difference([worse], [worse]) == (0, 0, 0)


def test_means_of_several_runs_are_compared(reading):
    found, _, _ = reading.paired_difference([tally(90), tally(80)], [tally(70)])
    mean = (tally(90).miou + tally(80).miou) / 2
    assert found == pytest.approx(mean - tally(70).miou)
    with pytest.raises(ValueError, match="same images"):
        reading.paired_difference([tally(90)], [tally(90, count=20)])
