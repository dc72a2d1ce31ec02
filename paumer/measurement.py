"""What was measured of a mode, as one line of JSON; and which modes no other one beats."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from paumer.arguments import check_fields, checked
from paumer.mode import UNPAUSED, Mode
from paumer.pause_config import PauseConfig


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One mode, measured: whatever is known of it, the rest is None.

    ``images_per_second`` and ``speed_up`` come from the fastest round, because noise only ever
    adds time; ``latency_ms`` is the median and ``latency_ms_p95`` the 95th percentile of a batch.
    ``mac_ratio`` is the theoretical speed-up, by MACs alone. ``predicted`` says that the speed was
    computed from a cost table, not timed. ``data`` names the data set and split of the mIoU and its
    ``images``; ``worst_drop`` is the most that was lost against no pausing under any condition that
    was tried, and ``worst_on`` which one that was; ``where`` and ``when`` say on what the speed was
    measured, and ``engine`` what ran the network.
    """

    mode: Mode
    engine: str = "torch"
    predicted: bool = False
    images_per_second: float | None = None
    latency_ms: float | None = None
    latency_ms_p95: float | None = None
    speed_up: float | None = None
    mac_ratio: float | None = None
    gmacs: float | None = None
    pausing_ratio: float | None = None
    peak_memory_mb: float | None = None
    miou: float | None = None
    miou_low: float | None = None
    miou_high: float | None = None
    pixel_accuracy: float | None = None
    mean_accuracy: float | None = None
    images: int | None = None
    data: str | None = None
    worst_drop: float | None = None
    worst_on: str | None = None
    where: str | None = None
    when: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        names = ("miou", "images_per_second", "speed_up", "mac_ratio")
        known = [(name, value) for name in names if (value := getattr(self, name)) is not None]
        return ", ".join([f'Measurement("{self.mode}"', *(f"{n}={v:.4g}" for n, v in known)]) + ")"

    def to_json(self) -> dict[str, object]:
        """The measurement as one flat JSON object, without what is not known."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in values.items() if value is not None}
        return {**known, "mode": str(self.mode)}

    @classmethod
    @checked
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """The measurement written by ``to_json``, or by paumer 0.1."""
        known: dict[str, Any] = {_RENAMED.get(name, name): v for name, v in values.items()}
        if "mode" in known:
            return cls(**{**known, "mode": Mode.parse(known["mode"])})
        if "pause" not in known:
            raise ValueError('neither "mode" nor "pause" is given: give what to_json gave')
        mode = Mode(
            pause=PauseConfig.parse(known.pop("pause")),
            criterion=known.pop("criterion", "entropy"),
            early_exit=known.pop("early_exit", False),
        )
        return cls(mode=mode, **known)


def join(accuracy: Measurement, speed: Measurement) -> Measurement:
    """One measurement of the accuracy of the first and the speed of the second."""
    if accuracy.mode != speed.mode:
        raise ValueError(f'"{accuracy.mode}" and "{speed.mode}" are not the same mode')
    names = {item.name for item in fields(Measurement)} - set(_ACCURACY)
    known = {name: getattr(speed, name) for name in names}
    return replace(accuracy, **{name: value for name, value in known.items() if value is not None})


_RENAMED = {"pictures": "images", "pausing_share": "pausing_ratio"}
_ACCURACY = (
    "miou", "miou_low", "miou_high", "pixel_accuracy", "mean_accuracy", "images", "data",
    "worst_drop", "worst_on",
)  # fmt: skip


def per_image(item: Measurement, windows: int, unpaused: int) -> Measurement:
    """The speed of images of so many windows, ``unpaused`` without pausing, from that of one."""
    ratio = unpaused / windows
    times = dict.fromkeys(("latency_ms", "latency_ms_p95", "gmacs"), float(windows))
    times |= {"images_per_second": 1 / windows, "speed_up": ratio, "mac_ratio": ratio}
    known = {name: getattr(item, name) for name in times}
    return replace(item, **{n: v * times[n] for n, v in known.items() if v is not None})


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


def timed(
    measurements: Sequence[Measurement], source: str | Path = "the sweep"
) -> list[Measurement]:
    """Those with a speed, which the unpaused one must have; a warning names the others.

    By threshold the cost depends on the image, so a sweep knows no speed of such a mode.
    """
    found = [item for item in measurements if item.images_per_second is not None]
    others = [item.mode for item in measurements if item.images_per_second is None]
    if not found or UNPAUSED in others:
        lack = f'no speed of "{UNPAUSED}"' if found else "no speeds"
        raise ValueError(f'"{source}" has {lack}: sweep it again with --speed predict')
    if others:
        names = ", ".join(map(str, others))
        logging.getLogger("paumer").warning("%s has no speed of: %s (left out)", source, names)
    return found


def pareto_front(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Those that no other one beats in both speed and mIoU, from slow to fast."""
    best: list[Measurement] = []
    for item in sorted(measurements, key=lambda m: (-speed_of(m), -miou_of(m))):
        if not best or miou_of(item) > miou_of(best[-1]):
            best.append(item)
    return best[::-1]


def baseline(measurements: Sequence[Measurement]) -> Measurement:
    """The measurement without pausing, which every comparison needs."""
    for item in measurements:
        if item.mode == UNPAUSED:
            return item
    raise ValueError('the measurements lack the unpaused model: measure "none" too')


def speed_of(item: Measurement) -> float:
    """Images per second, which must be known."""
    if item.images_per_second is None:
        raise ValueError(f'"{item.mode}" has no speed: time it first')
    return item.images_per_second


def miou_of(item: Measurement) -> float:
    """The mIoU, which must be known."""
    if item.miou is None:
        raise ValueError(f'"{item.mode}" has no mIoU: evaluate it first')
    return item.miou
