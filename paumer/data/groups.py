"""Groups of images, such as the drives or sites they come from: to leave one out, or to compare."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from paumer.data.samples import Dataset, Sample

OTHERS = "others"
"""The group of images whose name a pattern does not match, or that have none."""


class Subset(Dataset):
    """Some images of a data set, in the order of their indices there."""

    def __init__(self, dataset: Dataset, indices: Sequence[int], name: str) -> None:
        self.name = name
        self.split = dataset.split
        self.class_set = dataset.class_set
        self.dataset = dataset
        self.indices = tuple(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self.indices[index]]

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        return self.dataset.files(self.indices[index])


def group_images(dataset: Dataset, groups: str) -> dict[str, list[int]]:
    """The indices of the images of each group, by the group's name.

    ``groups`` is a regular expression, searched for in each file's name: what its first bracket
    matches, or else all that it matches, is the group. ``folder`` takes the name of the folder.
    """
    found: dict[str, list[int]] = {}
    for index, file in enumerate(_image_files(dataset)):
        found.setdefault(_group(file, groups) or OTHERS, []).append(index)
    if set(found) <= {OTHERS}:
        raise ValueError(f'groups "{groups}" matches no file name of {dataset.name}')
    return dict(sorted(found.items()))


def hold_out(dataset: Dataset, pattern: str) -> tuple[Subset, Subset]:
    """The images whose file names do not match a regular expression, and those that do."""
    rest: list[int] = []
    held: list[int] = []
    for index, file in enumerate(_image_files(dataset)):
        (rest if _group(file, pattern) is None else held).append(index)
    if not held or not rest:
        which = "no file name" if rest else "all file names"
        raise ValueError(f'hold-out "{pattern}" matches {which} of {dataset.name}')
    return (
        Subset(dataset, rest, f"{dataset.name} without {pattern}"),
        Subset(dataset, held, f"{pattern} of {dataset.name}"),
    )


def _image_files(dataset: Dataset) -> Iterator[Path | None]:
    for index in range(len(dataset)):
        files = dataset.files(index)
        yield files[0] if files else None


def _group(file: Path | None, groups: str) -> str | None:
    """The group of a file; None where nothing matches."""
    if file is None:
        return None
    if groups == "folder":
        return file.parent.name
    try:
        match = re.search(groups, file.name)
    except re.error as error:
        raise ValueError(f'"{groups}" is not a regular expression: {error}') from error
    return match and (match[1] if match.re.groups else match[0])
