"""What every data set gives: an image and its labels by index."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset

from paumer.classes import ClassSet

SPLITS = ("train", "val", "test")
Kind = Literal[
    "missing mask", "missing image", "duplicate", "unreadable", "size", "label", "unlabelled",
    "leak",
]  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file of a data set."""

    file: str
    kind: Kind
    message: str


class Sample(NamedTuple):
    """A uint8 RGB image (h w 3) and its uint8 labels (h w), 255 where there is none.

    torch's DataLoader makes one of several, where all images have one size.
    """

    name: str
    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def __repr__(self) -> str:
        return f"Sample({self.name!r}, image {tuple(self.image.shape)})"


class Dataset(TorchDataset[Sample]):
    """Images and their labels, by index.

    One of your own has a name, a split and its classes, and defines ``__len__`` and
    ``__getitem__``. `problems` is what was wrong with single files when the folders were listed:
    it is empty for a data set that `open_dataset` gave.
    """

    name: str
    split: str
    class_set: ClassSet
    problems: tuple[Problem, ...] = ()

    def __repr__(self) -> str:
        kind, classes = type(self).__name__, len(self.class_set)
        return f'{kind}("{self.name}" {self.split}, {len(self)} images, {classes} classes)'

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        return None


def spread(total: int, count: int | None) -> list[int]:
    """So many indices below ``total``, evenly spread; all of them by None or where it has fewer."""
    if count is not None and count < 1:
        raise ValueError(f"limit is {count}: give at least 1")
    chosen = total if count is None else min(count, total)
    indices: list[int] = np.linspace(0, total - 1, chosen).round().astype(int).tolist()
    return indices
