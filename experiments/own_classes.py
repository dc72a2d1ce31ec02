"""Fine-tune the built-in model to classes it does not know by name; what is done is skipped.

    python experiments/own_classes.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors

CamVid's classes merged into four: ground, vehicle, living, rest. `four` learns them from
`street-tiny`, whose heads are re-initialised; `eleven` learns the original classes from the same
start, and its predictions are merged afterwards; `backbone` learns the four from the backbone's
weights alone. All have the same steps and crops. From `street-tiny` each is trained at two learning
rates, from the backbone at the higher one; with `--test` the better one on val is measured on test.
`start`, without training, is `street-tiny` with its predictions merged. Runs are written to
runs/own-classes, their small files to results/own-classes.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import record
import torch
import yaml
from jaxtyping import Int
from reading import markdown

from paumer import Inference, load
from paumer.classes import CAMVID
from paumer.data.datasets import open_dataset
from paumer.measurement import Measurement, miou_of, read_measurements
from paumer.mode import parse_modes
from paumer.model.directory import find_model
from paumer.study.accuracy import Tally, evaluate

MERGED = dict.fromkeys(CAMVID.names, "rest") | {
    "road": "ground", "pavement": "ground", "car": "vehicle",
    "pedestrian": "living", "bicyclist": "living",
}  # fmt: skip
FOUR = tuple(dict.fromkeys(MERGED.values()))
ARMS = ("eleven", "four", "backbone")
TITLES = {
    "start": "nothing: `street-tiny`, its 11 classes merged",
    "eleven": "11 classes from `street-tiny`, merged afterwards",
    "four": "four classes from `street-tiny`",
    "backbone": "four classes from the backbone alone",
}
NAMES = (
    "start", "eleven-0.00015", "eleven-0.0005", "four-0.00015", "four-0.0005", "backbone-0.0005",
)  # fmt: skip
"""Each run with its learning rate."""
STEPS = ("--steps", 200, "--batch", 2, "--val-every", 200, "--val-mode", "none", "--val-images", 10)
RECIPE = "recipes/street-tiny.yaml"
MODES = parse_modes(["none", "3:0.4", "5:0.5,9:0.9 exit by=neighbours"])


def write_yaml(camvid: str, file: Path) -> None:
    """Describe CamVid's folders with the classes merged by name."""
    splits = ("train", "val", "test")
    plan = {
        "path": str(Path(camvid.removeprefix("camvid:")).resolve()),
        **{split: {"images": split, "masks": f"{split}annot"} for split in splits},
        "classes": list(CAMVID.names),
        "ignore": [len(CAMVID)],
        "map": MERGED,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(plan, sort_keys=False))


def merge(tally: Tally) -> Tally:
    """The tally of one image in four classes: true and predicted classes are both merged."""
    counts = tally.confusion
    assert counts is not None
    assert len(tally.images) == 1
    if len(counts) != len(FOUR):
        target = np.array([FOUR.index(name) for name in MERGED.values()])
        onto: Int[np.ndarray, "classes four"] = np.eye(len(FOUR), dtype=np.int64)[target]
        counts = onto.T @ counts @ onto
    totals = np.stack([np.diag(counts), counts.sum(0), counts.sum(1)])
    return Tally(tally.indices, totals[None], counts)


def measure(model: Path, data: str, split: str) -> list[Measurement]:
    """What each mode reaches in the four classes."""
    predictor, dataset = load(model), open_dataset(data, split)
    tallies = [Tally.empty(len(FOUR)) for _ in MODES]
    for index in range(len(dataset)):
        found = evaluate(predictor, dataset, MODES, Inference(), [index])
        tallies = [one + merge(two) for one, two in zip(tallies, found, strict=True)]
    name = f"camvid {split}, four classes"
    return [
        Measurement(mode=mode, data=name, **tally.summary())
        for mode, tally in zip(MODES, tallies, strict=True)
    ]


def better(results: Path) -> list[str]:
    """For each arm the run that is better without pausing on val."""

    def unpaused(name: str) -> float:
        return miou_of(read_measurements(results / name / "val.jsonl")[0])

    runs = {arm: [name for name in NAMES if name.startswith(arm)] for arm in TITLES}
    return [max(names, key=unpaused) for names in runs.values()]


def report(results: Path, split: str) -> str:
    """A table of a split: a row for each run that was measured on it."""
    rows = []
    for name in NAMES:
        file = results / name / f"{split}.jsonl"
        if file.exists():
            arm, _, rate = name.partition("-")
            found = read_measurements(file)
            low, high = (100 * (value or 0) for value in (found[0].miou_low, found[0].miou_high))
            reached = [f"{100 * miou_of(item):.2f}" for item in found]
            interval = f"{low:.2f} to {high:.2f}"
            rows.append([TITLES[arm], rate, reached[0], interval, *reached[1:]])
    modes = [f"`{mode}`" for mode in MODES]
    head = ["learnt", "rate", f"{split}, {modes[0]}", "interval", *modes[1:]]
    return markdown(head, rows, right=(1, 2, 4, 5))


def main() -> None:
    """Train, measure on val and, if asked, on test; print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_arguments(parser)
    parser.add_argument("--test", action="store_true", help="also measure the better ones on test")
    parser.add_argument("names", nargs="*", metavar="run", help="such as four-0.0005; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no run {', '.join(unknown)}: choose from {', '.join(NAMES)}")
    torch.set_num_threads(1)
    runs, results = arguments.runs / "own-classes", arguments.results / "own-classes"
    write_yaml(arguments.data, runs / "data.yaml")
    data = dict.fromkeys(ARMS, str(runs / "data.yaml")) | {"eleven": arguments.data}
    start = dict.fromkeys(ARMS, "street-tiny") | {"backbone": arguments.init}
    more = {"backbone": ("--backbone", "deit_tiny_patch16_224")}
    plans = {
        f"own-classes/{name}": record.Plan(
            start[arm], RECIPE, (*STEPS, "--lr", rate, *more.get(arm, ())), data=data[arm]
        )
        for name in NAMES
        for arm, _, rate in [name.partition("-")]
        if arm in ARMS
    }
    kept = record.Record(arguments, plans)

    def measured(name: str, split: str) -> None:
        file, arm = results / name / f"{split}.jsonl", name.partition("-")[0]
        if arm in ARMS:
            kept.train(f"own-classes/{name}")
        if not file.exists():
            model = kept.model(f"own-classes/{name}") if arm in ARMS else find_model("street-tiny")
            found = measure(model, data.get(arm, arguments.data), split)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{json.dumps(item.to_json())}\n" for item in found))

    for name in arguments.names or NAMES:
        measured(name, "val")
    print(report(results, "val"))
    if arguments.test:
        for name in better(results):
            if not arguments.names or name in arguments.names:
                measured(name, "test")
        print(report(results, "test"))


if __name__ == "__main__":
    main()
