"""The run's numbers, a row for each step that has some, in a CSV file that resuming can cut."""

import csv
import io
from pathlib import Path

from paumer.disk import replace_file


class MetricsFile:
    """``metrics.csv``: rows by step. It is rewritten as a whole, so a kill leaves old or new."""

    def __init__(self, path: Path, until: int) -> None:
        self.path = path
        self.rows: dict[int, dict[str, str]] = {}
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    step = int(row.pop("step"))
                    if step <= until:
                        self.rows[step] = {name: value for name, value in row.items() if value}

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
