"""Images and their masks in folders: found, paired and read.

What is wrong with a folder as a whole is a ValueError; what is wrong with single files is listed,
so that one bad file does not hide the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paumer.classes import ClassSet, Colour, Pixels
from paumer.data.images import SUFFIXES, read_image, read_labels
from paumer.data.samples import Dataset, Problem, Sample
from paumer.untrusted import near

Value = int | Colour
Size = tuple[int, int]
"""Height and width."""
Meaning = Mapping[int, int] | Mapping[Colour, int]
"""The label, class index or `IGNORE`, of every id or colour that a mask may hold."""
UNCOVERED = -(2**31)
"""The id of pixels that no outline covers; no file can hold it."""


class SizeError(ValueError):
    """A mask does not have the size of its image."""


class Drawn(NamedTuple):
    """A mask drawn from outlines: 0 where none is, n in the outlines of the n-th of `ids`."""

    pixels: NDArray[np.unsignedinteger]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """An image and its mask. The name is the image's path in its folder, without the suffix."""

    name: str
    image: Path
    mask: Path


@dataclass(eq=False, repr=False)
class FolderDataset(Dataset):
    """Images and masks on disk. Reading a bad one is a ValueError that names the file."""

    name: str
    split: str
    class_set: ClassSet
    code: "Code"
    pairs: tuple[Pair, ...]
    problems: tuple[Problem, ...] = ()
    drawn: ClassVar[bool] = False
    """Whether labels are outlines, which need the size of the image."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        image = self.read_image(index)
        labels, wrong = self.read_mask(index, (image.shape[0], image.shape[1]))
        image_file, mask_file = self.where(index)
        if image.shape[:2] != labels.shape:
            raise SizeError(size_message(image_file, image, mask_file, labels))
        if wrong:
            raise ValueError(self.code.message(mask_file, wrong))
        return Sample(self.name_of(index), image, labels)

    def name_of(self, index: int) -> str:
        """What an image is called."""
        return self.pairs[index].name

    def where(self, index: int) -> tuple[Path, Path]:
        """What messages say an image and its labels are."""
        return self.pairs[index].image, self.pairs[index].mask

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its mask; None where they lie in a table."""
        return self.where(index)

    def content(self, index: int, labels: bool) -> Path | bytes:
        """The file of an image, or of its labels, or what would be in it."""
        return self.pairs[index].mask if labels else self.pairs[index].image

    def read_image(self, index: int) -> Pixels:
        """An image alone."""
        return read_image(self.content(index, labels=False))

    def read_mask(self, index: int, size: Size) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of an image, and the values of its mask that stand for no class.

        `size` is the image's height and width, which outlines are drawn in.
        """
        return self.code.read(read_labels(self.content(index, labels=True), self.code.rgb))


class Code:
    """What the values in a mask stand for: ids, or colours where `rgb`."""

    def __init__(self, meaning: Meaning, rgb: bool = False) -> None:
        self.rgb = rgb
        values = [(v if isinstance(v, int) else _pack(*v), label) for v, label in meaning.items()]
        self._values, self._labels = np.array(sorted(values), np.int64).T
        self._bytes = self._label(np.arange(256))  # most masks are bytes: these are looked up

    def read(self, mask: NDArray[np.integer]) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of a mask, and the values without meaning (labelled 255) with their pixels."""
        if self.rgb:
            mask = _pack(*np.moveaxis(mask.astype(np.int32), 2, 0))
        labels = self._bytes[mask] if mask.dtype == np.uint8 else self._label(mask)
        wrong: dict[Value, int] = {}
        if labels.size and labels.min() < 0:
            values, pixels = np.unique(mask[labels < 0], return_counts=True)
            for value, count in zip(values.tolist(), pixels.tolist(), strict=True):
                colour = (value >> 16, value >> 8 & 255, value & 255)
                wrong[colour if self.rgb else value] = count
        return labels.astype(np.uint8), wrong

    def read_drawn(self, drawn: Drawn) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """As `read`, of a mask drawn from outlines."""
        ids = np.array((UNCOVERED, *drawn.ids), np.int64)
        labels = self._label(ids)
        wrong: dict[Value, int] = {}
        if labels.min() < 0:
            counts = np.bincount(drawn.pixels.ravel(), minlength=len(ids))
            for n in np.flatnonzero((labels < 0) & (counts > 0)).tolist():
                wrong[int(ids[n])] = int(counts[n])
        return labels.astype(np.uint8).take(drawn.pixels), wrong

    def _label(self, values: NDArray[np.integer]) -> NDArray[np.int16]:
        """The labels of values, -1 where they have no meaning."""
        nearest = np.searchsorted(self._values, values).clip(max=len(self._values) - 1)
        known = self._values[nearest] == values
        return np.where(known, self._labels[nearest], -1).astype(np.int16)

    def message(self, file: Path, wrong: Mapping[Value, int]) -> str:
        """A sentence on the values of a mask that stand for no class."""
        listed = [f"{value} ({count} pixels)" for value, count in list(wrong.items())[:5]]
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        what = "colours" if self.rgb else "label ids"
        return (
            f'the mask "{file}" holds {what} that stand for no class: {", ".join(listed)}{more}. '
            f"Known are {self.known()}"
        )

    def known(self) -> str:
        """The values that stand for something, in a few words."""
        known = [value for value in self._values.tolist() if value != UNCOVERED]
        if self.rgb:
            return f"the {len(known)} colours of the classes and of ignore"
        starts = [v for v in known if v - 1 not in known]
        ends = [v for v in known if v + 1 not in known]
        runs = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
        return ", ".join(runs[:12]) + (", ..." if len(runs) > 12 else "")


def _pack(red: Any, green: Any, blue: Any) -> Any:
    return (red << 16) | (green << 8) | blue


def size_message(image_file: Path, image: Pixels, mask_file: Path, labels: Pixels) -> str:
    """A sentence on a mask that does not have the size of its image."""
    return (
        f'the mask "{mask_file}" is {labels.shape[1]}x{labels.shape[0]}, but its image '
        f'"{image_file}" is {image.shape[1]}x{image.shape[0]}: they must have the same size'
    )


def subfolder(root: Path, path: str | Path, why: str) -> Path:
    """The folder `root/path`; if there is none, an error that says which part of it is missing."""
    wanted = f'no folder "{root / path}" ({why})'
    if not root.is_dir():
        raise ValueError(f'{wanted}: "{root}" {"is a file" if root.is_file() else "is missing"}')
    folder = root
    for part in Path(path).parts:
        if not (folder / part).is_dir():
            there = sorted(f.name for f in folder.iterdir() if f.is_dir())
            listed = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
            has = f"the folders {listed}" if there else "no folders"
            raise ValueError(f'{wanted}: "{folder}" has {has}{near(part, there)}')
        folder /= part
    return folder


def find_images(folder: Path, pattern: str = "**/*") -> dict[str, list[Path]]:
    """Images by their path below the folder, without suffix. Hidden files and folders are not."""
    images: dict[str, list[Path]] = {}
    for path in find_files(folder, pattern, SUFFIXES):
        name = path.relative_to(folder).with_suffix("").as_posix()
        images.setdefault(name, []).append(path)
    return images


def find_files(folder: Path, pattern: str, suffixes: Sequence[str]) -> list[Path]:
    """Files of a folder whose names end so, in order, but none that is hidden or in such a folder.

    Notebooks and file managers leave copies of images and labels there.
    """
    return [
        path
        for path in sorted(folder.glob(pattern))
        if path.suffix.lower() in suffixes
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


def pair_files(
    images: dict[str, list[Path]], masks: dict[str, list[Path]], endings: tuple[str, ...] = ()
) -> tuple[tuple[Pair, ...], tuple[Problem, ...]]:
    """Images and masks of the same name, and what stands alone or twice.

    An image without a mask of its name takes the one with one of the `endings` behind it, if
    there is exactly one and no other image has it.
    """
    pairs, problems, taken = [], [], images.keys() & masks.keys()
    for name, paths in images.items():
        keys = [name] if name in masks else [name + e for e in endings if name + e in masks]
        free = [key for key in keys if key == name or key not in taken]
        matches = [mask for key in free for mask in masks[key]]
        taken |= set(free)
        for several, what in ((paths, "images"), (matches, "masks")):
            if len(several) > 1:
                files = " and ".join(f'"{path}"' for path in several)
                text = f"{files} are {what} of the same name: keep one"
                problems.append(Problem(str(several[1]), "duplicate", text))
        if not matches:
            text = f'the image "{paths[0]}" has no mask: none of that name was found'
            problems.append(Problem(str(paths[0]), "missing mask", text))
        if len(paths) == len(matches) == 1:
            pairs.append(Pair(name, paths[0], matches[0]))
    for key in sorted(masks.keys() - taken):
        text = f'the mask "{masks[key][0]}" has no image: none of that name was found'
        problems.append(Problem(str(masks[key][0]), "missing image", text))
    return tuple(pairs), tuple(problems)
