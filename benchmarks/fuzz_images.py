"""Hostile image files that know their format: PNG and JPEG here, the others in fuzz_formats.py."""

import functools
import io
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_bytes import damage, odd_number
from fuzz_formats import bmp, gif, odd_size, ppm, sample, tiff, tiff_file, webp
from hostile_files import KINDS, PNG_START, bomb_png, hostile_file, png_chunk

from paumer import Predictor, build_model
from paumer.data.images import THINNEST, read_image, read_labels

PIXELS = 4 * 2**20
"""The most pixels of images whose time and memory are bounded."""
_SEGMENTED = 2**17  # The most pixels of images that are also segmented.


class Images:
    """Reads image files: half of them as a service does, the others with the library's limits."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.predictor = Predictor(build_model("test_vit", "linear", 5, image_size=64))
        self.predictor.predict(np.zeros((90, 90, 3), np.uint8))

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """An image file."""
        kind = rng.choice((*FORMATS, "hostile"))
        if kind == "hostile":
            content = hostile_file(rng, rng.choice(KINDS), bombs())
        else:
            content = FORMATS[kind](rng)
        if rng.random() < 0.3:
            content = damage(rng, content, FORMATS[rng.choice(list(FORMATS))](rng))
        return {f"image.{kind}": content}

    def run(self, case: Path, number: int) -> bool:
        """Read it, as an image or as a mask; small images are also segmented."""
        (path,) = case.iterdir()
        if number % 4 == 1:
            return read_image(path).ndim == 3
        if number % 4 == 3:
            return read_labels(path).ndim == 2
        image = read_image(path, PIXELS)
        height, width = (max(side, THINNEST) for side in image.shape[:2])
        if height * width <= _SEGMENTED:
            labels = self.predictor.predict(image).labels
            assert labels.shape == image.shape[:2]
        return True

    def bounded(self, number: int) -> bool:
        """Whether only so many pixels are read."""
        return number % 2 == 0


@functools.cache
def bombs() -> tuple[bytes, ...]:
    """Files that are small, and large as images."""
    return tuple(map(bomb_png, (1500, 3000, 9000, 20_000)))


@functools.cache
def deflated(count: int, value: int = 0) -> bytes:
    """So many equal bytes, compressed."""
    return zlib.compress(bytes([value]) * count, 9)


def png(rng: random.Random) -> bytes:
    """A PNG file: header, palette and pixels agree or lie, with notes, bombs or animation."""
    width, height = odd_size(rng)
    colours = rng.choice((0, 0, 2, 2, 3, 3, 4, 6, 6, rng.randrange(8)))
    usual = {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}.get(colours, (8, 16))
    bits = rng.choice(usual) if rng.random() < 0.9 else odd_number(rng, 8)
    interlace = rng.choice((0, 0, 0, 1, 1)) if rng.random() < 0.95 else odd_number(rng, 8)
    header = [width, height, bits, colours, 0, 0, interlace]
    data = _png_pixels(rng, (width, height), bits * {2: 3, 4: 2, 6: 4}.get(colours, 1), interlace)
    if rng.random() < 0.15:
        place = rng.randrange(7)
        header[place] = odd_number(rng, 32 if place < 2 else 8)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", *header))]
    if colours == 3 or rng.random() < 0.1:
        chunks.append((b"PLTE", rng.randbytes(rng.choice((768, 768, 3, 0, 7, 6, 3000)))))
    for _ in range(rng.choice((0, 0, 1, 2))):
        chunks.append(_png_note(rng))
    if rng.random() < 0.15:
        chunks += _png_frames(rng, width, height, data)
    step = rng.choice((len(data) + 1, 1 + len(data) // 3, 7)) if len(data) < 5000 else 2**16
    chunks += [(b"IDAT", data[i : i + step]) for i in range(0, len(data), step)] or [(b"IDAT", b"")]
    chunks.append((b"IEND", b""))
    _disorder(rng, chunks)
    parts = [png_chunk(*chunk) for chunk in chunks]
    if rng.random() < 0.2:
        i = rng.randrange(len(parts))
        length = odd_number(rng).to_bytes(4, "big")
        parts[i] = rng.choice((length + parts[i][4:], parts[i][:-4] + rng.randbytes(4)))
    return PNG_START + b"".join(parts)


def _png_pixels(rng: random.Random, size: tuple[int, int], depth: int, interlace: int) -> bytes:
    """Compressed pixels of an image: right, too few, too many, damaged, or none."""
    (width, height), choice = size, rng.randrange(15)
    needed = max(1, height * (1 + (width * depth + 7) // 8) * (1 + (interlace > 0)))
    if needed > 2**20:
        data = deflated(min(2**25, 1 << needed.bit_length()), rng.choice((0, 4)))
    else:
        filtered = rng.choice((0, 1, 2, 3, 4, 4)) if rng.random() < 0.9 else rng.randrange(256)
        rows = needed * (bytes([filtered]) if interlace else b"")
        rows = rows or height * (bytes([filtered]) + rng.randbytes(needed // max(1, height) - 1))
        wrong = rng.choice((1, -1, -needed // 2, 1000)) if rng.random() < 0.2 else 0
        data = zlib.compress(rows[: needed + wrong] + bytes(max(0, wrong)), 1)
    if choice == 0:
        return b""
    if choice == 1:
        return deflated(2**26)
    return damage(rng, data) if choice == 2 else data


def _png_note(rng: random.Random) -> tuple[bytes, bytes]:
    """A chunk that is not needed: text, profiles, EXIF, transparency; some are bombs."""
    kind = rng.choice((b"tRNS", b"iCCP", b"zTXt", b"iTXt", b"tEXt", b"eXIf", b"gAMA", b"cHRM",
        b"sRGB", b"pHYs", b"tIME", b"bKGD", b"acTL", b"fcTL", b"vpAg"))  # fmt: skip
    bomb = deflated(rng.choice((100, 2**20, 2**26)))
    known = {
        b"tRNS": rng.randbytes(rng.choice((0, 1, 2, 6, 256, 300))),
        b"iCCP": b"profile\0\0" + bomb,
        b"zTXt": b"Raw profile type exif\0\0" + bomb,
        b"iTXt": b"XML:com.adobe.xmp\0\1\0\0\0" + bomb,
        b"tEXt": b"Comment\0" + b"x" * rng.choice((0, 10, 10**5)),
        b"eXIf": exif(rng),
    }
    content = known.get(kind, rng.randbytes(rng.choice((0, 1, 4, 8, 9, 26, 32))))
    return kind, damage(rng, content) if rng.random() < 0.2 else content


def _png_frames(
    rng: random.Random, width: int, height: int, data: bytes
) -> list[tuple[bytes, bytes]]:
    """The chunks that make an animation."""
    count = rng.choice((1, 2, 50))
    chunks = [(b"acTL", struct.pack(">II", rng.choice((count, odd_number(rng))), 0))]
    for number in range(count):
        sides = [width, height, 0, 0]
        if rng.random() < 0.3:
            sides[rng.randrange(4)] = odd_number(rng)
        control = struct.pack(">IIIIIHHBB", 2 * number, *sides, 1, 10, rng.randrange(4), 0)
        chunks.append((b"fcTL", control))
        if number:
            chunks.append((b"fdAT", struct.pack(">I", 2 * number + 1) + data[:2000]))
    return chunks


def _disorder(rng: random.Random, parts: list[Any]) -> None:
    """Sometimes repeat, drop or move one part of a file behind the first one."""
    if len(parts) > 2 and rng.random() < 0.25:
        part = rng.choice(parts[1:])
        choice = rng.randrange(3)
        if choice:
            parts.remove(part)
        if choice != 1:
            many = rng.choice((1, 1, 1, 3, 500)) if len(part) < 5000 else 1
            place = rng.randint(1, len(parts))
            parts[place:place] = [part] * many


def exif(rng: random.Random) -> bytes:
    """Notes about an image as TIFF tags: an orientation, and sometimes hostile ones."""
    entries = [(0x0112, rng.choice((3, 3, 3, 4, 1, 7, 12)), [rng.randrange(11)])]
    for _ in range(rng.choice((0, 0, 1, 5))):
        tag = rng.choice((0x8769, 0x8825, 0xA005, 0x927C, 0x010E, 0x9286, odd_number(rng, 16)))
        entries.append((tag, rng.randrange(15), [odd_number(rng)] * rng.choice((1, 2, 300))))
    return tiff_file(rng, entries, b"")


def jpeg(rng: random.Random) -> bytes:
    """A JPEG file whose segments lie, are damaged, repeated, or in another order."""
    image, out = sample(rng, ("RGB", "RGB", "L", "CMYK")), io.BytesIO()
    image.save(
        out,
        "JPEG",
        quality=rng.choice((1, 75, 95)),
        progressive=rng.random() < 0.4,
        restart_marker_blocks=rng.choice((0, 0, 1)),
        subsampling=rng.choice((0, 1, 2)) if image.mode == "RGB" else 0,
    )
    parts = jpeg_parts(out.getvalue())
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change_jpeg(rng, parts)
    return b"".join(parts)


def jpeg_parts(content: bytes) -> list[bytes]:
    """The segments of a JPEG file, each scan with its data."""
    parts, begin = [content[:2]], 2
    while begin + 4 <= len(content):
        end = begin + 2 + int.from_bytes(content[begin + 2 : begin + 4], "big")
        if content[begin + 1] == 0xDA:  # Up to the next marker that is not a part of the data.
            while end < len(content) - 1 and not (
                content[end] == 0xFF and content[end + 1] not in (0, *range(0xD0, 0xD8))
            ):
                end += 1
        parts.append(content[begin:end])
        begin = end
    return [*parts, content[begin:]]


def _change_jpeg(rng: random.Random, parts: list[bytes]) -> None:
    """One fault."""

    def of(*markers: int) -> list[int]:
        return [i for i, part in enumerate(parts) if part[1:2] and part[1] in markers]

    frames, scans, choice = of(*range(0xC0, 0xC4)), of(0xDA), rng.randrange(9)
    if choice == 0 and frames:  # Another size.
        i, (width, height) = frames[0], odd_size(rng)
        sides = struct.pack(">HH", height % 2**16, width % 2**16)
        parts[i] = parts[i][:5] + sides + parts[i][9:]
    elif choice == 1 and frames:  # Other components, samplings, precision or coding.
        i, place = frames[0], rng.choice((1, 4, 9, 10, 11, 12, 14))
        number = rng.choice((0xC0, 0xC2, 0xC9)) if place == 1 else odd_number(rng, 8)
        parts[i] = parts[i][:place] + bytes([number]) + parts[i][place + 1 :]
    elif choice == 2 and scans:
        i = rng.choice(scans)
        most = 20_000 if len(parts[i]) < 100 else 100
        parts[i:i] = [parts[i]] * rng.choice((2, 30, most))
        if frames and rng.random() < 0.5:
            first = frames[0]
            parts[first] = parts[first][:5] + b"\x08\0\x08\0" + parts[first][9:]
    elif choice == 3 and (tables := of(0xC4, 0xDB, 0xDD, 0xDA)):
        i = rng.choice(tables)
        parts[i] = parts[i][:4] + damage(rng, parts[i][4:])
    elif choice == 4:
        notes = b"Exif\0\0" + exif(rng)
        parts.insert(1, segment(0xE1, damage(rng, notes) if rng.random() < 0.3 else notes))
    elif choice == 5:
        parts.insert(rng.randint(1, len(parts)), _jpeg_note(rng))
    elif choice == 6:
        i = rng.randrange(1, len(parts))
        parts[i] = parts[i][:2] + struct.pack(">H", odd_number(rng, 16)) + parts[i][4:]
    elif choice == 7:
        i = rng.randrange(len(parts))
        parts[i] = damage(rng, parts[i])
    else:
        _disorder(rng, parts)


def segment(marker: int, content: bytes) -> bytes:
    """One segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content[:65533])) + content[:65533]


def _jpeg_note(rng: random.Random) -> bytes:
    """A segment of an application, or one that changes how the rest is read."""
    number = odd_number(rng).to_bytes(4, "big")
    notes = (
        (0xE0, b"JFIF\0\1\2" + rng.randbytes(7)),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<x:xmpmeta tiff:Orientation='6'/>"),
        (0xE2, b"ICC_PROFILE\0" + rng.randbytes(2) + rng.randbytes(200)),
        (0xE2, b"MPF\0" + tiff_file(rng, [(0xB001, 4, [2]), (0xB002, 7, [255] * 32)], b"")),
        (0xED, b"Photoshop 3.0\0" + b"8BIM" + b"\x03\xed\0\0" + number + rng.randbytes(16)),
        (0xEE, b"Adobe\0" + rng.randbytes(6)),
        (0xFE, b"x" * rng.choice((0, 60_000))),
        (0xDD, number[2:]),
        (0xDC, number[2:]),
        (0xC8, rng.randbytes(20)),
    )
    return segment(*rng.choice(notes))


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "png": png,
    "jpg": jpeg,
    "tif": tiff,
    "gif": gif,
    "webp": webp,
    "bmp": bmp,
    "ppm": ppm,
}
"""Files of every format, by their suffix."""
