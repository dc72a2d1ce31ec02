"""Operating points: named modes of a model, each with what was measured of it."""

import json
from collections.abc import Mapping
from pathlib import Path

from paumer.disk import replace_file
from paumer.measurement import Measurement
from paumer.model.directory import POINTS_FILE


def read_points(directory: Path) -> dict[str, Measurement]:
    """The named operating points of a model directory, if it has any."""
    path = directory / POINTS_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
        return {name: Measurement.from_json(point) for name, point in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f'cannot read operating points "{path}": {error}') from error


def check_point_name(name: str) -> None:
    """Raise if an operating point of that name would hide a mode."""
    if not name or name in ("none", "paper", "auto") or ":" in name:
        raise ValueError(f'an operating point cannot be called "{name}": that means another thing')


def write_points(directory: Path, points: Mapping[str, Measurement]) -> None:
    """Keep named operating points in a model directory beside those of other names."""
    for name in points:
        check_point_name(name)
    known = {**read_points(directory), **points}
    values = {name: point.to_json() for name, point in known.items()}
    replace_file(directory / POINTS_FILE, (json.dumps(values, indent=2) + "\n").encode())
