"""Train and measure what docs/results.md reports; what is there already is skipped.

    python benchmarks/evidence.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors
    python benchmarks/evidence.py --data camvid:DIR --test      (once, at the very end)

From one plain Segmenter three seeds each of: plain continued, paumer, random pausing. Runs lie in
runs/evidence and go on where they stopped; each finished run's small files go to results/.
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", required=True, help="camvid:DIR")
parser.add_argument("--init", default="timm", help="weights of deit_tiny_patch16_224, or timm")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
parser.add_argument("--results", type=Path, default=Path("results"))
parser.add_argument("--test", action="store_true", help="measure on the test split too")
arguments = parser.parse_args()

BASE = "segmenter"
KINDS = {"plain": "none", "paumer": "entropy", "random": "random"}
EXTRA = ["3:0.5,5:0.5", "3:0.6,5:0.4", "3:0.6,5:0.6", "3:0.5,5:0.5,7:0.5", "3:0.8"]


def paumer(*words):
    """Run a command of paumer with one thread."""
    command = [sys.executable, "-m", "paumer", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def train(name, recipe, *words):
    """Train a run, go on with it, or leave it if it is complete; keep its small files."""
    run, kept = arguments.runs / name, arguments.results / name
    if (run / "args.yaml").exists():
        paumer("train", "--resume", run)
    elif not (kept / "metrics.csv").exists():
        paumer("train", "--config", recipe, "--data", arguments.data, "--out", run, *words)
    if run.exists():
        kept.mkdir(parents=True, exist_ok=True)
        for file in ("args.yaml", "metrics.csv", "env.json"):
            shutil.copy(run / file, kept / file)


def measure(name, title, *words):
    """Sweep a run over a split, and keep the lines."""
    kept = arguments.results / name / f"{title}.jsonl"
    if not kept.exists():
        out = arguments.runs / name / "sweeps" / title
        model = arguments.runs / name / "model"
        common = ["--model", model, "--data", arguments.data, "--out", out, "--speed", "none"]
        paumer("sweep", *common, "--threads", 1, *words)
        shutil.copy(out / "sweep.jsonl", kept)
        shutil.copy(out / "sweep.npz", kept.with_suffix(".npz"))


def leg(kind, seed):
    """One kind and seed, from the base to its numbers."""
    name = f"{kind}-{seed}"
    words = ["--init", arguments.runs / BASE / "model", "--criterion", KINDS[kind], "--seed", seed]
    train(name, "recipes/camvid-continue.yaml", *words)
    for split in ["val", "test"] if arguments.test else ["val"]:
        grid = ["--split", split, "--grid", "paper", *EXTRA]
        if kind == "plain":
            measure(name, split, "--split", split, "--grid", "none")
        elif kind == "random":
            measure(name, split, *grid, "--criterion", "random")
        else:
            measure(name, split, *grid)
            measure(name, f"{split}-exit", *grid, "--early-exit")
            measure(name, f"{split}-oracle", *grid, "--criterion", "oracle")


train(BASE, "recipes/camvid-segmenter.yaml", "--init", arguments.init)
measure(BASE, "val", "--split", "val", "--grid", "none")
with ThreadPoolExecutor(arguments.jobs) as pool:
    legs = [pool.submit(leg, kind, seed) for seed in range(arguments.seeds) for kind in KINDS]
    for done in legs:
        done.result()
