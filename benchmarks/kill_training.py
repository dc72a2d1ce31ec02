"""Kill a training run and the saving of a model at random moments; what is there afterwards?

    python benchmarks/kill_training.py --kills 100

The run is resumed after each kill and compared with an undisturbed one. It saves a checkpoint after
every step and validates after every tenth, so that most kills fall into or beside a write. Of the
model that is saved over another one, the old or the new must be there after each kill.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from killing import added, kill_often, leftovers, start
from PIL import Image

from paumer import PausingSegmenter, build_model
from paumer.training.checkpoint import list_checkpoints, load_checkpoint


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


def same(one: PausingSegmenter, other: PausingSegmenter) -> bool:
    """Whether two models have the same weights."""
    weights = other.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())


def kill_training(root: Path, kills: int, rng: random.Random) -> bool:
    """Train a small model undisturbed and killed, and compare; whether all is well."""
    options: list[object] = ["--data", make_data(root / "data"), "--backbone", "test_vit"]
    options += ["--init", "none", "--ranges", "2-4:0.2-0.8", "--crop", 32, "--batch", 4]
    options += ["--steps", 6 * kills, "--val-every", 10, "--val-mode", "none", "--val-images", 1]
    options += ["--save-every", 1, "--workers", 0, "--accelerator", "cpu"]
    run, whole = root / "run", root / "whole"
    counts = {"half-written files": 0, "broken": 0}

    def newest() -> int:
        files = list_checkpoints(run / "checkpoints")
        return int(files[0].stem.split("-")[1]) if files else -1

    def inspect() -> None:
        counts["half-written files"] += len(leftovers(root))
        try:
            load_checkpoint(run / "checkpoints")
            if (run / "model").exists():
                PausingSegmenter.from_pretrained(run / "model")
        except (ValueError, OSError) as error:
            counts["broken"] += 1
            print(error)

    if start("train", *options, "--out", whole).wait():
        sys.exit("the undisturbed run failed")
    done, lost, finished = kill_often(
        lambda: start("train", *options, "--out", run),
        lambda: start("train", "--resume", run),
        newest,
        kills,
        rng,
        inspect,
        within=0.08,
    )
    ends = [PausingSegmenter.from_pretrained(path / "model") for path in (whole, run)]
    tables = [(path / "metrics.csv").read_text() for path in (whole, run)]
    equal, rows = same(*ends), tables[0] == tables[1]
    # Each start has a log of its own for TensorBoard.
    left = ", ".join(str(path) for path in added(run, whole) if path.parts[0] != "tensorboard")
    print(
        f"training: {done} kills, {lost} went back behind an earlier checkpoint, "
        f"{counts['broken']} left a checkpoint or model that does not load, "
        f"{counts['half-written files']} half-written files; the last resume "
        f"{'finished' if finished else 'failed'}; final weights "
        f"{'are bit-equal to' if equal else 'DIFFER from'} the undisturbed run's, metrics.csv "
        f"{'is the same' if rows else 'DIFFERS'}; left behind: {left or 'nothing'}"
    )
    return finished and done == kills and equal and rows and not (lost or counts["broken"] or left)


def kill_saving(root: Path, kills: int, rng: random.Random) -> bool:
    """Save two models in turn to one directory, or to none; whether one of them is always there."""
    torch.set_num_threads(1)
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(build_model("vit_tiny_patch16_384", "mask", ["a", "b"], image_size=64))
    path = root / "model"
    counts = dict.fromkeys(("first", "second", "none", "neither"), 0)
    half_written = left = 0
    for kill in range(kills):
        anew = kill % 4 == 0
        if anew:
            shutil.rmtree(path, ignore_errors=True)
        child = os.fork()
        if child == 0:
            while True:
                for model in models[:: rng.choice((-1, 1))]:
                    model.save_pretrained(path)
        time.sleep(rng.uniform(0, 0.25 if anew else 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        half_written += len(leftovers(root))
        counts[_found(path, models, anew)] += 1
        models[kill % 2].save_pretrained(path)
        left += len(leftovers(root))
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(
        f"saving: {kills} kills; model found afterwards: {told}; {half_written} half-written files "
        f"and folders, of which the next save left {left}"
    )
    return not (counts["neither"] or left)


def _found(path: Path, models: list[PausingSegmenter], anew: bool) -> str:
    if anew and not path.exists():
        return "none"
    try:
        found = PausingSegmenter.from_pretrained(path)
    except (ValueError, OSError) as error:
        print(error)
        return "neither"
    names = [
        name for name, model in zip(("first", "second"), models, strict=True) if same(found, model)
    ]
    return names[0] if names else "neither"


def main() -> None:
    """Kill a training and the saving of a model, and tell what was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["saving", "training"])
    arguments = parser.parse_args()
    jobs, good = {"saving": kill_saving, "training": kill_training}, []
    for job in (jobs[arguments.only],) if arguments.only else jobs.values():
        with tempfile.TemporaryDirectory() as folder:
            good.append(job(Path(folder), arguments.kills, random.Random(arguments.seed)))
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
