"""Operating points: named modes of a model, each with what was measured of it."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from paumer.arguments import fits
from paumer.disk import remove_leftovers, replace_file
from paumer.measurement import Measurement
from paumer.mode import check_runnable
from paumer.model.directory import POINTS_FILE
from paumer.model.segmenter import PausingSegmenter
from paumer.untrusted import quoted, read_json, shorten


def read_points(directory: Path, network: PausingSegmenter | None = None) -> dict[str, Measurement]:
    """The named operating points of a model directory, if it has any.

    A point that cannot be read, or that the network cannot run, is left out with a warning.
    """
    return parse_points(_read_values(directory), directory / POINTS_FILE, network)


def parse_points(
    known: Mapping[str, Any], file: Path, network: PausingSegmenter | None = None
) -> dict[str, Measurement]:
    """Named operating points as they stand in a file."""
    points = {}
    for name, values in known.items():
        try:
            check_point_name(name)
            point = Measurement.from_json(values)
            _check_values(point)
            check_runnable(point.mode)
            if network is not None:
                network.check(replace(point.mode, size=None))
            points[name] = point
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = shorten(str(error))
            message = f'skipped operating point "{shorten(name, 200)}" of "{file}": {reason}'
            warnings.warn(message, stacklevel=2)
    return points


def _check_values(point: Measurement) -> None:
    """Raise unless each value is of its type and in its range; a drop may be a gain."""
    for name, kind in get_type_hints(Measurement).items():
        value = getattr(point, name)
        number = isinstance(value, int | float)
        least = {"images_per_second": 1e-9, "speed_up": 1e-9, "worst_drop": -1}.get(name, 0)
        if not fits(value, kind) or (number and not least <= value <= 1e15):
            raise ValueError(f"{name} cannot be {quoted(value)}")


def _read_values(directory: Path) -> dict[str, Any]:
    """The operating points of a model directory as they stand in its file."""
    path = directory / POINTS_FILE
    return read_json(path) if path.exists() else {}


def check_point_name(name: str) -> None:
    """Raise if an operating point of that name would hide a mode."""
    first = next(iter(name.split()), "none")
    if first in ("none", "paper", "auto") or ":" in name:
        raise ValueError(
            f'an operating point cannot be called "{shorten(name, 200)}": that means another thing'
        )


def write_points(directory: Path, points: Mapping[str, Measurement]) -> None:
    """Keep named operating points in a model directory beside those of other names."""
    for name in points:
        check_point_name(name)
    values = _read_values(directory) | {name: point.to_json() for name, point in points.items()}
    remove_leftovers(directory)
    replace_file(directory / POINTS_FILE, (json.dumps(values, indent=2) + "\n").encode())
