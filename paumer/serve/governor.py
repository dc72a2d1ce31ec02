"""Load in, operating point out: which rung a service runs at, with hysteresis.

It knows what work should take at each point, learns by how much this machine is slower or faster
just now, and answers with the most accurate point that still keeps the target.
"""

from collections.abc import Sequence

from paumer.serve.arrivals import Arrivals

ALARM, ROOM, CALM = 0.9, 0.7, 0.65
"""Shares of the target: above the first it hurries, below the others a rung fits."""
DWELL, PATIENCE = 4.0, 60.0
"""Seconds before it returns all the way, and part of the way."""
SMOOTHING = 0.1


class QueueGovernor:
    """Chooses among the rungs of a service, by what waits and by what keeps arriving.

    Work is given as the seconds that it should take at each rung, from accurate to fast. The
    governor hurries when what waits would take more than `ALARM` of the target at this rung, or
    when 1 of 100 requests would be late if the load stays as it is: to the first rung at which both
    stay below `CALM` of the target. It returns all the way when both have stayed below `ROOM` of it
    there for `DWELL` seconds, and part of the way `PATIENCE` seconds after the last change. Between
    the two nothing changes, and chance in the arrivals is allowed for, so that steady load never
    flaps.
    """

    def __init__(self, rungs: int, target: float) -> None:
        if target <= 0:
            raise ValueError(f"a target of {target:g} s cannot be met: give one above 0")
        self.rungs, self.target = rungs, target
        self.rung = self.changes = 0
        self.factor = 1.0
        """How many times longer work takes just now than it should: for what waits."""
        self.usual = 1.0
        """The same over a longer time: for what keeps arriving."""
        self._arrivals = Arrivals(step=min(0.25, target / 4))
        self._changed_at = float("-inf")

    def arrived(self, now: float, work: Sequence[float]) -> None:
        """Note a request, also one that is refused: what is offered is what counts."""
        self._arrivals.add(now, work)

    def note(self, expected: float, seconds: float) -> None:
        """Learn from work that took ``seconds``."""
        # A stall of the machine says little about what comes next.
        seen = min(seconds / expected, 3 * self.factor)
        self.factor += SMOOTHING * (seen - self.factor)
        self.usual += SMOOTHING / 4 * (seen - self.usual)

    def choose(self, now: float, backlog: Sequence[float]) -> int:
        """The rung for what waits and runs, at the time ``now``."""
        load = self._arrivals.load(now)
        late = self.factor * backlog[self.rung] > ALARM * self.target
        since = min(now - self._changed_at, load.seconds)
        rung = self.rung

        def fits(rung: int, share: float, doubt: float = 0.0) -> bool:
            """Whether what waits, and what keeps arriving, stay below a share of the target."""
            limit = share * self.target
            clears = self.factor * backlog[rung] <= limit
            return clears and load.latency(rung, self.usual, doubt) <= limit

        if late or load.latency(rung, self.usual, doubt=-1.5) > self.target:
            calm = (r for r in range(rung + 1, self.rungs) if fits(r, CALM))
            rung = next(calm, self.rungs - 1)
        elif since >= DWELL and fits(0, ROOM, doubt=1.0):
            rung = 0
        elif now - self._changed_at >= PATIENCE:
            calm = (r for r in range(rung) if fits(r, CALM, doubt=0.5))
            rung = next(calm, rung)
        if rung != self.rung:
            self.rung, self._changed_at = rung, now
            self.changes += 1
        return rung
