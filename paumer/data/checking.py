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
from paumer.data.folders import FolderDataset, Value, size_message
from paumer.data.images import read_image
from paumer.data.samples import Dataset, Problem, spread
from paumer.drawing import contact_sheet, overlay
from paumer.progress import Progress, StepProgress

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """What a check found in one split.

    `images` counts those that have a mask. `class_pixels` are exact counts over all masks that
    could be read, in the order of `classes`; `sizes` are (width, height) and how many images
    have it, the most frequent first. `contents` are file and content hash of every image.
    """

    name: str
    split: str
    images: int
    problems: tuple[Problem, ...]
    classes: tuple[str, ...]
    class_pixels: tuple[int, ...]
    ignored_pixels: int
    sizes: tuple[tuple[tuple[int, int], int], ...]
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
        """The report to read: totals, sizes, a table of classes, and every problem."""
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
        if self.problems:
            kinds = Counter(problem.kind for problem in self.problems)
            lines += ["", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())]
            lines += [f"- {problem.kind}: {problem.message}" for problem in self.problems]
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
        contents=tuple(contents),
    )


def check_splits(
    spec: str, splits: Sequence[str] | None = None, progress: StepProgress | None = None
) -> tuple[Report, ...]:
    """A report on each split of a data set (by default all it has), with the leaks between them.

    An image leaks into a split if an earlier one has it as well.
    """
    splits = available_splits(spec) if splits is None else splits
    if not splits:
        raise ValueError(f'"{spec}" names no split: give it at least train and val')
    reports, seen = [], dict[str, tuple[str, str]]()
    for split in splits:
        report = check_dataset(spec, split, partial(progress, split) if progress else None)
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
        image = _attempt(lambda: read_image(image_file), image_file, problems)
        mask = _attempt(partial(dataset.read_mask, index), mask_file, problems)
        labels, wrong = mask or (None, {})
        if wrong:
            text = dataset.code.message(mask_file, wrong)
            problems.append(Problem(str(mask_file), "label", text))
    else:
        sample = _attempt(lambda: dataset[index], image_file, problems)
        image, labels = (sample.image, sample.labels) if sample else (None, None)
        if sample and not files:
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
        problems.append(Problem(str(file), "unreadable", text))
        return None


def sample_sheet(dataset: Dataset, count: int = 12, columns: int = 3) -> Image.Image:
    """A sheet of up to `count` images, those that can be read, each beside its painted labels."""
    indices = spread(len(dataset), count)
    tried = [_attempt(partial(dataset.__getitem__, index), Path(), []) for index in indices]
    samples = [sample for sample in tried if sample is not None]
    if not samples:
        raise ValueError(
            f"cannot show images of {dataset.name} {dataset.split}: "
            f"{'none of those tried can be read' if indices else 'it has none'}"
        )
    pairs = [(s.image, overlay(s.image, paint(s.labels, dataset.class_set), 0.75)) for s in samples]
    return contact_sheet(pairs, columns, [s.name for s in samples])
