"""Confusion matrices, IoU, and the accuracy of a model over a data set."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int, Integer

from paumer.data.datasets import Dataset, Sample
from paumer.predict import Inference, Predictor

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

    def __add__(self, other: "Confusion") -> "Confusion":
        return Confusion(self.counts + other.counts)

    @property
    def iou(self) -> Float[np.ndarray, " classes"]:
        """Intersection over union of each class; NaN for one neither there nor predicted."""
        right = np.diag(self.counts).astype(float)
        union = self.counts.sum(0) + self.counts.sum(1) - right
        iou = np.full(len(right), np.nan)
        np.divide(right, union, out=iou, where=union > 0)
        return iou

    @property
    def miou(self) -> float:
        """The mean IoU over the classes that are there or were predicted."""
        return float(np.nanmean(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        """The share of labelled pixels that are right."""
        return float(np.diag(self.counts).sum() / max(1, self.counts.sum()))

    @property
    def mean_accuracy(self) -> float:
        """The mean over classes of the share of their pixels that are right."""
        there = self.counts.sum(1)
        right = np.diag(self.counts).astype(float)
        recall = np.divide(right, there, out=np.full(len(there), np.nan), where=there > 0)
        return float(np.nanmean(recall))

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures people report, as JSON values; a class that is nowhere is None."""
        iou = [None if np.isnan(value) else float(value) for value in self.iou]
        return {
            "miou": self.miou,
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": self.mean_accuracy,
            "iou": dict(zip(names, iou, strict=True)),
        }


def evaluate(
    predictor: Predictor,
    dataset: Dataset,
    ways: Sequence[Inference],
    indices: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[Confusion]:
    """The confusion over a data set for each way of inference.

    Pictures are read ahead while the network works. ``indices`` restricts it to some of them.
    """
    check_classes(predictor, dataset)
    places = range(len(dataset)) if indices is None else indices
    classes = len(dataset.class_set)
    totals = [Confusion(np.zeros((classes, classes), np.int64)) for _ in ways]
    done = 0
    for samples in read_ahead(dataset, places, max(way.batch for way in ways)):
        for number, way in enumerate(ways):
            results = predictor.predict_batch([sample.image for sample in samples], way)
            for sample, result in zip(samples, results, strict=True):
                one = Confusion.of(result.labels, sample.labels, classes, dataset.class_set.ignore)
                totals[number] += one
        done += len(samples)
        if progress:
            progress(done, len(places))
    return totals


def read_ahead(dataset: Dataset, places: Sequence[int], batch: int) -> Iterator[list[Sample]]:
    """Batches of samples in order, the next one being read while the last is worked on."""
    groups = [places[begin : begin + batch] for begin in range(0, len(places), batch)]

    def read(group: Sequence[int]) -> list[Sample]:
        return [dataset[place] for place in group]

    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(read, group) for group in groups[:1]]
        for number in range(len(groups)):
            ready = coming[number].result()
            if number + 1 < len(groups):
                coming.append(pool.submit(read, groups[number + 1]))
            coming[number].cancel()
            yield ready


def check_classes(predictor: Predictor, dataset: Dataset) -> None:
    """Raise unless model and data set speak of the same number of classes."""
    model, data = len(predictor.classes), len(dataset.class_set)
    if model != data:
        raise ValueError(
            f"the model knows {model} classes and {dataset.name} has {data}: "
            f"evaluate it on the data it was trained for"
        )
