"""What lies in a folder: which folders hold images, which their masks, and what values they have.

Names decide, as people give them: `images/train` beside `masks/train`, `train/x.jpg` beside
`train/x_mask.png`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paumer.data.images import SUFFIXES, read_labels
from paumer.data.samples import SPLITS, spread

_MOST_FILES = 500_000
_READ = 100
_MASK = re.compile(
    r"mask|label|annot|segm|semantic|truth|(^|[^a-z])(gt|seg|ground|anns?(?![a-z]))", re.I
)
_AFTER = r"(?=$|[^a-z]|annot|mask|label|im|gt|seg)"
_SPLIT = re.compile(rf"(?:^|[^a-z])(train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?){_AFTER}", re.I)
_IMAGE = re.compile(r"im(a)?ge?s?|rgb|photo|jpeg|input|frames", re.I)
PAINTED = re.compile(r"colou?r|rgb|visual", re.I)
"""What tools call copies of their masks that are made to be looked at."""
_ENDINGS = re.compile(r"(_masks?|_labels?|_gt|_seg)$")


@dataclass
class Root:
    """A folder whose name says what is in it, with all that lies below."""

    path: str
    split: str | None
    mask: bool
    files: list[str] = field(default_factory=list)
    """From the folder on."""

    def stems(self) -> dict[str, str]:
        """Files by name without suffix."""
        return {file.rpartition(".")[0]: file for file in self.files}


def scan(folder: Path) -> list[Root]:
    """The folders with images, as far down as their names say something, in order."""
    roots: dict[str, Root] = {}
    count, seen = 0, {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # Folders are often links to where there is room; one that leads back here ends.
        real = {name: os.path.realpath(Path(place, name)) for name in folders}
        folders[:] = [name for name in folders if real[name] not in seen]
        seen.update(real.values())
        images = [f for f in files if Path(f).suffix.lower() in SUFFIXES and f[0] != "."]
        count += len(images)
        if count > _MOST_FILES:
            raise ValueError(f'"{folder}" holds more than {_MOST_FILES} images: write a data.yaml')
        if images:
            below = Path(place).relative_to(folder).as_posix()
            root = _root(below)
            start = Path(below).relative_to(root.path).as_posix()
            prefix = "" if start == "." else f"{start}/"
            roots.setdefault(root.path, root).files += [prefix + name for name in sorted(images)]
    return sorted(map(_deepest, roots.values()), key=lambda root: root.path)


def _deepest(root: Root) -> Root:
    """The folder that all files of a root are in, whatever it is called."""
    inner = os.path.commonpath([Path(file).parent for file in root.files])
    files = [file.removeprefix(f"{inner}/") for file in root.files]
    return replace(root, path=Path(root.path, inner).as_posix(), files=files) if inner else root


def split_of(text: str) -> str | None:
    """The split that a name speaks of."""
    found = _SPLIT.search(text)
    return next((s for s in SPLITS if found and found[1].lower().startswith(s)), None)


def _root(path: str) -> Root:
    parts = () if path == "." else Path(path).parts
    known = [n for n, p in enumerate(parts, 1) if any(e.search(p) for e in (_MASK, _SPLIT, _IMAGE))]
    parts = parts[: known[-1]] if known else ()
    splits = [found for part in parts if (found := split_of(part))]
    mask = any(_MASK.search(part) for part in parts)
    return Root("/".join(parts) or ".", splits[-1] if splits else None, mask)


class Match(NamedTuple):
    """How many images have a mask, what a split says of both folders, and the images' names."""

    hits: int
    plan: dict[str, str]
    names: list[str]


def match(images: Root, masks: Root) -> Match:
    """How images and masks of two folders belong together: by equal names, or by a template."""
    ours, theirs = images.stems(), masks.stems()
    plan = {"images": images.path, "masks": masks.path}
    best = Match(len(ours.keys() & theirs.keys()), plan, images.files)
    if best.hits * 2 >= len(ours):
        return best
    nested = any("/" in name for name in ours)
    for (before, after), (mask_before, mask_after) in _affixes(min(ours), theirs):
        pattern = re.compile(rf"(.*/)?{re.escape(before)}([^/]+){re.escape(after)}")
        found = [(m[1] or "", m[2]) for name in ours if (m := pattern.fullmatch(name))]
        hits = sum(f"{parent}{mask_before}{stem}{mask_after}" in theirs for parent, stem in found)
        if hits > best.hits:
            plan = {
                "images": images.path,
                "masks": _template(masks, mask_before, mask_after, nested),
            }
            names = images.files
            if before or after:
                plan["images"] = _template(images, before, after, nested)
                names = [parent + stem for parent, stem in found]
            best = Match(hits, plan, names)
    return best


def _template(root: Root, before: str, after: str, nested: bool) -> str:
    suffix = Path(root.files[0]).suffix
    return f"{root.path}/{'{parent}/' if nested else ''}{before}{{stem}}{after}{suffix}"


def _affixes(name: str, masks: Iterable[str]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """What may stand around the common part of a name and of its mask, for both, likely first."""
    parent, _, stem = name.rpartition("/")
    beside = [m.rpartition("/")[2] for m in masks if m.rpartition("/")[0] == parent]
    for turn in (1, -1):
        alike = {other: common(stem[::turn], other[::turn]) for other in beside}
        longest = max(alike.values(), default=0)
        nearest = [other for other in beside if longest and alike[other] == longest]
        for other in sorted(nearest, key=lambda text: not _MASK.search(text)):
            rests = [text[::turn][longest:][::turn] for text in (stem, other)]
            ours, theirs = (("", rest) if turn == 1 else (rest, "") for rest in rests)
            yield ours, theirs


def common(one: str, other: str) -> int:
    """How many letters two texts begin with alike."""
    alike = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(alike) if a != b), min(len(one), len(other)))


def marked_masks(root: Root) -> tuple[str, set[str]] | None:
    """The ending of masks that lie among their images, as a pattern, and their names."""
    stems = root.stems()
    masks = {
        name for name in stems if (mark := _ENDINGS.search(name)) and name[: mark.start()] in stems
    }
    if not masks:
        return None
    endings = {_ENDINGS.search(name)[0] for name in masks}  # type: ignore[index]
    suffixes = {Path(stems[name]).suffix for name in masks}
    nested = "**/" if any("/" in name for name in masks) else ""
    tail = f"*{endings.pop()}{suffixes.pop()}"
    return f"{nested}{tail}" if root.path == "." else f"{root.path}/{nested}{tail}", masks


def survey_masks(files: Iterable[Path | bytes]) -> tuple[dict[str, object], list[str]]:
    """The classes of masks and what their values mean, as a plan has it, and what was assumed."""
    listed = list(files)
    if not listed:
        raise ValueError("no image has a mask of its own: names occur twice, or a table is empty")
    chosen = [listed[n] for n in spread(len(listed), _READ)]
    rgb = not all(map(_holds_ids, chosen))
    found: set[int] = set()
    for file in chosen:
        mask = read_labels(file, rgb)
        packed = mask.astype(np.int32) @ np.array([65536, 256, 1], np.int32) if rgb else mask
        found.update(np.unique(packed).tolist())
        if len(found) > 256:
            raise ValueError(f"the masks hold more than 256 values: see {_shown(file)}")
    seen = f"{len(chosen)} of {len(listed)} masks were read"
    values = sorted(found)
    return _colour_plan(values, seen) if rgb else _id_plan(values, seen)


def _holds_ids(file: Path | bytes) -> bool:
    try:
        read_labels(file)
    except ValueError:
        return False
    return True


def _shown(file: Path | bytes) -> str:
    return "one of them" if isinstance(file, bytes) else f'"{file}"'


def _colour_plan(values: list[int], seen: str) -> tuple[dict[str, object], list[str]]:
    colours = [[v >> 16, v >> 8 & 255, v & 255] for v in values]
    classes = {f"colour {r:02x}{g:02x}{b:02x}": [r, g, b] for r, g, b in colours}
    note = f"each colour is a class, named after it ({seen}): rename them, or list under ignore"
    return {"classes": classes, "rgb_masks": True}, [note]


def _id_plan(values: list[int], seen: str) -> tuple[dict[str, object], list[str]]:
    if values == [0, 255]:
        note = f"masks of 0 and 255 are background and foreground ({seen})"
        names = ["background", "foreground"]
        return {"classes": names, "map": {0: 0, 255: 1}, "ignore": []}, [note]
    ids = [value for value in values if value != 255]
    notes = ["255 is ignored"] if 255 in values else []
    notes.append(f"classes are named after the ids ({seen}): give them their names")
    if not ids:
        raise ValueError("the masks hold 255 alone, which is ignored: there is no class")
    if ids[0] < 0 or ids[-1] >= 2 * len(ids) or ids[-1] > 254:
        mapping = {value: n for n, value in enumerate(ids)}
        return {"classes": [f"class {v}" for v in ids], "map": mapping}, notes
    gaps = [f"{a} to {b}" for a, b in pairwise(ids) if b - a > 1]
    if gaps or ids[0]:
        notes.append("ids that no mask showed are classes too")
    return {"classes": [f"class {v}" for v in range(ids[-1] + 1)]}, notes
