"""Labels as COCO has them: one JSON file with the outlines of all objects, polygons or runs."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paumer.data.class_plan import is_id
from paumer.data.folders import FolderDataset, Size, SizeError, Value
from paumer.data.listing import Images, without_suffix
from paumer.data.polygons import Shape, draw, read_runs
from paumer.data.samples import Problem
from paumer.untrusted import quoted, read_json

LARGEST_FILE = 2**30
"""Bytes of an annotation file: COCO's own have at most half of that."""


class _Image(NamedTuple):
    name: str
    size: Size | None
    shapes: list[Shape]


class Annotations(NamedTuple):
    """What an annotation file says: the names of its ids, and the outlines of each image."""

    file: Path
    categories: dict[int, str]
    images: dict[int, _Image]


@dataclass(eq=False, repr=False)
class CocoDataset(FolderDataset):
    """Images with the outlines of one annotation file."""

    labels: tuple[_Image, ...] = field(repr=False, default=())
    drawn: ClassVar[bool] = True

    def read_mask(self, index: int, size: Size) -> tuple[NDArray[np.uint8], dict[Value, int]]:
        """The labels of an image; of another size than the annotations say, a SizeError."""
        entry, file = self.labels[index], self.pairs[index].mask
        if entry.size not in (None, size):
            height, width = entry.size
            raise SizeError(
                f'"{file}" says that "{entry.name}" is {width}x{height}, but it is '
                f"{size[1]}x{size[0]}: they must have the same size"
            )
        return self.code.read_drawn(draw(entry.shapes, size, f'"{entry.name}" in "{file}"'))


def read_annotations(file: Path) -> Annotations:
    """The content of an annotation file of at most 1 GB; the last one read is kept."""
    if not file.is_file():
        raise ValueError(f'there is no annotation file "{file}"')
    status = file.stat()
    return _read(file, status.st_mtime_ns, status.st_size)


def pair_images(
    annotations: Annotations, folder: Path
) -> tuple[Images, dict[str, _Image], tuple[Problem, ...]]:
    """The files of the images below a folder, what is known of each, and those that are missing."""
    images: Images = {}
    entries: dict[str, _Image] = {}
    problems = []
    for entry in annotations.images.values():
        path, name = folder / entry.name, without_suffix(entry.name)
        if path.is_file():
            images.setdefault(name, []).append(path)
            entries[name] = entry
        else:
            text = f'the image "{path}" of "{annotations.file}" is missing'
            problems.append(Problem(str(path), "missing image", text))
    return images, entries, tuple(problems)


@lru_cache(maxsize=1)  # The splits of a data set may be lists over one large file.
def _read(file: Path, changed: int, size: int) -> Annotations:
    content = read_json(file, LARGEST_FILE)
    try:
        categories: dict[int, str] = {}
        for entry in _list(content, "categories"):
            value, name = entry.get("id"), entry.get("name")
            if not is_id(value) or not isinstance(name, str) or not 1 <= len(name) <= 200:
                raise ValueError(f"the category {quoted(entry)} needs an id and a name")
            categories[int(value or 0)] = name
        images = {}
        for entry in _list(content, "images"):
            images[_key(entry, "id")] = _image(entry)
        boxes = 0
        annotations = _list(content, "annotations")
        for entry in annotations:
            if not entry.get("segmentation"):
                boxes += 1
            elif (image := images.get(_key(entry, "image_id"))) is not None:
                image.shapes.append(_shape(entry))
        if boxes and boxes == len(annotations):
            raise ValueError("it has boxes alone, and segmentation needs polygons or runs")
    except ValueError as error:
        raise ValueError(f'cannot use "{file}": {error}') from error
    return Annotations(file, categories, images)


def _list(content: dict[str, object], key: str) -> list[dict[str, Any]]:
    given = content.get(key)
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise ValueError(f'"{key}" must be a list of objects, as COCO has it')
    return given


def _key(entry: dict[str, Any], key: str) -> Any:
    value = entry.get(key)
    if type(value) not in (int, str):
        raise ValueError(f'{quoted(entry)} needs a number as its "{key}"')
    return value


def _image(entry: dict[str, Any]) -> _Image:
    name, size = entry.get("file_name"), (entry.get("height"), entry.get("width"))
    if not isinstance(name, str) or not 1 <= len(name) <= 4096:
        raise ValueError(f"the image {quoted(entry)} needs a file_name")
    height, width = size
    if type(height) is int and type(width) is int:
        return _Image(name, (height, width), [])
    return _Image(name, None, [])


def _shape(entry: dict[str, Any]) -> Shape:
    """The outline of an annotation. A polygon of fewer than three corners covers nothing."""
    value, outline = entry.get("category_id"), entry["segmentation"]
    if not is_id(value):
        raise ValueError(f"{_called(entry)} has the category_id {quoted(value)}")
    assert isinstance(value, int)
    try:
        if isinstance(outline, list):
            with np.errstate(over="ignore"):  # Drawing refuses what is infinite.
                points = [np.asarray(polygon, np.float32).reshape(-1, 2) for polygon in outline]
            return Shape(value, tuple(polygon for polygon in points if len(polygon) >= 3))
        if isinstance(outline, dict):
            height, width = outline.get("size", (0, 0))
            return Shape(value, runs=read_runs(outline.get("counts")), size=(height, width))
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{_called(entry)} cannot be drawn: {error}") from error
    raise ValueError(f"{_called(entry)} must have polygons or runs, and has {quoted(outline)}")


def _called(entry: dict[str, Any]) -> str:
    return f"annotation {quoted(entry.get('id'))}"
