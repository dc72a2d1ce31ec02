"""What the load tool sends with: images, services on cores of their own, and very little HTTP."""

import asyncio
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from PIL import Image

from paumer.scenes.scene import scene


class Answer(NamedTuple):
    """A request: when it was due, its seconds, what came back, how late the tool sent it."""

    due: float
    seconds: float
    status: int | str
    headers: dict[str, str]
    content: bytes
    late: float

    @property
    def point(self) -> str | None:
        """The operating point that answered."""
        return self.headers.get("x-paumer-point")


Process = subprocess.Popen[str]


def make_images(count: int, size: tuple[int, int]) -> list[bytes]:
    """JPEG files of synthetic streets; ``size`` is (width, height)."""
    files = []
    for number in range(count):
        memory = io.BytesIO()
        Image.fromarray(scene(number, size)[0]).save(memory, "JPEG")
        files.append(memory.getvalue())
    return files


def start(words: Sequence[object], *cores: int, stdin: int | None = None) -> Process:
    """A process of Python on some cores with one thread."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def read_line(process: Process) -> str:
    """The next line that a process prints."""
    assert process.stdout
    return process.stdout.readline()


@contextmanager
def service(model: str, core: int | Sequence[int], *words: object) -> Iterator[tuple[str, Process]]:
    """A service on its core or cores; gives its address and its process."""
    command = ["-m", "paumer", "serve", "--model", model, "--port", 0, "--threads", 1, *words]
    process = start(command, *([core] if isinstance(core, int) else core))
    try:
        address = re.search(r"http://\S+", read_line(process))
        assert address, "the service printed no address"
        while not is_up(address[0], "/readyz"):
            time.sleep(0.1)
        yield address[0], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        if process.stdout:
            process.stdout.close()


def get(url: str, path: str) -> str:
    """The text at a path."""
    with urlopen(url + path, timeout=60) as response:
        return str(response.read().decode())


def get_json(url: str, path: str) -> Any:
    """The JSON value at a path."""
    return json.loads(get(url, path))


def is_up(url: str, path: str) -> bool:
    """Whether there is an answer of success at a path."""
    try:
        get(url, path)
    except OSError:
        return False
    return True


class Client:
    """Posts images over connections that it keeps; cheap, because it shares the machine."""

    def __init__(self, url: str) -> None:
        self.url = urlsplit(url)
        self.idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, body: bytes, due: float | None = None, **options: str) -> Answer:
        """The answer to one image."""
        begin = time.perf_counter()
        due = begin if due is None else due
        status: int | str
        try:
            async with asyncio.timeout(60):
                status, headers, content = await self._exchange(body, urlencode(options))
        except (OSError, EOFError) as error:  # A timeout too is an OSError.
            status, headers, content = type(error).__name__, {}, b""
        return Answer(due, time.perf_counter() - due, status, headers, content, begin - due)

    async def _exchange(self, body: bytes, query: str) -> tuple[int, dict[str, str], bytes]:
        head = (
            f"POST /v1/segment?{query} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await self._connection()
        try:
            writer.write(head.encode() + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (x.split(": ", 1) for x in lines)}
            content = await reader.readexactly(int(headers["content-length"]))
        except BaseException:
            writer.close()
            raise
        if headers.get("connection") == "close":
            writer.close()
        else:
            self.idle.append((time.perf_counter(), reader, writer))
        return int(first.split()[1]), headers, content

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self.idle:
            since, reader, writer = self.idle.pop()
            if time.perf_counter() - since < 3 and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self.url.hostname, self.url.port)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, _, writer in self.idle:
            writer.close()


def closed_loop(
    url: str, bodies: Sequence[bytes], clients: int, requests: int, **options: str
) -> tuple[list[Answer], float]:
    """Answers to so many clients, each of which sends again when it was answered; and seconds."""

    async def run() -> tuple[list[Answer], float]:
        async with Client(url) as client:
            numbers = iter(range(requests))
            answers: list[Answer] = []

            async def one() -> None:
                for n in numbers:
                    answers.append(await client.post(bodies[n % len(bodies)], None, **options))

            begin = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(clients)))
            return answers, time.perf_counter() - begin

    return asyncio.run(run())


def throughput(
    url: str, bodies: Sequence[bytes], clients: int, requests: int, **options: str
) -> tuple[float, float]:
    """Images per second, and the median seconds of one."""
    answers, seconds = closed_loop(url, bodies, clients, requests, **options)
    good = [answer.seconds for answer in answers if answer.status == 200]
    return len(good) / seconds, statistics.median(good)


async def open_loop(
    client: Client, bodies: Sequence[bytes], dues: Sequence[float], **options: str
) -> list[Answer]:
    """Answers to requests that are sent when they are due, whatever became of those before."""
    start = time.perf_counter() + 0.2
    tasks: list[asyncio.Task[Answer]] = []
    for number, due in enumerate(dues):
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        body = bodies[number % len(bodies)]
        tasks.append(asyncio.create_task(client.post(body, start + due, **options)))
    return [a._replace(due=a.due - start) for a in await asyncio.gather(*tasks)]


def poisson(
    rng: Random,
    rate: Callable[[float], float],
    highest: float,
    until: float = float("inf"),
    arrivals: int | None = None,
) -> list[float]:
    """Times at which requests are due, by chance, at ``rate(seconds)`` requests per second.

    Drawn at the highest rate and thinned, so that a change of the rate counts at once.
    """
    dues: list[float] = []
    now = 0.0
    while len(dues) != arrivals:
        now += rng.expovariate(highest)
        if now > until:
            break
        if rng.random() < rate(now) / highest:
            dues.append(now)
    return dues


def percentile(values: Sequence[float], ratio: float) -> float:
    """The value that a ratio of all does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, int(ratio * len(values)))]
