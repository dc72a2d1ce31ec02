"""Folders of your own, as a `data.yaml` describes them. Nothing here opens an image.

Each split says by its keys how its labels lie: `masks` are images, `labels` YOLO's text files,
`coco` is an annotation file, `hf` a saved table, and a `list` alone names pairs of files.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paumer.data.class_plan import Plan, check_keys, read_classes, wrong
from paumer.data.coco import CocoDataset, pair_images, read_annotations
from paumer.data.folders import FolderDataset, pair_files, subfolder
from paumer.data.hub import HubDataset, open_table, row_name
from paumer.data.listing import Images, choose, find, list_pairs, pair_masks
from paumer.data.samples import SPLITS, Problem
from paumer.data.yolo import YoloDataset, label_file, labels_beside, pair_labels
from paumer.untrusted import shorten
from paumer.yaml_file import read_yaml

_LONGEST_PATH = 4096
_KEYS = (
    *SPLITS, "path", "classes", "names", "nc", "ignore", "map", "background", "rgb_masks",
    "download", "roboflow",
)  # fmt: skip
"""The last two are for the programs that wrote the file."""


class _Split(NamedTuple):
    """One split of a plan: its own entries, where paths start, and what messages call the plan."""

    name: str
    plan: Plan
    paths: dict[str, str]
    base: Path
    source: str
    title: str

    def why(self, key: str) -> str:
        return f'{self.name}.{key} of "{self.source}" names it'

    def images(self) -> tuple[Images, tuple[Problem, ...]]:
        """The images, those of the list if there is one."""
        images = find(self.base, self.paths["images"], self.why("images"))
        return choose(images, self.base / self.paths["list"]) if self.listed else (images, ())

    @property
    def listed(self) -> bool:
        return "list" in self.paths


def open_yaml(file: Path, split: str) -> FolderDataset:
    """The data set of a `data.yaml`. What is wrong with the file is a ValueError that names it."""
    plan = _read(file)
    if plan.get(split) is None:
        there = ", ".join(yaml_splits(file)) or "no split at all"
        raise ValueError(f'"{file}" has no "{split}" split: it has {there}')
    return open_plan(plan, split, str(file), file.resolve().parent.name, file.parent)


def open_plan(plan: Plan, split: str, source: str, title: str, base: Path) -> FolderDataset:
    """The data set of that title as a plan describes it, whose paths start at ``base``.

    What is wrong with it is a ValueError that names the source of the plan.
    """
    try:
        paths, base = _paths(plan, split, base)
        part = _Split(split, plan, paths, base, source, title)
        return _KINDS[_kind(part)][1](part)
    except (ValueError, RuntimeError) as error:  # The latter of a home that is not known.
        start = "" if source in str(error) else f'"{source}": '
        raise ValueError(start + shorten(str(error), 900)) from error


def yaml_splits(file: Path) -> tuple[str, ...]:
    """The splits a `data.yaml` describes."""
    plan = _read(file)
    return tuple(split for split in SPLITS if plan.get(split) is not None)


def _read(file: Path) -> Plan:
    plan = read_yaml(file, most=2**24)  # Lists may be long.
    if not isinstance(plan, dict):
        raise ValueError(f'"{file}" holds no description of data: it needs train, val and classes')
    check_keys(plan, _KEYS, f'"{file}": ')
    return plan


def _paths(plan: Plan, split: str, base: Path) -> tuple[dict[str, str], Path]:
    """What a split says of its files, and where its paths start."""
    paths, root = plan[split], plan.get("path", ".")
    if isinstance(paths, str):  # As YOLO has it.
        paths = {"images": paths, "labels": labels_beside(paths)}
    if not isinstance(paths, dict):
        example = f"{split}: {{images: images/{split}, masks: masks/{split}}}"
        raise wrong(split, paths, f"must name its folders, as in {example}")
    known = {key: None for keys, _ in _KINDS.values() for key in keys}
    check_keys(paths, tuple(known), where=f"{split}.")
    for key, path in paths.items():
        if not isinstance(path, str) or not 1 <= len(path) <= _LONGEST_PATH:
            raise wrong(f"{split}.{key}", path, "must be a folder, a file or a glob")
    if not isinstance(root, str) or len(root) > _LONGEST_PATH:
        raise wrong("path", root, "must be a folder")
    base = base / Path(root).expanduser()
    # Roboflow writes paths from a folder below the file's.
    if paths.get("images", "").startswith("../") and not (base / paths["images"]).exists():
        below = {key: path.removeprefix("../") for key, path in paths.items()}
        paths = below if (base / below["images"]).is_dir() else paths
    return paths, base


def _kind(part: _Split) -> str:
    """How the labels of a split lie."""
    given = [kind for kind in _KINDS if kind in part.paths and kind != "list"]
    given = given or [kind for kind in ("list",) if set(part.paths) == {kind}]
    if len(given) != 1:
        must = "must have images and one of masks, labels and coco; or hf; or a list alone"
        raise wrong(part.name, part.paths, must)
    kind = given[0]
    keys, _ = _KINDS[kind]
    if "images" in keys and "images" not in part.paths:
        raise ValueError(f"{part.name} has {kind}, and images are missing: name their folder")
    if odd := [key for key in part.paths if key not in keys]:
        raise ValueError(f"{part.name}.{odd[0]} does not go with {part.name}.{kind}")
    return kind


def _open_masks(part: _Split) -> FolderDataset:
    class_set, code = read_classes(part.plan)
    images, missing = part.images()
    where = part.base, images, part.paths["masks"], part.why("masks")
    pairs, problems = pair_masks(*where, part.listed)
    return FolderDataset(part.title, part.name, class_set, code, pairs, missing + problems)


def _open_list(part: _Split) -> FolderDataset:
    class_set, code = read_classes(part.plan)
    pairs = list_pairs(part.base, part.base / part.paths["list"])
    return FolderDataset(part.title, part.name, class_set, code, *pairs)


def _open_labels(part: _Split) -> FolderDataset:
    class_set, code = read_classes(part.plan, drawn=True)
    if part.paths["images"].endswith(".txt"):  # A list of files, as YOLO may have it.
        file = part.base / part.paths["images"]
        pairs, problems = list_pairs(file.parent, file, label_file)
    else:
        images, missing = part.images()
        where = images, part.base, part.paths["labels"], part.why("labels")
        pairs, problems = pair_labels(*where, part.listed)
        problems = missing + problems
    return YoloDataset(part.title, part.name, class_set, code, pairs, problems)


def _open_coco(part: _Split) -> FolderDataset:
    annotations = read_annotations(part.base / part.paths["coco"])
    class_set, code = read_classes(part.plan, annotations.categories, drawn=True)
    folder = subfolder(part.base, part.paths["images"], part.why("images"))
    images, entries, missing = pair_images(annotations, folder)
    if part.listed:
        images, missing = choose(images, part.base / part.paths["list"])
    pairs, problems = pair_files(images, {name: [annotations.file] for name in images})
    labels = tuple(entries[pair.name] for pair in pairs)
    return CocoDataset(part.title, part.name, class_set, code, pairs, missing + problems, labels)


def _open_table(part: _Split) -> FolderDataset:
    class_set, code = read_classes(part.plan)
    columns = part.paths.get("image", "image"), part.paths.get("label", "label")
    folder = subfolder(part.base, part.paths["hf"], part.why("hf"))
    tables = open_table(folder, part.name, columns, part.listed)
    rows: Sequence[int] = range(len(tables[0]))
    missing: tuple[Problem, ...] = ()
    if part.listed:
        names: Images = {row_name(row): [] for row in rows}
        chosen, missing = choose(names, part.base / part.paths["list"])
        rows = [int(name) for name in chosen]
    return HubDataset(part.title, part.name, class_set, code, (), missing, tables, columns, rows)


_KINDS: dict[str, tuple[tuple[str, ...], Callable[[_Split], FolderDataset]]] = {
    "masks": (("images", "masks", "list"), _open_masks),
    "labels": (("images", "labels", "list"), _open_labels),
    "coco": (("images", "coco", "list"), _open_coco),
    "hf": (("hf", "image", "label", "list"), _open_table),
    "list": (("list",), _open_list),
}
"""The keys that a split may have and what opens it, by the key that says how its labels lie."""
