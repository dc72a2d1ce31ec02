"""Print what results/ says of options of training and of inference, and draw it.

    python benchmarks/studies_report.py

Points lost at a speed lie on straight lines between the best modes, as in the paper's spline
table. Speeds are those of results/speed.json and speed-exit.json; a study of another network needs
its own in results/study-NAME, by `paumer bench` as in benchmarks/evidence_report.py. Differences
are to the plain run of the same decoder and steps. Options that were removed are in
docs/negative-results.md.
"""

import argparse
from pathlib import Path

from reading import Results, mean, table

from paumer.measurement import baseline, pareto_front
from paumer.study.paper_figures import draw_tradeoff
from paumer.study.tradeoff import spline

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--results", type=Path, default=Path("results"))
parser.add_argument("--split", default="val")
parser.add_argument("--out", type=Path, default=Path("out/studies"))
arguments = parser.parse_args()
results, split = Results(arguments.results, 0), arguments.split
SPEEDS = (1.5, 2.0, 2.5, 3.0)
STUDIES = ("aux-0.01", "aux-1", "context", "imagenet", "linear", "pup")
STUDIES += ("range-low", "range-wide", "usual")
OTHER = ("study-context", "study-linear", "study-pup")
UNPAUSED = results.speeds("speed.json")["none"]


def speeds(study, file):
    """What was timed of the study's network: of another one than the usual, its own."""
    if study not in OTHER:
        return results.speeds(file, UNPAUSED)
    own = results.speeds(f"{study}/speed.json")
    return results.speeds(f"{study}/{file}", own.get("none"))


def lost(items, none, base):
    """Points below the base at each speed-up, as text."""
    # The unpaused one counts also where a faster one is better.
    best = [none, *(item for item in pareto_front(items) if item.mode.pause)]
    points = [(item.images_per_second / none.images_per_second, item.miou) for item in best]
    values = [spline(points, speed) for speed in SPEEDS]
    return ["" if value is None else f"{100 * value - base:+.2f}" for value in values]


rows, measured = [], {}
for title in STUDIES:
    study = f"study-{title}"
    if not (arguments.results / study / f"{split}.npz").exists():
        continue
    plain = "study-plain" if title not in ("linear", "pup") else f"study-{title}-plain"
    counted = results.tallies(plain, split)
    timed = speeds(study, "speed.json")
    if not counted or not timed:
        print(f"{title}: {'no speeds' if counted else f'no {plain}'} yet\n")
        continue
    base = mean(counted["none"])
    items = results.mean_measurements(study, split, timed)
    none = baseline(items)
    measured[title] = items
    exits = results.mean_measurements(study, f"{split}-exit", speeds(study, "speed-exit.json"))
    own = 100 * none.miou
    row = [title, f"{base:.2f}", f"{own:.2f}", f"{own - base:+.2f}", *lost(items, none, base)]
    rows.append([*row, *(lost(exits, none, base) if exits else [""] * len(SPEEDS))])
names = [f"{speed:g}x" for speed in SPEEDS]
table(["study", "plain", "unpaused", "lost", *names, *(f"exit {n}" for n in names)], rows)

# Of inference, on the first seed of benchmarks/evidence.py: the criterion and where patches exit.
MODES = {
    "pausing": ("val", "speed.json"),
    "early exit": ("val-exit", "speed-exit.json"),
    "late exit": ("val-late", "speed-exit.json"),
    "late exit, neighbourhood mean": ("val-neighbours", "speed-neighbours.json"),
    "the same, protected": ("val-protected", "speed-neighbours.json"),
}
rows = []
base = mean(results.tallies("plain-0", "val")["none"])
for words, (title, file) in MODES.items():
    items = results.mean_measurements("paumer-0", title, results.speeds(file, UNPAUSED))
    if items:
        none = baseline(items)
        rows.append([words, f"{100 * none.miou - base:+.2f}", *lost(items, none, base)])
table(["mode, seed 0", "unpaused", *names], rows)

FIGURES = {
    "aux-weight": {"0.01": "aux-0.01", "0.1": "usual", "1": "aux-1"},
    "range": {"0.2 to 0.8": "usual", "0 to 0.5": "range-low", "0 to 0.9": "range-wide"},
    "initialisation": {"a trained Segmenter": "usual", "ImageNet": "imagenet"},
    "decoder": {"mask": "usual", "linear": "linear", "SETR-PUP": "pup"},
}
for figure, lines in FIGURES.items():
    if all(title in measured for title in lines.values()):
        series = {name: measured[title] for name, title in lines.items()}
        draw_tradeoff(series, arguments.out / f"{figure}-{split}")
        print(f"wrote {arguments.out}/{figure}-{split}.png and .svg")
