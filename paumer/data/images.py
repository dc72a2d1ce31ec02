"""Images and label masks, read from files: one at a time, in any number of threads.

Needs numpy and Pillow only, and changes none of Pillow's settings.
"""

import os
from io import BufferedReader, BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from paumer.drawing import Picture

PIXEL_LIMIT = 8192 * 8192 * 2
SUSPICIOUS = 2**22, 1000
"""An image of more pixels than this, and of more than so many for each byte of its file: a bomb.

Masks may well be that even.
"""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""How the names of images end that can be read, in lower case."""

# Opened by their own classes, because Image.open warns of images well within our limit.
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
_WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")
# How an image is turned upright by its EXIF orientation, from 2. ImageOps.exif_transpose would also
# decode and rewrite all other notes, which may be hostile.
_TURNS = (
    "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE",
    "ROTATE_90",
)  # fmt: skip
_UPRIGHT = {i: Image.Transpose[name] for i, name in enumerate(_TURNS, 2)}


class UnknownKindError(ValueError):
    """The file is not an image of a kind that can be read."""


class TooManyPixelsError(ValueError):
    """The image has more pixels than are read; known from its header, before decoding."""


def read_image(source: str | Path | bytes, most: int = PIXEL_LIMIT) -> Picture:
    """The image as uint8 RGB (h w 3), upright; of a moving image the first frame.

    Alpha is dropped, 16 bits become 8. A file that is not an image, is damaged, is a bomb or has
    more than ``most`` pixels is a ValueError that names it. Bytes are the content of a file.
    """
    return _to_rgb(_upright(_load(source, most, SUSPICIOUS)[0]), _name(source))


def read_folder(folder: Path, most: int) -> list[Picture]:
    """The first images of a folder, of which there must be some."""
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)[:most]
    if not files:
        raise ValueError(f'no images in "{folder}"')
    return [read_image(file) for file in files]


def read_labels(source: str | Path | bytes, rgb: bool = False) -> NDArray[np.integer]:
    """The ids of a mask as they stand in the file, (h w): uint8, or int32 where 8 bits are too few.

    Of a palette image these are the indices. With `rgb` the mask is one whose colours stand for
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
        f'cannot use "{name}" as a mask: it is a {image.mode} image, and a mask holds one '
        f"number per pixel. Save it as grey or palette PNG, or say that its colours stand for "
        f"classes (rgb_masks: true in data.yaml)"
    )


def _name(source: str | Path | bytes) -> str:
    return "given bytes" if isinstance(source, bytes) else str(source)


def _load(
    source: str | Path | bytes, most: int = PIXEL_LIMIT, suspicious: tuple[int, int] | None = None
) -> tuple[Image.Image, int]:
    """The decoded image in the mode it was stored in, and what `_grey_step` says of it."""
    name = _name(source)
    try:
        with BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
            return _decode(file, name, most, suspicious)
    except FileNotFoundError:
        raise FileNotFoundError(f'"{name}" does not exist') from None
    except OSError as error:
        raise ValueError(f'cannot read "{name}": {error.strerror or error}') from error


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
            f'cannot read "{name}": it is not an image of a known kind '
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
    """By how much Pillow multiplies the stored values of a grey image of 2 or 4 bits."""
    if image.mode != "L" or not image.tile:
        return 1
    kind = image.tile[0][3]
    kind = kind[0] if isinstance(kind, tuple) else kind
    return {"L;2": 85, "L;4": 17}.get(str(kind), 1)


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
    except Exception:  # unreadable notes about an image do not make it unreadable
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
