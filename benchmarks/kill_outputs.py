"""Kill predictions and exports at random moments: old or new, never neither, nothing left behind.

python benchmarks/kill_outputs.py --kills 30
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from killing import Process, added, kill_often, leftovers, start
from PIL import Image

from paumer import build_model
from paumer.classes import CAMVID
from paumer.inference.exported import open_exported
from paumer.scenes.scene import scene


def kill_predictions(root: Path, kills: int, rng: random.Random) -> bool:
    """Whether a folder killed so often ends with the same results as an undisturbed one."""
    (root / "images").mkdir()
    for number in range(60 * kills):
        image = Image.fromarray(scene(number, (96, 64))[0])
        image.save(root / "images" / f"{number:04}.png")

    def predict(name: str = "killed") -> Process:
        words = ("--out", root / name, "--save", "mask", "--threads", 1, "--batch", 1)
        return start("predict", root / "images", "--model", root / "model", *words)

    def written() -> int:
        return len(list((root / "killed").glob("*_mask.png")))

    if predict("whole").wait():
        return False
    done, lost, finished = kill_often(predict, predict, written, kills, rng)
    results = [
        {path.name: path.read_bytes() for path in (root / name).glob("*.png")}
        for name in ("whole", "killed")
    ]
    left = added(root / "killed", root / "whole")
    print(f"predict: {done} kills, {lost} lost a result, left behind: {left or 'nothing'}")
    return finished and results[0] == results[1] and not (lost or left) and done == kills


def kill_exports(root: Path, kills: int, rng: random.Random) -> bool:
    """Whether each killed export left the whole file or none, and the next one nothing more."""
    out, neither, most = root / "out" / "model.onnx", 0, 0.0

    def export() -> Process:
        return start("export", "--model", root / "model", "--mode", "2:0.4", "--out", out)

    begin = time.monotonic()
    if export().wait():
        return False
    most = time.monotonic() - begin
    for number in range(kills):
        for path in (out, out.with_suffix(".py")):
            path.unlink(missing_ok=True)
        process = export()
        time.sleep(rng.uniform(0.5, 1.05) * most)
        process.kill()
        print(f"kill {number + 1}: {'a file' if out.exists() else 'none'}", flush=True)
        # In a process, because threads of a runtime would not survive the next fork.
        if out.exists() and Process(lambda: open_exported(out, threads=1)).wait():
            neither += 1
    for path in (out, out.with_suffix(".py")):
        path.unlink(missing_ok=True)
    finished, left = export().wait() == 0, leftovers(out.parent)
    print(f"export: {kills} kills, {neither} broken files, left behind: {left or 'nothing'}")
    return finished and not neither and not left


PARTS = {"predict": kill_predictions, "export": kill_exports}


def main() -> None:
    """Kill both and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PARTS, help="default: both")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        torch.manual_seed(0)
        model = build_model("test_vit", "mask", CAMVID.names, image_size=64)
        model.save_pretrained(root / "model")
        parts = [part for name, part in PARTS.items() if arguments.only in (None, name)]
        good = [part(root, arguments.kills, rng) for part in parts]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
