"""A folder of unknown layout: recognised, described by a `data.yaml`, shown on a sheet."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from paumer.data.checking import list_splits, sample_sheet
from paumer.data.coco import read_annotations
from paumer.data.datasets import published_plan
from paumer.data.hub import open_table, row_name
from paumer.data.images import SUFFIXES
from paumer.data.listing import find, pair_masks, read_list
from paumer.data.samples import SPLITS, Dataset
from paumer.data.survey import Root, marked_masks, match, scan, split_of, survey_masks
from paumer.data.yolo import labels_beside, read_polygons
from paumer.disk import replace_file
from paumer.drawing import encode
from paumer.untrusted import read_json

SHEET = "data-sheet.png"
_EVERY = 5
_MOST_LABELS = 200


@dataclass(frozen=True)
class Layout:
    """What a folder was recognised as: its plan, what was assumed, and lists to write beside it."""

    title: str
    plan: dict[str, Any]
    assumed: list[str] = field(default_factory=list)
    lists: dict[str, list[str]] = field(default_factory=dict)


def recognise(folder: Path) -> Layout:
    """What the folder is, from the names in it and from some of its labels."""
    if not folder.is_dir():
        raise ValueError(f'"{folder}" is not a folder')
    roots = scan(folder)
    for look in (_published, _table, _coco, partial(_yolo, roots), partial(_masks, roots)):
        if found := look(folder):
            return found
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
    keys = {"hf": ".", "image": columns[0], "label": columns[1]}
    _, table = open_table(folder, splits[0], (columns[0], columns[1]))
    rows = (table[n][columns[1]] for n in range(min(len(table), _MOST_LABELS)))
    classes, notes = survey_masks(row["bytes"] or Path(row["path"]) for row in rows)
    note = f'images are the column "{columns[0]}", masks "{columns[1]}"'
    names = [row_name(n) for n in range(len(table))]
    plan, lists = _with_val({split: dict(keys) for split in splits}, names)
    notes = [note, *notes, *_list_note(lists)]
    return Layout("a table of Hugging Face datasets", plan | classes, notes, lists)


def _coco(folder: Path) -> Layout | None:
    """Annotation files of COCO, in the folder or one below."""
    files = sorted([*folder.glob("*.json"), *folder.glob("*/*.json")])
    files = [f for f in files if f.name.startswith("instances")] or files
    plan: dict[str, Any] = {}
    names: list[str] = []
    places = [Path(), *(p.relative_to(folder) for g in ("*", "*/*") for p in folder.glob(g))]
    for file in files:
        with suppress(ValueError):
            found = read_annotations(file)
            name = next(iter(found.images.values())).name if found.images else ""
            near = [file.parent.relative_to(folder), *sorted(p for p in places if p != Path())]
            images = next((p for p in (*near, Path()) if (folder / p / name).is_file()), None)
            split = split_of(file.stem) or split_of(file.parent.name)
            if not name or images is None or (split or "train") in plan:
                continue
            keys = {"images": images.as_posix(), "coco": file.relative_to(folder).as_posix()}
            plan[split or "train"] = keys
            if (split or "train") == "train":
                names = [image.name for image in found.images.values()]
    if not plan:
        return None
    note = "pixels that no outline covers are a class of their own, background"
    plan, lists = _with_val(plan, names)
    notes = [note, *_list_note(lists)]
    return Layout("COCO annotations", {**plan, "background": "background"}, notes, lists)


def _yolo(roots: list[Root], folder: Path) -> Layout | None:
    """Images with YOLO's text files beside them."""
    found = [r for r in roots if any((folder / labels_beside(r.path)).glob("**/*.txt"))]
    found = [r for r in found if "images" in Path(r.path).parts]
    if not found:
        return None
    pairs = {root.path: labels_beside(root.path) for root in found}
    files = [f for path in pairs.values() for f in sorted((folder / path).glob("**/*.txt"))]
    files = [file for file in files if file.name != "classes.txt"]
    if not files:
        return None
    highest = max(
        (shape.id for file in files[:_MOST_LABELS] for shape in read_polygons(file, (1, 1))),
        default=0,
    )
    lists = [folder / "classes.txt", *(folder / path / "classes.txt" for path in pairs.values())]
    given = next((read_list(file) for file in lists if file.is_file()), [])
    names = given or [f"class {n}" for n in range(highest + 1)]
    notes = ["pixels that no polygon covers are a class of their own, background"]
    if not given:
        notes.append("classes are named after their numbers: give them their names")
    entries = [(r, {"images": r.path, "labels": pairs[r.path]}) for r in found]
    plan, split_lists = _splits(entries)
    plan |= {"names": names, "background": "background"}
    return Layout("YOLO polygons", plan, notes + _list_note(split_lists), split_lists)


def _masks(roots: list[Root], folder: Path) -> Layout | None:
    """Images with masks in folders beside them, or among them."""
    entries: list[tuple[Root, dict[str, str]]] = []
    files: list[Path] = []
    for root in [root for root in roots if not root.mask]:
        others = [r for r in roots if r.mask and r.split == root.split]
        found = max((match(root, other) for other in others), key=lambda m: m.hits, default=None)
        if found and found.hits:
            entries.append((replace(root, files=found.names), found.plan))
            files += _mask_files(folder, found.plan)
        elif marked := marked_masks(root):
            pattern, names = marked
            stems = root.stems()
            files += [folder / root.path / stems[name] for name in sorted(names)]
            rest = [stems[name] for name in stems if name not in names]
            entries.append((replace(root, files=rest), {"images": root.path, "masks": pattern}))
    if not entries:
        return None
    classes, notes = survey_masks(files)
    if (folder / "classes.txt").is_file() and isinstance(classes["classes"], list):
        names_given = read_list(folder / "classes.txt")
        if len(names_given) >= len(classes["classes"]):
            classes["classes"], notes = names_given, [*notes[:-1], "classes.txt names the classes"]
    plan, lists = _splits(entries)
    return Layout("images with masks", plan | classes, notes + _list_note(lists), lists)


def _mask_files(folder: Path, plan: dict[str, str]) -> list[Path]:
    images = find(folder, plan["images"], "images")
    pairs, _ = pair_masks(folder, images, plan["masks"], "masks", listed=True)
    return [pair.mask for pair in pairs]


def _splits(
    entries: list[tuple[Root, dict[str, str]]],
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The splits of a plan; where no name speaks of one, by lists."""
    plan: dict[str, Any] = {}
    for root, keys in sorted(entries, key=lambda entry: -len(entry[0].files)):
        if root.split:
            plan.setdefault(root.split, keys)
    if not plan:
        _, plan["train"] = max(entries, key=lambda entry: len(entry[0].files))
    files = [root.files for root, keys in entries if keys is plan.get("train")]
    return _with_val(plan, files[0] if files else [])


def _with_val(
    plan: dict[str, Any], files: list[str]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The splits of a plan in their order; where none is for validation, by lists of names."""
    lists = _halves(files) if "train" in plan and "val" not in plan else {}
    if lists:
        plan |= {part: plan["train"] | {"list": f"{part}.txt"} for part in ("train", "val")}
    return {split: plan[split] for split in SPLITS if split in plan}, lists


def _halves(files: list[str]) -> dict[str, list[str]]:
    """Every fifth image for validation, the others for training; of one image both."""
    names = sorted(files)
    val = names[_EVERY - 1 :: _EVERY] or names[-1:]
    train = [name for name in names if name not in set(val)] or names
    return {"train.txt": train, "val.txt": val}


def _list_note(lists: dict[str, list[str]]) -> list[str]:
    return ["no split is for validation: every fifth image is, by lists"] if lists else []
