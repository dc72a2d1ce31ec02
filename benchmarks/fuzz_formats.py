"""Hostile TIFF, GIF, WebP, BMP and PPM files that know their format, for fuzz_images.py."""

import io
import random
import struct
from collections.abc import Sequence

import numpy as np
from fuzz_bytes import damage, odd_number
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

Entry = tuple[int, int, Sequence[int]]
"""A tag of a TIFF file: its number, type and values."""


def odd_size(rng: random.Random) -> tuple[int, int]:
    """A width and height: mostly small, some thin, some large, some of any number."""
    choice = rng.randrange(10)
    if choice == 0:
        sides = [rng.randint(1, 3), rng.choice((5000, 16_384, 65_535, 65_536, 250_000))]
        rng.shuffle(sides)
        return sides[0], sides[1]
    if choice == 1:
        return rng.randint(1000, 2200), rng.randint(1000, 2200)
    if choice == 2:
        return odd_number(rng, 31), rng.choice((1, 16, odd_number(rng, 31)))
    return rng.randint(1, 70), rng.randint(1, 70)


def sample(rng: random.Random, modes: Sequence[str]) -> Image.Image:
    """A small image of noise or of one colour."""
    noise = np.random.default_rng(rng.randrange(2**32))
    shape = (rng.randint(1, 70), rng.randint(1, 70), 3)
    pixels = noise.integers(0, 256, shape if rng.random() < 0.7 else (1, 1, 3), np.uint8)
    return Image.fromarray(np.broadcast_to(pixels, shape).copy()).convert(rng.choice(modes))


_CODES = {1: "B", 2: "B", 3: "H", 4: "I", 6: "B", 7: "B", 8: "H", 9: "I", 11: "I", 13: "I",
    5: "Q", 10: "Q", 12: "Q", 16: "Q", 17: "Q", 18: "Q"}  # fmt: skip
_COMPRESSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946, 34676, 34712, 34925, 50000, 50001)
_OFFSETS, _COUNTS, _SELF = (273, 324), (279, 325), -1


def tiff_file(rng: random.Random, entries: Sequence[Entry], data: bytes) -> bytes:
    """A TIFF file of one directory behind its data; some counts lie, some directories loop.

    The value -1 stands for where the directory itself begins.
    """
    order, big = rng.choice("<>"), rng.random() < 0.05
    head = 16 if big else 8
    where = head + len(data)
    entry, room = ("HHQ", 8) if big else ("HHI", 4)
    word = order + ("Q" if big else "I")
    table, values = b"", b""
    after = where + (8 if big else 2) + len(entries) * (12 + 2 * (room - 4)) + room
    for tag, kind, numbers in entries:
        code = _CODES.get(kind, "B")
        most = 2 ** (8 * struct.calcsize(order + code))
        listed = [(where if n == _SELF else n) % most for n in numbers]
        content = struct.pack(f"{order}{len(listed)}{code}", *listed)
        count = odd_number(rng) if rng.random() < 0.02 else len(listed)
        table += struct.pack(order + entry, tag % 65536, kind, count)
        if len(content) > room:
            table += struct.pack(word, after + len(values))
            values += content + b"\0" * (len(content) % 2)
        else:
            table += content.ljust(room, b"\0")
    last = rng.choice((0, 0, 0, 0, 0, 0, where, odd_number(rng)))
    mark = b"II" if order == "<" else b"MM"
    if big:
        start = mark + struct.pack(order + "HHHQ", 43, 8, 0, where)
        return start + data + struct.pack(order + "Q", len(entries)) + table + bytes(8) + values
    start = mark + struct.pack(order + "HI", 42, where)
    table = struct.pack(order + "H", len(entries)) + table + struct.pack(order + "I", last)
    return start + data + table + values


def tiff(rng: random.Random) -> bytes:
    """A TIFF file whose tags lie, are missing, repeated, of another type or from elsewhere."""
    compression = rng.choice((None, "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "group4"))
    modes = {"group4": ("1",), "jpeg": ("RGB", "L")}.get(
        compression or "", ("RGB", "L", "RGBA", "CMYK", "P", "I;16", "F", "LA", "1")
    )
    mode = rng.choice(modes)
    image = sample(rng, ("L",) if mode == "I;16" else (mode,))
    if mode == "I;16":
        image = image.convert("I").convert("I;16")
    out = io.BytesIO()
    image.save(out, "TIFF", compression=compression)
    content = out.getvalue()
    tags = TiffImageFile(io.BytesIO(content)).tag_v2
    data = b"".join(content[o : o + n] for o, n in zip(tags[273], tags[279], strict=True))
    entries: list[Entry] = []
    for tag, value in sorted(tags.items()):
        numbers = value if isinstance(value, tuple) else (value,)
        if all(isinstance(number, int) for number in numbers):
            entries.append((tag, tags.tagtype[tag], numbers))
    entries = [e for e in entries if e[0] not in (273, 279)]
    entries += [(273, 4, [8]), (279, 4, [len(data)])]
    if rng.random() < 0.15:  # Tiles in place of strips.
        side = rng.choice((16, 16, 64, 256, odd_number(rng, 16)))
        entries = [(t + 51 if t == 273 else t + 46 if t == 279 else t, k, v) for t, k, v in entries]
        entries += [(322, 3, [side]), (323, 3, [rng.choice((side, odd_number(rng, 16)))])]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        _change_tags(rng, entries)
    if rng.random() < 0.8:
        entries.sort(key=lambda entry: entry[0])
    if rng.random() < 0.15:
        data = damage(rng, data)
    return tiff_file(rng, entries, data)


def _change_tags(rng: random.Random, entries: list[Entry]) -> None:
    """One fault in a list of tags."""
    i = rng.randrange(len(entries))
    tag, kind, numbers = entries[i]
    choice = rng.randrange(7)
    width, height = odd_size(rng)
    if choice == 0:
        entries[i] = tag, rng.choice((1, 2, 3, 4, 5, 7, 12, 13, 16, odd_number(rng, 16))), numbers
    elif choice == 1:
        entries[i] = tag, kind, [odd_number(rng) for _ in numbers]
    elif choice == 2 and len(entries) > 1:
        del entries[i]
    elif choice == 3:
        many = rng.choice((0, 1, 2, 5, 1000, 70_000))
        entries[i] = tag, kind, [numbers[0] if numbers else 1] * many
    elif choice == 4:
        entries[:] = [e for e in entries if e[0] not in (256, 257)]
        entries += [(256, 4, [width]), (257, 4, [height])]
    elif choice == 5:
        entries[:] = [e for e in entries if e[0] != 259]
        entries.append((259, 3, [rng.choice((*_COMPRESSIONS, odd_number(rng, 16)))]))
    else:
        more: tuple[Entry, ...] = (
            (330, 4, [_SELF]), (34665, 4, [_SELF]), (34853, 4, [_SELF]), (700, 1, [65] * 10_000),
            (274, 3, [rng.randrange(10)]), (317, 3, [rng.randrange(5)]), (284, 3, [2]),
            (258, 3, [rng.choice((1, 2, 4, 8, 12, 16, 32, 64))] * rng.choice((1, 3, 4))),
            (262, 3, [rng.randrange(10)]), (277, 3, [odd_number(rng, 16)]), (266, 3, [2]),
            (278, 4, [odd_number(rng)]), (338, 3, [rng.randrange(4)] * rng.choice((1, 2, 50))),
            (339, 3, [rng.randrange(7)] * rng.choice((1, 3))), (347, 7, [0xFF, 0xD8, 0xFF, 0xD9]),
            (320, 3, [7] * rng.choice((3, 768, 196_608))), (34675, 7, [0] * 200),
            (513, 4, [8]), (514, 4, [odd_number(rng)]), (512, 3, [1]), (530, 3, [4, 4]),
        )  # fmt: skip
        entries.append(rng.choice(more))


def lzw(rng: random.Random, count: int, bits: int) -> bytes:
    """So many pixels as GIF packs them, cleared so often that codes never get longer."""
    clear = 1 << bits
    codes = rng.choices(range(min(clear, 4)), k=count)
    step = max(1, clear - 2)
    codes = [code for i in range(0, count, step) for code in (clear, *codes[i : i + step])]
    text = "".join(f"{code:0{bits + 1}b}" for code in (clear + 1, *reversed(codes)))
    return int(text, 2).to_bytes((len(text) + 7) // 8, "little")


def blocks(content: bytes, step: int = 255) -> bytes:
    """Content as the blocks of a GIF file."""
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    return b"".join(bytes([len(piece)]) + piece for piece in pieces) + b"\0"


def gif(rng: random.Random) -> bytes:
    """A GIF file: screens, palettes and frames that agree or lie, extensions, many frames."""
    width, height = (side % 65536 for side in odd_size(rng))
    bits = rng.choice((1, 2, 3, 8, 8))
    flags = rng.choice((0x80 | (bits - 1),) * 4 + (0, odd_number(rng, 8)))
    content = rng.choice((b"GIF89a",) * 9 + (b"GIF88a",))
    content += struct.pack("<HHBBB", width, height, flags, rng.randrange(256), 0)
    content += rng.randbytes(3 << bits)
    pixels = lzw(rng, min(width * height, 5000), max(2, bits))
    for number in range(rng.choice((1, 1, 1, 2, 2, 3, 3, 100))):
        if rng.random() < 0.4:
            label = rng.choice((0xF9, 0xFE, 0xFF, 0x01, odd_number(rng, 8)))
            notes = (b"NETSCAPE2.0\3\1\0\0", rng.randbytes(4), b"x" * rng.choice((0, 30, 30_000)))
            content += bytes([0x21, label]) + blocks(rng.choice(notes))
        box = [0, 0, width, height]
        if number or rng.random() < 0.2:
            box[rng.randrange(4)] = odd_number(rng, 16)
        local = rng.choice((0, 0, 0x40, 0x80 | (bits - 1), odd_number(rng, 8)))
        content += b"," + struct.pack("<HHHHB", *box, local)
        content += rng.randbytes(3 << bits) if local & 0x80 else b""
        content += bytes([max(2, bits) if rng.random() < 0.9 else odd_number(rng, 8)])
        data = damage(rng, pixels) if rng.random() < 0.3 else pixels
        content += blocks(data, rng.choice((255, 255, 1)))
    return content + rng.choice((b";", b"", b"\0" * 1000))


def webp(rng: random.Random) -> bytes:
    """A WebP file whose chunks lie, are damaged, repeated or in another order."""
    out, image = io.BytesIO(), sample(rng, ("RGB", "RGBA"))
    more = [image.rotate(90)] * rng.choice((1, 20)) if rng.random() < 0.3 else []
    profile = rng.randbytes(200) if rng.random() < 0.3 else None
    image.save(
        out, "WEBP", lossless=rng.random() < 0.5, save_all=bool(more), append_images=more,
        icc_profile=profile, exif=b"Exif\0\0II*\0" + rng.randbytes(30) if profile else b"",
        method=0,
    )  # fmt: skip
    content, chunks, begin = out.getvalue(), [], 12
    while begin + 8 <= len(content):
        length = int.from_bytes(content[begin + 4 : begin + 8], "little")
        chunks.append((content[begin : begin + 4], content[begin + 8 : begin + 8 + length]))
        begin += 8 + length + length % 2
    if chunks[0][0] != b"VP8X" and rng.random() < 0.3:
        chunks.insert(0, (b"VP8X", bytes([rng.randrange(64), 0, 0, 0]) + rng.randbytes(6)))
    for _ in range(rng.choice((0, 1, 1, 3))):
        i, choice = rng.randrange(len(chunks)), rng.randrange(6)
        kind, body = chunks[i]
        if choice == 0 and len(body) > 10:  # Where canvases, frames and images have their size.
            place, size = rng.choice((1, 3, 4, 6, 7)), odd_number(rng, 16).to_bytes(2, "little")
            chunks[i] = kind, body[:place] + size + body[place + 2 :]
        elif choice == 1:
            chunks[i] = kind, damage(rng, body)
        elif choice == 2:
            chunks[i] = rng.choice((b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"XMP ")), body
        elif choice == 3:
            chunks[i:i] = [chunks[i]] * rng.choice((1, 2, 200))
        elif choice == 4 and len(chunks) > 1:
            del chunks[i]
        else:
            rng.shuffle(chunks)
    data = b""
    for kind, body in chunks:
        length = odd_number(rng) if rng.random() < 0.03 else len(body)
        data += kind + struct.pack("<I", length) + body + b"\0" * (len(body) % 2)
    length = odd_number(rng) if rng.random() < 0.1 else 4 + len(data)
    return b"RIFF" + struct.pack("<I", length) + b"WEBP" + data


def bmp(rng: random.Random) -> bytes:
    """A BMP file of any kind of header, upside down or not, packed or not."""
    kind = rng.choice((12, 16, 40, 40, 40, 40, 52, 56, 64, 108, 124, 124, odd_number(rng)))
    bits = rng.choice((1, 4, 8, 8, 16, 24, 24, 32, 32, odd_number(rng, 16)))
    width, height = odd_size(rng)
    height = rng.choice((height, height, -height))
    packing = rng.choice({4: (0, 2), 8: (0, 1), 16: (0, 3), 32: (0, 3)}.get(bits, (0,)))
    packing = packing if rng.random() < 0.9 else odd_number(rng)
    colours = rng.choice((0, 0, 0, 1 << min(bits, 8), odd_number(rng)))
    if kind == 12:
        head = struct.pack("<IHHHH", 12, width % 65536, height % 65536, 1, bits)
    else:
        sides = struct.pack("<Iii", kind, width % 2**31, height)
        head = sides + struct.pack("<HHIIiiII", 1, bits, packing, 0, 0, 0, colours, 0)
        head += rng.randbytes(12) if kind > 40 else b""
        head = head[: min(kind, 52)] + bytes(max(0, min(kind, 124) - 52))
    palette = rng.randbytes(4 * min(256, 1 << min(bits, 8))) if bits <= 8 else rng.randbytes(12)
    needed = min(2**18, (width * bits // 8 + 4) * abs(height))
    data = rng.randbytes(needed) if needed < 30_000 else bytes(needed)
    if packing in (1, 2):
        pairs = (b"\0\0", b"\0\1", b"\0\2\xff\xff", b"\0\5abcdef", b"\xff\1", b"\2\3")
        data = b"".join(rng.choice(pairs) for _ in range(rng.choice((10, 3000))))
    start = 14 + len(head) + len(palette) if rng.random() < 0.9 else odd_number(rng)
    size = rng.choice((start + len(data), odd_number(rng))) % 2**32
    return b"BM" + struct.pack("<IHHI", size, 0, 0, start) + head + palette + data


def ppm(rng: random.Random) -> bytes:
    """A PPM, PGM or PBM file, as text or as bytes, with odd spaces, comments and white values."""
    kind = rng.choice((1, 2, 3, 4, 5, 6, 5, 6))
    width, height = odd_size(rng)
    white = rng.choice((255, 255, 255, 1, 15, 65535, 65535, odd_number(rng, 64)))
    space = [b" ", b"\n", b"\t\r\n", b"\n# note\n", b"\n#" + b"x" * 50_000 + b"\n", b"#\n"]
    words = [b"P%d" % kind, b"%d" % width, b"%d" % height]
    words += [] if kind in (1, 4) else [b"%d" % white]
    if rng.random() < 0.1:
        odd = (b"-1", b"1e3", b"9" * 5000, b"+5", b"0x10", b"1_0", b"\xff", b"")
        words[rng.randrange(1, len(words))] = rng.choice(odd)
    content = b"".join(word + rng.choice(space[: rng.choice((2, 2, 6))]) for word in words)
    needed = min(2**17, width * height * (3 if kind in (3, 6) else 1) * (1 + (white > 255)))
    needed = max(0, needed + rng.choice((0, 0, 0, -1, 1, -needed // 2)))
    if kind > 3:
        return content + (rng.randbytes(needed) if needed < 30_000 else bytes(needed))
    tokens = (b"0 ", b"1 ", b"0", b"# x\n", b"300 ", b"-3 ", b"99999999999 ", b"z", b"1" * 200)
    usual = tokens[: 2 if rng.random() < 0.7 else 9]
    return content + b"".join(rng.choice(usual) for _ in range(min(needed, 20_000)))
