"""Hostile clients of a service: slow ones, ones that hang up, bombs, floods, no images at all.

    python benchmarks/serve_hostile.py 8000 street.jpg --slow 20 --cancelled 100 --bodies 30

They come spread over so many seconds. `serve_load.py hostile` measures what they cost the others.
"""

import argparse
import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

from hostile_files import false_png, slow_to_decode

HEAD = "POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
PIECE = bytes(2**16)


def request(body: bytes) -> bytes:
    """A whole request."""
    return HEAD.format(len(body)).encode() + body


def pieces() -> Iterator[bytes]:
    """About 100 MB."""
    return repeat(PIECE, 10**8 // len(PIECE))


def chunked() -> Iterator[bytes]:
    """About 100 MB of which the head does not say how much it is."""
    yield b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in pieces():
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def flood() -> Iterator[bytes]:
    """About 100 MB of which the head says so."""
    yield HEAD.format(10**8).encode()
    yield from pieces()


async def send(port: int, parts: Iterable[bytes], wait: float, answered: bool = True) -> None:
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


async def come(arguments: argparse.Namespace) -> None:
    """All of them, in an order by chance."""
    rng, image = random.Random(arguments.seed), arguments.image.read_bytes()
    whole, half, other = request(image), request(image[: len(image) // 2]), b"%PDF-1.7 no image"
    bodies: tuple[Callable[[], Iterable[bytes]], ...] = (
        lambda: [request(false_png())],
        lambda: [half],
        flood,
        chunked,
        lambda: [request(other)],
        *(partial(lambda body: [request(body)], body) for body in slow_to_decode()),
    )
    slow = [HEAD.format(5000).encode() + b"abc"]
    post = partial(send, arguments.port)
    jobs: list[Callable[[], Awaitable[None]]]
    jobs = [partial(post, slow, arguments.seconds, False)] * arguments.slow
    for _ in range(arguments.cancelled):
        jobs.append(partial(post, [whole], rng.uniform(0, 0.04), False))

    async def send_body(make: Callable[[], Iterable[bytes]]) -> None:
        await post(make(), 5.0)

    for number in range(arguments.bodies):
        jobs.append(partial(send_body, bodies[number % len(bodies)]))
    rng.shuffle(jobs)

    async def later(delay: float, job: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(delay)
        await job()

    step = 0.8 * arguments.seconds / max(1, len(jobs))
    await asyncio.gather(*(later(number * step, job) for number, job in enumerate(jobs)))


def main() -> None:
    """Send them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--cancelled", type=int, default=100)
    parser.add_argument("--bodies", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.nice(5)  # What normal clients see is measured on the same core.
    asyncio.run(come(arguments))


if __name__ == "__main__":
    main()
