"""A service against the bare predictor: the same masks, and nearly the same speed."""

import asyncio
import io
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from serve_client import Client, closed_loop, get, get_json, make_images, service, start

from paumer import Inference, load
from paumer.data.images import read_image

NGINX_CONF = Path(__file__).parents[1] / "deploy" / "nginx.conf"


def serve_bare(model, size, batch):
    """Answer lines of a number of images and a mode with the seconds they take.

    On the clock, and of the processor.
    """
    torch.set_num_threads(1)
    predictor, how = load(model), Inference(batch=batch)
    images = [read_image(file) for file in make_images(batch, (size, size))]
    print("ready", flush=True)
    for line in sys.stdin:
        number, mode = line.strip().split(maxsplit=1)
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(int(number) // batch):
            predictor.predict_batch(images, mode, how)
        print(time.perf_counter() - begin, time.process_time() - used, flush=True)


class Bare:
    """A bare predictor on its core."""

    def __init__(self, arguments, core, batch):
        words = [__file__, arguments.model, arguments.size, batch]
        self.process = start(words, core, stdin=subprocess.PIPE)
        assert self.process.stdout.readline() == "ready\n"

    def begin(self, mode, number):
        self.process.stdin.write(f"{number} {mode}\n")
        self.process.stdin.flush()

    def end(self):
        """The seconds on the clock, and of the processor."""
        clock, used = map(float, self.process.stdout.readline().split())
        return clock, used

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def labels_of(answer):
    return np.array(Image.open(io.BytesIO(answer.content)))


def mixed(arguments):
    """Clients with mixed modes: masks against those computed alone."""
    size = arguments.size
    files = [*make_images(8, (size, size)), *make_images(8, (size, 3 * size // 4))]
    predictor = load(arguments.model)
    modes = ("none", "3:0.4", "3:0.4,5:0.4", "4:0.3", *list(predictor.points)[-2:], "3:0.4 exit")
    options = [*({"mode": mode} for mode in modes), {}]
    asked = [(n % 16, options[(n // 16 + n) % len(options)]) for n in range(arguments.requests)]

    async def ask_all(url):
        numbers = iter(range(len(asked)))
        answers = [None] * len(asked)
        async with Client(url) as client:

            async def one():
                for n in numbers:
                    file, wish = asked[n]
                    while (answer := await client.post(files[file], **wish)).status == 429:
                        await asyncio.sleep(0.05)
                    answers[n] = answer

            await asyncio.gather(*(one() for _ in range(16)))
        return answers

    words = ("--batch", 4, "--latency-ms", 1500)
    with service(arguments.model, arguments.cores[0], *words) as (url, _):
        answers = asyncio.run(ask_all(url))
    torch.set_num_threads(1)
    alone, worst, wrong = {}, 0.0, 0
    for (file, _), answer in zip(asked, answers, strict=True):
        if answer.status != 200:
            wrong += 1
            continue
        key = (file, answer.headers["x-paumer-mode"])
        if key not in alone:
            alone[key] = predictor.predict(read_image(files[file]), key[1]).labels
        worst = max(worst, float((labels_of(answer) != alone[key]).mean()))
    print(f"{len(asked)} requests, {len(alone)} different ones, worst mask differs in {worst:g}")
    numbers = {"requests": len(asked), "without": wrong, "worst": worst}
    return numbers, [
        ("mixed: worst mask, pixels that differ", "<= 0.0001", f"{worst:g}", worst <= 1e-4),
        ("mixed: requests without result", "0", f"{wrong}", not wrong),
    ]


def batches(arguments):
    """Full batches: the service against the bare predictor on the same core, by turns.

    By the clock and by processor time: what counts is the smaller of the two medians.
    """
    files, batch = make_images(8, (arguments.size, arguments.size)), 8
    core, ratios, verdicts, number = arguments.cores[0], {}, [], 12 * batch
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
                answers, seconds = closed_loop(url, files, 3 * batch, number, mode=mode)
                assert all(answer.status == 200 for answer in answers)
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


def processor_seconds(process):
    """What a process used so far."""
    text = Path(f"/proc/{process.pid}/stat").read_text()
    user, system = text.rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def batch_sizes(url):
    """Images and batches that ran since the service started."""
    found = dict(re.findall(r"^paumer_batch_size_(sum|count) (\S+)", get(url, "/metrics"), re.M))
    return float(found["sum"]), float(found["count"])


@contextmanager
def nginx(ports):
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
            while get(url, "/healthz", raises=False) is None:
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait()


def proxy(arguments):
    """Two replicas behind nginx against two bare predictors by turns, then one is killed."""
    files, clients, number = make_images(8, (arguments.size, arguments.size)), 8, 48
    predictor, wish = load(arguments.model), {"mode": "none"}
    torch.set_num_threads(1)
    expected = [predictor.predict(read_image(file), "none").labels for file in files]
    with ExitStack() as stack:
        made = [
            stack.enter_context(service(arguments.model, core, "--latency-ms", 1e6))
            for core in arguments.cores
        ]
        bares = [stack.enter_context(Bare(arguments, core, 1)) for core in arguments.cores]
        url = stack.enter_context(nginx([int(url.rsplit(":", 1)[1]) for url, _ in made]))
        answers, _ = closed_loop(url, files, 1, len(files), **wish)
        same = all(
            a.status == 200 and np.mean(labels_of(a) != labels) <= 1e-4
            for a, labels in zip(answers, expected, strict=True)
        )
        found = []
        for _ in range(arguments.rounds):
            for bare in bares:
                bare.begin("none", number)
            plain = sum(number / bare.end()[0] for bare in bares)
            answers, seconds = closed_loop(url, files, clients, 2 * number, **wish)
            assert all(answer.status == 200 for answer in answers)
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


async def kill_one(url, files, clients, number, process):
    """Answers while a replica is killed, and how many of its requests were under way at most.

    With least connections these are half of all, rounded up.
    """
    answers, numbers = [], iter(range(number))
    async with Client(url) as client:

        async def one():
            for n in numbers:
                if n == number // 3:
                    process.kill()
                answers.append(await client.post(files[n % len(files)], mode="none"))

        await asyncio.gather(*(one() for _ in range(clients)))
    return answers, -(-clients // 2)


if __name__ == "__main__":
    model, size, batch = sys.argv[1:]
    serve_bare(model, int(size), int(batch))
