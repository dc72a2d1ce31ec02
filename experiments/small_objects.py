"""Evaluate by object size and by class, with protected classes and without; print it.

    python experiments/small_objects.py --data camvid:DIR

Of the runs of experiments/evidence.py. What was counted is kept in results/evidence, in
sizes-SPLIT.jsonl, and not counted again. Means over seeds; regions below 0.1%, up to 1%, and above
1% of the image.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import record
from evidence import PROTECTED
from reading import print_table

GUARDED = ("pedestrian", "bicyclist")
BEST = "5:0.5,9:0.9"
MODES = {
    "plain": "none",
    "unpaused": "none",
    "pausing": "2:0.2,3:0.3,4:0.35,7:0.3",
    "early exit": "4:0.6 exit",
    "late exit by neighbours": f"{BEST} exit by=neighbours",
    "the same, protected": f"{BEST} {PROTECTED}",
}
Row = dict[str, Any]


def evaluate(arguments: argparse.Namespace, run: str, mode: str) -> Row:
    """What one run reaches in one mode: counted, or read where it was counted before."""
    path: Path = arguments.results / "evidence" / f"sizes-{arguments.split}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    for row in map(json.loads, lines):
        if (row["run"], row["mode"]) == (run, mode):
            return dict(row)
    folder = arguments.runs / "evidence" / run
    whole = folder / f"sizes-{arguments.split}.json"
    source = ("--model", folder / "model", "--data", arguments.data, "--split", arguments.split)
    settings = ("--mode", mode, "--by-size", "--batch", 4, "--threads", 1, "--json", whole)
    record.paumer("evaluate", *source, *settings)
    (row,) = json.loads(whole.read_text())["evaluations"]
    kept = {"run": run} | {key: row[key] for key in row if key != "confusion"}
    with path.open("a") as file:
        file.write(json.dumps(kept) + "\n")
    return kept


def mean(values: Iterable[float | None]) -> str:
    """The mean over seeds, in percent, as text; nothing where a class is nowhere."""
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.2f}" if known else ""


def main() -> None:
    """Print a table by size and one by class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_arguments(parser)
    parser.add_argument("--split", default="val")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows, found = [], {}
    for title, mode in MODES.items():
        kind = "plain" if title == "plain" else "paumer"
        seeds = [evaluate(arguments, f"{kind}-{seed}", mode) for seed in range(arguments.seeds)]
        found[title] = seeds
        sizes = [mean(s["miou_by_size"][size] for s in seeds) for size in seeds[0]["miou_by_size"]]
        guarded = [mean(s["iou"][name] for s in seeds) for name in GUARDED]
        rows.append([title, f"`{mode}`", mean(s["miou"] for s in seeds), *sizes, *guarded])
    print_table(["", "mode", "mIoU", *found["plain"][0]["miou_by_size"], *GUARDED], rows)
    print_table(
        ["class", *found],
        [
            [name, *(mean(s["iou"][name] for s in seeds) for seeds in found.values())]
            for name in found["plain"][0]["iou"]
        ],
    )


if __name__ == "__main__":
    main()
