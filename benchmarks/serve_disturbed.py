"""What hostile clients cost the others: the part hostile of serve_load.py."""

import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from serve_client import Answer, Process, get, percentile, poisson, service
from serve_compare import Verdict
from serve_levels import Images, Outcome, Setting, send_all

KINDS = ("slow", "cancelled", "bodies")
DRAIN = 30
"""Seconds in which a service must end, its own default."""
SCRIPT = Path(__file__).with_name("serve_hostile.py")


class Windows:
    """Normal requests of one service, in windows without and with hostile clients."""

    def __init__(
        self, arguments: Namespace, images: Images, rate: float, url: str, file: Path
    ) -> None:
        self.arguments, self.images, self.rate = arguments, images, rate
        self.url, self.file = url, file
        self.answers: dict[bool, list[Answer]] = {False: [], True: []}
        self.tails: dict[bool, list[float]] = {False: [], True: []}
        self.decoding = {False: 0.0, True: 0.0}
        """CPU seconds of decoding."""

    def come(self, ratio: float, seed: int) -> subprocess.Popen[bytes]:
        """A process of hostile clients, a part of all of them."""
        port = self.url.rsplit(":", 1)[1]
        counts = [f"--{kind}={round(getattr(self.arguments, kind) * ratio)}" for kind in KINDS]
        words = [f"--seconds={self.arguments.window}", f"--seed={seed}", *counts]
        return subprocess.Popen([sys.executable, str(SCRIPT), port, str(self.file), *words])

    def window(self, seed: int) -> list[Answer]:
        """Answers to normal requests; the same arrivals for the same seed."""
        rng, end = random.Random(seed), self.arguments.window
        dues = poisson(rng, lambda _: self.rate, self.rate, until=end)
        return send_all(self.url, self.images, dues, mode="none")

    def run_pair(self, number: int) -> None:
        """One window without hostile clients, and the same with them."""
        for disturbed in (False, True):
            before = metric(self.url, "decoding_seconds")
            clients = self.come(1 / self.arguments.windows, number) if disturbed else None
            answers = self.window(number)
            if clients:
                clients.wait()
                while metric(self.url, "in_flight"):
                    time.sleep(0.5)
            self.decoding[disturbed] += metric(self.url, "decoding_seconds") - before
            self.answers[disturbed] += answers
            self.tails[disturbed].append(percentile(seconds_of(answers), 0.95))
            label = "with hostile" if disturbed else "without"
            tail = 1000 * self.tails[disturbed][-1]
            busy = sum(answer.status == 429 for answer in answers)
            print(f"{label:12} p95 {tail:.1f} ms of {len(answers)}, {busy} busy", flush=True)

    @property
    def rise(self) -> float:
        """By how much the 95th percentile rises, as the median of the pairs."""
        pairs = zip(self.tails[True], self.tails[False], strict=True)
        return statistics.median(after / before for after, before in pairs) - 1

    @property
    def taken(self) -> float:
        """The ratio of decoding time that hostile clients take: what is more than without them."""
        return 1 - self.decoding[False] / max(self.decoding[True], 1e-9)


def metric(url: str, name: str) -> float:
    """A number that a service says of itself."""
    found = re.search(rf"^paumer_{name} (\S+)", get(url, "/metrics"), re.M)
    assert found
    return float(found[1])


def seconds_of(answers: list[Answer]) -> list[float]:
    """What those that got a mask took."""
    return [answer.seconds for answer in answers if answer.status == 200]


def memory_of(pid: int) -> float:
    """Resident megabytes of a process and all below it."""
    of = Path(f"/proc/{pid}")
    try:
        size = re.search(r"VmRSS:\s+(\d+)", (of / "status").read_text())
        children = (of / "task" / str(pid) / "children").read_text().split()
    except FileNotFoundError:  # It has ended meanwhile.
        return 0.0
    return (int(size[1]) / 1024 if size else 0.0) + sum(map(memory_of, map(int, children)))


def seconds_to_end(windows: Windows, process: Process) -> float:
    """How long a service takes to end after SIGTERM in the midst of an attack."""
    clients = windows.come(1 / windows.arguments.windows, -2)
    time.sleep(windows.arguments.window / 3)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    seconds = time.monotonic() - begin
    clients.kill()
    clients.wait()
    return seconds


def hostile(arguments: Namespace, images: Images, setting: Setting) -> Outcome:
    """95th percentiles of normal requests in windows without and with hostile clients, by turns.

    Both windows of a pair have the same arrivals, at 0.3 C0 and without pausing, so that the
    governor cannot make up for what hostile clients cost. The rise is the median of the pairs: one
    stall of the machine decides the tail of a whole window. At the end the service has to stop
    while hostile clients are at it.
    """
    latency = ("--latency-ms", 1000 * setting.target)
    with (
        tempfile.TemporaryDirectory() as folder,
        service(arguments.model, arguments.cores[0], *latency) as (url, process),
    ):
        file = Path(folder) / "street.jpg"
        file.write_bytes(images[0])
        windows = Windows(arguments, images, setting.rate(0.3), url, file)
        windows.window(-1)
        windows.come(0.02, -1).wait()
        before = memory_of(process.pid)
        for number in range(arguments.windows):
            windows.run_pair(number)
        time.sleep(12)
        metrics, grown = get(url, "/metrics"), memory_of(process.pid) - before
        ending = seconds_to_end(windows, process)
    calm, every = ([answer.status for answer in windows.answers[k]] for k in (False, True))
    busy, lost = every.count(429), sum(status not in (200, 429) for status in every)
    p95 = [1000 * percentile(seconds_of(windows.answers[k]), 0.95) for k in (False, True)]
    rise, taken, more = windows.rise, windows.taken, (busy - calm.count(429)) / len(every)
    refused = dict(re.findall(r'paumer_refused_total{reason="(\w+)"} (\S+)', metrics))
    gauges = dict(re.findall(r"^paumer_(in_flight|queue|queue_filled) (\S+)", metrics, re.M))
    high = {name: value for name, value in gauges.items() if float(value)}
    text = f"all windows together {p95[0]:.1f} -> {p95[1]:.1f} ms"
    print(f"p95 by pairs {100 * rise:+.0f}%, {text}; refused {refused}")
    print(f"{busy} of {len(every)} normal requests were refused as busy, without {calm.count(429)}")
    found = {"p95_ms": p95, "rise": rise, "refused": refused, "gauges": gauges}
    found["p95_ms_of_windows"] = [[1000 * tail for tail in windows.tails[k]] for k in (False, True)]
    found |= {"decoding_taken": taken, "ending_s": ending}
    verdicts: list[Verdict] = [
        ("hostile: p95 of normal requests rises by", "<= 25%", f"{100 * rise:.0f}%", rise <= 0.25),
        ("hostile: decoding time they take", ">= 50%", f"{100 * taken:.0f}%", taken >= 0.5),
        ("hostile: normal requests without answer", "0", f"{lost}", not lost),
        ("hostile: more of them refused as busy", "<= 1%", f"{100 * more:.1f}%", more <= 0.01),
        ("hostile: gauges above zero afterwards", "none", ", ".join(high) or "none", not high),
        ("hostile: memory afterwards", "<= +50 MB", f"{grown:+.1f} MB", grown <= 50),
        ("hostile: SIGTERM ends it after", f"<= {DRAIN} s", f"{ending:.1f} s", ending <= DRAIN),
    ]
    return {**found, "memory_mb": grown, "busy": busy, "lost": lost}, verdicts
