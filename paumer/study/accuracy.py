"""Confusion matrices, IoU, and the accuracy of a model over a data set."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Integer

from paumer.criteria import (
    CRITERIA,
    AnyCriterion,
    oracle,
    patch_labels,
    random_by_place,
)
from paumer.data.datasets import Dataset, Sample
from paumer.predict import Inference, Predictor
from paumer.study.sizes import SIZES, SizeCounts, mean_known, ratio

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


@dataclass(frozen=True, eq=False)
class Tally:
    """What was counted in one way of inference, picture by picture; tallies of parts add up.

    ``pictures`` holds for each picture and class the pixels that are right, labelled so, and truly
    so; they are enough for all figures over any selection of pictures. ``places`` are the
    pictures' numbers in the data set, rising.
    """

    places: Int[np.ndarray, " pictures"]
    pictures: Int[np.ndarray, "pictures 3 classes"]
    confusion: Confusion | None = None
    sizes: SizeCounts | None = None

    def __add__(self, other: "Tally") -> "Tally":
        places = np.concatenate([self.places, other.places])
        order = places.argsort(kind="stable")
        return Tally(
            places[order],
            np.concatenate([self.pictures, other.pictures])[order],
            self.confusion + other.confusion if self.confusion and other.confusion else None,
            self.sizes + other.sizes if self.sizes and other.sizes else None,
        )

    @property
    def iou(self) -> Float[np.ndarray, " classes"]:
        """Intersection over union of each class; NaN for one neither there nor predicted."""
        return union_share(self.pictures.sum(0))

    @property
    def miou(self) -> float:
        """The mean IoU over the classes that are there or were predicted."""
        return float(mean_known(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        """The share of labelled pixels that are right."""
        right, _, truly = self.pictures.sum((0, 2))
        return float(right / max(1, truly))

    @property
    def mean_accuracy(self) -> float:
        """The mean over classes of the share of their pixels that are right."""
        right, _, truly = self.pictures.sum(0)
        return float(mean_known(ratio(right, truly)))

    def interval(
        self, draws: int = 1000, level: float = 0.95, seed: int = 0
    ) -> tuple[float, float]:
        """A bootstrap interval of the mIoU: pictures drawn with replacement."""
        edge = (1 - level) / 2
        values = self.resampled(draws, seed)
        known = values[~np.isnan(values)]  # A draw of pictures without any label has none.
        if not len(known):
            return float("nan"), float("nan")
        low, high = np.quantile(known, [edge, 1 - edge])
        return float(low), float(high)

    def resampled(self, draws: int = 1000, seed: int = 0) -> Float[np.ndarray, " draws"]:
        """The mIoU of each of many draws of pictures; the same draws for the same seed."""
        dice = np.random.Generator(np.random.PCG64(seed))
        count = len(self.pictures)
        times = dice.multinomial(count, np.full(count, 1 / count), size=draws)
        # Floating point is many times faster and exact below 2^53.
        sums = np.tensordot(times.astype(float), self.pictures.astype(float), 1)
        return mean_known(union_share(sums.astype(np.int64)))

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures people report, as JSON values; a class that is nowhere is None."""
        low, high = self.interval()
        values: dict[str, Any] = {
            "miou": known_value(self.miou),
            "miou_low": known_value(low),
            "miou_high": known_value(high),
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": known_value(self.mean_accuracy),
            "pictures": len(self.pictures),
            "iou": dict(zip(names, known_values(self.iou), strict=True)),
        }
        if self.sizes:
            values["miou_by_size"] = dict(zip(SIZES, known_values(self.sizes.miou), strict=True))
            values["iou_by_size"] = {
                size: dict(zip(names, known_values(iou), strict=True))
                for size, iou in zip(SIZES, self.sizes.iou, strict=True)
            }
        return values


def paired_difference(
    first: Sequence[Tally],
    second: Sequence[Tally],
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """The mean mIoU of some runs less that of others, and a bootstrap interval of it.

    All runs see the same drawn pictures, so that what a hard picture costs both does not count.
    """
    places = first[0].places
    if any(not np.array_equal(tally.places, places) for tally in (*first, *second)):
        raise ValueError("runs can be paired only where they were counted on the same pictures")

    def mean(tallies: Sequence[Tally]) -> Float[np.ndarray, " draws"]:
        resampled = [tally.resampled(draws, seed) for tally in tallies]
        return np.asarray(sum(resampled) / len(tallies))

    edge = (1 - level) / 2
    low, high = np.nanquantile(mean(first) - mean(second), [edge, 1 - edge])
    found = np.mean([t.miou for t in first]) - np.mean([t.miou for t in second])
    return float(found), float(low), float(high)


def union_share(counts: Int[np.ndarray, "*s 3 classes"]) -> Float[np.ndarray, "*s classes"]:
    """The IoU from pixels that are right, labelled so, and truly so."""
    right, labelled, truly = np.moveaxis(counts, -2, 0)
    return ratio(right, labelled + truly - right)


def known_values(values: Float[np.ndarray, " n"]) -> list[float | None]:
    """As JSON: None for NaN."""
    return [known_value(value) for value in values]


def known_value(value: float) -> float | None:
    """As JSON: None for NaN."""
    return None if np.isnan(value) else float(value)


def evaluate(
    predictor: Predictor,
    dataset: Dataset,
    ways: Sequence[Inference],
    indices: Sequence[int] | None = None,
    progress: Progress | None = None,
    criterion: str | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    by_size: bool = False,
) -> list[Tally]:
    """What each way of inference gets right over a data set; ``indices`` restricts the pictures.

    Ways share what they have in common. ``criterion`` says by name who pauses, in all of them;
    without it each way says so itself.
    ``shard`` is this process's number and how many there are: each takes its share of the batches,
    which are the same for any number of processes.
    """
    check_classes(predictor, dataset)
    if criterion is not None:
        check_criterion(criterion, predictor, ways[0])
    groups = batches(predictor, dataset, ways[0], indices, criterion)[shard[0] :: shard[1]]
    total = sum(len(group) for group in groups)
    tallies = [empty_tally(len(dataset.class_set), by_size) for _ in ways]
    done = 0
    for group, samples in zip(groups, read_ahead(dataset, groups), strict=True):
        counted = count_batch(predictor, dataset, group, samples, ways, criterion, seed, by_size)
        tallies = [one + two for one, two in zip(tallies, counted, strict=True)]
        done += len(group)
        if progress:
            progress(done, total)
    return tallies


def empty_tally(classes: int, by_size: bool = False) -> Tally:
    """The tally of no picture."""
    return Tally(
        np.zeros(0, np.int64),
        np.zeros((0, 3, classes), np.int64),
        Confusion.empty(classes),
        SizeCounts.empty(classes) if by_size else None,
    )


def count_batch(
    predictor: Predictor,
    dataset: Dataset,
    places: Sequence[int],
    samples: Sequence[Sample],
    ways: Sequence[Inference],
    criterion: str | None = None,
    seed: int = 0,
    by_size: bool = False,
) -> list[Tally]:
    """What each way of inference gets right in one batch of samples, which have those places."""
    if criterion is not None:
        chosen = make_criterion(criterion, predictor, samples, seed + places[0], ways[0])
        ways = [replace(way, criterion=chosen) for way in ways]
    classes, ignore = len(dataset.class_set), dataset.class_set.ignore
    found: dict[int, Tally] = {}
    for number, results in predictor.predict_many([s.image for s in samples], ways):
        pairs = [(r.labels, s.labels) for r, s in zip(results, samples, strict=True)]
        confusions = [Confusion.of(*pair, classes, ignore) for pair in pairs]
        sizes = [SizeCounts.of(*pair, classes, ignore) for pair in pairs] if by_size else None
        found[number] = Tally(
            np.array(places, np.int64),
            np.stack([marginals(one) for one in confusions]),
            sum(confusions, Confusion.empty(classes)),
            sum(sizes, SizeCounts.empty(classes)) if sizes else None,
        )
    return [found[number] for number in range(len(ways))]


def marginals(confusion: Confusion) -> Int[np.ndarray, "3 classes"]:
    """For each class the pixels that are right, labelled so, and truly so."""
    counts = confusion.counts
    return np.stack([np.diag(counts), counts.sum(0), counts.sum(1)])


def make_criterion(
    name: str, predictor: Predictor, samples: Sequence[Sample], seed: int, how: Inference
) -> AnyCriterion:
    """The criterion of that name for a batch: entropy, margin, borders, random, oracle, ..."""
    check_criterion(name, predictor, how)
    if name in CRITERIA:
        return CRITERIA[name]
    if name == "random":
        return random_by_place(seed)
    grids = [predictor.scaled_labels(sample.labels, how) for sample in samples]
    if len({grid.shape for grid in grids}) > 1:
        raise ValueError("oracle needs pictures of one size in a batch: use a batch of 1")
    patch, classes = predictor.network.backbone.patch, len(predictor.classes)
    return oracle(patch_labels(torch.from_numpy(np.stack(grids)), patch, classes))


def check_criterion(name: str, predictor: Predictor, how: Inference) -> None:
    """Raise unless there is a criterion of that name, and it can judge pictures run that way."""
    known = [*CRITERIA, "random", "oracle"]
    if name not in known:
        raise ValueError(f'no criterion "{name}": choose one of {", ".join(known)}')
    windows = how.window or predictor.config.window
    if name == "oracle" and (windows or how.flip or how.scales != (1.0,)):
        raise ValueError(
            "oracle needs whole pictures, once: it goes with no window, scales or flip"
        )


def batches(
    predictor: Predictor,
    dataset: Dataset,
    how: Inference,
    indices: Sequence[int] | None = None,
    criterion: str | None = None,
) -> list[list[int]]:
    """The pictures in batches as large as their windows allow, judged by the first picture.

    At random who pauses follows from the picture's number, so each is a batch of its own.
    """
    places = list(range(len(dataset)) if indices is None else indices)
    if criterion == "random":
        return [[place] for place in places]
    if not places:
        return []
    height, width = dataset[places[0]].labels.shape
    size = max(1, how.batch // predictor.windows((height, width), how))
    return [places[begin : begin + size] for begin in range(0, len(places), size)]


def read_ahead(dataset: Dataset, groups: Sequence[Sequence[int]]) -> Iterator[list[Sample]]:
    """The samples of each group, the next ones read by a thread meanwhile."""

    def read(group: Sequence[int]) -> list[Sample]:
        return [dataset[place] for place in group]

    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(read, group) for group in groups[:1]]
        for following in [*groups[1:], None]:
            if not coming:
                return
            ready = coming.pop().result()
            if following is not None:
                coming.append(pool.submit(read, following))
            yield ready


def check_classes(predictor: Predictor, dataset: Dataset) -> None:
    """Raise unless model and data set speak of the same number of classes."""
    model, data = len(predictor.classes), len(dataset.class_set)
    if model != data:
        raise ValueError(
            f"the model knows {model} classes and {dataset.name} has {data}: "
            f"evaluate it on the data it was trained for"
        )
