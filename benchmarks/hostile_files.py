"""Damaged and hostile image files, for using.py and serve_hostile.py."""

import io
import random
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

KINDS = (
    "truncated", "flipped bytes", "empty", "noise", "text", "bomb", "huge header",
    "one pixel", "animated", "cmyk", "16 bit", "wrong suffix",
)  # fmt: skip
PNG_START = b"\x89PNG\r\n\x1a\n"


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file."""
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png(side: int, bits: int, colours: int, data: bytes) -> bytes:
    """A square PNG file whose pixels are compressed already."""
    header = struct.pack(">IIBBBBB", side, side, bits, colours, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return PNG_START + b"".join(png_chunk(*part) for part in parts)


def bomb_png(side: int) -> bytes:
    """A valid PNG of one bit a pixel: small as a file, huge as an image."""
    packer = zlib.compressobj(9)
    rows = [packer.compress(b"\0" * (1 + side // 8)) for _ in range(side)]
    return png(side, 1, 0, b"".join(rows) + packer.flush())


def false_png() -> bytes:
    """A small PNG file whose header promises 60,000 x 60,000 pixels."""
    return png(60_000, 8, 2, zlib.compress(bytes(10**6)))


def thin_png(length: int) -> bytes:
    """A valid PNG of one pixel's height."""
    header = struct.pack(">IIBBBBB", length, 1, 8, 2, 0, 0, 0)
    row = zlib.compress(bytes(1 + 3 * length), 9)
    parts = ((b"IHDR", header), (b"IDAT", row), (b"IEND", b""))
    return PNG_START + b"".join(png_chunk(*part) for part in parts)


def tiled_tiff() -> bytes:
    """A TIFF of 16x16 pixels whose one tile is 32768x65520."""
    tags = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, 322: 32768, 323: 65520, 324: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(104)


def endless_jpeg(side: int = 1000, size: int = 49_000) -> bytes:
    """A progressive JPEG whose last scan is repeated: seconds of decoding for each 10 KB."""
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * (size // len(scan)) + content[-2:]


def endless_ppm(size: int = 10**6) -> bytes:
    """A plain-text image full of comments: seconds of decoding for each 100 KB."""
    return b"P3\n400 400\n255\n" + b"#\n" * (size // 2)


def slow_to_decode() -> list[bytes]:
    """Small files that once took gigabytes or many seconds to read."""
    return [thin_png(2**18), tiled_tiff(), endless_jpeg(), endless_ppm()]


def hostile_file(rng: random.Random, kind: str, bombs: Sequence[bytes]) -> bytes:
    """The content of a file of one of the bad kinds."""
    content = odd_file(rng, kind)
    if kind == "empty":
        return b""
    if kind == "noise":
        return rng.randbytes(rng.randint(1, 5000))
    if kind == "text":
        return b"<svg xmlns='http://www.w3.org/2000/svg'/>" * rng.randint(1, 50)
    if kind == "bomb":
        return rng.choice(bombs)
    if kind == "huge header":
        sides = struct.pack(">II", rng.randint(2**14, 2**31 - 1), rng.randint(2**14, 2**31 - 1))
        return PNG_START + png_chunk(b"IHDR", sides + b"\x08\x02\0\0\0") + rng.randbytes(200)
    if kind == "truncated":
        return content[: rng.randrange(len(content))]
    if kind == "flipped bytes":
        spoilt = bytearray(content)
        for _ in range(rng.randint(1, 20)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        return bytes(spoilt)
    return content


def odd_file(rng: random.Random, kind: str) -> bytes:
    """A readable file of a small image: of one pixel, animated, CMYK, of 16 bits, or usual."""
    noise = np.random.default_rng(rng.randrange(2**32))
    size = (rng.randint(1, 90), rng.randint(1, 90))
    image = Image.fromarray(noise.integers(0, 256, (*size, 3), np.uint8))
    formats: Sequence[str] = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
    out = io.BytesIO()
    if kind == "animated":
        frames = [image.quantize(), image.rotate(90).quantize()]
        frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
        return out.getvalue()
    if kind == "cmyk":
        image, formats = image.convert("CMYK"), ("JPEG", "TIFF")
    elif kind == "one pixel":
        image = image.resize((1, 1))
    elif kind == "16 bit":
        image = Image.fromarray(noise.integers(0, 65536, size).astype(np.uint16))
        formats = ("PNG", "TIFF")
    image.save(out, rng.choice(formats))
    return out.getvalue()
