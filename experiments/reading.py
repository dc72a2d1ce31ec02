"""What results/ holds, for the scripts that report it: runs, their seeds, measured speeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paumer.measurement import Measurement, join, miou_of, read_measurements, speed_of
from paumer.mode import UNPAUSED, Mode, parse_modes
from paumer.study.accuracy import Tally, middle
from paumer.study.sweep import UNREADABLE
from paumer.study.tradeoff import average

Speeds = Mapping[str, Measurement]
Tallies = dict[str, list[Tally]]


class Results:
    """The small files of finished runs, below one folder.

    Modes are selected by their texts. Those of one table differ in their stages alone, so that
    these name them.
    """

    def __init__(self, folder: Path, seeds: int = 0) -> None:
        self.folder, self.seeds = folder, seeds

    def _files(self, name: str, file: str) -> list[Path]:
        """Those of each seed of a kind of run, or of one run of that name; all or none."""
        alone = self.folder / name / file
        if alone.exists():
            return [alone]
        files = [self.folder / f"{name}-{seed}" / file for seed in range(self.seeds)]
        missing = [path for path in files if not path.exists()]
        if missing and len(missing) < len(files):
            raise SystemExit(f'"{missing[0]}" is missing: report fewer --seeds')
        return [] if missing else files

    def tallies(self, name: str, split: str, modes: Iterable[str]) -> Tallies:
        """By stages, what each seed counted."""
        files = self._files(name, f"{split}.npz")
        runs = [{Mode.parse(m): t for m, t in load_tallies(file).items()} for file in files]
        shared = _measured(parse_modes(modes), runs)
        return {str(mode.pause): [run[mode] for run in runs] for mode in shared}

    def speeds(self, file: str, unpaused: Measurement | None = None) -> Speeds:
        """By stages, what `paumer bench --json` measured.

        Of two benches the machine may be faster in one: with ``unpaused``, a measurement of the
        other one, speeds are what the speed-ups make of its own.
        """
        path = self.folder / file
        items = json.loads(path.read_text())["measurements"] if path.exists() else []
        timed = [Measurement.from_json(item) for item in items]
        if unpaused:
            base = speed_of(unpaused)
            timed = [replace(m, images_per_second=(m.speed_up or 1) * base) for m in timed]
        return {str(item.mode.pause): item for item in timed}

    def measurements(
        self, name: str, split: str, modes: Iterable[str], speeds: Speeds
    ) -> list[list[Measurement]]:
        """Each seed's accuracy, joined with measured speeds; what was not timed is left out."""
        chosen, runs = parse_modes(modes), []
        for file in self._files(name, f"{split}.jsonl"):
            measured = {item.mode: item for item in read_measurements(file)}
            if shared := _measured(chosen, [measured]):
                runs.append([measured[mode] for mode in shared])
        if untimed := {str(m.mode.pause) for run in runs for m in run} - set(speeds):
            print(f"{name}, {split}: not timed and left out: {', '.join(sorted(untimed))}\n")
        return [
            [with_speed(item, speeds) for item in run if str(item.mode.pause) in speeds]
            for run in runs
        ]

    def mean_measurements(
        self, name: str, split: str, modes: Iterable[str], speeds: Speeds
    ) -> list[Measurement]:
        """The mean of the seeds."""
        runs = self.measurements(name, split, modes, speeds)
        return average(runs) if runs else []

    def unpaused_miou(self, name: str, split: str) -> float | None:
        """What one run reaches without pausing, in points; None if it is not there."""
        file = self.folder / name / f"{split}.jsonl"
        items = read_measurements(file) if file.exists() else []
        return next((100 * miou_of(item) for item in items if item.mode == UNPAUSED), None)


def _measured(modes: Sequence[Mode], runs: Sequence[Mapping[Mode, object]]) -> list[Mode]:
    """The modes that all runs have; none of them where only the unpaused one of many is there."""
    shared = [mode for mode in modes if runs and all(mode in run for run in runs)]
    return [] if shared == [UNPAUSED] and len(modes) > 1 else shared


def with_speed(item: Measurement, speeds: Speeds) -> Measurement:
    """A measurement with the speed of its stages: a random criterion, protection are not timed."""
    return join(item, replace(speeds[str(item.mode.pause)], mode=item.mode))


def load_tallies(path: Path) -> dict[str, Tally]:
    """What a sweep kept in its .npz, by the mode's text (in files of 0.1 its stages alone)."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            modes, indices = ("pauses", "places") if "pauses" in arrays else ("modes", "indices")
            images, counts = (arrays[name].astype(np.int64) for name in (indices, "counts"))
            texts = arrays[modes].tolist()
        return {text: Tally(images, part) for text, part in zip(texts, counts, strict=True)}
    except UNREADABLE as error:
        raise ValueError(f'cannot read "{path}": {error}') from error


def paired_difference(
    first: Sequence[Tally], second: Sequence[Tally]
) -> tuple[float, float, float]:
    """The mean mIoU of some runs less that of others, and a bootstrap interval of it.

    All runs see the same drawn images, so that what a hard image costs both does not count.
    """
    indices = first[0].indices
    if any(not np.array_equal(tally.indices, indices) for tally in (*first, *second)):
        raise ValueError("runs can be paired only where they were counted on the same images")
    means = [np.mean([t.resampled() for t in part], 0) for part in (first, second)]
    found = np.mean([t.miou for t in first]) - np.mean([t.miou for t in second])
    return float(found), *middle(means[0] - means[1], 0.95)


def mean(items: Sequence[Tally]) -> float:
    """Mean mIoU in points."""
    return 100 * float(np.mean([item.miou for item in items]))


def spread(items: Sequence[Tally]) -> str:
    """Mean mIoU in points, and its standard deviation over seeds, as text."""
    deviation = 100 * np.std([item.miou for item in items], ddof=len(items) > 1)
    return f"{mean(items):.2f} ± {deviation:.2f}" if len(items) > 1 else f"{mean(items):.2f}"


def difference(first: Sequence[Tally], second: Sequence[Tally]) -> tuple[float, float, float]:
    """Points between two groups of runs, with the ends of its interval."""
    value, low, high = paired_difference(first, second)
    return 100 * value, 100 * low, 100 * high


def in_words(values: tuple[float, float, float]) -> str:
    """A difference and its interval as text."""
    value, low, high = values
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; columns of the numbers in ``right`` are aligned to the right."""
    marks = ["--:" if number in right else "---" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table and an empty line."""
    print(markdown(head, rows), end="\n\n")
