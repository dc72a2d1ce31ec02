"""Traces of requests, what a governor makes of them on a clock of its own, and the best there is.

    python benchmarks/traces.py      writes benchmarks/load/*.txt again

A trace is a file with a time on each line, at which a request arrives. Time is counted in services
without pausing (S0), so that a rate of 1 is the capacity without pausing. Add your own.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from serve_client import poisson

from paumer.inference.governor import Due, Governor
from paumer.serve.batcher import ADMIT, AIM


def steady(level: float, until: float, seed: int) -> list[float]:
    """A rate that stays."""
    return poisson(Random(seed), lambda _: level, level, until)


def step(until: float, seed: int) -> list[float]:
    """From 0.3 to 2 for a third of the time."""
    first, last = until / 3, 2 * until / 3
    return poisson(Random(seed), lambda t: 2 if first < t < last else 0.3, 2, until)


def flash(until: float, seed: int, crowd: float = 80) -> list[float]:
    """Ten times 0.4 for a while: a flash crowd."""
    first = until / 3
    return poisson(Random(seed), lambda t: 4 if first < t < first + crowd else 0.4, 4, until)


def diurnal(until: float, seed: int) -> list[float]:
    """A day in minutes: from 0.2 in the night to 2.2 at noon."""
    return poisson(Random(seed), lambda t: 1.2 - math.cos(2 * math.pi * t / until), 2.2, until)


def bursts(until: float, seed: int) -> list[float]:
    """A Markov-modulated process: 0.4 for about 30 services, 3 for about 8, by turns."""
    rng, ends, now = Random(seed), [0.0], 0.0
    while now < until:
        now += rng.expovariate(1 / (8 if len(ends) % 2 == 0 else 30))
        ends.append(now)

    def rate(time: float) -> float:
        turn = sum(end <= time for end in ends)
        return 0.4 if turn % 2 else 3.0

    return poisson(rng, rate, 3, until)


FOLDER = Path(__file__).parent / "load"
MADE: dict[str, Callable[[float, int], list[float]]] = {
    "steady": lambda until, seed: steady(0.5, until, seed),
    "step": step,
    "flash-crowd": flash,
    "diurnal": diurnal,
    "bursts": bursts,
}


def write_traces(folder: Path = FOLDER, until: float = 600.0, seed: int = 0) -> None:
    """Write the traces that are made by chance."""
    folder.mkdir(exist_ok=True)
    for name, make in MADE.items():
        lines = [f"{time:.3f}\n" for time in make(until, seed)]
        (folder / f"{name}.txt").write_text("".join(lines))


def read_traces(folder: Path = FOLDER) -> dict[str, list[float]]:
    """The traces in a folder by name."""
    files = sorted(folder.glob("*.txt"))
    return {file.stem: [float(line) for line in file.read_text().split()] for file in files}


@dataclass(frozen=True)
class Outcome:
    """Of a trace: requests, those taken, those in time, the mean accuracy, and rungs used."""

    requests: int
    accepted: int
    in_time: int
    accuracy: float
    rungs: Counter[int]
    latencies: Sequence[float] = ()

    def p99(self) -> float:
        """The latency that one of a hundred exceeds."""
        return sorted(self.latencies)[int(0.99 * len(self.latencies))]


def simulate(
    trace: Sequence[float],
    seconds: Sequence[float],
    accuracy: Sequence[float],
    target: float,
    seed: int = 0,
    wavers: float = 0.05,
) -> Outcome:
    """What the service's rules make of a trace, on a machine whose pace ``wavers``."""
    rng, governor, rungs = Random(seed), Governor(len(seconds)), Counter[int]()
    waiting: list[float] = []
    latencies: list[float] = []
    free, expected, refused = 0.0, 0.0, 0
    for arrived in [*trace, math.inf]:
        while waiting and free <= arrived:
            rung = governor.choose([free], [Due(at + AIM * target, seconds) for at in waiting])
            took = seconds[rung] * rng.lognormvariate(0, wavers)
            governor.note(seconds[rung], took)
            expected, free = free + governor.factor * seconds[rung], free + took
            latencies.append(free - waiting.pop(0))
            rungs[rung] += 1
        if arrived == math.inf:
            break
        if not waiting and free <= arrived:
            free = expected = arrived
        begin = max(arrived, expected) + governor.factor * len(waiting) * seconds[-1]
        due = [Due(arrived + ADMIT * target, seconds)]
        if (waiting or free > arrived) and governor.late([begin], due, -1)[0] > 0:
            refused += 1
        else:
            waiting.append(arrived)
    served = sum(accuracy[rung] * count for rung, count in rungs.items()) / max(1, len(latencies))
    in_time = sum(latency <= target for latency in latencies)
    return Outcome(len(trace), len(latencies), in_time, served, rungs, latencies)


def best(
    trace: Sequence[float], seconds: Sequence[float], accuracy: Sequence[float], target: float
) -> Outcome:
    """What a governor that knows the future could do at most: in time first, then accuracy.

    At the fastest rung as many as possible are taken, in their order; then a dynamic programme
    over when the service is free gives each the most accurate rung that keeps all of them in time.
    """
    taken: list[float] = []
    free = 0.0
    for arrived in trace:
        done = max(free, arrived) + seconds[-1]
        if done <= arrived + target:
            free = done
            taken.append(arrived)
    latest = [arrived + target for arrived in taken]
    for index in range(len(taken) - 2, -1, -1):
        latest[index] = min(latest[index], latest[index + 1] - seconds[-1])
    states = {0.0: 0.0}
    for arrived, end in zip(taken, latest, strict=True):
        found: dict[float, float] = {}
        for free, total in states.items():
            for took, value in zip(seconds, accuracy, strict=True):
                # In steps of a fiftieth, rounded down: the bound may only be too high.
                done = math.floor(50 * (max(free, arrived) + took)) / 50
                if done <= end:
                    found[done] = max(found.get(done, 0.0), total + value)
        states, most = {}, -math.inf
        for free, total in sorted(found.items()):
            if total > most:
                states[free] = most = total
    served = max(states.values()) / max(1, len(taken))
    return Outcome(len(trace), len(taken), len(taken), served, Counter())


if __name__ == "__main__":
    write_traces()
