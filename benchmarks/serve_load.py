"""What the service does under load, part by part, against what it should do.

python benchmarks/serve_load.py                                     all parts of the built-in model
python benchmarks/serve_load.py levels --model runs/mine            one part
python benchmarks/serve_load.py levels --levels 0.5 2 --arrivals 100        a short look

levels   Poisson arrivals at multiples of capacity; beside it the same service without pausing
steps    the load rises and falls
steady   the load stays
hostile  slow clients, clients that hang up, bombs and floods: what they cost the others
mixed    clients with mixed modes: masks against those computed alone
batches  throughput at full batches against the bare predictor
proxy    two replicas behind nginx against two bare predictors; one is killed

The service runs on one core with one thread, the load comes from another one. S0 is what an image
takes without pausing when the service is never idle, C0 = 1/S0; the latency target is 8 S0. What
is found goes to load.json, where parts measured before stay, and load.png.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import serve_compare
from serve_client import (
    Client,
    get,
    get_json,
    make_images,
    open_loop,
    percentile,
    poisson,
    service,
    throughput,
)


class Setting(NamedTuple):
    """What this machine does with this model, and what is asked of it."""

    s0: float
    target: float
    fastest: str
    first: str
    unpaused: str
    mious: dict[str, float | None]

    def rate(self, level):
        """Requests per second at a multiple of C0."""
        return level / self.s0


def measure(arguments, images):
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


def ask(url, images, setting, rate, seed, **ends):
    """Answers to Poisson arrivals at a rate, or one for each time."""
    rate = rate if callable(rate) else lambda _, always=rate: always
    dues = poisson(random.Random(seed), rate, setting.rate(4), **ends)

    async def run():
        async with Client(url) as client:
            return await open_loop(client, images, dues)

    return asyncio.run(run())


def settle(url, setting):
    """Wait until the service is calm at its first point."""
    while (status := get_json(url, "/v1/status"))["point"] != setting.first or status["queue"]:
        time.sleep(0.5)
    time.sleep(1)


def summary(level, answers, setting, capacity):
    """One level in numbers."""
    good = [answer for answer in answers if answer.status == 200]
    points = [answer.point for answer in good]
    known = [setting.mious[p] for p in points if setting.mious.get(p) is not None]
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


def valid(row, setting):
    """Whether the load came nearly when it was due."""
    return row["tool_late_p99_ms"] <= 100 * setting.target


def tell(name, row, setting):
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


def levels(arguments, images, setting):
    """Poisson arrivals at multiples of C0, with and without pausing.

    The capacity at the fastest point is measured before and after every level: machines drift.
    A level at which the load tool itself was late is repeated, up to twice.
    """
    rows, verdicts, latency = [], [], ("--latency-ms", 1000 * setting.target)
    still = (*latency, "--point", setting.unpaused)
    core = arguments.cores[0]

    def capacity(url, mode):
        return throughput(url, images, 4, 60, mode=mode)[0]

    with (
        service(arguments.model, core, *latency) as (governed, _),
        service(arguments.model, core, *still) as (off, _),
    ):
        sides = (("pausing", governed, setting.fastest), ("off", off, setting.unpaused))
        for level in arguments.levels:
            row = {}
            for name, url, mode in sides:
                for _ in range(3):
                    before = capacity(url, mode)
                    if name == "pausing":
                        settle(url, setting)
                    ends = {"arrivals": arguments.arrivals}
                    rate = setting.rate(level)
                    answers = ask(url, images, setting, rate, arguments.seed, **ends)
                    most = (before + capacity(url, mode)) / 2
                    row[name] = summary(level, answers, setting, most)
                    tell(name, row[name], setting)
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


def steps(arguments, images, setting):
    """The load rises from 0.3 C0 after ten seconds and falls after 25."""
    found, verdicts, latency = [], [], ("--latency-ms", 1000 * setting.target)
    with service(arguments.model, arguments.cores[0], *latency) as (url, _):
        for level in arguments.steps:
            settle(url, setting)

            def rate(t, level=level):
                return setting.rate(level if 10 < t < 25 else 0.3)

            answers = ask(url, images, setting, rate, arguments.seed, until=40)
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


def steady(arguments, images, setting):
    """How often the operating point changes while the load stays."""
    rows, verdicts, latency = [], [], ("--latency-ms", 1000 * setting.target)
    with service(arguments.model, arguments.cores[0], *latency) as (url, _):
        for level in arguments.steady:
            settle(url, setting)
            before = get_json(url, "/v1/status")["changes"]
            rate = setting.rate(level)
            answers = ask(url, images, setting, rate, arguments.seed, until=arguments.seconds)
            changes = get_json(url, "/v1/status")["changes"] - before
            row = {**summary(level, answers, setting, rate), "changes": changes}
            tell(f"{arguments.seconds:g} s", row, setting)
            rows.append(row)
            what = f"steady {level:g}x: changes in {arguments.seconds:g} s"
            verdicts.append((what, "<= 1", f"{changes}", changes <= 1))
    return rows, verdicts


def hostile(arguments, images, setting):
    """95th percentiles of normal requests in windows without and with hostile clients, by turns.

    Both windows of a pair have the same arrivals, at 0.3 C0 and without pausing, so that the
    governor cannot make up for what hostile clients cost. The rise is the median of the pairs: one
    stall of the machine decides the tail of a whole window.
    """
    windows, seconds = arguments.windows, arguments.window
    script = Path(__file__).with_name("serve_hostile.py")
    with (
        tempfile.TemporaryDirectory() as folder,
        service(arguments.model, arguments.cores[0]) as (url, process),
    ):
        port, file = url.rsplit(":", 1)[1], Path(folder) / "street.jpg"
        file.write_bytes(images[0])

        def come(ratio, seed):
            words = [f"--{kind}={round(getattr(arguments, kind) * ratio)}" for kind in KINDS]
            more = [f"--seconds={seconds}", f"--seed={seed}", *words]
            return subprocess.Popen([sys.executable, script, port, file, *more])

        def window(seed):
            rate = setting.rate(0.3)
            dues = poisson(random.Random(seed), lambda _: rate, rate, until=seconds)

            async def run():
                async with Client(url) as client:
                    return await open_loop(client, images, dues, mode="none")

            return asyncio.run(run())

        window(-1)
        come(0.02, -1).wait()
        before = memory_of(process)
        kinds, tails = {False: [], True: []}, {False: [], True: []}
        for number in range(windows):
            for with_them in (False, True):
                clients = come(1 / windows, number) if with_them else None
                answers = window(number)
                kinds[with_them] += answers
                if clients:
                    clients.wait()
                good = [answer.seconds for answer in answers if answer.status == 200]
                tails[with_them].append(percentile(good, 0.95))
                label = "with hostile" if with_them else "without"
                print(f"{label:12} p95 {1000 * tails[with_them][-1]:.1f} ms of {len(answers)}")
        time.sleep(12)
        metrics, grown = get(url, "/metrics"), memory_of(process) - before
    every = [answer.status for answers in kinds.values() for answer in answers]
    busy, lost = every.count(429), sum(status not in (200, 429) for status in every)
    good = {kind: [a.seconds for a in kinds[kind] if a.status == 200] for kind in kinds}
    p95 = {kind: percentile(good[kind], 0.95) for kind in kinds}
    pairs = zip(tails[True], tails[False], strict=True)
    rise = statistics.median(after / before for after, before in pairs) - 1
    refused = dict(re.findall(r'paumer_refused_total{reason="(\w+)"} (\S+)', metrics))
    gauges = dict(re.findall(r"^paumer_(in_flight|queue|queue_filled) (\S+)", metrics, re.M))
    high = {name: value for name, value in gauges.items() if float(value)}
    text = f"all windows together {1000 * p95[False]:.1f} -> {1000 * p95[True]:.1f} ms"
    print(f"p95 by pairs {100 * rise:+.0f}%, {text}; refused {refused}")
    print(f"{busy} of {len(every)} normal requests were refused as busy")
    found = {"p95_ms": [1000 * p95[k] for k in (False, True)], "rise": rise, "refused": refused}
    return {**found, "gauges": gauges, "memory_mb": grown, "busy": busy, "lost": lost}, [
        ("hostile: p95 of normal requests rises by", "<= 25%", f"{100 * rise:.0f}%", rise <= 0.25),
        ("hostile: normal requests without answer", "0", f"{lost}", not lost),
        ("hostile: gauges above zero afterwards", "none", ", ".join(high) or "none", not high),
        ("hostile: memory afterwards", "<= +50 MB", f"{grown:+.1f} MB", grown <= 50),
    ]


KINDS = ("slow", "cancelled", "bodies")


def memory_of(process):
    """Resident megabytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


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


LOADED = {"levels": levels, "steps": steps, "steady": steady, "hostile": hostile}
COMPARED = {
    "mixed": serve_compare.mixed,
    "batches": serve_compare.batches,
    "proxy": serve_compare.proxy,
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, parts = parser.add_argument, [*LOADED, *COMPARED]
    add("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)} (default: all)")
    add("--model", default="street-tiny")
    add("--out", type=Path, default=Path("out/load"))
    add("--size", type=int, default=256)
    add("--patience", type=float, default=8, help="latency target in S0")
    add("--cores", type=int, nargs=2, default=[0, 1], help="of service and load")
    add("--seed", type=int, default=0)
    add("--levels", type=float, nargs="+", default=[0.5, 1, 1.5, 2, 3])
    add("--arrivals", type=int, default=600, help="of each level")
    add("--steps", type=float, nargs="+", default=[2.0, 3.0])
    add("--steady", type=float, nargs="+", default=[0.5, 0.8])
    add("--seconds", type=float, default=60, help="of steady load")
    add("--windows", type=int, default=8, help="with, and as many without, hostile clients")
    add("--window", type=float, default=30, help="seconds of one")
    add("--slow", type=int, default=200)
    add("--cancelled", type=int, default=1000)
    add("--bodies", type=int, default=300)
    add("--requests", type=int, default=1000, help="with mixed modes")
    add("--rounds", type=int, default=5, help="of comparisons with the bare predictor")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"no part {', '.join(unknown)}: choose from {', '.join(parts)}")
    arguments.parts = arguments.parts or parts
    return arguments


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "load.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    images = make_images(16, (arguments.size, arguments.size))
    everywhere = os.sched_getaffinity(0)
    for part in arguments.parts:
        # Replicas take both cores, and whoever asks them has to share.
        os.sched_setaffinity(0, everywhere if part == "proxy" else [arguments.cores[1]])
        if part in LOADED:
            setting = measure(arguments, images)  # Each time: machines drift.
            numbers, verdicts = LOADED[part](arguments, images, setting)
            times = {"s0_ms": 1000 * setting.s0, "target_ms": 1000 * setting.target}
        else:
            numbers, verdicts = COMPARED[part](arguments)
            times = {}
        found[part] = {"found": numbers, "verdicts": verdicts, **times}
        file.write_text(json.dumps(found, indent=1))
    rows = [row for part in arguments.parts for row in found[part]["verdicts"]]
    width = max(len(row[0]) for row in rows)
    for what, target, measured, holds in rows:
        print(f"{what:{width}}  {target:>9}  {measured:>9}  {'holds' if holds else 'FAILS'}")


if __name__ == "__main__":
    main()
