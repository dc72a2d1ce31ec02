"""The time a frame may take in, an operating point out: a ladder climbed with hysteresis.

It knows what each point should take, learns by how much this machine is slower or faster just now,
and answers with the most accurate point that still keeps the deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paumer.measurement import Measurement, miou_of, pareto_front, speed_of

ALARM, CALM, PATIENCE, SMOOTHING = 0.9, 0.7, 4, 0.25


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


@dataclass(eq=False)
class Governor:
    """Chooses a rung for the image at hand; note afterwards how long that took.

    It moves to a faster rung at once when the deadline is in danger (expected time above
    `ALARM` of the target), and to a more accurate one only when ``dwell`` seconds have passed
    since the last change and the expected time there is below `CALM` of the target. Between
    the two nothing changes, so steady load never flaps. Work that lags behind its schedule is to
    catch up within `PATIENCE` images, and has that much less time for each.
    """

    rungs: Sequence[Measurement]
    target: float
    dwell: float = 2.0

    def __post_init__(self) -> None:
        if not self.rungs:
            raise ValueError("a governor needs at least one operating point")
        if self.target <= 0:
            raise ValueError(f"a target of {self.target:g} s cannot be met: give one above 0")
        self._seconds = [1 / speed_of(rung) for rung in self.rungs]
        self.index = self.changes = self._noted = 0
        self.factor = 1.0
        """How many times longer images take just now than the ladder says."""
        self._changed_at = self._turn = float("-inf")

    @property
    def rung(self) -> Measurement:
        """The rung at hand."""
        return self.rungs[self.index]

    def lag(self, arrived: float, now: float) -> float:
        """How many seconds after its turn an image begins that was there at ``arrived``.

        Turns follow each other at the target; what comes later, or begins earlier, moves them.
        """
        self._turn = min(now, max(self._turn + self.target, arrived))
        return now - self._turn

    def choose(self, now: float, lag: float = 0.0) -> Measurement:
        """The rung for an image at the time ``now``, ``lag`` seconds after its turn."""
        index = max(self.index, self._first_within(ALARM, lag))
        if index == self.index and now - self._changed_at >= self.dwell:
            index = min(index, self._first_within(CALM, lag))
        if index != self.index:
            self.index, self._changed_at = index, now
            self.changes += 1
        return self.rung

    def note(self, seconds: float) -> None:
        """Learn from an image that took ``seconds`` at the rung at hand."""
        self._noted += 1
        seen = seconds / self._seconds[self.index]
        self.factor += max(SMOOTHING, 1 / self._noted) * (seen - self.factor)

    def _first_within(self, ratio: float, lag: float) -> int:
        limit = ratio * self.target - lag / PATIENCE
        fits = (i for i, seconds in enumerate(self._seconds) if seconds * self.factor <= limit)
        return next(fits, len(self.rungs) - 1)
