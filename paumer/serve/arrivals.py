"""How much work arrives: the load over the longest recent time that looks steady."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Load:
    """What arrived in some ``seconds``: how many requests, and their work at each rung."""

    seconds: float
    requests: int
    work: tuple[float, ...]

    def busy(self, place: int, doubt: float = 0.0) -> float:
        """The share of time that the work keeps a rung busy.

        Requests come by chance, so that the true rate may be higher or lower: ``doubt`` gives the
        share at so many standard deviations above, or below when negative.
        """
        if not self.requests:
            return 0.0
        likely = max(0.0, 1 + doubt / math.sqrt(self.requests))
        return likely * self.work[place] / self.seconds

    def latency(self, place: int, factor: float, doubt: float = 0.0) -> float:
        """The seconds within which 99 of 100 requests are answered, if this load stays.

        ``factor`` is how many times longer work takes than it should.
        """
        if not self.requests:
            return 0.0
        busy = factor * self.busy(place, doubt)
        return (1 + waiting(busy)) * factor * self.work[place] / self.requests


def waiting(busy: float) -> float:
    """How many services long the wait is that 1 of 100 requests exceeds, at a share of busy time.

    One server, services of equal length, arrivals by chance. A formula fitted to the exact tail,
    within 3% from 0.3 to 0.95.
    """
    if busy >= 1:
        return math.inf
    tail = 100 * busy**0.6
    return busy ** (1 / 3) * math.log(tail) / (2 * (1 - busy)) if tail > 1 else 0.0


class Arrivals:
    """Counts what arrives, and forgets what came before the load last changed.

    Time is cut into steps. Where requests before and after a step differ by more than chance
    explains (``surprise`` standard deviations), only those after it count.
    """

    def __init__(self, step: float = 0.25, most: int = 400, surprise: float = 4.5) -> None:
        self.step, self.most, self.surprise = step, most, surprise
        self._first: int | None = None
        self._looked_at = 0
        self._requests: list[int] = []
        self._work: list[tuple[float, ...]] = []

    def add(self, now: float, work: Sequence[float]) -> None:
        """Note a request that arrives, by the seconds that it should take at each rung."""
        self._reach(now)
        before = self._work[-1] or (0.0,) * len(work)
        self._work[-1] = tuple(a + b for a, b in zip(before, work, strict=True))
        self._requests[-1] += 1

    def load(self, now: float) -> Load:
        """What arrived since the load last changed."""
        current = self._reach(now)
        while current != self._looked_at and (cut := self._change()):
            self._drop(cut)
        self._looked_at = current  # Once a step is often enough.
        work = [w for w in self._work if w]
        seconds = now - (self._first or 0) * self.step
        return Load(
            max(seconds, self.step),
            sum(self._requests),
            tuple(map(sum, zip(*work, strict=True))),
        )

    def _reach(self, now: float) -> int:
        """Open the steps up to now, and forget those that are too old; the number of this step."""
        current = int(now / self.step)
        if self._first is None or current - self._first > 2 * self.most:
            self._first, self._requests, self._work = current, [0], [()]
        missing = current - self._first - len(self._requests) + 1
        self._requests += [0] * missing
        self._work += [()] * missing
        self._drop(max(0, len(self._requests) - self.most))
        return current

    def _drop(self, steps: int) -> None:
        self._first = (self._first or 0) + steps
        del self._requests[:steps], self._work[:steps]

    def _change(self) -> int:
        """The step at which the load changed most, 0 if it is steady."""
        total, number = sum(self._requests), len(self._requests)
        best, place = self.surprise, 0
        for before, requests in enumerate(accumulate(self._requests), 1):
            near = number - before < 32  # Far back a coarser look will do.
            if 2 <= before <= number - 2 and (near or before % 8 == 0):
                expected = total * before / number
                surprise = _surprise(requests, expected, total)
                if surprise > best:
                    best, place = surprise, before
        return place


def _surprise(requests: int, expected: float, total: int) -> float:
    """How far requests before a step are from the expected, in standard deviations.

    By the ratio of likelihoods, which holds for few requests too.
    """
    parts = ((requests, expected), (total - requests, total - expected))
    return math.sqrt(max(0.0, 2 * sum(n * math.log(n / mean) for n, mean in parts if n)))
