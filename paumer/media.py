"""Pictures and label masks: read, mixed with their labels, laid out on a sheet, written.

Needs numpy and Pillow only. Reading works on one file at a time and changes none of Pillow's
settings, so it may run in any number of threads.
"""

import os
from collections.abc import Sequence
from functools import cache
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFile, ImageFont
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from paumer.data.labels import ClassSet, Colour
from paumer.disk import replace_file

Picture = NDArray[np.uint8]

PIXEL_LIMIT = 8192 * 8192 * 2
SUSPICIOUS = 2**22, 1000
"""A picture of more pixels than this, and of more than so many for each byte of its file: a bomb.

Masks may well be that even.
"""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""How the names of pictures end that can be read, in lower case."""

# Opened by their own classes, because Image.open warns of pictures well within our limit.
_READERS: tuple[tuple[bytes, type[ImageFile.ImageFile]], ...] = (
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"\xff\xd8\xff", JpegImageFile),
    (b"RIFF", WebPImageFile),
    (b"BM", BmpImageFile),
    (b"GIF8", GifImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    *((b"P%d" % kind, PpmImageFile) for kind in range(1, 7)),
)
_WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", {}),
    ".jpg": ("JPEG", {"quality": 92}),
    ".jpeg": ("JPEG", {"quality": 92}),
    ".webp": ("WEBP", {"quality": 92}),
}
_WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_PAPER = (249, 249, 247)
_INK = (38, 40, 44)
_FADED = (118, 122, 128)
_LINE = (214, 214, 210)
_MARGIN, _GAP, _SWATCH = 20, 16, 16


class UnknownKindError(ValueError):
    """The file is no picture of a kind that can be read."""


class TooManyPixelsError(ValueError):
    """The picture has more pixels than are read; known from its header, before decoding."""


def read_image(source: str | Path | bytes, most: int = PIXEL_LIMIT) -> Picture:
    """The picture as uint8 RGB (h w 3), upright; of a moving picture the first frame.

    Alpha is dropped, 16 bits become 8. A file that is no picture, is damaged, is a bomb or has more
    than ``most`` pixels is a ValueError that names it. Bytes are the content of a file.
    """
    return _to_rgb(_upright(_load(source, most, SUSPICIOUS)[0]), _name(source))


def read_labels(source: str | Path | bytes, rgb: bool = False) -> NDArray[Any]:
    """The ids of a mask as they stand in the file, (h w): uint8, or int32 where 8 bits are too few.

    Of a palette picture these are the indices. With `rgb` the mask is one whose colours stand for
    classes, and comes as uint8 (h w 3).
    """
    image, step = _load(source)
    name = _name(source)
    if image.format == "JPEG":
        raise ValueError(
            f'cannot use "{name}" as a mask: JPEG changes the values it stores. Save masks as PNG'
        )
    if rgb:
        return _to_rgb(image, name)
    if image.mode in ("1", "L", "P", "LA", "PA"):
        ids = np.array(image.getchannel(0), np.uint8)
        return ids if step == 1 else ids // step
    if image.mode in _WIDE:
        return np.asarray(image).astype(np.int32)
    raise ValueError(
        f'cannot use "{name}" as a mask: it is a {image.mode} picture, and a mask holds one '
        f"number per pixel. Save it as grey or palette PNG, or say that its colours stand for "
        f"classes (rgb_masks: true in data.yaml)"
    )


def _name(source: str | Path | bytes) -> str:
    return "given bytes" if isinstance(source, bytes) else str(source)


def _load(
    source: str | Path | bytes,
    most: int = PIXEL_LIMIT,
    suspicious: tuple[int, int] | None = None,
) -> tuple[Image.Image, int]:
    """The decoded picture in the mode it was stored in, and what `_grey_step` says of it."""
    if isinstance(source, bytes):
        return _decode(BytesIO(source), _name(source), most, suspicious)
    try:
        with open(source, "rb") as file:
            return _decode(file, _name(source), most, suspicious)
    except FileNotFoundError:
        raise FileNotFoundError(f'there is no file "{source}"') from None
    except OSError as error:
        raise ValueError(f'cannot read "{source}": {error.strerror or error}') from error


def _decode(
    file: BufferedReader | BytesIO, name: str, most: int, suspicious: tuple[int, int] | None
) -> tuple[Image.Image, int]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(12)
    file.seek(0)
    if not start:
        raise ValueError(f'cannot read "{name}": the file is empty')
    reader = next((reader for mark, reader in _READERS if start.startswith(mark)), None)
    if reader is None:
        raise UnknownKindError(
            f'cannot read "{name}": it is no picture of a known kind '
            f"(PNG, JPEG, WebP, BMP, GIF, TIFF or PPM)"
        )
    # Damaged files make decoders raise almost anything, and every one of them means the same.
    try:
        image = reader(file, name)
    except Exception as error:
        raise ValueError(f'cannot read "{name}": its header is damaged ({error})') from error
    width, height = image.size
    if width * height > most:
        raise TooManyPixelsError(
            f'cannot read "{name}": {width}x{height} is {width * height:,} pixels, '
            f"and at most {most:,} are read"
        )
    if suspicious is not None and width * height > max(suspicious[0], suspicious[1] * size):
        raise TooManyPixelsError(
            f'cannot read "{name}": {width}x{height} pixels in {size:,} bytes is a decompression '
            f"bomb or a damaged header"
        )
    step = _grey_step(image)
    try:
        image.load()
    except Exception as error:
        raise ValueError(f'cannot read "{name}": it is damaged or cut short ({error})') from error
    return image, step


def _grey_step(image: ImageFile.ImageFile) -> int:
    """By how much Pillow multiplies the stored values of a grey picture of 2 or 4 bits."""
    if image.mode != "L" or not image.tile:
        return 1
    kind = image.tile[0][3]
    kind = kind[0] if isinstance(kind, tuple) else kind
    return {"L;2": 85, "L;4": 17}.get(str(kind), 1)


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
    except Exception:  # unreadable notes about a picture do not make it unreadable
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image, name: str) -> Picture:
    if image.mode in _WIDE:
        grey = np.asarray(image).astype(np.int64)
        if not 0 <= grey.min() <= grey.max() <= 65535:
            raise ValueError(
                f'cannot use "{name}": its values run from {grey.min()} to {grey.max()}, and it is '
                f"unknown which of them is white. Save it with 8 or 16 bits"
            )
        return np.repeat(((grey + 128) // 257).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError(
            f'cannot use "{name}": its values are fractions of unknown range. '
            f"Save it with 8 or 16 bits"
        )
    if image.mode != "RGB":
        try:
            if "transparency" in image.info:  # Pillow warns unless it may keep the alpha first
                image = image.convert("RGBA")
            image = image.convert("RGB")
        except ValueError as error:
            raise ValueError(f'cannot use "{name}": {error}. Save it as RGB') from error
    return np.array(image)


def overlay(image: Picture, painted: Picture, alpha: float = 0.5) -> Picture:
    """The picture under its painted labels: 0 shows the picture alone, 1 the labels alone."""
    if image.shape != painted.shape:
        raise ValueError(
            f"cannot lay labels of {painted.shape[1]}x{painted.shape[0]} over a picture of "
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
    """The picture with the legend of its classes below, in as many columns as fit."""
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
    """Pictures on one sheet, each beside its painted labels if it has any, `width` pixels wide."""
    if not pairs or columns < 1 or width < 16:
        raise ValueError(
            f"cannot lay out {len(pairs)} pictures of width {width} in {columns} columns: "
            f"give at least one picture, one column and 16 pixels"
        )
    if captions is not None and len(captions) != len(pairs):
        raise ValueError(f"{len(captions)} captions for {len(pairs)} pictures: give one for each")
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
            f'cannot write "{path}": "{path.suffix}" is no known kind of picture. '
            f"Use one of {', '.join(_WRITERS)}"
        )
    kind, options = _WRITERS[path.suffix.lower()]
    image, memory = _as_image(picture), BytesIO()
    if kind == "JPEG" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    image.save(memory, kind, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, memory.getbuffer())


def write_mask(path: str | Path, labels: NDArray[Any], class_set: ClassSet) -> None:
    """Write labels as a palette PNG: it holds the class ids and opens in the class colours."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f'cannot write the mask "{path}": masks are PNG files, end it in ".png"')
    write_image(path, mask_image(labels, class_set))


def mask_image(labels: NDArray[Any], class_set: ClassSet) -> Image.Image:
    """Labels as a palette picture: it holds the class ids and shows the class colours."""
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
