"""What hostile clients cost the others: slow ones, ones that hang up, bombs and floods.

python benchmarks/serve_hostile.py --model runs/mine

Windows with and without hostile clients alternate while normal requests come at 0.3 of capacity;
their 95th percentiles are compared. Then gauges and memory have to be back where they were.
"""

import argparse
import asyncio
import io
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import httpx
from PIL import Image

from paumer.scenes.scene import scene

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", required=True)
parser.add_argument("--windows", type=int, default=6, help="of each kind")
parser.add_argument("--seconds", type=float, default=10, help="of a window")
parser.add_argument("--slow", type=int, default=200)
parser.add_argument("--cancelled", type=int, default=1000)
parser.add_argument("--bodies", type=int, default=300)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--cores", type=int, nargs=2, default=[0, 1], help="of service and load")
arguments = parser.parse_args()

memory = io.BytesIO()
Image.fromarray(scene(0, (arguments.size, arguments.size))[0]).save(memory, "JPEG")
PICTURE = memory.getvalue()
HEAD = "POST /v1/segment HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"


def bomb():
    """A small PNG file whose header promises 60,000 x 60,000 pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


BODIES = [bomb(), PICTURE[: len(PICTURE) // 2], bytes(10**8), b"%PDF-1.7 no picture"]


async def send(port, content, wait, finish=True):
    """Send bytes over a connection of their own; then wait, or until there is an answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        if finish:
            await asyncio.wait_for(asyncio.gather(writer.drain(), reader.read(100)), wait)
        else:
            await asyncio.sleep(wait)
        writer.close()
    except (OSError, TimeoutError):
        pass


async def hostile(port, seconds, share):
    """A share of all hostile clients, spread over so many seconds."""
    jobs = [(HEAD.format(5000).encode() + b"abc", seconds, False)] * int(arguments.slow * share)
    head = HEAD.format(len(PICTURE)).encode()
    jobs += [(head + PICTURE, 0.02, False)] * int(arguments.cancelled * share)
    for number in range(int(arguments.bodies * share)):
        body = BODIES[number % len(BODIES)]
        jobs.append((HEAD.format(len(body)).encode() + body, 5.0, True))
    random.Random(0).shuffle(jobs)

    async def later(delay, job):
        await asyncio.sleep(delay)
        await send(port, *job)

    step = 0.8 * seconds / max(1, len(jobs))
    await asyncio.gather(*(later(number * step, job) for number, job in enumerate(jobs)))


async def normal(client, rate, seconds):
    """Seconds of normal requests, and how many got no result."""
    dice, tasks, begin = random.Random(1), [], time.perf_counter()

    async def one():
        start = time.perf_counter()
        options = {"pause": "none"}
        response = await client.post("/v1/segment", content=PICTURE, params=options)
        return time.perf_counter() - start, response.status_code

    while time.perf_counter() - begin < seconds:
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(dice.expovariate(rate))
    answers = await asyncio.gather(*tasks)
    good = sorted(took for took, status in answers if status == 200)
    return good, len(answers) - len(good)


def memory_of(process):
    """Resident megabytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


async def main(url, process):
    port = int(url.rsplit(":", 1)[1])
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
        warm, _ = await normal(client, 5, 5)
        rate = 0.3 / statistics.median(warm)
        await hostile(port, 5, 0.02)
        before = memory_of(process)
        found = {False: [], True: []}
        for number in range(2 * arguments.windows):
            with_them = number % 2 == 1
            jobs = [normal(client, rate, arguments.seconds)]
            if with_them:
                jobs.append(hostile(port, arguments.seconds, 1 / arguments.windows))
            (good, lost), *_ = await asyncio.gather(*jobs)
            found[with_them] += good
            print(
                f"hostile {with_them!s:5} p95 {1000 * good[int(0.95 * len(good))]:.1f} ms, "
                f"{len(good)} answers, {lost} without",
                flush=True,
            )
        await asyncio.sleep(15)
        metrics = (await client.get("/metrics")).text
        p95 = {kind: sorted(v)[int(0.95 * len(v))] for kind, v in found.items()}
        print(
            f"p95 {1000 * p95[False]:.1f} -> {1000 * p95[True]:.1f} ms: "
            f"{p95[True] / p95[False]:.2f}; memory {memory_of(process) - before:+.1f} MB"
        )
        print("\n".join(re.findall(r"^paumer_(?:in_flight|queue|refused_total).*", metrics, re.M)))


os.sched_setaffinity(0, [arguments.cores[1]])
service = subprocess.Popen(
    [
        sys.executable,
        "-m",
        "paumer",
        "serve",
        "--model",
        arguments.model,
        "--port=0",
        "--threads=1",
    ],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    preexec_fn=lambda: os.sched_setaffinity(0, [arguments.cores[0]]),
)
try:
    asyncio.run(main(re.search(r"http://\S+", service.stdout.readline())[0], service))
finally:
    service.send_signal(signal.SIGTERM)
    service.wait(60)
