"""What is wrong with a data set, and what is in it. Reads every file once and changes none."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paumer.classes import paint
from paumer.data.datasets import JoinedDataset, available_splits, list_dataset
from paumer.data.folders import FolderDataset, SizeError, Value, size_message
from paumer.data.samples import Dataset, Kind, Problem, spread
from paumer.drawing import contact_sheet, legend, overlay
from paumer.progress import Progress, StepProgress

T = TypeVar("T")

_SHOWN = 3
_TITLES: dict[Kind, tuple[str, str]] = {
    "missing mask": ("image has no mask", "images have no mask"),
    "missing image": ("label has no image", "labels have no image"),
    "duplicate": ("name occurs twice", "names occur twice"),
    "unreadable": ("file cannot be read", "files cannot be read"),
    "size": ("mask differs in size from its image", "masks differ in size from their images"),
    "label": (
        "image has labels that stand for no class",
        "images have labels that stand for no class",
    ),
    "unlabelled": ("image has no labelled pixel", "images have no labelled pixel"),
    "leak": ("image is in an earlier split too", "images are in an earlier split too"),
}
"""What to say of one problem of a kind, and of several."""


@dataclass(frozen=True)
class Report:
    """What a check found in one split.

    `images` counts those that have a mask. `class_pixels` are exact counts over all masks that
    could be read, in the order of `classes`; `sizes` are (width, height) and how many images
    have it, the most frequent first. `known_labels` says which ids or colours stand for something.
    `contents` are file and content hash of every image.
    """

    name: str
    split: str
    images: int
    problems: tuple[Problem, ...]
    classes: tuple[str, ...]
    class_pixels: tuple[int, ...]
    ignored_pixels: int
    sizes: tuple[tuple[tuple[int, int], int], ...]
    known_labels: str = ""
    contents: tuple[tuple[str, str], ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, object]:
        """The report as JSON values, without the content hashes."""
        values = asdict(self)
        del values["contents"]
        values["sizes"] = [
            {"width": width, "height": height, "images": count}
            for (width, height), count in self.sizes
        ]
        return values

    def to_text(self) -> str:
        """The report to read: totals, sizes, a table of classes, and the problems by kind."""
        sizes = [f"{width}x{height} ({count})" for (width, height), count in self.sizes]
        more = f" and {len(sizes) - 6} more" if len(sizes) > 6 else ""
        lines = [
            f"{self.name} {self.split}: {self.images:,} images, "
            f"{len(self.problems) or 'no'} problem{'s' if len(self.problems) != 1 else ''}",
            f"sizes: {', '.join(sizes[:6]) or 'none could be read'}{more}",
            "",
        ]
        pixels = [f"{count:,}" for count in (*self.class_pixels, self.ignored_pixels)]
        total = max(1, sum(self.class_pixels))
        shares = [f"{count / total:.2%}" for count in self.class_pixels]
        columns = ["class", *self.classes, "(ignored)"], ["pixels", *pixels], ["share", *shares, ""]
        widths = [max(map(len, column)) for column in columns]
        lines += [
            f"{name:<{widths[0]}}  {pixels:>{widths[1]}}  {share:>{widths[2]}}".rstrip()
            for name, pixels, share in zip(*columns, strict=True)
        ]
        for kind, count in Counter(problem.kind for problem in self.problems).most_common():
            group = [problem.message for problem in self.problems if problem.kind == kind]
            known = f" (known are {self.known_labels})" if kind == "label" else ""
            rest = f", the first {_SHOWN}" if count > _SHOWN else ""
            lines += ["", f"{count:,} {_TITLES[kind][count > 1]}{known}{rest}:"]
            lines += [f"- {message}" for message in group[:_SHOWN]]
        return "\n".join(lines)


class _Finding(NamedTuple):
    """What could be read of one image and its labels; sizes and contents have one item or none."""

    problems: list[Problem]
    pixels: NDArray[np.int64]
    sizes: list[tuple[int, int]]
    contents: list[tuple[str, str]]


def check_dataset(
    data: str | Dataset, split: str = "train", progress: Progress | None = None
) -> Report:
    """The report on one split of a data set, given as it is or by its name (and then `split`)."""
    dataset = list_dataset(data, split) if isinstance(data, str) else data
    pixels, sizes = np.zeros(256, np.int64), Counter[tuple[int, int]]()
    problems, contents = list(dataset.problems), list[tuple[str, str]]()
    # Threads, because Pillow decodes outside Python's lock.
    pool = ThreadPoolExecutor(min(16, (os.cpu_count() or 1) + 2))
    try:
        for done, finding in enumerate(pool.map(partial(_look, dataset), range(len(dataset))), 1):
            problems += finding.problems
            pixels += finding.pixels
            sizes.update(finding.sizes)
            contents += finding.contents
            if progress:
                progress(done, len(dataset))
    finally:
        pool.shutdown(cancel_futures=True)
    return Report(
        name=dataset.name,
        split=dataset.split,
        images=len(dataset),
        problems=tuple(problems),
        classes=dataset.class_set.names,
        class_pixels=tuple(pixels[: len(dataset.class_set)].tolist()),
        ignored_pixels=int(pixels[dataset.class_set.ignore]),
        sizes=tuple(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))),
        known_labels=dataset.code.known() if isinstance(dataset, FolderDataset) else "",
        contents=tuple(contents),
    )


def list_splits(spec: str, splits: Sequence[str] | None = None) -> list[Dataset]:
    """The splits of a data set (by default all it has), with what is wrong with single files."""
    splits = available_splits(spec) if splits is None else splits
    if not splits:
        raise ValueError(f'"{spec}" names no split: give it at least train and val')
    return [list_dataset(spec, split) for split in splits]


def check_splits(
    data: str | Sequence[Dataset],
    splits: Sequence[str] | None = None,
    progress: StepProgress | None = None,
) -> tuple[Report, ...]:
    """A report on each split of a data set, given by name or split by split, with their leaks.

    An image leaks into a split if an earlier one has it as well.
    """
    reports, seen = [], dict[str, tuple[str, str]]()
    for dataset in list_splits(data, splits) if isinstance(data, str) else data:
        split = dataset.split
        report = check_dataset(dataset, split, partial(progress, split) if progress else None)
        leaks = []
        for file, content in report.contents:
            if content in seen:
                text = '"{}" shows the same as "{}" of the {} split'.format(file, *seen[content])
                leaks.append(Problem(file, "leak", text))
        seen = {content: (file, split) for file, content in reversed(report.contents)} | seen
        reports.append(replace(report, problems=(*report.problems, *leaks)))
    return tuple(reports)


def _look(dataset: Dataset, index: int) -> _Finding:
    """What one image and its labels show: of files all that is wrong, of others the first."""
    if isinstance(dataset, JoinedDataset):
        dataset, index = dataset.find(index)
    problems: list[Problem] = []
    files = dataset.files(index)
    image_file, mask_file = files or (Path(f"{dataset.name} {dataset.split} {index}"),) * 2
    wrong: dict[Value, int] = {}
    if isinstance(dataset, FolderDataset):
        image_file, mask_file = dataset.where(index)
        image = _attempt(partial(dataset.read_image, index), image_file, problems)
        if image is not None or not dataset.drawn:
            size = (0, 0) if image is None else (image.shape[0], image.shape[1])
            mask = _attempt(partial(dataset.read_mask, index, size), mask_file, problems)
        else:
            mask = None
        labels, wrong = mask or (None, {})
        if wrong:
            text = dataset.code.message(mask_file, wrong)
            problems.append(Problem(str(mask_file), "label", text))
    else:
        sample = _attempt(lambda: dataset[index], image_file, problems)
        image, labels = (sample.image, sample.labels) if sample else (None, None)
        if sample and files is None:
            image_file = mask_file = Path(sample.name)
    finding = _Finding(problems, np.zeros(256, np.int64), [], [])
    if labels is not None:
        ignore, pixels = dataset.class_set.ignore, finding.pixels
        pixels += np.bincount(labels.ravel(), minlength=256)
        pixels[ignore] -= sum(wrong.values())
        if not wrong and pixels.sum() == pixels[ignore]:
            text = f'"{mask_file}" has no labelled pixel: all are ignored'
            problems.append(Problem(str(mask_file), "unlabelled", text))
        if image is not None and image.shape[:2] != labels.shape:
            text = size_message(image_file, image, mask_file, labels)
            problems.append(Problem(str(mask_file), "size", text))
    if image is not None:
        # Of the pixels, so that a copy in another file format is found too.
        digest = hashlib.blake2b(str(image.shape).encode() + image.tobytes(), digest_size=16)
        finding.contents.append((str(image_file), digest.hexdigest()))
        finding.sizes.append((image.shape[1], image.shape[0]))
    return finding


def _attempt(read: Callable[[], T], file: Path, problems: list[Problem]) -> T | None:
    """What `read` gives; if it fails, None and one problem more."""
    try:
        return read()
    except Exception as error:  # a check must outlive whatever it finds
        text = str(error) if isinstance(error, ValueError) else f'cannot read "{file}": {error!r}'
        kind: Kind = "size" if isinstance(error, SizeError) else "unreadable"
        problems.append(Problem(str(file), kind, text))
        return None


def sample_sheet(dataset: Dataset, count: int = 12, columns: int = 3) -> Image.Image | None:
    """A sheet of up to `count` images, each beside its painted labels, and what colour is which.

    None if none can be read.
    """
    indices = spread(len(dataset), count)
    tried = [_attempt(partial(dataset.__getitem__, index), Path(), []) for index in indices]
    samples = [sample for sample in tried if sample is not None]
    if not samples:
        return None
    pairs = [(s.image, overlay(s.image, paint(s.labels, dataset.class_set), 0.75)) for s in samples]
    entries = legend([s.labels for s in samples], dataset.class_set)
    return contact_sheet(pairs, columns, [s.name for s in samples], entries)
