"""What the service does under load: Poisson arrivals at multiples of its capacity without pausing.

python benchmarks/serve_load.py --model runs/mine --out out/load
python benchmarks/serve_load.py --model runs/mine --levels 0.5 2 --arrivals 100      (a short look)

The service runs on one core with one thread, the load comes from another one. S0 is what a picture
takes without pausing when the service is never idle; the latency target is 8 S0. Arrivals do not
wait for answers. The same service without pausing stands beside it. Then steps of the load, and
steady load.
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import matplotlib.pyplot as plt
from PIL import Image

from paumer.scenes.scene import scene

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", required=True)
parser.add_argument("--levels", type=float, nargs="*", default=[0.5, 1, 1.5, 2, 3])
parser.add_argument("--arrivals", type=int, default=600, help="of each level")
parser.add_argument("--steady", type=float, nargs="*", default=[0.5, 0.8])
parser.add_argument("--seconds", type=float, default=60, help="of steady load")
parser.add_argument("--steps", type=float, nargs="*", default=[2.0], help="load in a step from 0.3")
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--patience", type=float, default=8, help="latency target in S0")
parser.add_argument("--cores", type=int, nargs=2, default=[0, 1], help="of service and load")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("out/load"))
arguments = parser.parse_args()

PICTURES = []
for number in range(16):
    memory = io.BytesIO()
    Image.fromarray(scene(number, (arguments.size, arguments.size))[0]).save(memory, "JPEG")
    PICTURES.append(memory.getvalue())


@contextmanager
def service(*words):
    """A service on its core; gives its address."""
    command = [sys.executable, "-m", "paumer", "serve", "--model", arguments.model]
    process = subprocess.Popen(
        [*command, "--port", "0", "--threads", "1", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, [arguments.cores[0]]),
    )
    try:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        while httpx.get(f"{url}/readyz").status_code != 200:
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


async def ask(client, number, begin, **options):
    """One request: when it was due, its seconds, status, operating point, and how late it left."""
    body, late = PICTURES[number % len(PICTURES)], time.perf_counter() - begin
    try:
        response = await client.post("/v1/segment", content=body, params=options)
        status, point = response.status_code, response.headers.get("x-paumer-point")
    except httpx.TransportError as error:
        status, point = type(error).__name__, None
    return begin, time.perf_counter() - begin, status, point, late


def connect(url):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(base_url=url, timeout=60, limits=limits)


async def closed_loop(url, clients, requests, **options):
    """Requests per second, and the median seconds of one, with so many clients in turn."""
    async with connect(url) as client:
        numbers = iter(range(requests))

        answers = []

        async def one():
            for n in numbers:
                answers.append(await ask(client, n, time.perf_counter(), **options))

        begin = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
    good = [seconds for _, seconds, status, *_ in answers if status == 200]
    return len(good) / (time.perf_counter() - begin), statistics.median(good)


async def open_loop(url, rate, arrivals=None, until=None):
    """Answers to Poisson arrivals at ``rate(seconds since the start)`` requests per second.

    Drawn at four times the capacity and thinned, so that a change of the rate counts at once.
    """
    dice, tasks, start, due = random.Random(arguments.seed), [], time.perf_counter() + 0.2, 0.0
    async with connect(url) as client:
        while True:
            due += dice.expovariate(4 / s0)
            if dice.random() > rate(due) * s0 / 4:
                continue
            if (until and due > until) or (arrivals and len(tasks) >= arrivals):
                break
            await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(client, len(tasks), start + due)))
        answers = await asyncio.gather(*tasks)
    return [(begin - start, *rest) for begin, *rest in answers]


def status(url):
    return httpx.get(f"{url}/v1/status").json()


def settle(url):
    """Wait until the service is calm at its first point."""
    first = httpx.get(f"{url}/v1/model").json()["points"][0]["name"]
    while status(url)["point"] != first or status(url)["queue"]:
        time.sleep(0.5)
    time.sleep(1)


def summary(level, answers, target, offered, capacity, mious):
    """One level in numbers."""
    good = sorted(seconds for _, seconds, code, *_ in answers if code == 200)
    late = sorted(late for *_, late in answers)
    points = [point for _, _, code, point, _ in answers if code == 200]
    known = [mious[point] for point in points if mious.get(point) is not None]
    percentiles = {
        f"p{share}_ms": 1000 * good[min(len(good) - 1, int(share / 100 * len(good)))]
        for share in (50, 95, 99)
    }
    codes = {str(code): 0 for _, _, code, *_ in answers}
    for _, _, code, *_ in answers:
        codes[str(code)] += 1
    possible = min(offered, capacity)
    return {
        "level": level,
        "arrivals": len(answers),
        **percentiles,
        "p99_over_target": percentiles["p99_ms"] / 1000 / target,
        "tool_late_p99_ms": 1000 * late[int(0.99 * len(late))],
        "accepted": len(good) / len(answers),
        "accepted_of_possible": len(good) / len(answers) * offered / possible,
        "codes": codes,
        "points": {point: points.count(point) for point in dict.fromkeys(points)},
        "over_time": [
            max(part, key=part.count)
            for part in (points[i : i + 20] for i in range(0, len(points), 20))
        ],
        "miou": sum(known) / len(known) if known else None,
    }


def tell(name, row):
    miou = "" if row["miou"] is None else f" mIoU {100 * row['miou']:.2f}"
    print(
        f"{row['level']:4g}x {name:8} p50 {row['p50_ms']:5.0f} p95 {row['p95_ms']:5.0f} "
        f"p99 {row['p99_ms']:5.0f} ms ({row['p99_over_target']:.2f} of target) "
        f"accepted {row['accepted']:.3f} ({row['accepted_of_possible']:.2f} of possible)"
        f"{miou} {row['codes']} {row['points']} load tool late by {row['tool_late_p99_ms']:.0f} ms",
        flush=True,
    )
    if row["tool_late_p99_ms"] > 0.1 * row["p99_ms"] / row["p99_over_target"]:
        print("      not valid: the load tool was late by more than a tenth of the target")


def draw(rows, path):
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for name, colour in (("pausing", "#0072b2"), ("off", "#d55e00")):
        some = [row[name] for row in rows]
        levels = [row["level"] for row in some]
        label = {"pausing": "pauses under load", "off": "never pauses"}[name]
        style = {"color": colour, "marker": "o", "label": label}
        axes[0].plot(levels, [row["level"] * row["accepted"] for row in some], **style)
        axes[1].plot(levels, [row["p99_over_target"] for row in some], **style)
        if all(row["miou"] is not None for row in some):
            axes[2].plot(levels, [100 * row["miou"] for row in some], **style)
    axes[0].plot(levels, levels, color="0.7", linestyle=":", label="offered")
    axes[1].axhline(1, color="0.7", linestyle=":")
    axes[0].set_ylabel("answered")
    axes[1].set_ylabel("p99 latency / target")
    axes[1].set_ylim(0)
    axes[2].set_ylabel("expected mIoU, %")
    for axis in axes:
        axis.set_xlabel("offered load / capacity without pausing")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


os.sched_setaffinity(0, [arguments.cores[1]])
arguments.out.mkdir(parents=True, exist_ok=True)
with service("--latency-ms", 1e6) as url:
    model = httpx.get(f"{url}/v1/model").json()
    asyncio.run(closed_loop(url, 1, 10, pause="none"))
    _, alone = asyncio.run(closed_loop(url, 1, 30, pause="none"))
    fastest = model["points"][-1]["name"]
    capacity, _ = asyncio.run(closed_loop(url, 4, 100, pause=fastest))
    plain, _ = asyncio.run(closed_loop(url, 4, 100, pause="none"))
s0 = 1 / plain
target = arguments.patience * s0
mious = {point["name"]: point["miou"] for point in model["curve"]}
unpaused = next(point["name"] for point in model["curve"] if point["pause"] == "none")
print(
    f"S0 {1000 * s0:.1f} ms ({1000 * alone:.1f} ms alone), C0 {plain:.1f}/s, at {fastest} "
    f"{capacity:.1f}/s ({capacity * s0:.2f}x), target {1000 * target:.0f} ms"
)
found = {"s0_ms": 1000 * s0, "capacity": capacity, "target_ms": 1000 * target, "levels": []}
latency = ("--latency-ms", 1000 * target)
with service(*latency) as governed, service(*latency, "--point", unpaused) as off:
    for level in arguments.levels:
        row = {}
        for name, url, most in (("pausing", governed, capacity), ("off", off, 1 / s0)):
            if name == "pausing":
                settle(url)
            answers = asyncio.run(open_loop(url, lambda _: level / s0, arguments.arrivals))  # noqa: B023
            row[name] = summary(level, answers, target, level / s0, most, mious)
            tell(name, row[name])
        found["levels"].append(row)
    first = model["points"][0]["name"]
    for level in arguments.steps:
        settle(governed)
        rate = lambda t: (level if 10 < t < 25 else 0.3) / s0  # noqa: B023, E731
        answers = asyncio.run(open_loop(governed, rate, until=40))
        ends = [(t + seconds, point) for t, seconds, code, point, _ in answers if code == 200]
        up = min((end for end, point in ends if end > 10 and point != first), default=None)
        slow = max((end for end, point in ends if point != first), default=None)
        told = (None if up is None else (up - 10) / s0, None if slow is None else slow - 25)
        print(f"step to {level:g}x: faster after {told[0]} S0, accurate {told[1]} s after it fell")
        found.setdefault("steps", []).append([level, *told])
    for level in arguments.steady:
        settle(governed)
        before = status(governed)["changes"]
        answers = asyncio.run(open_loop(governed, lambda _: level / s0, until=arguments.seconds))  # noqa: B023
        changes = status(governed)["changes"] - before
        row = summary(level, answers, target, level / s0, capacity, mious)
        tell(f"{arguments.seconds:g} s", row)
        print(f"  {changes} changes")
        found.setdefault("steady", []).append([level, changes, row])
(arguments.out / "load.json").write_text(json.dumps(found, indent=1))
if found["levels"]:
    draw(found["levels"], arguments.out / "load.png")
