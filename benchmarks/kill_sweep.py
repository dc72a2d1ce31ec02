"""Kill a sweep at random moments, start it again each time, compare with an undisturbed one.

python benchmarks/kill_sweep.py --kills 20
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from paumer import build_model
from paumer.classes import CAMVID

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--kills", type=int, default=20)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()


def start(out):
    """A sweep of 20 modes over small scenes."""
    command = [sys.executable, "-m", "paumer", "sweep", "--model", str(root / "model")]
    command += ["--data", f"scenes:{12 * arguments.kills}@96x64", "--grid", *GRID]
    command += ["--out", str(out), "--batch", "1", "--speed", "none", "--threads", "1"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


GRID = [f"{block}:{ratio}" for block in (1, 2, 3, 4) for ratio in (0.2, 0.4, 0.5, 0.6, 0.8)]
with tempfile.TemporaryDirectory() as folder:
    root, rng = Path(folder), random.Random(arguments.seed)
    torch.manual_seed(0)
    build_model("test_vit", "mask", CAMVID.names, image_size=64).save_pretrained(root / "model")
    if start(root / "whole").wait():
        sys.exit("the undisturbed sweep failed")
    kills = 0
    while kills < arguments.kills:
        before = len(list((root / "killed/counts").glob("*.npz")))
        process = start(root / "killed")
        while (
            process.poll() is None and len(list((root / "killed/counts").glob("*.npz"))) <= before
        ):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        done = len(list((root / "killed/counts").glob("*.npz")))
        print(f"kill {kills}: {done} batches counted", flush=True)
    failed = start(root / "killed").wait()
    files = [(root / name / "sweep.jsonl").read_bytes() for name in ("whole", "killed")]
    same = files[0] == files[1]
    print(
        f"{kills} kills; the last start {'failed' if failed else 'finished'}; sweep.jsonl is "
        f"{'the same as' if same else 'DIFFERENT from'} the undisturbed one's"
    )
    sys.exit(failed or not same or kills < arguments.kills)
