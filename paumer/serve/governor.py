"""Load in, operating point out: climbs and descends a ladder of points with hysteresis.

`Governor` serves a video, whose next frame is due; `QueueGovernor` a service, whose queue grows.
Both know what each point should take, learn by how much this machine is slower or faster just
now, and answer with the most accurate point that still keeps the deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paumer.serve.arrivals import Arrivals, Load
from paumer.study.tradeoff import Measurement, skyline


@dataclass(frozen=True)
class Rung:
    """One operating point of the ladder, and the seconds that a picture should take at it."""

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
    return tuple(Rung(p, 1 / (p.images_per_second or 1.0)) for p in skyline(good))


class Governor:
    """Chooses a rung for the picture at hand; tell it afterwards how long that took.

    It goes to a faster rung at once when the deadline is in danger (expected time above
    ``alarm`` of the target), and to a more accurate one only when ``dwell`` seconds have passed
    since the last change and the expected time there is below ``calm`` of the target. Between
    the two nothing changes, so steady load never flaps. Work that lags behind its schedule is to
    catch up within ``patience`` pictures, and has that much less time for each.
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
            raise ValueError(f"patience is {patience}: give at least 1 picture")
        if not 0 < calm < alarm:
            raise ValueError(f"calm is {calm:g} and alarm {alarm:g}: give 0 < calm < alarm")
        self.rungs = tuple(rungs)
        self.target, self.alarm, self.calm = target, alarm, calm
        self.dwell, self.smoothing, self.patience = dwell, smoothing, patience
        self.place = 0
        self.changes = 0
        self.factor = 1.0
        """How many times longer pictures take just now than the ladder says."""
        self._noted = 0
        self._changed_at = self._turn = float("-inf")

    @property
    def rung(self) -> Rung:
        """The rung at hand."""
        return self.rungs[self.place]

    def lag(self, arrived: float, now: float) -> float:
        """How many seconds after its turn a picture begins that was there at ``arrived``.

        Turns follow each other at the target; what comes later, or begins earlier, moves them.
        """
        self._turn = min(now, max(self._turn + self.target, arrived))
        return now - self._turn

    def choose(self, now: float, lag: float = 0.0) -> Rung:
        """The rung for a picture at the time ``now``, ``lag`` seconds after its turn."""
        wanted = self._first_within(self.alarm, lag)
        if wanted > self.place:
            self._move(wanted, now)
        elif now - self._changed_at >= self.dwell:
            better = self._first_within(self.calm, lag)
            if better < self.place:
                self._move(better, now)
        return self.rung

    def note(self, rung: Rung, seconds: float) -> None:
        """Learn from a picture that took ``seconds`` at a rung."""
        self._noted += 1
        seen = seconds / rung.seconds
        self.factor += max(self.smoothing, 1 / self._noted) * (seen - self.factor)

    def expected(self, rung: Rung) -> float:
        """The seconds that a picture will take at a rung, as things are just now."""
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


class QueueGovernor:
    """Chooses among the rungs of a service, by what waits and by what keeps arriving.

    Work is given as the seconds that it should take at each rung, from accurate to fast. The
    governor hurries when what waits would take more than ``alarm`` of the target at this rung, or
    when 1 of 100 requests would be late if the load stays as it is: to the first rung at which both
    stay below ``calm`` of the target. It goes all the way back when both have stayed below ``room``
    of it there for ``dwell`` seconds, and part of the way ``patience`` seconds after the last
    change. Between the two nothing changes, and chance in the arrivals is allowed for, so that
    steady load never flaps.
    """

    def __init__(
        self,
        rungs: int,
        target: float,
        alarm: float = 0.9,
        room: float = 0.7,
        calm: float = 0.65,
        dwell: float = 4.0,
        patience: float = 60.0,
        smoothing: float = 0.1,
    ) -> None:
        if rungs < 1:
            raise ValueError("a governor needs at least one operating point")
        if target <= 0:
            raise ValueError(f"a target of {target:g} s cannot be met: give one above 0")
        self.rungs, self.target = rungs, target
        self.alarm, self.room, self.calm = alarm, room, calm
        self.dwell, self.patience, self.smoothing = dwell, patience, smoothing
        self.place = 0
        self.changes = 0
        self.factor = 1.0
        """How many times longer work takes just now than it should."""
        self.usual = 1.0
        """The same over a longer time: what stays is judged by it, and what waits by the other."""
        self._arrivals = Arrivals(step=min(0.25, target / 4))
        self._changed_at = float("-inf")

    def arrived(self, now: float, work: Sequence[float]) -> None:
        """Note a request, also one that is refused: what is offered is what counts."""
        self._arrivals.add(now, work)

    def note(self, expected: float, seconds: float) -> None:
        """Learn from work that took ``seconds``."""
        # A stall of the machine says little about what comes next.
        seen = min(seconds / expected, 3 * self.factor)
        self.factor += self.smoothing * (seen - self.factor)
        self.usual += self.smoothing / 4 * (seen - self.usual)

    def choose(self, now: float, backlog: Sequence[float]) -> int:
        """The place of the rung for what waits and runs, at the time ``now``."""
        load = self._arrivals.load(now)
        late = self.factor * backlog[self.place] > self.alarm * self.target
        since = min(now - self._changed_at, load.seconds)
        if late or load.latency(self.place, self.usual, doubt=-1.5) > self.target:
            faster = range(self.place + 1, self.rungs)
            calm = (place for place in faster if self._fits(place, load, backlog, self.calm))
            self._move(next(calm, self.rungs - 1), now)
        elif since >= self.dwell and self._fits(0, load, backlog, self.room, doubt=1.0):
            self._move(0, now)
        elif now - self._changed_at >= self.patience:
            slower = range(self.place)
            calm = (place for place in slower if self._fits(place, load, backlog, self.calm, 0.5))
            self._move(next(calm, self.place), now)
        return self.place

    def _fits(
        self, place: int, load: Load, backlog: Sequence[float], share: float, doubt: float = 0.0
    ) -> bool:
        """Whether what waits, and what keeps arriving, stay below a share of the target."""
        limit = share * self.target
        clears = self.factor * backlog[place] <= limit
        return clears and load.latency(place, self.usual, doubt) <= limit

    def _move(self, place: int, now: float) -> None:
        if place != self.place:
            self.place = place
            self.changes += 1
            self._changed_at = now
