"""What follows from measurements: the best within a budget, the mean of runs, the spline table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paumer.measurement import Measurement, baseline, miou_of, speed_of


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is asked of a configuration: exactly one of the three.

    A batch in at most ``latency_ms``, at least ``speed_up`` times as fast as no pausing, or at
    most ``max_drop`` points of mIoU (0.7 is 0.007) below it.
    """

    latency_ms: float | None = None
    speed_up: float | None = None
    max_drop: float | None = None

    def __post_init__(self) -> None:
        bounds = [self.value(name) for name in ("latency_ms", "speed_up", "max_drop")]
        given = [bound for bound in bounds if bound is not None]
        if len(given) != 1 or not given[0] > 0:
            raise ValueError("give exactly one of latency_ms, speed_up and max_drop, above 0")

    def __str__(self) -> str:
        if self.latency_ms is not None:
            return f"{self.latency_ms:g}ms"
        return f"drop-{self.max_drop:g}" if self.max_drop is not None else f"{self.speed_up:g}x"

    def value(self, name: str) -> float | None:
        """The bound of that name."""
        bound: float | None = getattr(self, name)
        return bound

    def meets(self, item: Measurement, base: Measurement) -> bool:
        """Whether a configuration keeps within the budget."""
        if self.max_drop is not None:
            return miou_of(base) - miou_of(item) <= self.max_drop / 100
        if self.latency_ms is not None:
            return item.latency_ms is not None and item.latency_ms <= self.latency_ms
        return item.speed_up is not None and item.speed_up >= (self.speed_up or 0)


def average(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The mean mIoU of several runs by configuration; speed is that of the first run.

    Of several runs ``miou_low`` and ``miou_high`` are their lowest and highest. Only what all runs
    measured counts.
    """
    if len(runs) == 1:
        return list(runs[0])
    others = [{m.mode: miou_of(m) for m in run} for run in runs]
    found = []
    for item in runs[0]:
        values = [other.get(item.mode) for other in others]
        known = [value for value in values if value is not None]
        if len(known) == len(runs):
            mean = sum(known) / len(known)
            found.append(replace(item, miou=mean, miou_low=min(known), miou_high=max(known)))
    return found


def choose(measurements: Sequence[Measurement], budget: Budget) -> tuple[Measurement, bool]:
    """The best configuration within the budget, or else the nearest one, and whether it is within.

    By time the most accurate one that is fast enough; by accuracy the fastest one.
    """
    base = baseline(measurements)
    within = [item for item in measurements if budget.meets(item, base)]
    if budget.max_drop is not None:
        if within:
            return max(within, key=speed_of), True
        return max(measurements, key=miou_of), False
    if within:
        return max(within, key=lambda m: (miou_of(m), speed_of(m))), True
    return max(measurements, key=speed_of), False


def spline(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """The value at ``at`` of straight lines through (x, y) points; None outside their range.

    Points of equal x count with their mean.
    """
    groups: dict[float, list[float]] = {}
    for x, y in points:
        groups.setdefault(x, []).append(y)
    line = [(x, sum(ys) / len(ys)) for x, ys in sorted(groups.items())]
    for (x0, y0), (x1, y1) in pairwise(line):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return line[0][1] if len(line) == 1 and line[0][0] == at else None


@dataclass(frozen=True)
class SplineColumn:
    """One column of the paper's table: mIoU at a throughput, and its difference to the base."""

    images_per_second: float
    speed_up: float
    miou: float | None
    difference: float | None


def spline_table(
    measurements: Sequence[Measurement],
    base: Measurement | None = None,
    columns: int = 8,
    least: float = 1.2,
    most: float = 2.0,
) -> list[SplineColumn]:
    """MIoU interpolated at evenly spaced speed-ups, as in the paper's appendix.

    ``base`` is the Segmenter that differences are taken to (default: the unpaused measurement).
    """
    base = base or baseline(measurements)
    unpaused = speed_of(baseline(measurements))
    points = [(speed_of(item), miou_of(item)) for item in measurements]
    table = []
    for number in range(columns):
        factor = least + (most - least) * number / max(1, columns - 1)
        value = spline(points, factor * unpaused)
        difference = None if value is None else value - miou_of(base)
        table.append(SplineColumn(factor * unpaused, factor, value, difference))
    return table
