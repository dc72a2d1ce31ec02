"""The run's numbers, a row for each step that has some, in a CSV file that resuming can cut."""

import csv
import io
from pathlib import Path
from typing import Any

from paumer.disk import replace_file


class MetricsFile:
    """``metrics.csv``: rows by step. It is rewritten as a whole, so a kill leaves old or new."""

    def __init__(self, path: Path, until: int | None = None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = [
                    {name: value for name, value in row.items() if value}
                    for row in csv.DictReader(file)
                    if until is None or int(row["step"]) <= until
                ]

    def add(self, step: int, values: dict[str, float]) -> None:
        """Note values of a step; a row of the same step is extended."""
        if not self.rows or int(self.rows[-1]["step"]) != step:
            self.rows.append({"step": step})
        self.rows[-1].update({name: f"{value:.6g}" for name, value in values.items()})

    def write(self) -> None:
        """Put the rows on the disk."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text.getvalue().encode())

    def columns(self) -> dict[str, tuple[list[int], list[float]]]:
        """For each name the steps that have a value, and the values."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for row in self.rows:
            for name, value in row.items():
                if name != "step":
                    steps, values = found.setdefault(name, ([], []))
                    steps.append(int(row["step"]))
                    values.append(float(value))
        return found
