"""Folders of your own, as a `data.yaml` describes them. Nothing here opens an image."""

import glob
from pathlib import Path
from typing import Any

from paumer.classes import IGNORE, ClassSet, Colour, distinct_colours
from paumer.data.folders import Code, FolderDataset, find_images, near, pair_files, subfolder
from paumer.data.images import SUFFIXES
from paumer.data.samples import SPLITS
from paumer.untrusted import quoted, shorten
from paumer.yaml_file import read_yaml

# How people mark a mask that lies under the name of its image.
_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg")

_LONGEST_PATH, _LONGEST_NAME = 4096, 200

Plan = dict[Any, Any]


def open_yaml(file: Path, split: str) -> FolderDataset:
    """The data set of a `data.yaml`. What is wrong with the file is a ValueError that names it."""
    plan = _read(file)
    if split not in plan:
        there = ", ".join(yaml_splits(file)) or "no split at all"
        raise ValueError(f'"{file}" has no "{split}" split: it has {there}')
    try:
        class_set, code = _classes(plan)
        paths = {f"{split}.{part}": _path(plan, split, part) for part in ("images", "masks")}
        base = file.parent / Path(plan.get("path", ".")).expanduser()
    except (ValueError, RuntimeError) as error:  # The latter of a home that is not known.
        raise ValueError(f'"{file}": {shorten(str(error))}') from error
    images, masks = (_find(base, path, file, key) for key, path in paths.items())
    # A pattern for the images may take in the masks.
    mask_files = {path for several in masks.values() for path in several}
    rest = {name: [p for p in several if p not in mask_files] for name, several in images.items()}
    images = {name: several for name, several in rest.items() if several}
    if not images:
        raise ValueError(f'"{file}": the images and the masks of "{split}" are the same files')
    files = pair_files(images, masks, _ENDINGS)
    return FolderDataset(file.resolve().parent.name, split, class_set, code, *files)


def yaml_splits(file: Path) -> tuple[str, ...]:
    """The splits a `data.yaml` describes."""
    plan = _read(file)
    return tuple(split for split in SPLITS if split in plan)


def _read(file: Path) -> Plan:
    plan = read_yaml(file, most=2**24)  # Lists may be long.
    if not isinstance(plan, dict):
        raise ValueError(f'"{file}" holds no description of data: it needs train, val and classes')
    _check_keys(plan, (*SPLITS, "path", "classes", "ignore", "map", "rgb_masks"), f'"{file}": ')
    return plan


def _wrong(key: str, given: Any, must: str) -> ValueError:
    return ValueError(f"{key} is {quoted(given)}, and {must}")


def _check_keys(plan: Plan, known: tuple[str, ...], start: str = "", where: str = "") -> None:
    for key in plan:
        if key not in known:
            what = f'"{where}{shorten(str(key), 200)}" is unknown{near(str(key), known)}'
            raise ValueError(f"{start}{what}. Known are {', '.join(known)}")


def _path(plan: Plan, split: str, part: str) -> str:
    """The folder or pattern that a split gives for its images or masks."""
    folders, root = plan[split], plan.get("path", ".")
    if not isinstance(folders, dict):
        example = f"{split}: {{images: images/{split}, masks: masks/{split}}}"
        raise _wrong(split, folders, f"must name two folders, as in {example}")
    _check_keys(folders, ("images", "masks"), where=f"{split}.")
    path = folders.get(part)
    if not isinstance(path, str) or not 1 <= len(path) <= _LONGEST_PATH:
        raise _wrong(f"{split}.{part}", path, "must be a folder or a glob")
    if not isinstance(root, str) or len(root) > _LONGEST_PATH:
        raise _wrong("path", root, "must be a folder")
    return path


def _find(base: Path, path: str, file: Path, key: str) -> dict[str, list[Path]]:
    """The images that a folder or pattern names, by their path from before the first wildcard."""
    parts, pattern = Path(path).parts, ""
    if not (base / path).is_dir():
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        parts, pattern = parts[:fixed], "/".join(parts[fixed:])
    start = subfolder(base, Path(*parts), f'{key} of "{file}" names it')
    images = find_images(start, pattern or "**/*")
    if not images:
        what = f'no image in "{start}"' + (f' matches "{pattern}"' if pattern else "")
        raise ValueError(f'"{file}": {what} ({key}; images end in {" ".join(SUFFIXES)})')
    return images


def _classes(plan: Plan) -> tuple[ClassSet, Code]:
    """The classes, and what the values in the masks mean."""
    rgb = plan.get("rgb_masks", False)
    if not isinstance(rgb, bool):
        raise _wrong("rgb_masks", rgb, "must be true or false")
    entries = _class_entries(plan.get("classes"))
    colours = list(distinct_colours(len(entries)))
    for i, (name, colour) in enumerate(entries):
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise ValueError(
                f"class {i} is called {quoted(name)}, which is not a text of 1 to {_LONGEST_NAME} "
                f"letters. "
                f"Put the name in quotes if it looks like something else to YAML"
            )
        if colour is not None:
            colours[i] = _colour(colour, f'class "{name}"')
    class_set = ClassSet(tuple(name for name, _ in entries), tuple(colours))
    if not rgb:
        return class_set, Code(_id_meaning(plan, class_set))
    if any(colour is None for _, colour in entries):
        raise ValueError(
            f"with rgb_masks every class needs a colour, as in "
            f"{{name: {class_set.names[0]}, colour: [128, 64, 128]}}"
        )
    return class_set, Code(_colour_meaning(plan, class_set), rgb=True)


def _class_entries(given: Any) -> list[tuple[Any, Any]]:
    """Names with their colours, None where none is given; not checked yet."""
    if isinstance(given, dict):
        entries = list(given.items())
    elif isinstance(given, list):
        entries = []
        for entry in (e if isinstance(e, dict) else {"name": e} for e in given):
            _check_keys(entry, ("name", "colour", "color"), where="classes: ")
            entries.append((entry.get("name"), entry.get("colour", entry.get("color"))))
    else:
        must = "must be a list of names, a list of {name: ..., colour: [r, g, b]}, or a mapping "
        raise _wrong("classes", given, must + "from names to colours")
    if not 1 <= len(entries) <= IGNORE:
        raise ValueError(f"{len(entries)} classes, and there must be 1 to {IGNORE}")
    return entries


def _id_meaning(plan: Plan, class_set: ClassSet) -> dict[int, int]:
    given = plan.get("map", {i: i for i in range(len(class_set))})
    if not isinstance(given, dict) or not given:
        raise _wrong("map", given, "must be like {7: 0, 8: 1}")
    meaning = {}
    for value, label in given.items():
        index = class_set.names.index(label) if label in class_set.names else label
        if not _is_id(value) or type(index) is not int or not 0 <= index < len(class_set):
            raise ValueError(
                f"map says {quoted(value)}: {quoted(label)}, and must lead from an id in the masks "
                f"to a class, 0 to {len(class_set) - 1} or its name"
            )
        meaning[value] = index
    ignored = plan.get("ignore", [] if IGNORE in meaning else [IGNORE])
    if not isinstance(ignored, list) or not all(map(_is_id, ignored)):
        raise _wrong("ignore", ignored, "must be a list of ids, as in [255]")
    if twice := sorted(set(ignored) & set(meaning)):
        raise ValueError(f"the ids {quoted(twice)} are ignored and also stand for classes")
    return meaning | dict.fromkeys(ignored, IGNORE)


def _is_id(value: object) -> bool:
    """Whether masks can hold it: they come with up to 32 bits."""
    return type(value) is int and -(2**31) <= value < 2**31


def _colour_meaning(plan: Plan, class_set: ClassSet) -> dict[Colour, int]:
    if "map" in plan:
        raise ValueError("map is for masks of ids; with rgb_masks the colours decide")
    meaning: dict[Colour, int] = {}
    for label, colour in enumerate(class_set.colours):
        if colour in meaning:
            names = f'"{class_set.names[meaning[colour]]}" and "{class_set.names[label]}"'
            raise ValueError(f"the classes {names} have the same colour {colour}")
        meaning[colour] = label
    ignored = plan.get("ignore", [])
    if not isinstance(ignored, list):
        must = "with rgb_masks must be a list of colours, as in [[0, 0, 0]]"
        raise _wrong("ignore", ignored, must)
    for colour in [_colour(given, "ignore") for given in ignored]:
        if meaning.get(colour, IGNORE) != IGNORE:
            raise ValueError(f"the colour {colour} is ignored and also stands for a class")
        meaning[colour] = IGNORE
    return meaning


def _colour(given: Any, whose: str) -> Colour:
    good = isinstance(given, list) and len(given) == 3
    if not good or any(type(c) is not int or not 0 <= c <= 255 for c in given):
        must = "must be three numbers from 0 to 255, as in [128, 64, 128]"
        raise _wrong(f"the colour of {whose}", given, must)
    red, green, blue = given
    return red, green, blue
