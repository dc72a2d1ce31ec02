"""Pack a trained model as a built-in one: half precision, its points, figures and card.

python benchmarks/pack_model.py runs/street-tiny --data camvid:DIR scenes

Without --data the weights alone are packed. With it, operating points are chosen, among some that
do well, on the validation images of all data sets together and timed on this machine, and the card
says what each point reaches on each of them.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import yaml

from paumer import Inference, Predictor, load
from paumer.data.datasets import open_dataset
from paumer.inference.points import write_points
from paumer.mode import parse_modes
from paumer.model.directory import MODELS, find_model, load_model, save_model
from paumer.study.accuracy import evaluate
from paumer.study.speed import SpeedSettings, time_modes
from paumer.study.sweep import describe
from paumer.study.tuning import NAMED, decide

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("run", type=Path)
parser.add_argument("--name", default="street-tiny")
parser.add_argument("--data", nargs="*", default=[])
parser.add_argument("--limit", type=int, default=100)
arguments = parser.parse_args()

torch.set_num_threads(1)
inference = Inference(batch=4)
directory = MODELS / arguments.name
config, tensors = load_model(find_model(str(arguments.run)))
save_model(directory, config, {name: tensor.half() for name, tensor in tensors.items()})
size = (directory / "model.safetensors").stat().st_size
print(f"{directory}: {size / 1e6:.1f} MB")


def rows(predictor: Predictor, spec: str, split: str):
    """What each point reaches on a data set."""
    dataset = open_dataset(spec, split)
    modes = predictor.modes
    tallies = evaluate(predictor, dataset, list(modes.values()), inference)
    for (name, mode), tally in zip(modes.items(), tallies, strict=True):
        low, high = tally.interval()
        yield {
            "point": name,
            "mode": str(mode),
            "data": f"{dataset.name} {split}",
            "images": len(tally.images),
            "miou": tally.miou,
            "miou_low": low,
            "miou_high": high,
            "pixel_accuracy": tally.pixel_accuracy,
            "iou": dict(zip(dataset.class_set.names, tally.confusion.iou.tolist(), strict=True)),
        }


def speed_up(point):
    """How fast a point is; 1 for none."""
    return point.speed_up or 1.0


# What loses least at a speed on CamVid (docs/results.md).
CANDIDATES = ["9:0.95", "9:0.9", "9:0.8", "5:0.4,9:0.9", "5:0.5,9:0.9", "4:0.4,9:0.9"]
CANDIDATES += ["4:0.4,9:0.8", "4:0.5,9:0.9", "3:0.2,4:0.3,9:0.9", "3:0.2,5:0.4,9:0.9"]
CANDIDATES += ["3:0.3,4:0.3,9:0.95", "2:0.1,3:0.25,4:0.3,9:0.95", "2:0.2,3:0.3,4:0.3,9:0.95"]
CANDIDATES += ["2:0.2,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.3,4:0.3,9:0.95"]
WORDS = "exit by=neighbours"
CARD = Path(__file__).with_name("model_card.md").read_text("utf-8")


def table(lines, points):
    """What each point reaches, a row for each data set."""
    rows = [
        "| data | point | mode | speed-up | mIoU | interval |",
        "| --- | --- | --- | --: | --: | --- |",
    ]
    for row in lines:
        data, mode = f"{row['data']}, {row['images']} images", f"`{row['mode']}`"
        speed = f"{speed_up(points[row['point']]):.2f}x"
        interval = f"{100 * row['miou_low']:.2f} to {100 * row['miou_high']:.2f}"
        rows.append(
            f"| {data} | {row['point']} | {mode} | {speed} | {100 * row['miou']:.2f} | {interval} |"
        )
    return "\n".join(rows)


def class_table(lines):
    """IoU by class without pausing, a column for each data set."""
    plain = [row for row in lines if row["point"] == "unpaused"]
    rows = [
        f"| class | {' | '.join(row['data'] for row in plain)} |",
        f"| --- |{' --: |' * len(plain)}",
    ]
    for name in plain[0]["iou"]:
        cells = [f"{100 * row['iou'][name]:.1f}" for row in plain]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


if arguments.data:
    predictor = load(directory)
    joined = open_dataset("+".join(arguments.data), "val")
    indices = np.linspace(0, len(joined) - 1, min(len(joined), arguments.limit)).round()
    modes = parse_modes(["none", *(f"{stages} {WORDS}" for stages in CANDIDATES)])
    settings = SpeedSettings(threads=1, rounds=20)
    speeds = time_modes(predictor, joined[0].image, modes, settings)
    print("timed")
    tallies = evaluate(predictor, joined, modes, inference, indices.astype(int).tolist())
    data = f"{joined.name} val"
    found = describe(predictor, modes, tallies, joined[0].labels.shape, data, inference)
    for item in found:
        print(f"{item.mode}: {100 * item.miou:.2f}", flush=True)
    points = decide(found, speeds, NAMED["balanced"]).points
    (directory / "operating_points.json").unlink(missing_ok=True)
    write_points(directory, points)
    predictor = load(directory)
    lines = [
        row
        for spec in arguments.data
        for split in ("val", "test")
        for row in rows(predictor, spec, split)
    ]
    (directory / "results.json").write_text(json.dumps(lines, indent=2) + "\n")
    args = yaml.safe_load((arguments.run / "args.yaml").read_text())
    card = CARD.format(
        name=arguments.name,
        names=", ".join(config.classes),
        size=size / 1e6,
        where=next(iter(predictor.points.values())).where,
        table=table(lines, predictor.points),
        classes=class_table(lines),
        **{key: args[key] for key in ("steps", "batch", "crop")},
    )
    (directory / "README.md").write_text(card)
    for row in lines:
        print(f"{row['data']}: {row['point']} {row['mode']}: {100 * row['miou']:.2f}")
