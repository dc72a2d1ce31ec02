"""What waits and by when it has to be done in, an operating point out.

One rule for images, videos and the service: the most accurate rung of a ladder of operating points
at which all that waits would be done in time, one after the other. So accuracy is given up only
where a deadline asks for it, and no more of it than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import NamedTuple

from paumer.measurement import Measurement, miou_of, pareto_front, speed_of

SMOOTHING = 0.1
"""How much the newest work says about the machine's pace."""
WITHIN = 0.9
"""The part of the target in which an image has to be done."""
LAG = 1.5
"""How many periods after its turn a frame has to be done."""


def ladder(points: Sequence[Measurement], floor: float | None = None) -> list[Measurement]:
    """The points that no other beats, of an mIoU of at least ``floor``, from accurate to fast."""
    known = [p for p in points if p.images_per_second is not None and p.miou is not None]
    if not known:
        raise ValueError("no operating point has both a speed and an mIoU: run paumer tune first")
    good = [p for p in known if floor is None or miou_of(p) >= floor]
    if not good:
        raise ValueError(
            f"no operating point reaches an mIoU of {100 * (floor or 0):g}: the best has "
            f"{100 * max(map(miou_of, known)):.2f}"
        )
    return pareto_front(good)


class Due(NamedTuple):
    """Work that has to be done by a time: the seconds that it should take at each rung."""

    by: float
    work: Sequence[float]


@dataclass(eq=False)
class Governor:
    """Chooses a rung for what waits; note afterwards how long that took."""

    rungs: int
    rung: int = 0
    changes: int = 0
    factor: float = 1.0
    """How many times longer work takes just now than it should."""

    def choose(self, free: Sequence[float], waiting: Sequence[Due]) -> int:
        """The most accurate rung at which all that waits is done in time, or else the fastest.

        ``free`` says when each of those that work is done with what it has.
        """
        fits = (n for n in range(self.rungs) if max(self.late(free, waiting, n), default=0) <= 0)
        rung = next(fits, self.rungs - 1)
        self.changes += rung != self.rung
        self.rung = rung
        return rung

    def late(self, free: Sequence[float], waiting: Sequence[Due], rung: int) -> list[float]:
        """By how many seconds each of what waits is late at a rung; below 0 if in time.

        Who is free first takes what is next.
        """
        ends, late = sorted(free), []
        for by, work in waiting:
            end = ends[0] + self.factor * work[rung]
            heapreplace(ends, end)
            late.append(end - by)
        return late

    def note(self, expected: float, seconds: float) -> None:
        """Learn from work that took ``seconds``."""
        # A stall of the machine says little about what comes next.
        seen = min(seconds / expected, 3 * self.factor)
        self.factor += SMOOTHING * (seen - self.factor)


@dataclass(eq=False)
class Pace:
    """The rungs, and the seconds that an image may take; frames of a video follow at that pace."""

    rungs: Sequence[Measurement]
    target: float

    def __post_init__(self) -> None:
        if not self.rungs:
            raise ValueError("a governor needs at least one operating point")
        if self.target <= 0:
            raise ValueError(f"a target of {self.target:g} s cannot be met: give one above 0")
        self.governor = Governor(len(self.rungs))
        self._seconds = [1 / speed_of(rung) for rung in self.rungs]
        self._turn = float("-inf")

    def lag(self, arrived: float, now: float) -> float:
        """How many seconds after its turn a frame begins that was there at ``arrived``.

        Turns follow each other at the target; what comes later, or begins earlier, moves them.
        """
        self._turn = min(now, max(self._turn + self.target, arrived))
        return now - self._turn

    def choose(self, now: float, lag: float | None = None) -> Measurement:
        """The rung for an image, or for a frame that begins ``lag`` seconds after its turn."""
        left = WITHIN * self.target if lag is None else LAG * self.target - lag
        return self.rungs[self.governor.choose([now], [Due(now + left, self._seconds)])]

    def note(self, seconds: float) -> None:
        """Learn from an image that took ``seconds`` at the rung that was chosen."""
        self.governor.note(self._seconds[self.governor.rung], seconds)
