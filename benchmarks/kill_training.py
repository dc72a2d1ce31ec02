"""Kill a training run at random moments, resume it each time, compare with an undisturbed one.

    python benchmarks/kill_training.py --kills 50

A checkpoint is written after every step, so that most kills fall into or beside a write.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from killing import Process, kill_often, start
from PIL import Image

from paumer import PausingSegmenter


def make_data(path: Path) -> Path:
    """A small folder of images and masks."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (path / kind / split).mkdir(parents=True)
        for number in range(4):
            image = rng.integers(0, 255, (40, 48, 3), np.uint8)
            Image.fromarray(image).save(path / "images" / split / f"{number}.png")
            Image.fromarray(image[..., 0] % 3).save(path / "masks" / split / f"{number}.png")
    (path / "data.yaml").write_text(
        "train: {images: images/train, masks: masks/train}\n"
        "val: {images: images/val, masks: masks/val}\nclasses: [a, b, c]\n"
    )
    return path / "data.yaml"


def newest(run: Path) -> int:
    """The newest checkpoint's step, -1 if there is none."""
    files = sorted((run / "checkpoints").glob("step-*.safetensors"))
    return int(files[-1].stem.split("-")[1]) if files else -1


def main() -> None:
    """Train a small model undisturbed and killed, and compare the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, steps = Path(folder), 12 * arguments.kills
        options: list[object] = ["--data", make_data(root / "data"), "--backbone", "test_vit"]
        options += ["--init", "none", "--ranges", "2-4:0.2-0.8", "--crop", 32, "--batch", 4]
        options += ["--steps", steps, "--val-every", 10**6, "--val-mode", "none"]
        options += ["--val-images", 1, "--save-every", 1, "--workers", 0, "--accelerator", "cpu"]
        run = root / "run"

        def train(name: str = "run") -> Process:
            return start("train", *options, "--out", root / name)

        if train("whole").wait():
            sys.exit("the undisturbed run failed")
        kills, lost, finished = kill_often(
            train,
            lambda: start("train", "--resume", run),
            lambda: newest(run),
            arguments.kills,
            random.Random(arguments.seed),
        )
        ends = [
            PausingSegmenter.from_pretrained(root / name / "model").state_dict()
            for name in ("whole", "run")
        ]
        same = all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    print(
        f"{kills} kills, {lost} went back behind an earlier checkpoint; the last resume "
        f"{'finished' if finished else 'failed'}; final weights "
        f"{'are bit-equal to' if same else 'differ from'} the undisturbed run's"
    )
    sys.exit(not finished or lost > 0 or not same)


if __name__ == "__main__":
    main()
