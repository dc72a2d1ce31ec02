"""Kill a sweep at random moments, start it again each time, compare with an undisturbed one.

python benchmarks/kill_sweep.py --kills 20
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

import torch
from killing import Process, added, kill_often, start

from paumer import build_model
from paumer.classes import CAMVID

GRID = [f"{block}:{ratio}" for block in (1, 2, 3, 4) for ratio in (0.2, 0.4, 0.5, 0.6, 0.8)]


def main() -> None:
    """Run a sweep of 20 modes over small scenes undisturbed and killed, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        torch.manual_seed(0)
        model = build_model("test_vit", "mask", CAMVID.names, image_size=64)
        model.save_pretrained(root / "model")
        options: tuple[object, ...] = ("--model", root / "model")
        options += (
            "--data",
            f"scenes:{12 * arguments.kills}@96x64",
            "--batch",
            1,
            "--speed",
            "none",
            "--threads",
            1,
        )

        def sweep(name: str = "killed") -> Process:
            return start("sweep", *options, "--out", root / name, "--grid", *GRID)

        def counted() -> int:
            return len(list((root / "killed" / "counts").glob("*.npz")))

        if sweep("whole").wait():
            sys.exit("the undisturbed sweep failed")
        rng = random.Random(arguments.seed)
        kills, lost, finished = kill_often(sweep, sweep, counted, arguments.kills, rng)
        files = [(root / name / "sweep.jsonl").read_bytes() for name in ("whole", "killed")]
        same = files[0] == files[1]
        left = added(root / "killed", root / "whole")
    print(
        f"{kills} kills, {lost} lost a batch; the last start "
        f"{'finished' if finished else 'failed'}; sweep.jsonl is "
        f"{'the same as' if same else 'DIFFERENT from'} the undisturbed one's; "
        f"left behind: {', '.join(map(str, left)) or 'nothing'}"
    )
    sys.exit(not finished or not same or bool(lost or left) or kills < arguments.kills)


if __name__ == "__main__":
    main()
