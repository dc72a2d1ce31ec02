"""Print what results/ says of options of training and of inference, and draw it.

    python experiments/studies_report.py

Points lost at a speed lie on straight lines between the best modes, as in the paper's spline
table. Speeds are those of results/evidence/speed.json and speed-exit.json; a study of another
network needs its own in results/studies/NAME, by `paumer bench` as in
experiments/evidence_report.py. Differences are to the plain run of the same decoder and steps.
Options that were removed are in docs/negative-results.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import evidence
from reading import Results, Speeds, print_table
from studies import EXIT, PAUSING

from paumer.measurement import Measurement, baseline, miou_of, pareto_front, speed_of
from paumer.study.paper_figures import draw_tradeoff
from paumer.study.tradeoff import spline

SPEEDS = (1.5, 2.0, 2.5, 3.0)
NAMES = [f"{speed:g}x" for speed in SPEEDS]
STUDIES = ["aux-0.01", "aux-1", "context", "imagenet", "linear", "pup"]
STUDIES += ["range-low", "range-wide", "usual"]
OTHER_NETWORKS = ("context", "linear", "pup")
# Of inference, on the first seed of experiments/evidence.py.
MODES = {
    "pausing": ("pausing", "speed.json"),
    "early exit": ("exit", "speed-exit.json"),
    "late exit": ("late", "speed-exit.json"),
    "late exit, neighbourhood mean": ("neighbours", "speed-neighbours.json"),
    "the same, protected": ("protected", "speed-neighbours.json"),
}
FIGURES = {
    "aux-weight": {"0.01": "aux-0.01", "0.1": "usual", "1": "aux-1"},
    "range": {"0.2 to 0.8": "usual", "0 to 0.5": "range-low", "0 to 0.9": "range-wide"},
    "initialisation": {"a trained Segmenter": "usual", "ImageNet": "imagenet"},
    "decoder": {"mask": "usual", "linear": "linear", "SETR-PUP": "pup"},
}


def lost(items: Sequence[Measurement], none: Measurement, base: float) -> list[str]:
    """Points below the base at each speed-up, as text."""
    # The unpaused one counts also where a faster one is better.
    best = [none, *(item for item in pareto_front(items) if item.mode.pause)]
    points = [(speed_of(item) / speed_of(none), miou_of(item)) for item in best]
    values = [spline(points, speed) for speed in SPEEDS]
    return ["" if value is None else f"{100 * value - base:+.2f}" for value in values]


class Report:
    """The studies, and the runs of experiments/evidence.py whose speeds most of them share."""

    def __init__(self, results: Path, split: str) -> None:
        self.studies, self.evidence = Results(results / "studies"), Results(results / "evidence")
        self.split = split
        self.unpaused = self.evidence.speeds("speed.json")["none"]

    def _speeds(self, title: str, file: str) -> Speeds:
        """What was timed of the study's network: of another one than the usual, its own."""
        if title not in OTHER_NETWORKS:
            return self.evidence.speeds(file, self.unpaused)
        unpaused = self.studies.speeds(f"{title}/speed.json").get("none")
        return self.studies.speeds(f"{title}/{file}", unpaused)

    def print_training(self) -> dict[str, list[Measurement]]:
        """A row for each study; what was measured of those that are there."""
        rows, measured = [], {}
        for title in STUDIES:
            if not (self.studies.folder / title / f"{self.split}.jsonl").exists():
                continue
            plain = f"{title}-plain" if title in ("linear", "pup") else "plain"
            base = self.studies.unpaused_miou(plain, self.split)
            timed = self._speeds(title, "speed.json")
            if base is None or not timed:
                print(f"{title}: {f'no {plain}' if base is None else 'no speeds'} yet\n")
                continue
            items = self.studies.mean_measurements(title, self.split, PAUSING, timed)
            none = baseline(items)
            measured[title] = items
            timed = self._speeds(title, "speed-exit.json")
            exits = self.studies.mean_measurements(title, self.split, EXIT, timed)
            reached = 100 * miou_of(none)
            row = [title, f"{base:.2f}", f"{reached:.2f}", f"{reached - base:+.2f}"]
            row += lost(items, none, base)
            rows.append([*row, *(lost(exits, none, base) if exits else [""] * len(SPEEDS))])
        exit_names = [f"exit {name}" for name in NAMES]
        print_table(["study", "plain", "unpaused", "lost", *NAMES, *exit_names], rows)
        return measured

    def print_inference(self) -> None:
        """A row for each group of modes of one run: the criterion and where patches exit."""
        rows = []
        base = self.evidence.unpaused_miou("plain-0", "val")
        for words, (title, file) in MODES.items():
            timed = self.evidence.speeds(file, self.unpaused)
            modes = evidence.MODES[title]
            items = self.evidence.mean_measurements("paumer-0", "val", modes, timed)
            if items and base is not None:
                none = baseline(items)
                gap = f"{100 * miou_of(none) - base:+.2f}"
                rows.append([words, gap, *lost(items, none, base)])
        print_table(["mode, seed 0", "unpaused", *NAMES], rows)


def main() -> None:
    """Print the tables of one split and draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--split", default="val")
    parser.add_argument("--out", type=Path, default=Path("out/studies"))
    arguments = parser.parse_args()
    report = Report(arguments.results, arguments.split)
    measured = report.print_training()
    report.print_inference()
    for figure, lines in FIGURES.items():
        if all(title in measured for title in lines.values()):
            series = {name: measured[title] for name, title in lines.items()}
            path = arguments.out / f"{figure}-{arguments.split}"
            draw_tradeoff(series, path)
            print(f"wrote {path}.png and .svg")


if __name__ == "__main__":
    main()
