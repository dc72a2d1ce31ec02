"""Train on a folder of images and masks, then evaluate the model in several modes.

The folder holds images/train, masks/train, images/val and masks/val; an image and its mask have
the same name. Masks are PNGs of class numbers in the order of --classes.

python examples/train_on_your_folder.py my/folder --classes sky road car --steps 4000 --init timm
"""

import argparse
import sys
from pathlib import Path

import yaml

from paumer import load
from paumer.data.datasets import open_dataset
from paumer.mode import parse_modes
from paumer.scenes.files import write_scenes
from paumer.study.accuracy import evaluate
from paumer.training.options import TrainOptions
from paumer.training.run import train


def describe(folder: Path, classes: list[str]) -> Path:
    """The folder's data.yaml, written if it has none."""
    path = folder / "data.yaml"
    if not path.is_file():
        if not classes:
            sys.exit(f'"{folder}" has no data.yaml: name its classes with --classes')
        splits = {
            split: {"images": f"images/{split}", "masks": f"masks/{split}"}
            for split in ("train", "val")
        }
        path.write_text(yaml.safe_dump({**splits, "classes": classes}), "utf-8")
        print(f"wrote {path}")
    return path


def main() -> None:
    """Read the command line, train, and print the mIoU of each mode."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="(default: synthetic streets)")
    parser.add_argument("--classes", nargs="+", default=[], help="their names, 0 first")
    parser.add_argument("--out", type=Path, default=Path("runs/example"), help="run directory")
    parser.add_argument("--steps", type=int, default=20, help="20 only show that it works")
    parser.add_argument("--init", default="none", help="timm, or a .safetensors file of timm's")
    parser.add_argument("--backbone", default="vit_tiny_patch16_384", help="timm name")
    parser.add_argument("--ranges", default="3-9:0.2-0.8", help="blocks and ratios to train for")
    parser.add_argument("--crop", default="128", help="training crop: a side, or WIDTHxHEIGHT")
    parser.add_argument("--mode", nargs="+", default=["none", "3:0.4", "3:0.4,9:0.9 exit"])
    arguments = parser.parse_args()

    folder = arguments.folder
    if folder is None:
        folder = arguments.out.with_name(f"{arguments.out.name}-scenes")
        if not folder.exists():
            write_scenes(folder, {"train": 16, "val": 4}, size=(192, 144))
            print(f"wrote synthetic streets to {folder}: look at {folder / 'sheet.png'}")
    data = str(describe(folder, arguments.classes))

    # Each step draws a block and a ratio at random, so one training serves all speeds.
    options = TrainOptions(
        data=data,
        out=arguments.out,
        steps=arguments.steps,
        init=arguments.init,
        backbone=arguments.backbone,
        ranges=arguments.ranges,
        crop=arguments.crop,
        batch=4,
        val_mode=tuple(arguments.mode),
    )
    run = train(options, say=print)

    modes = parse_modes(arguments.mode)
    validation = open_dataset(data, "val")
    for mode, tally in zip(modes, evaluate(load(run), validation, modes), strict=True):
        low, high = tally.interval()
        print(f"{mode}: mIoU {tally.miou:.2%} ({low:.2%} to {high:.2%})")
    if arguments.init == "none":
        print("trained from scratch: for a usable model, give --init and more --steps")
    print(f"the model is in {run / 'model'}")


if __name__ == "__main__":
    main()
