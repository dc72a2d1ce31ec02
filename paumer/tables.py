"""Results as files that people and programs open: JSON, JSON lines and CSV."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from paumer.disk import replace_file


def write_json(path: Path, values: object) -> None:
    """Write values as readable JSON."""
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object to a line."""
    _write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV; the first row that has a value names its column."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    content = io.StringIO(newline="")
    writer = csv.DictWriter(content, names)
    writer.writeheader()
    writer.writerows(rows)
    _write(path, content.getvalue())


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.encode())
