"""Data sets as one thing: an image and its labels by number, wherever they come from.

Labels are class indices from 0, and 255 where nothing is to be learnt or measured.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paumer.classes import CAMVID, Colour
from paumer.data.images import read_image, read_labels
from paumer.data.layouts import (
    SPLITS,
    Layout,
    Problem,
    Value,
    ade20k,
    camvid,
    cityscapes,
    near,
    own_folders,
    own_splits,
)
from paumer.data.samples import Dataset, Sample
from paumer.scenes.scene import scene, scene_seeds

_LAYOUTS: dict[str, Callable[[Path, str], Layout]] = {
    "camvid": camvid,
    "cityscapes": cityscapes,
    "ade20k": ade20k,
}
_SCENES = {"train": 2000, "val": 200, "test": 200}
_SCENE_SIZE = (384, 288)
_KNOWN = "scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR or the path of a data.yaml"


class SceneDataset:
    """Procedural street scenes with the labels of CamVid: the same ones at every call."""

    class_set = CAMVID
    problems: tuple[Problem, ...] = ()

    def __init__(self, split: str, count: int, size: tuple[int, int] = _SCENE_SIZE) -> None:
        self.name = "scenes" if size == _SCENE_SIZE else f"scenes@{size[0]}x{size[1]}"
        self.split = split
        self.size = size
        self.seeds = scene_seeds(split, count)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> Sample:
        seed = self.seeds[index]
        return Sample(f"scene-{seed}", *scene(seed, self.size))

    def files(self, index: int) -> None:
        """None: scenes lie in no file."""


class FolderDataset:
    """Images and masks on disk. Reading a bad one is a ValueError that names the file."""

    def __init__(self, layout: Layout) -> None:
        self.name = layout.name
        self.split = layout.split
        self.class_set = layout.class_set
        self.problems = layout.problems
        self.pairs = layout.pairs
        self.code = Code(layout.meaning, layout.rgb)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        pair = self.pairs[index]
        image, (labels, wrong) = read_image(pair.image), self.read_mask(index)
        if image.shape[:2] != labels.shape:
            raise ValueError(size_message(pair.image, image, pair.mask, labels))
        if wrong:
            raise ValueError(self.code.message(pair.mask, wrong))
        return Sample(pair.name, image, labels)

    def files(self, index: int) -> tuple[Path, Path]:
        """The files of an image and of its mask."""
        return self.pairs[index].image, self.pairs[index].mask

    def read_mask(self, index: int) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of an image, and the values of its mask that stand for no class."""
        return self.code.read(read_labels(self.pairs[index].mask, self.code.rgb))


class JoinedDataset:
    """Several data sets of the same classes, one after the other."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        first = parts[0]
        for part in parts[1:]:
            if part.class_set.names != first.class_set.names:
                raise ValueError(
                    f"cannot join {first.name} and {part.name}: their classes differ "
                    f"({', '.join(first.class_set.names)}; {', '.join(part.class_set.names)})"
                )
        self.name = "+".join(part.name for part in parts)
        self.split = first.split
        self.class_set = first.class_set
        self.problems = tuple(problem for part in parts for problem in part.problems)
        self.parts = tuple(parts)
        self._ends = tuple(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        part, place = self._find(index)
        return part[place]

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        part, place = self._find(index)
        return part.files(place)

    def _find(self, index: int) -> tuple[Dataset, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        number = bisect_right(self._ends, index)
        return self.parts[number], index - (self._ends[number - 1] if number else 0)


class Code:
    """What the values in a mask stand for: ids, or colours where `rgb`."""

    def __init__(
        self, meaning: Mapping[int, int] | Mapping[Colour, int], rgb: bool = False
    ) -> None:
        self.rgb = rgb
        values = [(v if isinstance(v, int) else _pack(*v), label) for v, label in meaning.items()]
        self._values = np.array(sorted(values), np.int64)
        self._bytes = np.full(256, -1, np.int16)
        small = self._values[(self._values[:, 0] >= 0) & (self._values[:, 0] < 256)]
        self._bytes[small[:, 0]] = small[:, 1]

    def read(self, mask: NDArray[np.integer]) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of a mask, and the values without meaning (labelled 255) with their pixels."""
        if self.rgb:
            red, green, blue = np.moveaxis(mask.astype(np.int32), 2, 0)
            mask = _pack(red, green, blue)
        if mask.dtype == np.uint8:
            labels = self._bytes[mask]
        else:
            known = self._values[:, 0]
            place = np.searchsorted(known, mask).clip(max=len(known) - 1)
            found = known[place] == mask
            labels = np.where(found, self._values[place, 1], -1).astype(np.int16)
        wrong: dict[Value, int] = {}
        if labels.size and labels.min() < 0:
            values, pixels = np.unique(mask[labels < 0], return_counts=True)
            for value, count in zip(values.tolist(), pixels.tolist(), strict=True):
                colour = (value >> 16, value >> 8 & 255, value & 255)
                wrong[colour if self.rgb else value] = count
        return labels.astype(np.uint8), wrong

    def message(self, file: Path, wrong: Mapping[Value, int]) -> str:
        """A sentence on the values of a mask that stand for no class."""
        listed = [f"{value} ({count} pixels)" for value, count in list(wrong.items())[:5]]
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        what = "colours" if self.rgb else "label ids"
        return (
            f'the mask "{file}" holds {what} that stand for no class: {", ".join(listed)}{more}. '
            f"Known are {self._listed()}"
        )

    def _listed(self) -> str:
        known = self._values[:, 0].tolist()
        if self.rgb:
            return f"the {len(known)} colours of the classes and of ignore"
        starts = [v for v in known if v - 1 not in known]
        ends = [v for v in known if v + 1 not in known]
        runs = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
        return ", ".join(runs[:12]) + (", ..." if len(runs) > 12 else "")


def _pack(red: Any, green: Any, blue: Any) -> Any:
    return (red << 16) | (green << 8) | blue


def size_message(
    image_file: Path, image: NDArray[np.uint8], mask_file: Path, labels: NDArray[np.uint8]
) -> str:
    """A sentence on a mask that has not the size of its image."""
    return (
        f'the mask "{mask_file}" is {labels.shape[1]}x{labels.shape[0]}, but its image '
        f'"{image_file}" is {image.shape[1]}x{image.shape[0]}: they must have the same size'
    )


def open_dataset(spec: str, split: str = "train") -> Dataset:
    """The data set of that name: scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR or a data.yaml.

    Scenes come as `scenes`, `scenes:COUNT` or `scenes:COUNT@WIDTHxHEIGHT`. Several of the same
    classes are joined by `+`, as in `camvid:DIR+scenes:400`. Images or masks without a mate, or
    of the same name, are a ValueError.
    """
    dataset = list_dataset(spec, split)
    if dataset.problems:
        others = len(dataset.problems) - 1
        more = f" (and {others} more such problems)" if others else ""
        raise ValueError(
            f"{dataset.problems[0].message}{more}. `paumer check-data {spec}` lists them all"
        )
    return dataset


def list_dataset(spec: str, split: str = "train") -> Dataset:
    """As `open_dataset`, but files that make no pair are left out and listed in `problems`."""
    if split not in SPLITS:
        raise ValueError(f'no split "{split}": there are {", ".join(SPLITS)}{near(split, SPLITS)}')
    if parts := _joined(spec):
        return JoinedDataset([list_dataset(part, split) for part in parts])
    kind, _, rest = spec.partition(":")
    if re.fullmatch(r"scenes(@.*)?", kind):
        return _scenes(spec, split)
    if kind in _LAYOUTS:
        return FolderDataset(_LAYOUTS[kind](_folder(kind, rest), split))
    return FolderDataset(own_folders(_data_yaml(spec), split))


def available_splits(spec: str) -> tuple[str, ...]:
    """The splits of a data set that have labels, in the order train, val, test."""
    if parts := _joined(spec):
        each = [available_splits(part) for part in parts]
        return tuple(split for split in SPLITS if all(split in some for some in each))
    kind, _, rest = spec.partition(":")
    if kind == "camvid":
        root = _folder(kind, rest)
        return tuple(s for s in SPLITS if (root / s).is_dir()) or SPLITS
    if kind in _LAYOUTS:
        return ("train", "val")
    if re.fullmatch(r"scenes(@.*)?", kind):
        return SPLITS
    return own_splits(_data_yaml(spec))


def _joined(spec: str) -> list[str]:
    """The data sets that a text joins by `+`; none where the `+` belongs to a file's name."""
    if "+" not in spec or _exists(spec):
        return []
    parts: list[str] = []
    for piece in spec.split("+"):
        # A + may also belong to the name of the folder before it.
        if parts and not _exists(parts[-1]) and _exists(f"{parts[-1]}+{piece}"):
            parts[-1] += f"+{piece}"
        else:
            parts.append(piece)
    if not all(parts):
        raise ValueError(f'"{spec}" joins nothing: write it as in camvid:DIR+scenes:400')
    return parts


def _exists(spec: str) -> bool:
    """Whether a text names a file or folder, after the kind of data set if it says one."""
    return Path(spec.partition(":")[2] or spec).expanduser().exists()


def _scenes(spec: str, split: str) -> SceneDataset:
    match = re.fullmatch(r"scenes(?::(\d+))?(?:@(\d+)x(\d+))?", spec)
    if not match or match[1] == "0":
        raise ValueError(
            f'cannot make scenes from "{spec}": write scenes, scenes:COUNT or '
            f"scenes:COUNT@WIDTHxHEIGHT, as in scenes:500@384x288"
        )
    size = (int(match[2]), int(match[3])) if match[2] else _SCENE_SIZE
    return SceneDataset(split, int(match[1] or _SCENES[split]), size)


def _folder(kind: str, text: str) -> Path:
    if not text:
        raise ValueError(f'"{kind}" needs its folder: write {kind}:DIR')
    return Path(text).expanduser()


def _data_yaml(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "data.yaml").is_file():
            return path / "data.yaml"
        raise ValueError(f'the folder "{spec}" holds no data.yaml: give {_KNOWN}')
    kind = spec.partition(":")[0]
    guess = near(kind, ("scenes", *_LAYOUTS)) if path.suffix not in (".yaml", ".yml") else ""
    raise ValueError(f'there is no data set "{spec}"{guess}: give {_KNOWN}')
