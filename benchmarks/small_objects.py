"""Evaluate by object size and by class, with protected classes and without; print it.

    python benchmarks/small_objects.py --data camvid:DIR

Of the runs of benchmarks/evidence.py. What was counted is kept in results/ and not counted again.
Means over seeds; regions below 0.1%, up to 1%, and above 1% of the image.
"""

import argparse
import json

import record
from reading import table

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
record.add_arguments(parser)
parser.add_argument("--split", default="val")
parser.add_argument("--seeds", type=int, default=3)
arguments = parser.parse_args()
GUARDED = ("pedestrian", "bicyclist")
BEST = "5:0.5,9:0.9 exit by=neighbours"
MODES = {
    "plain": "none",
    "unpaused": "none",
    "pausing": "2:0.2,3:0.3,4:0.35,7:0.3",
    "early exit": "4:0.6 exit",
    "late exit by neighbours": BEST,
    "the same, protected": f"{BEST} protect={'+'.join(GUARDED)}",
}


def evaluate(title, seed):
    """One run in one mode: counted, or read where it was counted before."""
    run = f"{'plain' if title == 'plain' else 'paumer'}-{seed}"
    name = f"sizes-{arguments.split}-{title.replace(' ', '-').replace(',', '')}.json"
    path = arguments.results / run / name
    if not path.exists():
        what = ["--model", arguments.runs / run / "model", "--data", arguments.data]
        what += ["--split", arguments.split, "--mode", MODES[title]]
        whole = arguments.runs / run / name
        how = ["--by-size", "--batch", 4, "--threads", 1, "--json", whole]
        record.paumer("evaluate", *what, *how)
        (row,) = json.loads(whole.read_text())["evaluations"]
        del row["confusion"]
        path.write_text(json.dumps(row, indent=1) + "\n")
    return json.loads(path.read_text())


def mean(values):
    """The mean over seeds, in percent, as text; nothing where a class is nowhere."""
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.2f}" if known else ""


rows, found = [], {}
for title, mode in MODES.items():
    seeds = found[title] = [evaluate(title, seed) for seed in range(arguments.seeds)]
    sizes = [mean([s["miou_by_size"][size] for s in seeds]) for size in seeds[0]["miou_by_size"]]
    guarded = [mean([s["iou"][name] for s in seeds]) for name in GUARDED]
    rows.append([title, f"`{mode}`", mean([s["miou"] for s in seeds]), *sizes, *guarded])
table(["", "mode", "mIoU", *found["plain"][0]["miou_by_size"], *GUARDED], rows)
classes = list(found["plain"][0]["iou"])
rows = [
    [name, *(mean([s["iou"][name] for s in seeds]) for seeds in found.values())] for name in classes
]
table(["class", *found], rows)
