"""Confusion matrices, IoU, and the accuracy of a model over a data set."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Integer

from paumer.criteria import CRITERIA, Criterion, oracle, patch_labels, random_by_place
from paumer.data.datasets import Dataset, Sample
from paumer.predict import Inference, Predictor, Segmentation

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Confusion:
    """How many pixels of each true class (row) got each label (column); they add up."""

    counts: Int[np.ndarray, "classes classes"]

    @classmethod
    def of(
        cls,
        labels: Integer[np.ndarray, "h w"],
        truth: Integer[np.ndarray, "h w"],
        classes: int,
        ignore: int = 255,
    ) -> Self:
        """The confusion of one picture; pixels whose true label is ``ignore`` do not count."""
        known = truth != ignore
        pairs = truth[known].astype(np.int64) * classes + labels[known]
        return cls(np.bincount(pairs, minlength=classes**2).reshape(classes, classes))

    @classmethod
    def empty(cls, classes: int) -> Self:
        """The confusion of no picture."""
        return cls(np.zeros((classes, classes), np.int64))

    def __add__(self, other: "Confusion") -> "Confusion":
        return Confusion(self.counts + other.counts)

    @property
    def iou(self) -> Float[np.ndarray, " classes"]:
        """Intersection over union of each class; NaN for one neither there nor predicted."""
        right = np.diag(self.counts)
        return ratio(right, self.counts.sum(0) + self.counts.sum(1) - right)

    @property
    def miou(self) -> float:
        """The mean IoU over the classes that are there or were predicted."""
        return float(mean_known(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        """The share of labelled pixels that are right."""
        return float(np.diag(self.counts).sum() / max(1, self.counts.sum()))

    @property
    def mean_accuracy(self) -> float:
        """The mean over classes of the share of their pixels that are right."""
        return float(mean_known(ratio(np.diag(self.counts), self.counts.sum(1))))

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures people report, as JSON values; a class that is nowhere is None."""
        iou = [None if np.isnan(value) else float(value) for value in self.iou]
        return {
            "miou": self.miou,
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": self.mean_accuracy,
            "iou": dict(zip(names, iou, strict=True)),
        }


def ratio(
    part: Integer[np.ndarray, "*s"], whole: Integer[np.ndarray, "*s"]
) -> Float[np.ndarray, "*s"]:
    """``part / whole``, and NaN where there is no whole."""
    result = np.full(part.shape, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def mean_known(values: Float[np.ndarray, "*s n"]) -> Float[np.ndarray, "*s"]:
    """The mean over the last axis of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(-1)
    return np.where(known.any(-1), total / np.maximum(1, known.sum(-1)), np.nan)


@dataclass(frozen=True, eq=False)
class Tally:
    """What was counted in one way of inference: the whole confusion, and each picture's part.

    ``pictures`` holds for each picture and class the pixels that are right, labelled so, and truly
    so; they are enough for an IoU over any selection of pictures.
    """

    confusion: Confusion
    pictures: Int[np.ndarray, "pictures 3 classes"]

    def interval(
        self, draws: int = 1000, level: float = 0.95, seed: int = 0
    ) -> tuple[float, float]:
        """A bootstrap interval of the mIoU: pictures drawn with replacement."""
        values = np.sort(self.resampled(draws, seed))
        edge = (1 - level) / 2
        low, high = np.quantile(values, [edge, 1 - edge])
        return float(low), float(high)

    def resampled(self, draws: int = 1000, seed: int = 0) -> Float[np.ndarray, " draws"]:
        """The mIoU of each of many draws of pictures; the same draws for the same seed."""
        dice = np.random.Generator(np.random.PCG64(seed))
        count = len(self.pictures)
        times = dice.multinomial(count, np.full(count, 1 / count), size=draws)
        sums = np.tensordot(times, self.pictures, 1)
        right, labelled, truly = sums[:, 0], sums[:, 1], sums[:, 2]
        return mean_known(ratio(right, labelled + truly - right))


def evaluate(
    predictor: Predictor,
    dataset: Dataset,
    ways: Sequence[Inference],
    indices: Sequence[int] | None = None,
    progress: Progress | None = None,
    criterion: str = "entropy",
    seed: int = 0,
) -> list[Tally]:
    """What each way of inference gets right over a data set; ``indices`` restricts the pictures.

    Ways share what they have in common. ``criterion`` says by name who pauses, in all of them.
    """
    check_classes(predictor, dataset)
    places = range(len(dataset)) if indices is None else indices
    totals = [Confusion.empty(len(dataset.class_set)) for _ in ways]
    parts: list[list[Int[np.ndarray, "3 classes"]]] = [[] for _ in ways]
    for done, samples in enumerate_batches(predictor, dataset, places, ways):
        chosen = make_criterion(criterion, predictor, samples, seed + done)
        batch = [replace(way, criterion=chosen) for way in ways]
        for number, results in predictor.predict_many([s.image for s in samples], batch):
            for sample, result in zip(samples, results, strict=True):
                one = count(result, sample, dataset)
                totals[number] += one
                parts[number].append(marginals(one))
        if progress:
            progress(done + len(samples), len(places))
    classes = len(dataset.class_set)
    return [
        Tally(total, np.stack(part) if part else np.zeros((0, 3, classes), np.int64))
        for total, part in zip(totals, parts, strict=True)
    ]


def count(result: Segmentation, sample: Sample, dataset: Dataset) -> Confusion:
    """The confusion of one segmentation with the truth."""
    classes = dataset.class_set
    return Confusion.of(result.labels, sample.labels, len(classes), classes.ignore)


def marginals(confusion: Confusion) -> Int[np.ndarray, "3 classes"]:
    """For each class the pixels that are right, labelled so, and truly so."""
    counts = confusion.counts
    return np.stack([np.diag(counts), counts.sum(0), counts.sum(1)])


def make_criterion(
    name: str, predictor: Predictor, samples: Sequence[Sample], seed: int
) -> Criterion:
    """The criterion of that name for a batch: entropy, confidence, margin, random or oracle."""
    if name in CRITERIA:
        return CRITERIA[name]
    if name == "random":
        return random_by_place(seed)
    if name != "oracle":
        known = ", ".join([*CRITERIA, "random", "oracle"])
        raise ValueError(f'no criterion "{name}": choose one of {known}')
    if predictor.config.window is not None:
        raise ValueError("the oracle needs whole pictures: this model cuts them into windows")
    grids = [predictor.scaled_labels(sample.labels) for sample in samples]
    if len({grid.shape for grid in grids}) > 1:
        raise ValueError("the oracle needs pictures of one size in a batch: use a batch of 1")
    labels = torch.from_numpy(np.stack(grids))
    patch, classes = predictor.network.backbone.patch, len(predictor.classes)
    return oracle(patch_labels(labels, patch, classes))


def enumerate_batches(
    predictor: Predictor, dataset: Dataset, places: Sequence[int], ways: Sequence[Inference]
) -> Iterator[tuple[int, list[Sample]]]:
    """Batches of samples with the number of pictures before them, read ahead by a thread.

    A batch is as large as the windows of its pictures allow.
    """
    if not len(places):
        return
    first = dataset[places[0]]
    height, width = first.labels.shape
    size = max(1, ways[0].batch // predictor.windows((height, width), ways[0]))
    groups = [places[begin : begin + size] for begin in range(0, len(places), size)]

    def read(group: Sequence[int]) -> list[Sample]:
        return [first if place == places[0] else dataset[place] for place in group]

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(read, groups[0])
        for number, following in enumerate([*groups[1:], None]):
            ready = coming.result()
            if following is not None:
                coming = pool.submit(read, following)
            yield number * size, ready


def check_classes(predictor: Predictor, dataset: Dataset) -> None:
    """Raise unless model and data set speak of the same number of classes."""
    model, data = len(predictor.classes), len(dataset.class_set)
    if model != data:
        raise ValueError(
            f"the model knows {model} classes and {dataset.name} has {data}: "
            f"evaluate it on the data it was trained for"
        )
