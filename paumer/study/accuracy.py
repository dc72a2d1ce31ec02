"""What a model gets right over a data set: counts of pixels, IoU, intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Integer

from paumer.classes import IGNORE
from paumer.criteria import Criterion, oracle, patch_labels, random
from paumer.data.samples import Dataset, Sample
from paumer.inference.ahead import map_ahead
from paumer.inference.predictor import Predictor
from paumer.inference.processes import together
from paumer.inference.tiles import Inference
from paumer.mode import Mode
from paumer.mode import by_size as group_by_size
from paumer.progress import Progress
from paumer.study.sizes import SIZES, count_sizes, mean_known, ratio

Counts = Int[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Tally:
    """What was counted in one mode, image by image; tallies of parts add up.

    ``images`` holds for each image and class the pixels that are right, labelled so, and truly so:
    enough for all figures over any selection of images. ``indices`` are the images' numbers in the
    data set, rising. ``confusion`` has a row for each true class and a column for each label,
    ``sizes`` is what ``count_sizes`` gives; both are None where they were not counted.
    """

    indices: Int[np.ndarray, " images"]
    images: Int[np.ndarray, "images 3 classes"]
    confusion: Int[np.ndarray, "classes classes"] | None = None
    sizes: Int[np.ndarray, "3 3 classes"] | None = None

    def __repr__(self) -> str:
        return f"Tally(mIoU {self.miou:.2%}, images: {len(self.images)})"

    @classmethod
    def empty(cls, classes: int, by_size: bool = False) -> Self:
        """The tally of no image."""
        none = np.zeros((0, 3, classes), np.int64)
        sizes = np.zeros((3, 3, classes), np.int64) if by_size else None
        return cls(np.zeros(0, np.int64), none, np.zeros((classes, classes), np.int64), sizes)

    @classmethod
    def of(
        cls,
        index: int,
        labels: Integer[np.ndarray, "h w"],
        truth: Integer[np.ndarray, "h w"],
        classes: int,
        ignore: int = IGNORE,
        by_size: bool = False,
    ) -> Self:
        """The tally of one image; pixels whose true label is ``ignore`` do not count."""
        known = truth != ignore
        pairs = truth[known].astype(np.int64) * classes + labels[known]
        confusion = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
        totals = np.stack([np.diag(confusion), confusion.sum(0), confusion.sum(1)])
        sizes = count_sizes(labels, truth, classes, ignore) if by_size else None
        return cls(np.array([index], np.int64), totals[None], confusion, sizes)

    def __add__(self, other: "Tally") -> "Tally":
        indices = np.concatenate([self.indices, other.indices])
        order = indices.argsort(kind="stable")
        return Tally(
            indices[order],
            np.concatenate([self.images, other.images])[order],
            _sum(self.confusion, other.confusion),
            _sum(self.sizes, other.sizes),
        )

    def of_images(self, indices: Sequence[int]) -> "Tally":
        """The tally of some of its images alone, without the confusion of classes and sizes."""
        chosen = np.isin(self.indices, indices)
        return Tally(self.indices[chosen], self.images[chosen])

    @property
    def totals(self) -> Int[np.ndarray, "3 classes"]:
        """For each class the pixels that are right, labelled so, and truly so."""
        totals: Int[np.ndarray, "3 classes"] = self.images.sum(0)
        return totals

    @property
    def iou(self) -> Float[np.ndarray, " classes"]:
        """Intersection over union of each class; NaN if it is neither there nor predicted."""
        return iou_of_counts(self.totals)

    @property
    def miou(self) -> float:
        """The mean IoU over the classes that are there or were predicted."""
        return float(mean_known(self.iou))

    @property
    def pixel_accuracy(self) -> float:
        """The part of the labelled pixels that is right."""
        right, _, truly = self.totals.sum(1)
        return float(right / max(1, truly))

    @property
    def mean_accuracy(self) -> float:
        """The mean over classes of the part of their pixels that is right."""
        right, _, truly = self.totals
        return float(mean_known(ratio(right, truly)))

    def interval(self) -> tuple[float, float]:
        """A 95% bootstrap interval of the mIoU: images drawn with replacement."""
        return middle(self.resampled(), 0.95)

    def resampled(self, draws: int = 1000, seed: int = 0) -> Float[np.ndarray, " draws"]:
        """The mIoU of each of many draws of images; the same draws for the same seed."""
        rng = np.random.Generator(np.random.PCG64(seed))
        count = len(self.images)
        times = rng.multinomial(count, np.full(count, 1 / count), size=draws)
        # Floating point is many times faster and exact below 2^53.
        sums = np.tensordot(times.astype(float), self.images.astype(float), 1)
        return mean_known(iou_of_counts(sums.astype(np.int64)))

    def summary(self) -> dict[str, Any]:
        """What a measurement holds of it, as JSON values: None for what is not known."""
        low, high = self.interval()
        return {
            "miou": known_value(self.miou),
            "miou_low": known_value(low),
            "miou_high": known_value(high),
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": known_value(self.mean_accuracy),
            "images": len(self.images),
        }

    def to_json(self, names: Sequence[str]) -> dict[str, object]:
        """The figures people report, as JSON values; a class that is nowhere is None."""

        def by_class(values: Float[np.ndarray, " classes"]) -> dict[str, float | None]:
            return dict(zip(names, map(known_value, values), strict=True))

        values = {**self.summary(), "iou": by_class(self.iou)}
        if self.sizes is not None:
            iou = dict(zip(SIZES, iou_of_counts(self.sizes), strict=True))
            values["miou_by_size"] = {s: known_value(mean_known(row)) for s, row in iou.items()}
            values["iou_by_size"] = {size: by_class(row) for size, row in iou.items()}
        return values


def _sum(one: Counts | None, other: Counts | None) -> Counts | None:
    return None if one is None or other is None else one + other


def middle(values: Float[np.ndarray, " n"], level: float) -> tuple[float, float]:
    """The bounds between which the middle ``level`` of the values lies."""
    known = values[~np.isnan(values)]  # A draw of images without any label has no value.
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, 1 - (1 - level) / 2])
    return float(low), float(high)


def iou_of_counts(counts: Int[np.ndarray, "*s 3 classes"]) -> Float[np.ndarray, "*s classes"]:
    """The IoU from pixels that are right, labelled so, and truly so."""
    right, labelled, truly = np.moveaxis(counts, -2, 0)
    return ratio(right, labelled + truly - right)


def known_value(value: float | Float[np.ndarray, ""]) -> float | None:
    """As JSON: None for NaN."""
    return None if np.isnan(value) else float(value)


# Eight parameters: this is what every caller of a count decides, and the last five are optional.
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
    are: each counts some of the batches, which are the same for any number of processes.
    """
    inference = inference or Inference()
    groups = batches(predictor, dataset, modes, inference, indices)[shard[0] :: shard[1]]
    tallies = [Tally.empty(len(dataset.class_set), by_size) for _ in modes]
    for counted in count(predictor, dataset, modes, inference, groups, by_size):
        tallies = [one + two for one, two in zip(tallies, counted, strict=True)]
        if progress:
            progress(len(tallies[0].images), sum(map(len, groups)))
    return tallies


def count(
    predictor: Predictor,
    dataset: Dataset,
    modes: Sequence[Mode],
    inference: Inference,
    groups: Sequence[Sequence[int]],
    by_size: bool = False,
) -> Iterator[list[Tally]]:
    """What each mode gets right in each group of images."""
    options = (len(dataset.class_set), dataset.class_set.ignore, by_size)
    read = map_ahead(lambda group: [dataset[index] for index in group], groups)
    for indices, samples in zip(groups, read, strict=True):
        images = [sample.image for sample in samples]
        found: dict[int, Tally] = {}
        for numbers in group_by_size(modes).values():
            alike = [modes[number] for number in numbers]
            given = study_criteria(predictor, alike, samples, indices[0])
            for number, results in predictor.predict_many(images, alike, inference, given):
                tallies = [
                    Tally.of(index, result.labels, sample.labels, *options)
                    for index, result, sample in zip(indices, results, samples, strict=True)
                ]
                found[numbers[number]] = sum(tallies[1:], tallies[0])
        yield [found[number] for number in range(len(modes))]


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


def batches(
    predictor: Predictor,
    dataset: Dataset,
    modes: Sequence[Mode],
    inference: Inference,
    indices: Sequence[int] | None = None,
) -> list[list[int]]:
    """The images in batches as large as the windows of the first image allow.

    Raises unless the modes can be counted on that data set. At random what pauses follows from the
    image's number, so each is a batch of its own.
    """
    check_classes(predictor, dataset)
    windows = inference.window or predictor.config.window
    for mode in modes:
        predictor.mode(mode, study=True)
        if mode.criterion == "oracle" and (windows or inference.flip or inference.scales != (1.0,)):
            raise ValueError(
                f'oracle needs whole images, once ("{mode}"): leave out window, scales and flip'
            )
    indices, size = sorted(range(len(dataset)) if indices is None else indices), 1
    if indices and all(mode.criterion != "random" for mode in modes):
        height, width = dataset[indices[0]].labels.shape
        most = max(predictor.windows((height, width), mode, inference) for mode in modes)
        size = max(1, inference.batch // most)
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


def check_classes(predictor: Predictor, dataset: Dataset) -> None:
    """Raise unless model and data set speak of the same number of classes."""
    model, data = len(predictor.classes), len(dataset.class_set)
    if model != data:
        raise ValueError(
            f"the model knows {model} classes and {dataset.name} has {data}: "
            f"evaluate it on the data it was trained for"
        )


def add_up(tallies: list[Tally], world: int) -> list[Tally]:
    """The sum of what all of so many processes counted."""
    with together(world) as gather:
        parts: list[list[Tally]] = gather(tallies)
    return [sum(same[1:], same[0]) for same in zip(*parts, strict=True)]
