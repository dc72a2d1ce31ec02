"""What follows from measurements: the best within a budget, the mean of runs, the spline table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paumer.arguments import check_fields
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
        check_fields(self)
        bounds = (self.latency_ms, self.speed_up, self.max_drop)
        given = [bound for bound in bounds if bound is not None]
        if len(given) != 1 or not 0 < given[0] < math.inf:
            raise ValueError(
                "give exactly one budget, above 0: --latency-ms, --speed-up or --max-drop "
                "(in Python latency_ms, speed_up or max_drop)"
            )

    def __str__(self) -> str:
        if self.latency_ms is not None:
            return f"{self.latency_ms:g}ms"
        return f"drop-{self.max_drop:g}" if self.max_drop is not None else f"{self.speed_up:g}x"

    def meets(self, item: Measurement, base: Measurement) -> bool:
        """Whether a configuration keeps within the budget."""
        if self.max_drop is not None:
            return miou_of(base) - miou_of(item) <= self.max_drop / 100
        if self.latency_ms is not None:
            return item.latency_ms is not None and item.latency_ms <= self.latency_ms
        return item.speed_up is not None and item.speed_up >= (self.speed_up or 0)

    def tighter(self, slack: float) -> "Budget":
        """For a budget of time ``slack`` times the speed; one of accuracy stays."""
        if self.latency_ms is not None:
            return Budget(latency_ms=self.latency_ms / slack)
        return self if self.speed_up is None else Budget(speed_up=self.speed_up * slack)


def average(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The mean mIoU of several runs by configuration; speed is that of the first run.

    Of several runs ``miou_low`` and ``miou_high`` are their lowest and highest. Only what all runs
    measured counts.
    """
    if len(runs) == 1:
        return list(runs[0])
    others = [{item.mode: miou_of(item) for item in run} for run in runs]
    found = []
    for item in runs[0]:
        values = [other[item.mode] for other in others if item.mode in other]
        if len(values) == len(runs):
            mean = sum(values) / len(values)
            found.append(replace(item, miou=mean, miou_low=min(values), miou_high=max(values)))
    return found


def choose(measurements: Sequence[Measurement], budget: Budget) -> tuple[Measurement, bool]:
    """The best configuration within the budget, or else the nearest one, and whether it is within.

    By time the most accurate one that is fast enough; by accuracy the fastest one.
    """
    base = baseline(measurements)
    within = [item for item in measurements if budget.meets(item, base)]
    if budget.max_drop is not None:
        best = max(within, key=speed_of) if within else max(measurements, key=miou_of)
    elif within:
        best = max(within, key=lambda m: (miou_of(m), speed_of(m)))
    else:
        best = max(measurements, key=speed_of)
    return best, bool(within)


def spline(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """The value at ``at`` of lines through points, of equal x their mean; None outside of them."""
    xs, groups = np.unique([x for x, _ in points], return_inverse=True)
    ys = np.bincount(groups, [y for _, y in points]) / np.bincount(groups)
    return float(np.interp(at, xs, ys)) if xs[0] <= at <= xs[-1] else None


def spline_table(
    measurements: Sequence[Measurement],
    base: Measurement | None = None,
    columns: int = 8,
    most: float = 2.0,
) -> list[dict[str, float | None]]:
    """The columns of the paper's table: mIoU interpolated at evenly spaced speed-ups (appendix).

    ``base`` is the Segmenter that differences are taken to (default: the unpaused measurement).
    """
    unpaused = baseline(measurements)
    base = base or unpaused
    points = [(speed_of(item), miou_of(item)) for item in measurements]
    table = []
    for number in range(columns):
        factor = 1.2 + (most - 1.2) * number / max(1, columns - 1)
        speed = factor * speed_of(unpaused)
        miou = spline(points, speed)
        difference = None if miou is None else miou - miou_of(base)
        table.append(
            {"images_per_second": speed, "speed_up": factor, "miou": miou, "difference": difference}
        )
    return table
