"""What results/ holds, for the scripts that report it: runs, their seeds, measured speeds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from paumer.study.accuracy import paired_difference
from paumer.study.sweep import load_tallies
from paumer.study.tradeoff import Measurement, average, join, read_measurements


class Results:
    """The small files of finished runs."""

    def __init__(self, folder: Path, seeds: int):
        self.folder, self.seeds = folder, seeds

    def files(self, name, title):
        """Those of each seed of a kind of run, or of one run of that name; all or none."""
        alone = self.folder / name / title
        if alone.exists():
            return [alone]
        files = [self.folder / f"{name}-{seed}" / title for seed in range(self.seeds)]
        missing = [file for file in files if not file.exists()]
        if missing and len(missing) < len(files):
            raise SystemExit(f'"{missing[0]}" is missing: report fewer --seeds')
        return [] if missing else files

    def tallies(self, name, title):
        """By configuration, what each seed counted."""
        runs = [load_tallies(file) for file in self.files(name, f"{title}.npz")]
        shared = [pause for pause in runs[0] if all(pause in run for run in runs)] if runs else []
        return {pause: [run[pause] for run in runs] for pause in shared}

    def speeds(self, file, unpaused=None):
        """By configuration, what `paumer bench --json` measured.

        Of two benches the machine may be faster in one: with ``unpaused``, a measurement of the
        other one, speeds are what the speed-ups make of its own.
        """
        path = self.folder / file
        items = json.loads(path.read_text())["measurements"] if path.exists() else []
        found = [Measurement.from_json(item) for item in items]
        if unpaused:
            own = unpaused.images_per_second
            found = [replace(item, images_per_second=item.speed_up * own) for item in found]
        return {str(item.pause): item for item in found}

    def measurements(self, name, title, speeds):
        """Each seed's accuracy, joined with measured speeds; what was not timed is left out."""
        runs = [read_measurements(file) for file in self.files(name, f"{title}.jsonl")]
        if untimed := {str(m.pause) for run in runs for m in run if str(m.pause) not in speeds}:
            print(f"{name}, {title}: not timed and left out: {', '.join(sorted(untimed))}\n")
        return [
            [join(item, speeds[str(item.pause)]) for item in run if str(item.pause) in speeds]
            for run in runs
        ]

    def mean_measurements(self, name, title, speeds):
        """The mean of the seeds."""
        runs = self.measurements(name, title, speeds)
        return average(runs) if runs else []


def mean(items):
    """Mean mIoU in points."""
    return 100 * float(np.mean([item.miou for item in items]))


def spread(items):
    """Mean mIoU in points, and its standard deviation over seeds, as text."""
    deviation = 100 * np.std([item.miou for item in items], ddof=len(items) > 1)
    return f"{mean(items):.2f} ± {deviation:.2f}" if len(items) > 1 else f"{mean(items):.2f}"


def difference(first, second):
    """Points between two groups of runs, with the ends of its interval."""
    return tuple(100 * value for value in paired_difference(first, second))


def in_words(values):
    """A difference and its interval as text."""
    found, low, high = values
    return f"{found:+.2f} ({low:+.2f} to {high:+.2f})"


def table(head, rows):
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()
