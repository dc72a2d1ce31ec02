"""A folder of unknown layout: recognised, described by a `data.yaml`, shown on a sheet."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from paumer.data.checking import list_splits, sample_sheet
from paumer.data.coco import read_annotations
from paumer.data.hub import open_table, row_name
from paumer.data.images import SUFFIXES
from paumer.data.listing import (
    Images,
    choose,
    find,
    list_pairs,
    pair_masks,
    read_list,
    without_suffix,
)
from paumer.data.published import published_plan
from paumer.data.samples import SPLITS, Dataset
from paumer.data.survey import (
    PAINTED,
    Root,
    common,
    marked_masks,
    match,
    scan,
    split_of,
    survey_masks,
)
from paumer.data.yolo import label_files, labels_beside, read_polygons
from paumer.disk import replace_file
from paumer.drawing import encode
from paumer.untrusted import read_json

SHEET = "data-sheet.png"
_EVERY = 5
_MOST_LABELS = 200


@dataclass(frozen=True)
class Layout:
    """What a folder was recognised as: its plan, what was assumed, and lists to write beside it.

    `names` are those of the training images.
    """

    title: str
    plan: dict[str, Any]
    assumed: list[str] = field(default_factory=list)
    names: Sequence[str] = ()
    lists: dict[str, list[str]] = field(default_factory=dict)


def recognise(folder: Path) -> Layout:
    """What the folder is, from the names in it and from some of its labels."""
    if not folder.is_dir():
        raise ValueError(f'"{folder}" is not a folder')
    roots = scan(folder)
    looks = (_published, _table, _coco, _pairs, partial(_yolo, roots), partial(_masks, roots))
    for look in looks:
        try:
            found = look(folder)
        except ValueError as error:
            raise ValueError(f'cannot describe "{folder}": {error}') from error
        if found:
            return _with_val(folder, found)
    if not roots:
        raise ValueError(f'"{folder}" holds no images (known are {" ".join(SUFFIXES)})')
    count = sum(len(root.files) for root in roots)
    raise ValueError(
        f'"{folder}" holds {count} images, and beside them no masks, YOLO labels, COCO annotations '
        f"or saved table were recognised. Write a data.yaml as docs/data.md describes it"
    )


def init_data(folder: Path) -> tuple[Layout, list[Dataset]]:
    """Recognise a folder and write its `data.yaml`, lists if it needs some, and a sheet.

    Nothing is overwritten. The splits as they are listed now come with it.
    """
    file = folder / "data.yaml"
    if file.exists():
        raise ValueError(
            f'"{file}" exists and is not overwritten: check it with `paumer check-data {file}`, '
            f"or move it away first"
        )
    layout = recognise(folder)
    written = {folder / name: "\n".join(lines) + "\n" for name, lines in layout.lists.items()}
    notes = "".join(f"# Assumed: {note}.\n" for note in layout.assumed)
    text = yaml.safe_dump(layout.plan, sort_keys=False, allow_unicode=True, default_flow_style=None)
    written[file] = f"# {layout.title}, as `paumer data init` found it.\n{notes}{text}"
    if taken := [path for path in (*written, folder / SHEET) if path.exists()]:
        raise ValueError(f'"{taken[0]}" exists and is not overwritten: move it away first')
    try:
        for path, content in written.items():
            replace_file(path, content.encode())
        datasets = list_splits(str(file))
        if (sheet := sample_sheet(datasets[0])) is not None:
            replace_file(folder / SHEET, encode(sheet))
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return layout, datasets


def _published(folder: Path) -> Layout | None:
    if (found := published_plan(folder)) is None:
        return None
    title, plan = found
    return Layout(title, plan, [f"the folders are named as those of {title}, with its classes"])


def _table(folder: Path) -> Layout | None:
    """A data set that `save_to_disk` of Hugging Face's `datasets` wrote."""
    if (folder / "dataset_dict.json").is_file():
        given = read_json(folder / "dataset_dict.json").get("splits")
        parts = [str(name) for name in given] if isinstance(given, list) else []
    elif (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        parts = ["."]
    else:
        return None
    infos = [read_json(folder / part / "dataset_info.json") for part in parts]
    features = infos[0].get("features") if infos else None
    kinds = features.items() if isinstance(features, dict) else ()
    columns = [n for n, kind in kinds if isinstance(kind, dict) and kind.get("_type") == "Image"]
    if len(columns) < 2:
        raise ValueError(f'"{folder}" needs a column of images and one of masks: it has {columns}')
    splits = [s for part in parts if (s := split_of(part) or ("train" if part == "." else None))]
    if not splits:
        raise ValueError(f'"{folder}" has the splits {", ".join(parts)}: call one of them train')
    keys = {"hf": ".", "image": columns[0], "label": columns[1]}
    _, table = open_table(folder, splits[0], (columns[0], columns[1]))
    rows = (table[n][columns[1]] for n in range(min(len(table), _MOST_LABELS)))
    classes, notes = survey_masks(row["bytes"] or Path(row["path"]) for row in rows if row)
    note = f'images are the column "{columns[0]}", masks "{columns[1]}"'
    plan = {split: dict(keys) for split in splits} | classes
    names = [row_name(n) for n in range(len(table))]
    return Layout("a table of Hugging Face datasets", plan, [note, *notes], names)


def _coco(folder: Path) -> Layout | None:
    """Annotation files of COCO, in the folder or one below."""
    files = sorted([*folder.glob("*.json"), *folder.glob("*/*.json")])
    folders = [p.relative_to(folder) for g in ("*/", "*/*/") for p in sorted(folder.glob(g))]
    plan: dict[str, Any] = {}
    names: list[str] = []
    for file in [file for file in files if file.name.startswith("instances")] or files:
        split = split_of(file.stem) or split_of(file.parent.name) or "train"
        beside = file.parent.relative_to(folder)
        with suppress(ValueError):
            found = [image.name for image in read_annotations(file).images.values()]
            near = (p for p in (beside, *folders, Path()) if (folder / p / found[0]).is_file())
            if found and split not in plan and (images := next(near, None)):
                keys = {"images": images.as_posix(), "coco": file.relative_to(folder).as_posix()}
                plan[split], names = keys, found if split == "train" else names
    if not plan:
        return None
    note = "pixels that no outline covers are a class of their own, background"
    return Layout("COCO annotations", plan | {"background": "background"}, [note], names)


def _pairs(folder: Path) -> Layout | None:
    """Lists whose lines are an image and its mask."""
    plan: dict[str, Any] = {}
    masks: list[Path] = []
    for split in SPLITS:
        with suppress(ValueError):
            pairs, _ = list_pairs(folder, folder / f"{split}.txt")
            if pairs:
                plan[split] = {"list": f"{split}.txt"}
                masks += [pair.mask for pair in pairs]
    if "train" not in plan:
        return None
    classes, notes = survey_masks(masks)
    return Layout("lists of images and masks", plan | classes, notes)


def _yolo(roots: list[Root], folder: Path) -> Layout | None:
    """Images with YOLO's text files beside them."""
    images = [root for root in roots if "images" in Path(root.path).parts]
    entries = [(root, {"images": root.path, "labels": labels_beside(root.path)}) for root in images]
    below = {root.path: label_files(folder / keys["labels"]) for root, keys in entries}
    files = [file for found in below.values() for file in found]
    if not files:
        return None
    entries = [(root, keys) for root, keys in entries if below[root.path]]
    highest = max(
        (shape.id for file in files[:_MOST_LABELS] for shape in read_polygons(file, (1, 1))),
        default=0,
    )
    lists = [folder / place / "classes.txt" for place in (".", *(k["labels"] for _, k in entries))]
    given = next((read_list(file) for file in lists if file.is_file()), [])
    notes = ["pixels that no polygon covers are a class of their own, background"]
    if not given:
        notes.append("classes are named after their numbers: give them their names")
    plan, names, left = _splits(entries)
    plan["names"] = given or [f"class {n}" for n in range(highest + 1)]
    return Layout("YOLO polygons", plan | {"background": "background"}, notes + left, names)


def _masks(roots: list[Root], folder: Path) -> Layout | None:
    """Images with masks in folders beside them, or among them."""
    entries: list[tuple[Root, dict[str, str]]] = []
    files: list[Path] = []
    for root in [root for root in roots if not root.mask]:
        others = [r for r in roots if r.mask and r.split == root.split]
        # The nearest first, and what is there to be looked at last.
        others.sort(key=lambda r: (bool(PAINTED.search(r.path)), -common(root.path, r.path)))
        found = max((match(root, other) for other in others), key=lambda m: m.hits, default=None)
        if found and found.hits:
            entries.append((replace(root, files=found.names), found.plan))
            files += _mask_files(folder, found.plan)
        elif marked := marked_masks(root):
            pattern, masks = marked
            stems = root.stems()
            files += [folder / root.path / stems[name] for name in sorted(masks)]
            rest = [stems[name] for name in stems if name not in masks]
            entries.append((replace(root, files=rest), {"images": root.path, "masks": pattern}))
    if not entries:
        return None
    classes, notes = survey_masks(files)
    if (folder / "classes.txt").is_file() and isinstance(classes["classes"], list):
        given = read_list(folder / "classes.txt")
        if len(given) >= len(classes["classes"]):
            classes["classes"], notes = given, [*notes[:-1], "classes.txt names the classes"]
    plan, names, left = _splits(entries)
    return Layout("images with masks", plan | classes, notes + left, names)


def _mask_files(folder: Path, plan: dict[str, str]) -> list[Path]:
    images = find(folder, plan["images"], "images")
    pairs, _ = pair_masks(folder, images, plan["masks"], "masks", listed=True)
    return [pair.mask for pair in pairs]


def _splits(
    entries: list[tuple[Root, dict[str, str]]],
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The splits of a plan, the names of the training images, and a note on folders left out."""
    entries = sorted(entries, key=lambda entry: -len(entry[0].files))
    if not any(root.split for root, _ in entries):
        entries = [(replace(root, split="train"), keys) for root, keys in entries]
    plan: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    left = []
    for root, keys in entries:
        if root.split is None or root.split in plan:
            left.append(root.path)
        else:
            plan[root.split], names[root.split] = keys, root.files
    note = f"a split has one folder of images, so these are left out: {', '.join(left)}"
    return plan, names.get("train", []), [note] if left else []


def _with_val(folder: Path, layout: Layout) -> Layout:
    """The layout with its splits in order; with lists of names where none is for validation."""
    splits = {split: layout.plan[split] for split in SPLITS if split in layout.plan}
    rest = {key: value for key, value in layout.plan.items() if key not in splits}
    if not layout.names or "val" in splits:
        return replace(layout, plan=splits | rest)
    lists: dict[str, list[str]] = {}
    if files := _own_lists(folder, layout.names):
        note = f"{' and '.join(files.values())} say which image is of which split"
    else:
        lists, note = _halves(layout.names), "no split is for validation: every fifth image is"
        files = {part: f"{part}.txt" for part in ("train", "val")}
    splits = {split: splits["train"] | {"list": file} for split, file in files.items()} | {
        split: keys for split, keys in splits.items() if split not in files
    }
    return replace(layout, plan=splits | rest, assumed=[*layout.assumed, note], lists=lists)


def _own_lists(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The lists in a folder, or up to two below, that name its images, by split."""
    images: Images = {without_suffix(name): [] for name in names}
    places = [f.parent for start in ("", "*/", "*/*/") for f in folder.glob(f"{start}train.txt")]
    for place in sorted(places, key=lambda place: ("segm" not in place.name.lower(), place)):
        found = {}
        for split in SPLITS:
            with suppress(ValueError):
                if choose(images, place / f"{split}.txt")[0]:
                    found[split] = (place / f"{split}.txt").relative_to(folder).as_posix()
        if {"train", "val"} <= found.keys():
            return found
    return {}


def _halves(files: Sequence[str]) -> dict[str, list[str]]:
    """Every fifth image for validation, the others for training; of one image both."""
    names = sorted(files)
    val = names[_EVERY - 1 :: _EVERY] or names[-1:]
    train = [name for name in names if name not in set(val)] or names
    return {"train.txt": train, "val.txt": val}
