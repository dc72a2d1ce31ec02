"""What results/ holds, for the scripts that report it: runs, their seeds, measured speeds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from paumer.measurement import Measurement, join, read_measurements
from paumer.mode import Mode
from paumer.study.accuracy import paired_difference
from paumer.study.sweep import load_tallies
from paumer.study.tradeoff import average


class Results:
    """The small files of finished runs.

    All modes of a file differ in their stages alone, so that these name them.
    """

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
        """By stages, what each seed counted."""
        files = self.files(name, f"{title}.npz")
        runs = [{stages(m): t for m, t in load_tallies(file).items()} for file in files]
        shared = [pause for pause in runs[0] if all(pause in run for run in runs)] if runs else []
        return {pause: [run[pause] for run in runs] for pause in shared}

    def speeds(self, file, unpaused=None):
        """By stages, what `paumer bench --json` measured.

        Of two benches the machine may be faster in one: with ``unpaused``, a measurement of the
        other one, speeds are what the speed-ups make of its own.
        """
        path = self.folder / file
        items = json.loads(path.read_text())["measurements"] if path.exists() else []
        found = [Measurement.from_json(item) for item in items]
        if unpaused:
            own = unpaused.images_per_second
            found = [replace(item, images_per_second=item.speed_up * own) for item in found]
        return {stages(item.mode): item for item in found}

    def measurements(self, name, title, speeds):
        """Each seed's accuracy, joined with measured speeds; what was not timed is left out."""
        runs = [read_measurements(file) for file in self.files(name, f"{title}.jsonl")]
        if untimed := {stages(m.mode) for run in runs for m in run} - set(speeds):
            print(f"{name}, {title}: not timed and left out: {', '.join(sorted(untimed))}\n")
        return [
            [with_speed(item, speeds) for item in run if stages(item.mode) in speeds]
            for run in runs
        ]

    def mean_measurements(self, name, title, speeds):
        """The mean of the seeds."""
        runs = self.measurements(name, title, speeds)
        return average(runs) if runs else []


def stages(mode):
    """The stages of a mode, as text."""
    return str((Mode.parse(mode) if isinstance(mode, str) else mode).pause)


def with_speed(item, speeds):
    """A measurement with the speed of its stages: a random criterion, protection are not timed."""
    return join(item, replace(speeds[stages(item.mode)], mode=item.mode))


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
