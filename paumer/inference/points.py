"""Operating points: named modes of a model, each with what was measured of it."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paumer.disk import replace_file
from paumer.measurement import Measurement
from paumer.mode import check_runnable
from paumer.model.directory import POINTS_FILE
from paumer.model.segmenter import PausingSegmenter


def read_points(directory: Path, network: PausingSegmenter | None = None) -> dict[str, Measurement]:
    """The named operating points of a model directory, if it has any.

    A point that cannot be read, or that the network cannot run, is left out with a warning.
    """
    points = {}
    for name, values in _read_values(directory).items():
        try:
            point = Measurement.from_json(values)
            check_runnable(point.mode)
            if network is not None:
                network.check(replace(point.mode, size=None))
            points[name] = point
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            file = directory / POINTS_FILE
            warnings.warn(f'skipped operating point "{name}" of "{file}": {error}', stacklevel=2)
    return points


def _read_values(directory: Path) -> dict[str, Any]:
    """The operating points of a model directory as they stand in its file."""
    path = directory / POINTS_FILE
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8")).items())
    except (ValueError, AttributeError) as error:
        raise ValueError(f'cannot read operating points "{path}": {error}') from error


def check_point_name(name: str) -> None:
    """Raise if an operating point of that name would hide a mode."""
    if not name or name in ("none", "paper", "auto") or ":" in name:
        raise ValueError(f'an operating point cannot be called "{name}": that means another thing')


def write_points(directory: Path, points: Mapping[str, Measurement]) -> None:
    """Keep named operating points in a model directory beside those of other names."""
    for name in points:
        check_point_name(name)
    values = _read_values(directory) | {name: point.to_json() for name, point in points.items()}
    replace_file(directory / POINTS_FILE, (json.dumps(values, indent=2) + "\n").encode())
