"""Hostile clients of a service: slow ones, ones that hang up, bombs, floods, no images at all.

python benchmarks/serve_hostile.py 8000 street.jpg --slow 20 --cancelled 100 --bodies 30

They come spread over so many seconds. `serve_load.py hostile` measures what they cost the others.
"""

import argparse
import asyncio
import os
import random
import struct
import zlib
from itertools import repeat
from pathlib import Path

HEAD = "POST /v1/segment HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
PIECE = bytes(2**16)


def bomb():
    """A small PNG file whose header promises 60,000 x 60,000 pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def request(body):
    return HEAD.format(len(body)).encode() + body


def pieces():
    """About 100 MB."""
    return repeat(PIECE, 10**8 // len(PIECE))


def chunked():
    """About 100 MB of which the head does not say how much it is."""
    yield b"POST /v1/segment HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in pieces():
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def flood():
    """About 100 MB of which the head says so."""
    yield HEAD.format(10**8).encode()
    yield from pieces()


async def send(port, parts, wait, answered=True):
    """Send parts over a connection of their own; then wait, if need be for the answer only."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    try:
        async with asyncio.timeout(wait):
            for part in parts:
                writer.write(part)
                await writer.drain()
            await (reader.read(100) if answered else asyncio.Event().wait())
    except OSError:  # Closed by the service, or a timeout.
        pass
    writer.transport.abort()


async def come(arguments):
    """All of them, in an order by chance."""
    rng, image = random.Random(arguments.seed), arguments.image.read_bytes()
    slow = [HEAD.format(5000).encode() + b"abc"]
    jobs = [lambda: send(arguments.port, slow, arguments.seconds, False)] * arguments.slow
    for wait in (rng.uniform(0, 0.04) for _ in range(arguments.cancelled)):
        jobs.append(lambda wait=wait: send(arguments.port, [request(image)], wait, False))
    kinds = (
        lambda: [request(bomb())],
        lambda: [request(image[: len(image) // 2])],
        flood,
        chunked,
        lambda: [request(b"%PDF-1.7 no image")],
    )
    for number in range(arguments.bodies):
        kind = kinds[number % len(kinds)]
        jobs.append(lambda kind=kind: send(arguments.port, kind(), 5.0))
    rng.shuffle(jobs)

    async def later(delay, job):
        await asyncio.sleep(delay)
        await job()

    step = 0.8 * arguments.seconds / max(1, len(jobs))
    await asyncio.gather(*(later(number * step, job) for number, job in enumerate(jobs)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--cancelled", type=int, default=100)
    parser.add_argument("--bodies", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    os.nice(5)  # What normal clients see is measured on the same core.
    asyncio.run(come(parser.parse_args()))
