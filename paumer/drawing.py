"""Images with their labels: mixed, given a legend, laid out on a sheet, written.

Needs numpy and Pillow only.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from paumer.classes import ClassSet, Colour, Pixels
from paumer.disk import replace_file

Entry = tuple[str, float, Colour | None]
"""One class in a legend: its name, its ratio of the pixels (0-1) and its colour (None: hollow)."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_PAPER = (249, 249, 247)
_INK = (38, 40, 44)
_FADED = (118, 122, 128)
_LINE = (214, 214, 210)
_MARGIN, _GAP, _SWATCH, _WIDTH = 20, 16, 16, 240
_STRIP = 64
_LARGE = 2**21  # Pixels above which a PNG is packed quickly instead of tightly.
_USUAL = 480 * 360  # Pixels of an image beside which all of these lengths are right.


def overlay(image: Pixels, painted: Pixels, alpha: float = 0.5) -> Pixels:
    """The image under its painted labels: 0 shows the image alone, 1 the labels alone."""
    if image.shape != painted.shape:
        raise ValueError(
            f"cannot lay labels of {painted.shape[1]}x{painted.shape[0]} over an image of "
            f"{image.shape[1]}x{image.shape[0]}: both must have the same size"
        )
    if not 0 <= alpha <= 1:
        raise ValueError(f"cannot mix with alpha {alpha}: it goes from 0 to 1")
    below = np.arange(256, dtype=np.float32) * (1 - alpha)
    above = np.arange(256, dtype=np.float32) * alpha
    mixed = np.empty_like(image)
    for top in range(0, len(image), _STRIP):  # What is computed with takes four times the memory.
        rows = slice(top, top + _STRIP)
        mixed[rows] = below[image[rows]] + above[painted[rows]] + 0.5
    return mixed


def with_legend(image: Pixels | Image.Image, entries: Sequence[Entry]) -> Image.Image:
    """The image with a legend below, read down the columns, of which there are as many as fit.

    The legend grows with a large image; a tiny image grows so that it can be seen beside it.
    """
    image = _as_image(image)
    if (times := _WIDTH // max(image.size)) > 1:
        image = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    unit = max(1.0, math.sqrt(image.width * image.height / _USUAL))
    return _with_legend(image, entries, unit)


def legend(maps: Iterable[NDArray[np.integer]], class_set: ClassSet) -> list[Entry]:
    """The classes that label maps show, with their ratios of the pixels; ignored ones are last."""
    found = [np.bincount(labels.ravel(), minlength=256) for labels in maps]
    shares = (np.sum(found, axis=0) / np.sum(found)).tolist()
    listed = [*zip(class_set.names, shares, class_set.colours, strict=False)]
    listed.append(("(ignored)", sum(shares[len(class_set) :]), (0, 0, 0)))
    return [entry for entry in listed if entry[1] > 0]


def _with_legend(image: Image.Image, entries: Sequence[Entry], unit: float) -> Image.Image:
    margin, gap, swatch, line = (round(unit * length) for length in (_MARGIN, _GAP, _SWATCH, 26))
    names, texts = [name for name, _, _ in entries], [f"{share:.1%}" for _, share, _ in entries]
    font = _font(round(14 * unit))
    fitting = (image.width + gap) // (_entry_width(font, unit, names, ["100.0%"]) + gap)
    columns = max(1, min(fitting, len(names)))
    rows = -(-len(names) // columns)
    entry = _entry_width(font, unit, names, texts)
    width = max(image.width, columns * (entry + gap) - gap) + 2 * margin
    top = margin + image.height + gap
    sheet = Image.new("RGB", (width, top + max(1, rows * line) + margin), _PAPER)
    sheet.paste(image, (margin, margin))
    draw, thin = ImageDraw.Draw(sheet), round(unit)
    for i, (name, share, colour) in enumerate(entries):
        x, y = margin + i // rows * (entry + gap), top + i % rows * line + line // 2
        box = (x, y - swatch // 2, x + swatch, y + swatch // 2)
        edge = _LINE if colour else _INK
        draw.rounded_rectangle(box, 3 * thin, colour, edge, thin)
        draw.text((x + swatch + round(8 * unit), y), name, _INK, font, anchor="lm")
        draw.text((x + entry, y), f"{share:.1%}", _FADED, font, anchor="rm")
    return sheet


def contact_sheet(
    pairs: Sequence[tuple[Pixels, Pixels | None]],
    columns: int = 3,
    captions: Sequence[str] = (),
    entries: Sequence[Entry] = (),
) -> Image.Image:
    """Images on one sheet, each beside its painted labels if it has any; a legend of `entries`."""
    if not pairs:
        raise ValueError("cannot lay out 0 images: give at least one")
    images = [_as_image(image) for image, _ in pairs]
    heights = [max(1, round(_WIDTH * image.height / image.width)) for image in images]
    cell = _WIDTH if all(painted is None for _, painted in pairs) else 2 * _WIDTH + 4
    across, down = cell + _GAP, max(heights) + (24 if captions else 0) + _GAP
    columns = min(columns, len(pairs))
    rows = -(-len(pairs) // columns)
    edge = 2 * _MARGIN - _GAP
    sheet = Image.new("RGB", (columns * across + edge, rows * down + edge), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, (image, height, (_, painted)) in enumerate(zip(images, heights, pairs, strict=True)):
        x, y = _MARGIN + i % columns * across, _MARGIN + i // columns * down
        size = (_WIDTH, height)
        sheet.paste(image.resize(size, Image.Resampling.LANCZOS), (x, y))
        if painted is not None:
            small = _as_image(painted).resize(size, Image.Resampling.NEAREST)
            sheet.paste(small, (x + _WIDTH + 4, y))
        if captions:
            text = _shorten(captions[i], cell)
            draw.text((x, y + height + 15), text, _INK, _font(13), anchor="lm")
    inner = (_MARGIN, _MARGIN, sheet.width - _MARGIN, sheet.height - _MARGIN)
    return _with_legend(sheet.crop(inner), entries, 1.0) if entries else sheet


def write_image(path: str | Path, image: Pixels | Image.Image) -> None:
    """Write a PNG, JPEG or WebP file by its suffix, complete or not at all; folders are made."""
    path = Path(path)
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(
            f'cannot write "{path}": "{path.suffix}" is not a known kind of image. '
            f"Use one of {', '.join(_FORMATS)}"
        )
    content = encode(image, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def encode(image: Pixels | Image.Image, kind: str = "PNG", **options: int) -> bytes:
    """The content of an image file of that kind."""
    options = {"quality": 92, **options}  # PNG, which loses nothing, takes no notice.
    image, memory = _as_image(image), BytesIO()
    if kind == "JPEG" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    if kind == "PNG" and image.width * image.height > _LARGE:
        options = {"compress_level": 1, **options}
    image.save(memory, kind, **options)
    return memory.getvalue()


def mask_image(labels: NDArray[np.integer], class_set: ClassSet) -> Image.Image:
    """Labels as a palette image: it holds the class ids and shows the class colours."""
    if labels.size and not 0 <= labels.min() <= labels.max() <= 255:
        raise ValueError(
            f"cannot make a mask of labels from {labels.min()} to {labels.max()}: "
            f"a palette holds 0 to 255"
        )
    mask = _as_image(np.ascontiguousarray(labels, np.uint8))
    palette = np.array(class_set.colours, np.uint8)[:256].tobytes()
    mask.putpalette(palette.ljust(3 * 256, b"\0"))
    return mask


def _as_image(image: Pixels | Image.Image) -> Image.Image:
    width, height = image.size if isinstance(image, Image.Image) else image.shape[1::-1]
    if not width * height:
        raise ValueError(f"an image of {width}x{height} was given: it has no pixels")
    return image if isinstance(image, Image.Image) else Image.fromarray(image)


@cache
def _font(size: int) -> Font:
    return ImageFont.load_default(size)


def _entry_width(font: Font, unit: float, names: Sequence[str], texts: Sequence[str]) -> int:
    name, text = (max(map(font.getlength, column), default=0) for column in (names, texts))
    return int(unit * (_SWATCH + 8 + 14) + name + text) + 1


def _shorten(text: str, width: int) -> str:
    font = _font(13)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
