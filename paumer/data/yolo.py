"""Labels as YOLO has them: a text file for each image, a polygon in each line.

A line is a class and then x and y of each corner, as fractions of the image's width and height.
"""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paumer.data.folders import FolderDataset, Size, Value, find_files, pair_files, subfolder
from paumer.data.images import open_file
from paumer.data.listing import Images, Pairs, without_suffix
from paumer.data.polygons import Shape, draw

_LONGEST_FILE = 2**24
_TOLERANCE = 0.01


@dataclass(eq=False, repr=False)
class YoloDataset(FolderDataset):
    """Images with polygons in text files; an image without a file has no polygon."""

    drawn: ClassVar[bool] = True

    def read_mask(self, index: int, size: Size) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of an image, drawn in its size."""
        file = self.pairs[index].mask
        return self.code.read_drawn(draw(read_polygons(file, size), size, f'"{file}"'))


def pair_labels(images: Images, base: Path, labels: str, why: str, listed: bool) -> Pairs:
    """The images with their label files, which need not exist; but each must have its image."""
    folder = subfolder(base, labels, why)
    files = {f.relative_to(folder).with_suffix("").as_posix(): [f] for f in label_files(folder)}
    masks = {name: files.get(name, [folder / f"{name}.txt"]) for name in images}
    return pair_files(images, masks if listed else files | masks)


def label_files(folder: Path) -> list[Path]:
    """The text files below a folder, but not the list of the classes' names."""
    return [f for f in find_files(folder, "**/*.txt", [".txt"]) if f.name != "classes.txt"]


def label_file(image: str) -> str:
    """Where YOLO has the labels of an image."""
    return labels_beside(f"{without_suffix(image)}.txt")


def labels_beside(images: str) -> str:
    """Where YOLO has the labels of images: in `labels` where they are in `images`."""
    parts = list(PurePosixPath(images).parts)
    last = max((n for n, part in enumerate(parts) if part == "images"), default=None)
    if last is not None:
        parts[last] = "labels"
    return str(PurePosixPath(*parts))


def read_polygons(file: Path, size: Size) -> list[Shape]:
    """The polygons of a label file, in the pixels of an image of that height and width."""
    try:
        with open_file(file) as stream:
            content = stream.read(_LONGEST_FILE + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f'cannot read "{file}": {error.strerror or error}') from error
    if len(content) > _LONGEST_FILE:
        raise ValueError(f'"{file}" is too large for labels: give at most {_LONGEST_FILE} bytes')
    lines = [words for line in content.splitlines() if (words := line.split())]
    try:
        numbers = np.array([float(word) for word in chain.from_iterable(lines)])
    except ValueError as error:
        raise ValueError(f'"{file}" holds something else than numbers: {error}') from error
    shapes = []
    ends = np.cumsum([len(words) for words in lines])
    for number, row in enumerate(np.split(numbers, ends[:-1]) if lines else (), 1):
        start = f'polygon {number} of "{file}"'
        if len(row) == 5:
            raise ValueError(f"{start} is a box: segmentation needs polygons of 3 corners or more")
        if len(row) < 7 or len(row) % 2 == 0 or not 0 <= row[0] < 2**31 or row[0] % 1:
            raise ValueError(f"{start} is not a class and x and y of at least 3 corners")
        corners = row[1:].reshape(-1, 2)
        if not (np.abs(corners - 0.5) <= 0.5 + _TOLERANCE).all():
            raise ValueError(f"{start} has corners that are not fractions from 0 to 1")
        points = (corners.clip(0, 1) * size[::-1]).astype(np.float32)
        shapes.append(Shape(int(row[0]), (points,)))
    return shapes
