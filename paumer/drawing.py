"""Images with their labels: mixed, given a legend, laid out on a sheet, written.

Needs numpy and Pillow only.
"""

from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from paumer.classes import ClassSet, Colour
from paumer.disk import replace_file

Picture = NDArray[np.uint8]

_WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", {}),
    ".jpg": ("JPEG", {"quality": 92}),
    ".jpeg": ("JPEG", {"quality": 92}),
    ".webp": ("WEBP", {"quality": 92}),
}
_PAPER = (249, 249, 247)
_INK = (38, 40, 44)
_FADED = (118, 122, 128)
_LINE = (214, 214, 210)
_MARGIN, _GAP, _SWATCH = 20, 16, 16


def overlay(image: Picture, painted: Picture, alpha: float = 0.5) -> Picture:
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
    return (below[image] + above[painted] + 0.5).astype(np.uint8)


def legend(
    names: Sequence[str],
    colours: Sequence[Colour],
    shares: Sequence[float] | None = None,
    columns: int = 1,
) -> Image.Image:
    """A swatch and a name per class, read down the columns, with its share of the pixels (0-1)."""
    if len(names) != len(colours) or (shares is not None and len(shares) != len(names)):
        raise ValueError(
            f"a legend needs as many names as colours and shares: {len(names)} names, "
            f"{len(colours)} colours, {'no' if shares is None else len(shares)} shares"
        )
    texts = [""] * len(names) if shares is None else [f"{share:.1%}" for share in shares]
    width, line = _entry_width(names, texts), 26
    columns = max(1, min(columns, len(names)))
    rows = -(-len(names) // columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) - _GAP, max(1, rows * line)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, (name, colour, text) in enumerate(zip(names, colours, texts, strict=True)):
        x, y = (i // rows) * (width + _GAP), (i % rows) * line + line // 2
        box = (x, y - _SWATCH // 2, x + _SWATCH, y + _SWATCH // 2)
        draw.rounded_rectangle(box, 3, tuple(colour), _LINE)
        draw.text((x + _SWATCH + 8, y), name, _INK, _font(14), anchor="lm")
        draw.text((x + width, y), text, _FADED, _font(14), anchor="rm")
    return sheet


def with_legend(
    picture: Picture | Image.Image,
    names: Sequence[str],
    colours: Sequence[Colour],
    shares: Sequence[float] | None = None,
) -> Image.Image:
    """The image with the legend of its classes below, in as many columns as fit."""
    image = _as_image(picture)
    texts = ["100.0%"] * len(names) if shares is not None else [""] * len(names)
    columns = max(1, (image.width + _GAP) // (_entry_width(names, texts) + _GAP))
    key = legend(names, colours, shares, columns)
    width = max(image.width, key.width) + 2 * _MARGIN
    sheet = Image.new("RGB", (width, image.height + key.height + _GAP + 2 * _MARGIN), _PAPER)
    sheet.paste(image, (_MARGIN, _MARGIN))
    sheet.paste(key, (_MARGIN, _MARGIN + image.height + _GAP))
    return sheet


def contact_sheet(
    pairs: Sequence[tuple[Picture, Picture | None]],
    columns: int = 3,
    captions: Sequence[str] | None = None,
    width: int = 240,
) -> Image.Image:
    """Images on one sheet, each beside its painted labels if it has any, `width` pixels wide."""
    if not pairs or columns < 1 or width < 16:
        raise ValueError(
            f"cannot lay out {len(pairs)} images of width {width} in {columns} columns: "
            f"give at least one image, one column and 16 pixels"
        )
    if captions is not None and len(captions) != len(pairs):
        raise ValueError(f"{len(captions)} captions for {len(pairs)} images: give one for each")
    columns = min(columns, len(pairs))
    rows = -(-len(pairs) // columns)
    tall = max(max(1, round(width * p.shape[0] / p.shape[1])) for p, _ in pairs)
    parts = 2 if any(painted is not None for _, painted in pairs) else 1
    cell = (parts * width + (parts - 1) * 4, tall + (24 if captions else 0))
    sheet = Image.new(
        "RGB",
        (
            2 * _MARGIN + columns * (cell[0] + _GAP) - _GAP,
            2 * _MARGIN + rows * (cell[1] + _GAP) - _GAP,
        ),
        _PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    for i, (picture, painted) in enumerate(pairs):
        x = _MARGIN + i % columns * (cell[0] + _GAP)
        y = _MARGIN + i // columns * (cell[1] + _GAP)
        size = (width, max(1, round(width * picture.shape[0] / picture.shape[1])))
        sheet.paste(_as_image(picture).resize(size, Image.Resampling.LANCZOS), (x, y))
        if painted is not None:
            small = _as_image(painted).resize(size, Image.Resampling.NEAREST)
            sheet.paste(small, (x + width + 4, y))
        if captions:
            text = _shorten(captions[i], cell[0])
            draw.text((x, y + size[1] + 15), text, _INK, _font(13), anchor="lm")
    return sheet


def write_image(path: str | Path, picture: Picture | Image.Image) -> None:
    """Write a PNG, JPEG or WebP file by the path's suffix, complete or not at all.

    Missing folders are made.
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise ValueError(
            f'cannot write "{path}": "{path.suffix}" is no known kind of image. '
            f"Use one of {', '.join(_WRITERS)}"
        )
    kind, options = _WRITERS[path.suffix.lower()]
    image, memory = _as_image(picture), BytesIO()
    if kind == "JPEG" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    image.save(memory, kind, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, memory.getbuffer())


def write_mask(path: str | Path, labels: NDArray[np.integer], class_set: ClassSet) -> None:
    """Write labels as a palette PNG: it holds the class ids and opens in the class colours."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f'cannot write the mask "{path}": masks are PNG files, end it in ".png"')
    write_image(path, mask_image(labels, class_set))


def mask_image(labels: NDArray[np.integer], class_set: ClassSet) -> Image.Image:
    """Labels as a palette image: it holds the class ids and shows the class colours."""
    if labels.size and not 0 <= labels.min() <= labels.max() <= 255:
        raise ValueError(
            f"cannot make a mask of labels from {labels.min()} to {labels.max()}: "
            f"a palette holds 0 to 255"
        )
    palette = np.zeros((256, 3), np.uint8)
    colours = np.array(class_set.colours, np.uint8)[:256]
    palette[: len(colours)] = colours
    mask = Image.fromarray(np.ascontiguousarray(labels, np.uint8))
    mask.putpalette(palette.tobytes())
    return mask


def _as_image(picture: Picture | Image.Image) -> Image.Image:
    return picture if isinstance(picture, Image.Image) else Image.fromarray(picture)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _entry_width(names: Sequence[str], texts: Sequence[str]) -> int:
    font = _font(14)
    widest = max((font.getlength(name) for name in names), default=0)
    share = max((font.getlength(text) for text in texts), default=0)
    return int(_SWATCH + 8 + widest + (14 + share if share else 0)) + 1


def _shorten(text: str, width: int) -> str:
    font = _font(13)
    length = font.getlength(text)
    if length <= width:
        return text
    text = text[: int(len(text) * width / length) + 3]
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
