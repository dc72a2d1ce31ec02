"""Images and label masks, read from files: one at a time, in any number of threads.

Needs numpy and Pillow only, and changes none of Pillow's settings.
"""

import os
import stat
import struct
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

from paumer.classes import Pixels
from paumer.untrusted import shorten

PIXEL_LIMIT = 8192 * 8192 * 2
SIDE_LIMIT = 2**16
THINNEST = 16
"""A side counts as at least so many pixels: no patch of the network is smaller."""
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


class TooLargeError(ValueError):
    """The image is larger than is read; known from its header, before decoding."""


def read_image(
    source: str | Path | bytes, most: int = PIXEL_LIMIT, longest: int = SIDE_LIMIT
) -> Pixels:
    """The image as uint8 RGB (h w 3), upright; of a moving image the first frame.

    Alpha is dropped, 16 bits become 8. A file that is not an image, is damaged, is a bomb, has more
    than ``most`` pixels or a side above ``longest`` is a ValueError that names it. Bytes are the
    content of a file.
    """
    return _to_rgb(_upright(_load(source, (most, longest), SUSPICIOUS)[0]), source_name(source))


def from_pillow(image: Image.Image) -> Pixels:
    """An image of Pillow's as uint8 RGB (h w 3), as it lies: its EXIF orientation is its owner's.

    It may be a file that Pillow has not read yet.
    """
    try:
        image.load()
    except Exception as error:  # Decoders raise almost anything, and so does a closed file.
        raise ValueError(
            f"cannot read the image of Pillow's: it is closed, damaged or cut short ({error})"
        ) from error
    return _to_rgb(image, "the image of Pillow's")


def read_folder(folder: Path, most: int) -> list[Pixels]:
    """The first images of a folder, of which there must be some."""
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)[:most]
    if not files:
        raise ValueError(f'no images in "{folder}"')
    return [read_image(file) for file in files]


def read_labels(source: str | Path | bytes, rgb: bool = False) -> NDArray[np.integer]:
    """The ids of a mask as they stand in the file, (h w): uint8, or int32 where 8 bits are too few.

    Of a palette image these are the indices, of three equal channels the first. With `rgb` the
    mask is one whose colours stand for classes, and comes as uint8 (h w 3).
    """
    image, step = _load(source)
    name = source_name(source)
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
    if image.mode in ("RGB", "RGBA"):
        pixels = np.array(image, np.uint8)
        if (pixels[..., :3] == pixels[..., :1]).all():  # Ids, written three times over.
            return pixels[..., 0]
    raise ValueError(
        f'cannot use "{name}" as a mask: it is a {image.mode} image, and a mask holds one '
        f"number per pixel. Save it as grey or palette PNG, or say that its colours stand for "
        f"classes (rgb_masks: true in data.yaml)"
    )


def source_name(source: str | Path | bytes) -> str:
    """What messages call the source of an image."""
    return "given bytes" if isinstance(source, bytes) else str(source)


def _load(
    source: str | Path | bytes,
    limits: tuple[int, int] = (PIXEL_LIMIT, SIDE_LIMIT),
    suspicious: tuple[int, int] | None = None,
) -> tuple[Image.Image, int]:
    """The decoded image in the mode it was stored in, and what `_grey_step` says of it."""
    name = source_name(source)
    try:
        with BytesIO(source) if isinstance(source, bytes) else open_file(source) as file:
            return _decode(file, name, limits, suspicious)
    except FileNotFoundError:
        raise FileNotFoundError(f'"{name}" does not exist') from None
    except OSError as error:
        raise ValueError(f'cannot read "{name}": {error.strerror or error}') from error


def open_file(path: str | Path) -> BufferedReader:
    """A file to read from; a pipe, a device or a folder is an OSError, without waiting for it."""
    # Opening a pipe would wait until somebody writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # Null in the name.
        raise OSError(str(error)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a file")
    return open(handle, "rb")


def _decode(
    file: BufferedReader | BytesIO,
    name: str,
    limits: tuple[int, int],
    suspicious: tuple[int, int] | None,
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
        if reader is TiffImageFile:
            _check_tiff(file, size)
        elif reader is JpegImageFile:
            _check_jpeg(file)
        file.seek(0)
        image = reader(file, name)
    except Exception as error:
        text = shorten(str(error), 200)  # Some repeat what they found.
        raise ValueError(f'cannot read "{name}": its header is damaged ({text})') from error
    _check_size(image.size, size, name, limits, suspicious)
    step = _grey_step(image)
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        text = shorten(str(error), 200)
        raise ValueError(f'cannot read "{name}": it is damaged or cut short ({text})') from error
    return image, step


def _check_size(
    shape: tuple[int, int],
    size: int,
    name: str,
    limits: tuple[int, int],
    suspicious: tuple[int, int] | None,
) -> None:
    """Raise if a header promises more than is read, or more than so many bytes can hold."""
    (width, height), (most, longest) = shape, limits
    pixels = max(width, THINNEST) * max(height, THINNEST)
    if pixels > most:
        counted = "counts as" if min(shape) < THINNEST else "is"
        raise TooLargeError(
            f'cannot read "{name}": {width}x{height} {counted} {pixels:,} pixels, '
            f"and at most {most:,} are read"
        )
    if max(shape) > longest:
        raise TooLargeError(
            f'cannot read "{name}": {width}x{height} has a side above {longest:,} pixels'
        )
    if suspicious is not None and width * height > max(suspicious[0], suspicious[1] * size):
        raise TooLargeError(
            f'cannot read "{name}": {width}x{height} pixels in {size:,} bytes is a decompression '
            f"bomb or a damaged header"
        )


_MOST_SCANS = 100  # Encoders write about ten.


def _check_jpeg(file: BufferedReader | BytesIO) -> None:
    """Raise if a JPEG file has so many scans, each over the whole image, that it takes minutes."""
    scans, end = 0, b""
    while piece := file.read(2**20):
        scans += (end + piece).count(b"\xff\xda")  # In compressed data 0 follows 255.
        if scans > _MOST_SCANS:
            raise ValueError(f"it has more than {_MOST_SCANS} scans")
        end = piece[-1:]


# Tags of a TIFF file: where strips or tiles lie, and how long each is.
_LISTS = {273: "strips", 279: "strips", 324: "tiles", 325: "tiles"}
_WIDTH, _HEIGHT, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 277, 322, 323
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


def _check_tiff(file: BufferedReader | BytesIO, size: int) -> None:
    """Raise if the first directory of a TIFF file asks for memory that its image cannot need.

    Pillow reads all lists and allocates a tile before it compares them with the image.
    """
    order = "<" if file.read(2) == b"II" else ">"
    file.seek(struct.unpack(order + "2xI", file.read(6))[0])
    (entries,) = struct.unpack(order + "H", file.read(2))
    found: dict[int, tuple[int, int]] = {}
    listed = 0
    for _ in range(entries):
        tag, kind, count, value = struct.unpack(order + "HHI4s", file.read(12))
        short = kind == 3 and count == 1
        number = struct.unpack(order + ("H2x" if short else "I"), value)[0]
        found[tag] = count, number
        listed += count * _BYTES.get(kind, 1)
    if listed > size:
        raise ValueError(f"its tags need {listed:,} bytes, and the file has {size:,}")
    values = {tag: number for tag, (_, number) in found.items()}
    width, height, samples = values.get(_WIDTH, 0), values.get(_HEIGHT, 0), values.get(_SAMPLES, 1)
    across, down = values.get(_TILE_WIDTH, width), values.get(_TILE_HEIGHT, height)
    if across * down > 4 * max(width, 256) * max(height, 256):
        raise ValueError(f"its tiles are {across}x{down} and the image {width}x{height}")
    width, height = min(width, SIDE_LIMIT), min(height, SIDE_LIMIT)
    most = {"strips": height, "tiles": (width // 16 + 1) * (height // 16 + 1)}
    for tag, parts in _LISTS.items():
        count, _ = found.get(tag, (0, 0))
        if count > most[parts] * min(max(1, samples), 8):
            raise ValueError(f"it has {count:,} {parts}, more than its image can have")


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


def _to_rgb(image: Image.Image, name: str) -> Pixels:
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
