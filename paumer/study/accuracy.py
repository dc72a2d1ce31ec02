"""Confusion matrices, IoU, and the accuracy of a model over a data set."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Integer

from paumer.classes import IGNORE
from paumer.criteria import Criterion, oracle, patch_labels, random
from paumer.data.samples import Dataset, Sample
from paumer.inference.predictor import Predictor
from paumer.inference.tiles import Inference
from paumer.mode import Mode
from paumer.mode import by_size as group_by_size
from paumer.progress import Progress
from paumer.study.sizes import SIZES, SizeCounts, mean_known, ratio


class Figures:
    """The figures people report, from the pixels of each class that are right, labelled and true.

    A class that is neither there nor predicted has an IoU of NaN, and does not count in the mean.
    """

    @property
    def totals(self) -> Int[np.ndarray, "3 classes"]:
        """For each class the pixels that are right, labelled so, and truly so."""
        raise NotImplementedError

    @property
    def iou(self) -> Float[np.ndarray, " classes"]:
        """Intersection over union of each class."""
        return iou_of_counts(self.totals)

    @property
    def miou(self) -> float:
        """The mean IoU over the classes that are there or were predicted."""
        return float(mean_known(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        """The share of labelled pixels that are right."""
        right, _, truly = self.totals.sum(1)
        return float(right / max(1, truly))

    @property
    def mean_accuracy(self) -> float:
        """The mean over classes of the share of their pixels that are right."""
        right, _, truly = self.totals
        return float(mean_known(ratio(right, truly)))


@dataclass(frozen=True, eq=False)
class Confusion(Figures):
    """How many pixels of each true class (row) got each label (column); they add up."""

    counts: Int[np.ndarray, "classes classes"]

    @classmethod
    def of(
        cls,
        labels: Integer[np.ndarray, "h w"],
        truth: Integer[np.ndarray, "h w"],
        classes: int,
        ignore: int = IGNORE,
    ) -> Self:
        """The confusion of one image; pixels whose true label is ``ignore`` do not count."""
        known = truth != ignore
        pairs = truth[known].astype(np.int64) * classes + labels[known]
        return cls(np.bincount(pairs, minlength=classes**2).reshape(classes, classes))

    @classmethod
    def empty(cls, classes: int) -> Self:
        """The confusion of no image."""
        return cls(np.zeros((classes, classes), np.int64))

    def __add__(self, other: "Confusion") -> "Confusion":
        return Confusion(self.counts + other.counts)

    @property
    def totals(self) -> Int[np.ndarray, "3 classes"]:
        """For each class the pixels that are right, labelled so, and truly so."""
        return np.stack([np.diag(self.counts), self.counts.sum(0), self.counts.sum(1)])


@dataclass(frozen=True, eq=False)
class Tally(Figures):
    """What was counted in one mode, image by image; tallies of parts add up.

    ``images`` holds for each image and class the pixels that are right, labelled so, and truly
    so; they are enough for all figures over any selection of images. ``places`` are the images'
    numbers in the data set, rising.
    """

    indices: Int[np.ndarray, " images"]
    images: Int[np.ndarray, "images 3 classes"]
    confusion: Confusion | None = None
    sizes: SizeCounts | None = None

    def __add__(self, other: "Tally") -> "Tally":
        indices = np.concatenate([self.indices, other.indices])
        order = indices.argsort(kind="stable")
        return Tally(
            indices[order],
            np.concatenate([self.images, other.images])[order],
            self.confusion + other.confusion if self.confusion and other.confusion else None,
            self.sizes + other.sizes if self.sizes and other.sizes else None,
        )

    @property
    def totals(self) -> Int[np.ndarray, "3 classes"]:
        """For each class the pixels that are right, labelled so, and truly so."""
        totals: Int[np.ndarray, "3 classes"] = self.images.sum(0)
        return totals

    def interval(
        self, draws: int = 1000, level: float = 0.95, seed: int = 0
    ) -> tuple[float, float]:
        """A bootstrap interval of the mIoU: images drawn with replacement."""
        edge = (1 - level) / 2
        values = self.resampled(draws, seed)
        known = values[~np.isnan(values)]  # A draw of images without any label has none.
        if not len(known):
            return float("nan"), float("nan")
        low, high = np.quantile(known, [edge, 1 - edge])
        return float(low), float(high)

    def resampled(self, draws: int = 1000, seed: int = 0) -> Float[np.ndarray, " draws"]:
        """The mIoU of each of many draws of images; the same draws for the same seed."""
        rng = np.random.Generator(np.random.PCG64(seed))
        count = len(self.images)
        times = rng.multinomial(count, np.full(count, 1 / count), size=draws)
        # Floating point is many times faster and exact below 2^53.
        sums = np.tensordot(times.astype(float), self.images.astype(float), 1)
        return mean_known(iou_of_counts(sums.astype(np.int64)))

    def to_json(self, names: Sequence[str]) -> dict[str, object]:
        """The figures people report, as JSON values; a class that is nowhere is None."""
        low, high = self.interval()
        values: dict[str, Any] = {
            "miou": known_value(self.miou),
            "miou_low": known_value(low),
            "miou_high": known_value(high),
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": known_value(self.mean_accuracy),
            "images": len(self.images),
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

    All runs see the same drawn images, so that what a hard image costs both does not count.
    """
    indices = first[0].indices
    if any(not np.array_equal(tally.indices, indices) for tally in (*first, *second)):
        raise ValueError("runs can be paired only where they were counted on the same images")

    def mean(tallies: Sequence[Tally]) -> Float[np.ndarray, " draws"]:
        resampled = [tally.resampled(draws, seed) for tally in tallies]
        return np.asarray(sum(resampled) / len(tallies))

    edge = (1 - level) / 2
    low, high = np.nanquantile(mean(first) - mean(second), [edge, 1 - edge])
    found = np.mean([t.miou for t in first]) - np.mean([t.miou for t in second])
    return float(found), float(low), float(high)


def iou_of_counts(counts: Int[np.ndarray, "*s 3 classes"]) -> Float[np.ndarray, "*s classes"]:
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
    modes: Sequence[Mode],
    inference: Inference | None = None,
    indices: Sequence[int] | None = None,
    progress: Progress | None = None,
    by_size: bool = False,
    shard: tuple[int, int] = (0, 1),
) -> list[Tally]:
    """What each mode gets right over a data set; ``indices`` restricts the images.

    Modes share what they have in common. ``shard`` is this process's number and how many there
    are: each takes its share of the batches, which are the same for any number of processes.
    """
    how = inference or Inference()
    check_study(predictor, dataset, modes, how)
    groups = batches(predictor, dataset, modes, how, indices)[shard[0] :: shard[1]]
    total = sum(len(group) for group in groups)
    tallies = [empty_tally(len(dataset.class_set), by_size) for _ in modes]
    done = 0
    for group, samples in zip(groups, read_ahead(dataset, groups), strict=True):
        counted = count_batch(predictor, dataset, group, samples, modes, how, by_size)
        tallies = [one + two for one, two in zip(tallies, counted, strict=True)]
        done += len(group)
        if progress:
            progress(done, total)
    return tallies


def empty_tally(classes: int, by_size: bool = False) -> Tally:
    """The tally of no image."""
    return Tally(
        np.zeros(0, np.int64),
        np.zeros((0, 3, classes), np.int64),
        Confusion.empty(classes),
        SizeCounts.empty(classes) if by_size else None,
    )


def count_batch(
    predictor: Predictor,
    dataset: Dataset,
    indices: Sequence[int],
    samples: Sequence[Sample],
    modes: Sequence[Mode],
    inference: Inference,
    by_size: bool = False,
) -> list[Tally]:
    """What each mode gets right in one batch of samples, which have those places."""
    classes, ignore = len(dataset.class_set), dataset.class_set.ignore
    images = [sample.image for sample in samples]
    found: dict[int, Tally] = {}
    for same in group_by_size(modes).values():
        some = [modes[number] for number in same]
        given = study_criteria(predictor, some, samples, indices[0])
        for place, results in predictor.predict_many(images, some, inference, given):
            pairs = [(r.labels, s.labels) for r, s in zip(results, samples, strict=True)]
            confusions = [Confusion.of(*pair, classes, ignore) for pair in pairs]
            sizes = [SizeCounts.of(*pair, classes, ignore) for pair in pairs] if by_size else None
            found[same[place]] = Tally(
                np.array(indices, np.int64),
                np.stack([one.totals for one in confusions]),
                sum(confusions, Confusion.empty(classes)),
                sum(sizes, SizeCounts.empty(classes)) if sizes else None,
            )
    return [found[number] for number in range(len(modes))]


def study_criteria(
    predictor: Predictor, modes: Sequence[Mode], samples: Sequence[Sample], seed: int
) -> dict[str, Criterion]:
    """What only a study knows of a batch, for modes of one size: a seed, the true labels."""
    names = {mode.criterion for mode in modes}
    given: dict[str, Criterion] = {}
    if "random" in names:
        given["random"] = random(seed)
    if "oracle" in names:
        grids = [predictor.scaled_labels(sample.labels, modes[0]) for sample in samples]
        if len({grid.shape for grid in grids}) > 1:
            raise ValueError("oracle needs images of one size in a batch: use a batch of 1")
        patch, classes = predictor.network.backbone.patch, len(predictor.classes)
        labels = torch.from_numpy(np.stack(grids))
        given["oracle"] = oracle(patch_labels(labels, patch, classes))
    return given


def check_study(
    predictor: Predictor, dataset: Dataset, modes: Sequence[Mode], inference: Inference
) -> None:
    """Raise unless the modes can be counted on that data set."""
    check_classes(predictor, dataset)
    for mode in modes:
        predictor.mode(mode, study=True)
        windows = inference.window or predictor.config.window
        if mode.criterion == "oracle" and (windows or inference.flip or inference.scales != (1.0,)):
            raise ValueError(
                f'oracle needs whole images, once ("{mode}"): leave out window, scales and flip'
            )


def batches(
    predictor: Predictor,
    dataset: Dataset,
    modes: Sequence[Mode],
    inference: Inference,
    indices: Sequence[int] | None = None,
) -> list[list[int]]:
    """The images in batches as large as their windows allow, judged by the first image.

    At random what pauses follows from the image's number, so each is a batch of its own.
    """
    indices = list(range(len(dataset)) if indices is None else indices)
    if any(mode.criterion == "random" for mode in modes):
        return [[place] for place in indices]
    if not indices:
        return []
    height, width = dataset[indices[0]].labels.shape
    windows = max(predictor.windows((height, width), mode, inference) for mode in modes)
    size = max(1, inference.batch // windows)
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


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
