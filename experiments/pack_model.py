"""Pack a trained model as a built-in one: half precision, its points, figures and card.

    python experiments/pack_model.py runs/street-tiny --data camvid:DIR scenes

Without --data the weights alone are packed. With it, operating points are chosen, among some that
do well, on the validation images of all data sets together and timed on this machine, and the card
says what each point reaches on each of them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from evidence import spell
from reading import markdown

from paumer import Inference, Predictor, load
from paumer.data.datasets import open_dataset
from paumer.data.samples import spread
from paumer.inference.points import write_points
from paumer.measurement import Measurement, miou_of
from paumer.mode import parse_modes
from paumer.model.directory import MODELS, find_model, load_model, save_model
from paumer.study.accuracy import evaluate
from paumer.study.speed import SpeedSettings, time_modes
from paumer.study.sweep import describe
from paumer.study.tuning import NAMED, decide

# What loses least at a speed on CamVid (docs/results.md).
CANDIDATES = ["9:0.95", "9:0.9", "9:0.8", "5:0.4,9:0.9", "5:0.5,9:0.9", "4:0.4,9:0.9"]
CANDIDATES += ["4:0.4,9:0.8", "4:0.5,9:0.9", "3:0.2,4:0.3,9:0.9", "3:0.2,5:0.4,9:0.9"]
CANDIDATES += ["3:0.3,4:0.3,9:0.95", "2:0.1,3:0.25,4:0.3,9:0.95", "2:0.2,3:0.3,4:0.3,9:0.95"]
CANDIDATES += ["2:0.2,3:0.3,4:0.35,9:0.95", "2:0.25,3:0.3,4:0.3,9:0.95"]
MODES = parse_modes(spell(CANDIDATES, "exit by=neighbours"))
CARD = Path(__file__).with_name("model_card.md")
INFERENCE = Inference(batch=4)
Row = dict[str, Any]


def choose_points(
    predictor: Predictor, specs: Sequence[str], limit: int
) -> Mapping[str, Measurement]:
    """The operating points that do best on the validation images of all data sets together."""
    joined = open_dataset("+".join(specs), "val")
    first = joined[0]
    speeds = time_modes(predictor, first.image, MODES, SpeedSettings(threads=1, rounds=20))
    print("timed")
    indices = spread(len(joined), limit)
    tallies = evaluate(predictor, joined, MODES, INFERENCE, indices)
    data = f"{joined.name} val"
    found = describe(predictor, MODES, tallies, first.labels.shape, data, INFERENCE)
    for item in found:
        print(f"{item.mode}: {100 * miou_of(item):.2f}", flush=True)
    return decide(found, speeds, NAMED["balanced"]).points


def reached(predictor: Predictor, spec: str, split: str) -> list[Row]:
    """What each point reaches on a data set."""
    dataset, modes = open_dataset(spec, split), predictor.modes
    tallies = evaluate(predictor, dataset, list(modes.values()), INFERENCE)
    data, names = f"{dataset.name} {split}", dataset.class_set.names
    return [
        {"point": point, "mode": str(mode), "data": data, **tally.to_json(names)}
        for (point, mode), tally in zip(modes.items(), tallies, strict=True)
    ]


def point_table(rows: Sequence[Row], points: Mapping[str, Measurement]) -> str:
    """What each point reaches, a row for each data set."""
    lines = [
        [
            f"{row['data']}, {row['images']} images",
            row["point"],
            f"`{row['mode']}`",
            f"{points[row['point']].speed_up or 1.0:.2f}x",
            f"{100 * row['miou']:.2f}",
            f"{100 * row['miou_low']:.2f} to {100 * row['miou_high']:.2f}",
        ]
        for row in rows
    ]
    return markdown(["data", "point", "mode", "speed-up", "mIoU", "interval"], lines, right=(3, 4))


def class_table(rows: Sequence[Row]) -> str:
    """IoU by class without pausing, a column for each data set."""
    plain = [row for row in rows if row["point"] == "unpaused"]
    lines = [
        [name, *(f"{100 * row['iou'][name]:.1f}" for row in plain)] for name in plain[0]["iou"]
    ]
    right = range(1, 1 + len(plain))
    return markdown(["class", *(row["data"] for row in plain)], lines, right)


def main() -> None:
    """Pack the weights and, with data, the points, figures and card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="street-tiny")
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    directory = MODELS / arguments.name
    config, tensors = load_model(find_model(str(arguments.run)))
    save_model(directory, config, {name: tensor.half() for name, tensor in tensors.items()})
    size = (directory / "model.safetensors").stat().st_size / 1e6
    print(f"{directory}: {size:.1f} MB")
    if not arguments.data:
        return
    points = choose_points(load(directory), arguments.data, arguments.limit)
    (directory / "operating_points.json").unlink(missing_ok=True)
    write_points(directory, points)
    predictor = load(directory)
    splits = [(spec, split) for spec in arguments.data for split in ("val", "test")]
    rows = [row for spec, split in splits for row in reached(predictor, spec, split)]
    (directory / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    args = yaml.safe_load((arguments.run / "args.yaml").read_text())
    card = CARD.read_text("utf-8").format(
        name=arguments.name,
        names=", ".join(config.classes),
        size=size,
        where=next(iter(predictor.points.values())).where,
        table=point_table(rows, predictor.points),
        classes=class_table(rows),
        **{key: args[key] for key in ("steps", "batch", "crop")},
    )
    (directory / "README.md").write_text(card)
    for row in rows:
        print(f"{row['data']}: {row['point']} {row['mode']}: {100 * row['miou']:.2f}")


if __name__ == "__main__":
    main()
