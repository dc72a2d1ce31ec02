"""A service against the bare predictor: the same masks, and nearly the same speed.

The parts mixed, batches, workers and proxy of serve_load.py. Started by itself, this is the bare
predictor:

    python benchmarks/serve_compare.py street-tiny 256 8
"""

import argparse
import asyncio
import io
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from serve_client import (
    Answer,
    Client,
    Process,
    closed_loop,
    get,
    get_json,
    is_up,
    make_images,
    read_line,
    service,
    start,
    throughput,
)

from paumer import Inference, load
from paumer.data.images import read_image

NGINX_CONF = Path(__file__).parents[1] / "deploy" / "nginx.conf"


Verdict = tuple[str, str, str, bool]
"""What was measured, what is wanted, the value, and whether it holds."""


def serve_bare(model: str, size: int, batch: int) -> None:
    """Answer lines of a number of images and a mode with the seconds they take.

    On the clock, and of the processor.
    """
    torch.set_num_threads(1)
    predictor, inference = load(model), Inference(batch=batch)
    images = [read_image(file) for file in make_images(batch, (size, size))]
    print("ready", flush=True)
    for line in sys.stdin:
        number, mode = line.strip().split(maxsplit=1)
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(int(number) // batch):
            predictor.predict_batch(images, mode, inference)
        print(time.perf_counter() - begin, time.process_time() - used, flush=True)


class Bare:
    """A bare predictor on its core."""

    def __init__(self, arguments: argparse.Namespace, core: int, batch: int) -> None:
        words = [__file__, arguments.model, arguments.size, batch]
        self.process = start(words, core, stdin=subprocess.PIPE)
        assert read_line(self.process) == "ready\n"

    def begin(self, mode: str, number: int) -> None:
        """Start so many images."""
        assert self.process.stdin
        self.process.stdin.write(f"{number} {mode}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[float, float]:
        """The seconds on the clock, and of the processor."""
        clock, used = map(float, read_line(self.process).split())
        return clock, used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def labels_of(answer: Answer) -> NDArray[np.uint8]:
    """The mask that came back."""
    return np.array(Image.open(io.BytesIO(answer.content)))


def mixed(arguments: argparse.Namespace) -> tuple[object, list[Verdict]]:
    """Clients with mixed modes: masks against those computed alone."""
    size = arguments.size
    files = [*make_images(8, (size, size)), *make_images(8, (size, 3 * size // 4))]
    predictor = load(arguments.model)
    modes = ("none", "3:0.4", "3:0.4,5:0.4", "4:0.3", *list(predictor.points)[-2:], "3:0.4 exit")
    options: list[dict[str, str]] = [*({"mode": mode} for mode in modes), {}]
    count = arguments.requests
    requests = [(n % 16, options[(n // 16 + n) % len(options)]) for n in range(count)]
    words = ("--batch", 4, "--latency-ms", 1500)
    with service(arguments.model, arguments.cores[0], *words) as (url, _):
        replies = asyncio.run(post_all(url, [(files[n], wish) for n, wish in requests]))
    torch.set_num_threads(1)
    alone: dict[tuple[int, str], NDArray[np.integer]] = {}
    worst, wrong = 0.0, 0
    for (number, _), reply in zip(requests, replies, strict=True):
        if reply.status != 200:
            wrong += 1
            continue
        key = (number, reply.headers["x-paumer-mode"])
        if key not in alone:
            alone[key] = predictor.predict(read_image(files[number]), key[1]).labels
        worst = max(worst, float((labels_of(reply) != alone[key]).mean()))
    print(f"{count} requests, {len(alone)} different ones, worst mask differs in {worst:g}")
    numbers = {"requests": count, "without": wrong, "worst": worst}
    return numbers, [
        ("mixed: worst mask, pixels that differ", "<= 0.0001", f"{worst:g}", worst <= 1e-4),
        ("mixed: requests without result", "0", f"{wrong}", not wrong),
    ]


async def post_all(url: str, requests: Sequence[tuple[bytes, dict[str, str]]]) -> list[Answer]:
    """Answers to files with their options, of 16 clients that try again where it is busy."""
    numbers = iter(range(len(requests)))
    replies: dict[int, Answer] = {}
    async with Client(url) as client:

        async def one() -> None:
            for n in numbers:
                file, wish = requests[n]
                while (reply := await client.post(file, None, **wish)).status == 429:
                    await asyncio.sleep(0.05)
                replies[n] = reply

        await asyncio.gather(*(one() for _ in range(16)))
    return [replies[n] for n in range(len(requests))]


def batches(arguments: argparse.Namespace) -> tuple[object, list[Verdict]]:
    """Full batches: the service against the bare predictor on the same core, by turns.

    By the clock and by processor time: what counts is the smaller of the two medians.
    """
    files, batch = make_images(8, (arguments.size, arguments.size)), 8
    core, number = arguments.cores[0], 12 * batch
    ratios: dict[str, object] = {}
    verdicts: list[Verdict] = []
    words = ("--batch", batch, "--latency-ms", 1e6)
    with (
        service(arguments.model, core, *words) as (url, process),
        Bare(arguments, core, batch) as bare,
    ):
        fastest = get_json(url, "/v1/model")["points"][-1]["mode"]
        for mode in dict.fromkeys(("none", fastest)):
            closed_loop(url, files, 3 * batch, 3 * batch, mode=mode)
            before, on_clock, of_processor = batch_sizes(url), [], []
            for _ in range(arguments.rounds):
                bare.begin(mode, number)
                clock, used = bare.end()
                start = processor_seconds(process)
                replies, seconds = closed_loop(url, files, 3 * batch, number, mode=mode)
                assert all(reply.status == 200 for reply in replies)
                on_clock.append(clock / seconds)
                of_processor.append(used / (processor_seconds(process) - start))
                text = f"{of_processor[-1]:.3f} of it served, by the clock {on_clock[-1]:.3f}"
                print(f"{mode}: {number / clock:.1f}/s bare, {text}", flush=True)
            images, runs = (a - b for a, b in zip(batch_sizes(url), before, strict=True))
            ratio = min(statistics.median(on_clock), statistics.median(of_processor))
            filled = images / runs / batch
            ratios[mode] = {"of_processor": of_processor, "on_clock": on_clock, "filled": filled}
            what = f"full batches ({filled:.2f} full), {mode}: of bare predictor"
            verdicts.append((what, ">= 0.95", f"{ratio:.3f}", ratio >= 0.95))
    return ratios, verdicts


def workers(arguments: argparse.Namespace) -> tuple[object, list[Verdict]]:
    """Two workers on two cores against one on one core, by turns; then one is killed at work."""
    files, number = make_images(8, (arguments.size, arguments.size)), 48
    patient = ("--latency-ms", 1e6)
    with (
        service(arguments.model, arguments.cores[0], *patient) as (one, _),
        service(arguments.model, arguments.cores, *patient, "--workers", 2) as (two, process),
    ):
        ratios = []
        for _ in range(1 + arguments.rounds):
            single, _ = throughput(one, files, 2, number, mode="none")
            double, _ = throughput(two, files, 4, 2 * number, mode="none")
            ratios.append(double / single)
            print(f"{single:.1f}/s, {double:.1f}/s with two: {ratios[-1]:.2f}x", flush=True)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(closed_loop, two, files, 4, number, mode="none")
            time.sleep(1)
            os.kill(compute_processes(process)[0], signal.SIGKILL)
            replies, _ = asked.result()
        answered = sum(reply.status == 200 for reply in replies)
    ratio = statistics.median(ratios[1:])
    verdicts = [
        ("two workers, of one", ">= 1.8", f"{ratio:.2f}", ratio >= 1.8),
        ("answered, one worker killed", f"{number}", f"{answered}", answered == number),
    ]
    return {"ratios": ratios}, verdicts


def compute_processes(process: Process) -> list[int]:
    """The workers of a service: those of its children that multiprocessing has spawned."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [child for thread in threads for child in thread.read_text().split()]
    spawned = [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert spawned, "no workers"
    return [int(child) for child in spawned]


def processor_seconds(process: Process) -> float:
    """What a process used so far."""
    text = Path(f"/proc/{process.pid}/stat").read_text()
    user, system = text.rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def batch_sizes(url: str) -> tuple[float, float]:
    """Images and batches that ran since the service started."""
    found = dict(re.findall(r"^paumer_batch_size_(sum|count) (\S+)", get(url, "/metrics"), re.M))
    return float(found["sum"]), float(found["count"])


@contextmanager
def nginx(ports: Sequence[int]) -> Iterator[str]:
    """The proxy as deployed, in front of two ports; gives its address."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert program, "nginx is not installed"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temp_paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        text = NGINX_CONF.read_text("utf-8")
        for old, new in {
            "127.0.0.1:8001": f"127.0.0.1:{ports[0]}",
            "127.0.0.1:8002": f"127.0.0.1:{ports[1]}",
            "127.0.0.1:8000": f"127.0.0.1:{port}",
            "/tmp/nginx-paumer.pid": f"{folder}/pid",
            "worker_processes auto": "daemon off; worker_processes 1",
            "http {": f"http {{ {temp_paths}",
        }.items():
            assert old in text
            text = text.replace(old, new)
        file = Path(folder) / "nginx.conf"
        file.write_text(text, "utf-8")
        process = subprocess.Popen([program, "-c", file, "-p", folder])
        try:
            url = f"http://127.0.0.1:{port}"
            while not is_up(url, "/healthz"):
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait()


def proxy(arguments: argparse.Namespace) -> tuple[object, list[Verdict]]:
    """Two replicas behind nginx against two bare predictors by turns, then one is killed."""
    files, clients, number = make_images(8, (arguments.size, arguments.size)), 8, 48
    predictor = load(arguments.model)
    torch.set_num_threads(1)
    expected = [predictor.predict(read_image(file), "none").labels for file in files]
    with ExitStack() as stack:
        made = [
            stack.enter_context(service(arguments.model, core, "--latency-ms", 1e6))
            for core in arguments.cores
        ]
        bares = [stack.enter_context(Bare(arguments, core, 1)) for core in arguments.cores]
        url = stack.enter_context(nginx([int(url.rsplit(":", 1)[1]) for url, _ in made]))
        replies, _ = closed_loop(url, files, 1, len(files), mode="none")
        same = all(
            reply.status == 200 and np.mean(labels_of(reply) != labels) <= 1e-4
            for reply, labels in zip(replies, expected, strict=True)
        )
        found = []
        for _ in range(arguments.rounds):
            for bare in bares:
                bare.begin("none", number)
            plain = sum(number / bare.end()[0] for bare in bares)
            replies, seconds = closed_loop(url, files, clients, 2 * number, mode="none")
            assert all(reply.status == 200 for reply in replies)
            found.append(2 * number / seconds / plain)
            print(f"{plain:.1f}/s bare, {found[-1]:.3f} of it served", flush=True)
        killed, victim = asyncio.run(kill_one(url, files, clients, number, made[0][1]))
    ratio = statistics.median(found)
    lost = [answer.status for answer in killed if answer.status != 200]
    silent = [status for status in lost if not isinstance(status, int)]
    print(f"killed one with {victim} requests under way: {len(killed)} asked, lost {lost}")
    return {"rounds": found, "ratio": ratio, "same": same, "lost": lost}, [
        (
            "two replicas behind nginx: of two bare predictors",
            ">= 0.9",
            f"{ratio:.3f}",
            ratio >= 0.9,
        ),
        ("two replicas behind nginx: same masks", "yes", "yes" if same else "no", same),
        ("one killed: requests lost", f"<= {victim}", f"{len(lost)}", len(lost) <= victim),
        ("one killed: requests without any answer", "0", f"{len(silent)}", not silent),
    ]


async def kill_one(
    url: str, files: Sequence[bytes], clients: int, number: int, process: Process
) -> tuple[list[Answer], int]:
    """Answers while a replica is killed, and how many of its requests were under way at most.

    With least connections these are half of all, rounded up.
    """
    replies: list[Answer] = []
    numbers = iter(range(number))
    async with Client(url) as client:

        async def one() -> None:
            for n in numbers:
                if n == number // 3:
                    process.kill()
                replies.append(await client.post(files[n % len(files)], mode="none"))

        await asyncio.gather(*(one() for _ in range(clients)))
    return replies, -(-clients // 2)


def main() -> None:
    """Be the bare predictor that this file's parts start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("size", type=int, help="side of the images")
    parser.add_argument("batch", type=int)
    arguments = parser.parse_args()
    serve_bare(arguments.model, arguments.size, arguments.batch)


if __name__ == "__main__":
    main()
