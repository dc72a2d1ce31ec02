"""How much work arrives: the load over the longest recent time that looks steady."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

_STEPS = 400
"""How many steps of time are remembered."""
_SURPRISE = 4.5
"""By how many standard deviations requests differ where the load has changed."""


@dataclass(frozen=True)
class Load:
    """What arrived within ``seconds``: how many requests, and their work at each rung."""

    seconds: float
    requests: int
    work: tuple[float, ...]

    def latency(self, rung: int, factor: float, doubt: float = 0.0) -> float:
        """The seconds within which 99 of 100 requests are answered, if this load stays.

        ``factor`` is how many times longer work takes than it should. Requests come by chance, so
        that the true rate may be higher or lower: ``doubt`` takes it as so many standard deviations
        above, or below when negative.
        """
        if not self.requests:
            return 0.0
        likely = max(0.0, 1 + doubt / math.sqrt(self.requests))
        busy = factor * (likely * self.work[rung] / self.seconds)
        return (1 + waiting(busy)) * factor * self.work[rung] / self.requests


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
    explains, only those after it count.
    """

    def __init__(self, step: float = 0.25) -> None:
        self.step = step
        self._newest = self._looked_at = 0
        self._steps: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=_STEPS)
        """The requests of each step up to the newest, and their work at each rung."""

    def add(self, now: float, work: Sequence[float]) -> None:
        """Note a request that arrives, by the seconds that it should take at each rung."""
        self._advance(now)
        requests, before = self._steps[-1]
        total = tuple(a + b for a, b in zip_longest(before, work, fillvalue=0.0))
        self._steps[-1] = (requests + 1, total)

    def load(self, now: float) -> Load:
        """What arrived since the load last changed."""
        self._advance(now)
        while self._newest != self._looked_at and (change := self._change()):
            for _ in range(change):
                self._steps.popleft()
        self._looked_at = self._newest  # Once a step is often enough.
        first = self._newest - len(self._steps) + 1
        return Load(
            max(now - first * self.step, self.step),
            sum(requests for requests, _ in self._steps),
            tuple(map(sum, zip(*(work for _, work in self._steps if work), strict=True))),
        )

    def _advance(self, now: float) -> None:
        """Open the steps up to now."""
        newest = int(now / self.step)
        missing = newest - self._newest if self._steps else 1
        self._steps.extend([(0, ())] * min(missing, _STEPS))
        self._newest = newest

    def _change(self) -> int:
        """The step at which the load changed most, 0 if it is steady."""
        before = [0, *accumulate(requests for requests, _ in self._steps)]
        total, number = before[-1], len(self._steps)

        def surprise(step: int) -> float:
            # In standard deviations, by the ratio of likelihoods: it holds for few requests too.
            expected = total * step / number
            parts = ((before[step], expected), (total - before[step], total - expected))
            return math.sqrt(max(0.0, 2 * sum(n * math.log(n / mean) for n, mean in parts if n)))

        # Far back a coarser look will do.
        steps = [step for step in range(2, number - 1) if number - step < 32 or step % 8 == 0]
        step = max(steps, key=surprise, default=0)
        return step if step and surprise(step) > _SURPRISE else 0
