"""Kill a training run at random moments, resume it each time, compare with an undisturbed one.

    python benchmarks/kill_training.py --kills 50

A checkpoint is written after every step, so that most kills fall into or beside a write.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from paumer import PausingSegmenter

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--kills", type=int, default=50)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()


def make_data(path):
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


def start(*words):
    """A training process."""
    command = [sys.executable, "-m", "paumer", "train", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def newest(run):
    """The newest checkpoint's step, -1 if there is none."""
    files = sorted((run / "checkpoints").glob("step-*.safetensors"))
    return int(files[-1].stem.split("-")[1]) if files else -1


with tempfile.TemporaryDirectory() as folder:
    root, rng = Path(folder), random.Random(arguments.seed)
    steps = 12 * arguments.kills
    options = ["--data", make_data(root / "data"), "--backbone", "test_vit", "--init", "none"]
    options += ["--ranges", "2-4:0.2-0.8", "--crop", "32", "--batch", "4", "--steps", steps]
    options += ["--val-every", 10**6, "--val-mode", "none", "--val-images", 1]
    options += ["--save-every", 1, "--workers", 0, "--accelerator", "cpu"]
    whole = start(*options, "--out", root / "whole")
    if whole.wait():
        sys.exit(whole.stderr.read())
    process, lost, kills = start(*options, "--out", root / "run"), 0, 0
    while kills < arguments.kills:
        before = newest(root / "run")
        while process.poll() is None and newest(root / "run") <= before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.25))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        lost += newest(root / "run") < before
        process = start("--resume", root / "run")
        print(f"kill {kills}: at step {newest(root / 'run')} of {steps}", flush=True)
    failed = process.wait() != 0
    ends = [
        PausingSegmenter.from_pretrained(root / name / "model").state_dict()
        for name in ("whole", "run")
    ]
    same = all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    print(
        f"{kills} kills, {lost} went back behind an earlier checkpoint; the last resume "
        f"{'failed' if failed else 'finished'}; final weights "
        f"{'are bit-equal to' if same else 'differ from'} the undisturbed run's"
    )
    sys.exit(failed or lost or not same)
