"""The time a frame may take in, an operating point out: a ladder climbed with hysteresis.

It knows what each point should take, learns by how much this machine is slower or faster just now,
and answers with the most accurate point that still keeps the deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paumer.measurement import Measurement, pareto_front


@dataclass(frozen=True)
class Rung:
    """One operating point of the ladder, and the seconds that an image should take at it."""

    point: Measurement
    seconds: float


def ladder(points: Sequence[Measurement], floor: float | None = None) -> tuple[Rung, ...]:
    """The points that no other beats, from the most accurate to the fastest.

    ``floor`` is the least mIoU that will do.
    """
    known = [p for p in points if p.images_per_second is not None and p.miou is not None]
    if not known:
        raise ValueError("no operating point has both a speed and an mIoU: run paumer tune first")
    good = [p for p in known if floor is None or (p.miou or 0.0) >= floor]
    if not good:
        best = max(p.miou or 0.0 for p in known)
        raise ValueError(
            f"no operating point reaches an mIoU of {100 * (floor or 0):g}: the best has "
            f"{100 * best:.2f}"
        )
    return tuple(Rung(p, 1 / (p.images_per_second or 1.0)) for p in pareto_front(good))


class Governor:
    """Chooses a rung for the image at hand; tell it afterwards how long that took.

    It goes to a faster rung at once when the deadline is in danger (expected time above
    ``alarm`` of the target), and to a more accurate one only when ``dwell`` seconds have passed
    since the last change and the expected time there is below ``calm`` of the target. Between
    the two nothing changes, so steady load never flaps. Work that lags behind its schedule is to
    catch up within ``patience`` images, and has that much less time for each.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        target: float,
        alarm: float = 0.9,
        calm: float = 0.7,
        dwell: float = 2.0,
        smoothing: float = 0.25,
        patience: int = 4,
    ) -> None:
        if not rungs:
            raise ValueError("a governor needs at least one operating point")
        if target <= 0:
            raise ValueError(f"a target of {target:g} s cannot be met: give one above 0")
        if patience < 1:
            raise ValueError(f"patience is {patience}: give at least 1 image")
        if not 0 < calm < alarm:
            raise ValueError(f"calm is {calm:g} and alarm {alarm:g}: give 0 < calm < alarm")
        self.rungs = tuple(rungs)
        self.target, self.alarm, self.calm = target, alarm, calm
        self.dwell, self.smoothing, self.patience = dwell, smoothing, patience
        self.place = 0
        self.changes = 0
        self.factor = 1.0
        """How many times longer images take just now than the ladder says."""
        self._noted = 0
        self._changed_at = self._turn = float("-inf")

    @property
    def rung(self) -> Rung:
        """The rung at hand."""
        return self.rungs[self.place]

    def lag(self, arrived: float, now: float) -> float:
        """How many seconds after its turn an image begins that was there at ``arrived``.

        Turns follow each other at the target; what comes later, or begins earlier, moves them.
        """
        self._turn = min(now, max(self._turn + self.target, arrived))
        return now - self._turn

    def choose(self, now: float, lag: float = 0.0) -> Rung:
        """The rung for an image at the time ``now``, ``lag`` seconds after its turn."""
        wanted = self._first_within(self.alarm, lag)
        if wanted > self.place:
            self._move(wanted, now)
        elif now - self._changed_at >= self.dwell:
            better = self._first_within(self.calm, lag)
            if better < self.place:
                self._move(better, now)
        return self.rung

    def note(self, rung: Rung, seconds: float) -> None:
        """Learn from an image that took ``seconds`` at a rung."""
        self._noted += 1
        seen = seconds / rung.seconds
        self.factor += max(self.smoothing, 1 / self._noted) * (seen - self.factor)

    def expected(self, rung: Rung) -> float:
        """The seconds that an image will take at a rung, as things are just now."""
        return rung.seconds * self.factor

    def _first_within(self, share: float, lag: float) -> int:
        limit = share * self.target - lag / self.patience
        for place, rung in enumerate(self.rungs):
            if self.expected(rung) <= limit:
                return place
        return len(self.rungs) - 1

    def _move(self, place: int, now: float) -> None:
        self.place = place
        self.changes += 1
        self._changed_at = now
