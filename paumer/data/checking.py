"""What is wrong with a data set, and what is in it. Reads every file once and changes none."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paumer.classes import paint
from paumer.data.datasets import (
    FolderDataset,
    available_splits,
    list_dataset,
    size_message,
)
from paumer.data.images import read_image
from paumer.data.layouts import Problem
from paumer.data.report import Report
from paumer.data.samples import Dataset, Sample, spread
from paumer.drawing import contact_sheet, overlay
from paumer.progress import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class _Finding:
    """What one image and its mask showed."""

    problems: tuple[Problem, ...] = ()
    pixels: NDArray[np.int64] | None = None
    size: tuple[int, int] | None = None
    content: tuple[str, str] | None = None


def check_dataset(
    data: str | Dataset, split: str = "train", progress: Progress | None = None
) -> Report:
    """The report on one split of a data set, given as it is or by its name (and then `split`).

    `progress` is called with how many images are done and how many there are.
    """
    dataset = list_dataset(data, split) if isinstance(data, str) else data
    if isinstance(dataset, FolderDataset):
        look: Callable[[int], _Finding] = partial(_look_at_files, dataset)
    else:
        look = partial(_look_at_sample, dataset)
    pixels, sizes = np.zeros(256, np.int64), Counter[tuple[int, int]]()
    problems, contents = list(dataset.problems), []
    # Threads, because Pillow decodes outside Python's lock.
    pool = ThreadPoolExecutor(min(16, (os.cpu_count() or 1) + 2))
    try:
        for done, finding in enumerate(pool.map(look, range(len(dataset))), 1):
            problems += finding.problems
            pixels += 0 if finding.pixels is None else finding.pixels
            sizes.update([finding.size] if finding.size else [])
            contents += [finding.content] if finding.content else []
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
        contents=tuple(contents),
    )


def check_splits(
    spec: str,
    splits: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Report, ...]:
    """A report on each split of a data set (by default all it has), with the leaks between them."""
    reports = []
    names = splits if splits is not None else available_splits(spec)
    if not names:
        raise ValueError(f'"{spec}" names no split: give it at least train and val')
    for split in names:
        step = partial(progress, split) if progress else None
        reports.append(check_dataset(spec, split, step))
    return with_leaks(reports)


def with_leaks(reports: Iterable[Report]) -> tuple[Report, ...]:
    """The reports, with a problem for each image that an earlier one of them has as well."""
    seen: dict[str, tuple[str, str]] = {}
    checked = []
    for report in reports:
        leaks = []
        for file, content in report.contents:
            if content in seen:
                other, split = seen[content]
                text = f'"{file}" shows the same as "{other}" of the {split} split'
                leaks.append(Problem(file, "leak", text))
        for file, content in report.contents:
            seen.setdefault(content, (file, report.split))
        checked.append(replace(report, problems=(*report.problems, *leaks)))
    return tuple(checked)


def _look_at_files(dataset: FolderDataset, index: int) -> _Finding:
    image_file, mask_file = dataset.files(index)
    problems: list[Problem] = []
    image = _attempt(lambda: read_image(image_file), image_file, problems)
    read = _attempt(lambda: dataset.read_mask(index), mask_file, problems)
    pixels = None
    if read is not None:
        labels, wrong = read
        pixels = np.bincount(labels.ravel(), minlength=256)
        pixels[dataset.class_set.ignore] -= sum(wrong.values())
        if wrong:
            text = dataset.code.message(mask_file, wrong)
            problems.append(Problem(str(mask_file), "label", text))
        elif not _labelled(pixels, dataset):
            problems.append(_unlabelled(str(mask_file)))
        if image is not None and image.shape[:2] != labels.shape:
            text = size_message(image_file, image, mask_file, labels)
            problems.append(Problem(str(mask_file), "size", text))
    if image is None:
        return _Finding(tuple(problems), pixels)
    return _Finding(tuple(problems), pixels, *_identity(image, str(image_file)))


def _look_at_sample(dataset: Dataset, index: int) -> _Finding:
    files, problems = dataset.files(index), list[Problem]()
    file = files[0] if files else Path(f"{dataset.name} {dataset.split} {index}")
    sample = _attempt(lambda: dataset[index], file, problems)
    if sample is None:
        return _Finding(tuple(problems))
    name = str(files[0]) if files else sample.name
    pixels = np.bincount(sample.labels.ravel(), minlength=256)
    if not _labelled(pixels, dataset):
        problems.append(_unlabelled(name))
    return _Finding(tuple(problems), pixels, *_identity(sample.image, name))


def _attempt(read: Callable[[], T], file: Path, problems: list[Problem]) -> T | None:
    """What `read` gives; if it fails, None and one problem more."""
    try:
        return read()
    except Exception as error:  # a check must outlive whatever it finds
        text = str(error) if isinstance(error, ValueError) else f'cannot read "{file}": {error!r}'
        problems.append(Problem(str(file), "unreadable", text))
        return None


def _labelled(pixels: NDArray[np.int64], dataset: Dataset) -> int:
    return int(pixels.sum() - pixels[dataset.class_set.ignore])


def _unlabelled(file: str) -> Problem:
    return Problem(file, "unlabelled", f'"{file}" has no labelled pixel: all are ignored')


def _identity(image: NDArray[np.uint8], file: str) -> tuple[tuple[int, int], tuple[str, str]]:
    # Of the pixels, so that a copy in another file format is found too.
    digest = hashlib.blake2b(str(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return (image.shape[1], image.shape[0]), (file, digest.hexdigest())


def sample_sheet(dataset: Dataset, count: int = 12, columns: int = 3) -> Image.Image:
    """A sheet of `count` images from all over the data set, each beside its painted labels.

    Images that cannot be read are left out.
    """
    indices = spread(len(dataset), count)
    samples: list[Sample] = []
    for index in indices:
        sample = _attempt(partial(dataset.__getitem__, index), Path(), [])
        samples += [sample] if sample is not None else []
    if not samples:
        raise ValueError(
            f"cannot show images of {dataset.name} {dataset.split}: "
            f"{'none of those tried can be read' if len(indices) else 'it has none'}"
        )
    pairs = []
    for sample in samples:
        painted = paint(sample.labels, dataset.class_set)
        pairs.append((sample.image, overlay(sample.image, painted, 0.75)))
    return contact_sheet(pairs, columns, [sample.name for sample in samples])
