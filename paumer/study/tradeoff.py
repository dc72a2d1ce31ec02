"""What was measured of pause configurations, and what follows: skyline, spline table, choice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from paumer.pause_config import PauseConfig


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One pause configuration, measured: whatever is known of it, the rest is None.

    ``images_per_second`` and ``speed_up`` come from the fastest round, because noise only ever
    adds time; ``latency_ms`` is the median and ``latency_ms_p95`` the 95th percentile of a batch.
    ``mac_ratio`` is the speed-up that the multiply-adds alone promise. ``predicted`` says that the
    speed was computed from a cost table, not timed. ``data`` names the data set and split of the
    mIoU and its ``pictures``; ``where`` and ``when`` say on what the speed was measured, and
    ``engine`` what ran the network.
    """

    pause: PauseConfig
    engine: str = "torch"
    criterion: str = "entropy"
    early_exit: bool = False
    predicted: bool = False
    images_per_second: float | None = None
    latency_ms: float | None = None
    latency_ms_p95: float | None = None
    speed_up: float | None = None
    mac_ratio: float | None = None
    gmacs: float | None = None
    pausing_share: float | None = None
    peak_memory_mb: float | None = None
    miou: float | None = None
    miou_low: float | None = None
    miou_high: float | None = None
    pixel_accuracy: float | None = None
    mean_accuracy: float | None = None
    pictures: int | None = None
    data: str | None = None
    where: str | None = None
    when: str | None = None

    @property
    def how(self) -> str:
        """The configuration in words, with what is not the paper's way."""
        who = "" if self.criterion == "entropy" else f", {self.criterion}"
        return f"{self.pause}{', early exit' * self.early_exit}{who}"

    def to_json(self) -> dict[str, Any]:
        """The measurement as one flat JSON object, without what is not known."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in values.items() if value is not None}
        return {**known, "pause": str(self.pause)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The measurement written by ``to_json``."""
        return cls(**{**values, "pause": PauseConfig.parse(values["pause"])})


def join(accuracy: Measurement, speed: Measurement) -> Measurement:
    """One measurement of the accuracy of the first and the speed of the second."""
    if accuracy.pause != speed.pause:
        raise ValueError(f'"{accuracy.pause}" and "{speed.pause}" are not the same configuration')
    names = {item.name for item in fields(Measurement)} - set(_ACCURACY) - {"criterion", "pause"}
    known = {name: getattr(speed, name) for name in names}
    return replace(accuracy, **{name: value for name, value in known.items() if value is not None})


_ACCURACY = ("miou", "miou_low", "miou_high", "pixel_accuracy", "mean_accuracy", "pictures", "data")


def per_picture(item: Measurement, windows: int) -> Measurement:
    """The speed for pictures of so many windows each, when that of single windows was measured."""
    times = {"images_per_second": 1 / windows, "latency_ms": windows, "latency_ms_p95": windows}
    known = {name: getattr(item, name) for name in times}
    return replace(item, **{n: v * times[n] for n, v in known.items() if v is not None})


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
            return _miou(base) - _miou(item) <= self.max_drop / 100
        if self.latency_ms is not None:
            return item.latency_ms is not None and item.latency_ms <= self.latency_ms
        return item.speed_up is not None and item.speed_up >= (self.speed_up or 0)


def read_measurements(path: Path) -> list[Measurement]:
    """What a sweep wrote: its folder or a .jsonl file."""
    file = path / "sweep.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f'no measurements at "{file}": run paumer sweep first')
    found = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            found.append(Measurement.from_json(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f'cannot read line {number} of "{file}": {error}') from error
    return found


def average(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The mean mIoU of several runs by configuration; speed is that of the first run.

    Of several runs ``miou_low`` and ``miou_high`` are their lowest and highest. Only what all runs
    measured counts.
    """
    if len(runs) == 1:
        return list(runs[0])
    others = [{(m.pause, m.early_exit): _miou(m) for m in run} for run in runs]
    found = []
    for item in runs[0]:
        values = [other.get((item.pause, item.early_exit)) for other in others]
        known = [value for value in values if value is not None]
        if len(known) == len(runs):
            mean = sum(known) / len(known)
            found.append(replace(item, miou=mean, miou_low=min(known), miou_high=max(known)))
    return found


def skyline(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Those that no other one beats in both speed and mIoU, from slow to fast."""
    best: list[Measurement] = []
    for item in sorted(measurements, key=lambda m: (-_speed(m), -_miou(m))):
        if not best or _miou(item) > _miou(best[-1]):
            best.append(item)
    return best[::-1]


def choose(measurements: Sequence[Measurement], budget: Budget) -> tuple[Measurement, bool]:
    """The best configuration within the budget, or else the nearest one, and whether it is within.

    By time the most accurate one that is fast enough; by accuracy the fastest one.
    """
    base = baseline(measurements)
    within = [item for item in measurements if budget.meets(item, base)]
    if budget.max_drop is not None:
        if within:
            return max(within, key=_speed), True
        return max(measurements, key=_miou), False
    if within:
        return max(within, key=lambda m: (_miou(m), _speed(m))), True
    return max(measurements, key=_speed), False


def baseline(measurements: Sequence[Measurement]) -> Measurement:
    """The measurement without pausing, which every comparison needs."""
    for item in measurements:
        if not item.pause:
            return item
    raise ValueError('the measurements lack the unpaused model: measure "none" too')


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
    unpaused = _speed(baseline(measurements))
    points = [(_speed(item), _miou(item)) for item in measurements]
    table = []
    for number in range(columns):
        factor = least + (most - least) * number / max(1, columns - 1)
        value = spline(points, factor * unpaused)
        difference = None if value is None else value - _miou(base)
        table.append(SplineColumn(factor * unpaused, factor, value, difference))
    return table


def _speed(item: Measurement) -> float:
    if item.images_per_second is None:
        raise ValueError(f'"{item.pause}" has no speed: time it first')
    return item.images_per_second


def _miou(item: Measurement) -> float:
    if item.miou is None:
        raise ValueError(f'"{item.pause}" has no mIoU: evaluate it first')
    return item.miou
