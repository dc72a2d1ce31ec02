"""Load in, operating point out: which rung a service runs at, with hysteresis.

It knows what work should take at each point, learns by how much this machine is slower or faster
just now, and answers with the most accurate point that still keeps the target.
"""

from collections.abc import Sequence

from paumer.serve.arrivals import Arrivals, Load


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
