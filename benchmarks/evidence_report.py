"""Print what results/ says of the three-seed runs: tables, and where entropy leads.

    paumer bench --model runs/evidence/paumer-0/model --size 640x480 --threads 1 \\
        --pause none paper ... --json results/speed.json       (and --early-exit: speed-exit.json)
    python benchmarks/evidence_report.py --split val

Differences are of three-seed means, with a paired bootstrap over pictures (95%).
"""

import argparse
import json
from pathlib import Path

import numpy as np

from paumer.pause_config import PAPER_CONFIGS
from paumer.study.accuracy import paired_difference
from paumer.study.sweep import load_tallies

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--results", type=Path, default=Path("results"))
parser.add_argument("--split", default="val")
parser.add_argument("--seeds", type=int, default=3)
arguments = parser.parse_args()


def tallies(kind, title=arguments.split):
    """By configuration, what each seed of a kind of run counted."""
    files = [arguments.results / f"{kind}-{s}" / f"{title}.npz" for s in range(arguments.seeds)]
    seeds = [load_tallies(file) for file in files if file.exists()]
    shared = [pause for pause in seeds[0] if all(pause in seed for seed in seeds)] if seeds else []
    return {pause: [seed[pause] for seed in seeds] for pause in shared}


def speeds(name):
    """By configuration, measured speed-up and multiply-add ratio."""
    file = arguments.results / name
    found = json.loads(file.read_text())["measurements"] if file.exists() else []
    return {item["pause"]: item for item in found}


def mean(items):
    """Mean mIoU in points, and its spread over seeds."""
    values = [100 * item.miou for item in items]
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=len(values) > 1):.2f}"


def difference(first, second):
    """Points between two groups of runs, with its interval."""
    found, low, high = (100 * value for value in paired_difference(first, second))
    return f"{found:+.2f} ({low:+.2f} to {high:+.2f})"


def table(head, rows):
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


start = arguments.results / "segmenter" / f"{arguments.split}.npz"
plain, paumer, random = map(tallies, ("plain", "paumer", "random"))
leave = tallies("paumer", f"{arguments.split}-exit")
if not plain:
    parser.error(f'no plain run in "{arguments.results}": run benchmarks/evidence.py first')
speed, exit_speed = speeds("speed.json"), speeds("speed-exit.json")
base = plain["none"]
print(f"Plain Segmenter continued, {arguments.split}: {mean(base)}, {len(base)} seeds", end="")
print(f"; where it started: {mean([load_tallies(start)['none']])}\n" if start.exists() else "\n")


def timed(pause, measured):
    """Measured speed-up and multiply-adds of a configuration, as text."""
    item = measured.get(pause, {})
    return [f"{item[k]:.2f}x" if item.get(k) else "" for k in ("speed_up", "mac_ratio")]


head = ["pause", "speed", "multiply-adds", "entropy", "against plain", "random", "entropy - random"]
rows = []
for pause in paumer:
    row = [f"`{pause}`", *timed(pause, speed), mean(paumer[pause]), difference(paumer[pause], base)]
    if pause in random:
        row += [mean(random[pause]), difference(paumer[pause], random[pause])]
    else:
        row += ["", ""]
    rows.append(row)
table(head, rows)
rows = [
    [f"`{pause}`", *timed(pause, exit_speed), mean(items), difference(items, base)]
    for pause, items in leave.items()
]
if rows:
    table(["early exit", "speed", "multiply-adds", "entropy", "against plain"], rows)
paper = [str(pause) for pause in PAPER_CONFIGS if str(pause) in random]
ahead = sum(
    np.mean([t.miou for t in paumer[p]]) > np.mean([t.miou for t in random[p]]) for p in paper
)
print(f"Entropy is ahead of random pausing at {ahead} of the {len(paper)} configurations.")
