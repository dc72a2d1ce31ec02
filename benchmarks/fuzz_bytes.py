"""Damage that needs no knowledge of a format, for the fuzz_*.py files."""

import random
import struct

_EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 256, 1000, 32767, 32768, 65535, 65536)
_WIDE = (2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**63, 2**64 - 1)


def odd_number(rng: random.Random, bits: int = 32) -> int:
    """A number without sign at an edge, or any one: small or large."""
    choice = rng.randrange(4)
    if choice == 0:
        return rng.randrange(2**bits)
    if choice == 1:
        return rng.randrange(min(2**bits, 100))
    number: int = rng.choice(_EDGES + _WIDE) % 2**bits
    return number


def damage(rng: random.Random, content: bytes, other: bytes = b"") -> bytes:
    """The content with up to three faults: bytes changed, lost, added, repeated, or of another."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = _damage_once(rng, content, other)
    return content


def _damage_once(rng: random.Random, content: bytes, other: bytes) -> bytes:
    size = len(content)
    begin, end = sorted((rng.randint(0, size), rng.randint(0, size)))
    near = min(size, begin + rng.randint(0, 16))
    fault = rng.randrange(9)
    if fault == 0:
        return content[:begin]
    if fault == 1:
        return content[:begin] + content[near:]
    if fault == 2:
        return content[:begin] + rng.randbytes(rng.randint(1, 64)) + content[begin:]
    if fault == 3:
        return content[:end] + content[begin:end] * rng.choice((1, 1, 2, 20)) + content[end:]
    if fault == 4 and other:
        return content[:begin] + other[rng.randrange(len(other)) :]
    if fault == 5:
        return content[:begin] + rng.choice((b"\0", b"\xff")) * (near - begin) + content[near:]
    if fault == 6:
        form, bits = rng.choice((("<H", 16), (">H", 16), ("<I", 32), (">I", 32), ("<Q", 64)))
        number = struct.pack(form, odd_number(rng, bits))
        return content[:begin] + number + content[begin + len(number) :]
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20)) if size else 0):
        spoilt[rng.randrange(size)] ^= 1 << rng.randrange(8) if fault == 7 else rng.randrange(256)
    return bytes(spoilt)
