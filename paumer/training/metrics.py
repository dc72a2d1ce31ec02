"""The run's numbers, a row for each step that has some, in a CSV file that resuming can cut."""

import csv
import io
from pathlib import Path

from paumer.disk import replace_file


class MetricsFile:
    """``metrics.csv``: rows by step. It is rewritten as a whole, so a kill leaves old or new.

    Written before each checkpoint and cut to the step of the one that is resumed from, it loses no
    row and has none twice.
    """

    def __init__(self, path: Path, until: int) -> None:
        self.path = path
        self.rows: dict[int, dict[str, str]] = {}
        if path.exists():
            try:
                rows = _read(path)
            except (ValueError, csv.Error) as error:
                raise ValueError(
                    f'cannot read "{path}" ({error}): bring it back, or remove it to resume '
                    f"without the rows so far"
                ) from error
            self.rows = {step: row for step, row in rows.items() if step <= until}

    def add(self, step: int, values: dict[str, float]) -> None:
        """Note values of a step; a row of the same step is extended."""
        row = self.rows.setdefault(step, {})
        row.update({name: f"{value:.6g}" for name, value in values.items()})

    def write(self) -> None:
        """Put the rows on the disk."""
        names = dict.fromkeys(name for row in self.rows.values() for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"step": step, **row} for step, row in self.rows.items())
        replace_file(self.path, text.getvalue().encode())

    def columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """For each name the steps that have a value, and the values."""
        columns: dict[str, tuple[list[int], list[float]]] = {}
        for step, row in self.rows.items():
            for name, value in row.items():
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(value))
        return columns


def _read(path: Path) -> dict[int, dict[str, str]]:
    """The rows by their steps; raises for what ``write`` has not written."""
    text = path.read_text("utf-8")
    lines = csv.reader(io.StringIO(text), strict=True)
    head, rows = next(lines, []), {}
    if not text.endswith("\n") or head[:1] != ["step"] or len(set(head)) < len(head):
        raise ValueError("its first line names no columns, or its last line is cut off")
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise ValueError(f"line {number} has {len(line)} columns and the first {len(head)}")
        row = {name: value for name, value in zip(head, line, strict=True) if value}
        try:
            step, _ = int(row.pop("step")), [float(value) for value in row.values()]
        except (ValueError, KeyError) as error:
            raise ValueError(f"line {number} holds something other than numbers") from error
        if step in rows:
            raise ValueError(f"line {number} is another row of step {step}")
        rows[step] = row
    return rows
