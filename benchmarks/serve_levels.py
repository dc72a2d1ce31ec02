"""A service under load that stays, rises or falls: levels and steps of serve_load.py."""

import asyncio
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from serve_client import (
    Answer,
    Client,
    get_json,
    open_loop,
    percentile,
    poisson,
    service,
    throughput,
)
from serve_compare import Verdict

Images = Sequence[bytes]
Row = dict[str, Any]
Outcome = tuple[object, list[Verdict]]


class Setting(NamedTuple):
    """What this machine does with this model, and what is wanted of it."""

    s0: float
    target: float
    fastest: str
    first: str
    unpaused: str
    mious: dict[str, float | None]

    def rate(self, level: float) -> float:
        """Requests per second at a multiple of C0."""
        return level / self.s0


def measure(arguments: Namespace, images: Images) -> Setting:
    """The setting, from a service that is never idle."""
    with service(arguments.model, arguments.cores[0], "--latency-ms", 1e6) as (url, _):
        model = get_json(url, "/v1/model")
        throughput(url, images, 1, 10, mode="none")
        _, alone = throughput(url, images, 1, 20, mode="none")
        plain, _ = throughput(url, images, 4, 100, mode="none")
        fastest = model["points"][-1]["name"]
        fast, _ = throughput(url, images, 4, 100, mode=fastest)
    target = arguments.patience / plain
    print(
        f"S0 {1000 / plain:.1f} ms ({1000 * alone:.1f} ms alone), C0 {plain:.1f}/s, at {fastest} "
        f"{fast:.1f}/s ({fast / plain:.2f}x), target {1000 * target:.0f} ms",
        flush=True,
    )
    unpaused = next(point["name"] for point in model["curve"] if point["mode"] == "none")
    mious = {point["name"]: point["miou"] for point in model["curve"]}
    first = model["points"][0]["name"]
    return Setting(1 / plain, target, fastest, first, unpaused, mious)


def send_all(url: str, images: Images, dues: Sequence[float], **options: str) -> list[Answer]:
    """Answers to images that are sent when they are due."""

    async def run() -> list[Answer]:
        async with Client(url) as client:
            return await open_loop(client, images, dues, **options)

    return asyncio.run(run())


def settle(url: str, setting: Setting) -> None:
    """Wait until the service is calm at its first point."""
    while (status := get_json(url, "/v1/status"))["point"] != setting.first or status["queue"]:
        time.sleep(0.5)
    time.sleep(1)


def summary(level: float, answers: Sequence[Answer], setting: Setting, capacity: float) -> Row:
    """One level in numbers."""
    good = [answer for answer in answers if answer.status == 200]
    points = [answer.point for answer in good]
    known = [miou for point in points if (miou := setting.mious.get(point or "")) is not None]
    seconds = [answer.seconds for answer in good]
    accepted, offered = len(good) / len(answers), setting.rate(level)
    return {
        "level": level,
        "arrivals": len(answers),
        **{f"p{p}_ms": 1000 * percentile(seconds, p / 100) for p in (50, 95, 99)},
        "p99_over_target": percentile(seconds, 0.99) / setting.target,
        "tool_late_p99_ms": 1000 * percentile([answer.late for answer in answers], 0.99),
        "capacity": capacity,
        "accepted": accepted,
        "accepted_of_possible": accepted * offered / min(offered, capacity),
        "codes": Counter(str(answer.status) for answer in answers),
        "points": Counter(points),
        "over_time": [
            Counter(points[i : i + 20]).most_common(1)[0][0] for i in range(0, len(points), 20)
        ],
        "miou": sum(known) / len(known) if known else None,
    }


def valid(row: Row, setting: Setting) -> bool:
    """Whether the load came nearly when it was due."""
    return bool(row["tool_late_p99_ms"] <= 100 * setting.target)


def print_row(name: str, row: Row, setting: Setting) -> None:
    """Print one level."""
    miou = "" if row["miou"] is None else f" mIoU {100 * row['miou']:.2f}"
    print(
        f"{row['level']:4g}x {name:8} p50 {row['p50_ms']:5.0f} p95 {row['p95_ms']:5.0f} "
        f"p99 {row['p99_ms']:5.0f} ms ({row['p99_over_target']:.2f} of target) "
        f"accepted {row['accepted']:.3f} ({row['accepted_of_possible']:.2f} of possible)"
        f"{miou} {dict(row['codes'])} {dict(row['points'])} "
        f"tool late {row['tool_late_p99_ms']:.0f} ms",
        flush=True,
    )
    if not valid(row, setting):
        print("      not valid: the load tool was late by more than a tenth of the target")


def levels(arguments: Namespace, images: Images, setting: Setting) -> Outcome:
    """Poisson arrivals at multiples of C0, with and without pausing.

    The capacity at the fastest point is measured before and after every level: machines drift.
    A level at which the load tool itself was late is repeated, up to twice.
    """
    rows: list[dict[str, Row]] = []
    verdicts: list[Verdict] = []
    latency = ("--latency-ms", 1000 * setting.target)
    still = (*latency, "--point", setting.unpaused)
    core = arguments.cores[0]

    def capacity(url: str, mode: str) -> float:
        return throughput(url, images, 4, 60, mode=mode)[0]

    with (
        service(arguments.model, core, *latency) as (governed, _),
        service(arguments.model, core, *still) as (off, _),
    ):
        sides = (("pausing", governed, setting.fastest), ("off", off, setting.unpaused))
        for level in arguments.levels:
            row: dict[str, Row] = {}
            rate = setting.rate(level)
            for name, url, mode in sides:
                for _ in range(3):
                    before = capacity(url, mode)
                    if name == "pausing":
                        settle(url, setting)
                    rng, count = random.Random(arguments.seed), arguments.arrivals
                    dues = poisson(rng, lambda _: rate, setting.rate(4), arrivals=count)  # noqa: B023
                    answers = send_all(url, images, dues)
                    most = (before + capacity(url, mode)) / 2
                    row[name] = summary(level, answers, setting, most)
                    print_row(name, row[name], setting)
                    if valid(row[name], setting):
                        break
            rows.append(row)
            found = row["pausing"]
            late, ratio = found["p99_over_target"], found["accepted_of_possible"]
            codes, sure = set(found["codes"]) <= {"200", "429"}, valid(found, setting)
            enough = ratio >= 0.9 and sure
            verdicts += [
                (f"{level:g}x: p99 over target", "<= 1", f"{late:.2f}", late <= 1 and sure),
                (f"{level:g}x: accepted of possible", ">= 0.9", f"{ratio:.3f}", enough),
                (f"{level:g}x: answers", "200, 429", ", ".join(sorted(found["codes"])), codes),
            ]
    draw(rows, arguments.out / "load.png")
    return rows, verdicts


def steps(arguments: Namespace, images: Images, setting: Setting) -> Outcome:
    """The load rises from 0.3 C0 after ten seconds and falls after 25."""
    found: list[Row] = []
    verdicts: list[Verdict] = []
    latency = ("--latency-ms", 1000 * setting.target)
    with service(arguments.model, arguments.cores[0], *latency) as (url, _):
        for level in arguments.steps:
            settle(url, setting)

            def rate(t: float, level: float = level) -> float:
                return setting.rate(level if 10 < t < 25 else 0.3)

            rng = random.Random(arguments.seed)
            answers = send_all(url, images, poisson(rng, rate, setting.rate(4), until=40))
            faster = [
                answer.due + answer.seconds
                for answer in answers
                if answer.status == 200 and answer.point != setting.first
            ]
            late = [end for end in faster if end > 10]
            up = (min(late) - 10) / setting.s0 if late else float("inf")
            down = max(faster, default=25) - 25
            found.append({"level": level, "up_s0": up, "down_s": down})
            verdicts += [
                (f"step to {level:g}x: faster point", "<= 15 S0", f"{up:.1f} S0", up <= 15),
                (f"step to {level:g}x: back again", "<= 10 s", f"{down:.1f} s", down <= 10),
            ]
            print(verdicts[-2:], flush=True)
    return found, verdicts


def draw(rows: Sequence[dict[str, Row]], path: Path) -> None:
    """Draw answered requests, latency and expected mIoU against the offered load."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for name, colour in (("pausing", "#0072b2"), ("off", "#d55e00")):
        side = [row[name] for row in rows]
        levels = [row["level"] for row in side]
        label = {"pausing": "pauses under load", "off": "never pauses"}[name]
        style: dict[str, Any] = {"color": colour, "marker": "o", "label": label}
        axes[0].plot(levels, [row["level"] * row["accepted"] for row in side], **style)
        axes[1].plot(levels, [row["p99_over_target"] for row in side], **style)
        if all(row["miou"] is not None for row in side):
            axes[2].plot(levels, [100 * row["miou"] for row in side], **style)
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
