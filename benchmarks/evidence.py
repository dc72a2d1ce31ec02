"""Train and measure what docs/results.md reports; what is there already is skipped.

    python benchmarks/evidence.py --data camvid:DIR --init deit_tiny_patch16_224.safetensors
    python benchmarks/evidence.py --data camvid:DIR --test      (once, at the very end)

From one plain Segmenter, trained in four legs, three seeds each of: plain continued, paumer,
random pausing; the two that pause start with an auxiliary head that was trained alone. Runs lie in
runs/evidence and go on where they stopped; each finished run's small files go to results/.
benchmarks/evidence_report.py prints what they say.
"""

import argparse
import os
import re
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

LEGS = {
    "segmenter-first": "recipes/camvid-segmenter.yaml",
    "segmenter-second": "recipes/camvid-segmenter-more.yaml",
    "segmenter-third": "recipes/camvid-segmenter-large.yaml",
    "segmenter": "recipes/camvid-segmenter-whole.yaml",
}
BASE, AUX = "segmenter", "segmenter-aux"
KINDS = {"plain": "none", "paumer": "entropy", "random": "random"}
# Candidates beyond the paper's 13, and for early exit: seed 0 tries them all on val. What was
# chosen there is what the other seeds and test are measured at.
BEYOND = ["4:0.5", "4:0.6", "4:0.8", "3:0.5,5:0.5,7:0.5", "3:0.6,5:0.5", "4:0.7,7:0.7"]
EXIT = ["4:0.5", "4:0.6", "5:0.7", "3:0.3,5:0.3,7:0.3", "3:0.4,5:0.4", "4:0.5,8:0.8", "5:0.7,9:0.9"]
CHOSEN, CHOSEN_EXIT = BEYOND, EXIT


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
        for file in ("metrics.csv", "env.json"):
            shutil.copy(run / file, kept / file)
        # Where things lay on this machine is nobody's business.
        kind, here = arguments.data.split(":")[0], arguments.runs.resolve().parents[1]
        text = (run / "args.yaml").read_text().replace(arguments.data, f"{kind}:DIR")
        text = re.sub("^init: /.*/", "init: ", text.replace(f"{here}/", ""), flags=re.MULTILINE)
        (kept / "args.yaml").write_text(text)


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


def branch(kind, seed, aux):
    """One kind and seed, from the base to its numbers; those that pause wait for the head."""
    name = f"{kind}-{seed}"
    if kind != "plain":
        aux.result()
    start = arguments.runs / (BASE if kind == "plain" else AUX) / "model"
    words = ["--init", start, "--criterion", KINDS[kind], "--seed", seed]
    train(name, "recipes/camvid-continue.yaml", *words)
    for split in ["val", "test"] if arguments.test else ["val"]:
        common = [name, split, "--split", split, "--grid"]
        if kind == "plain":
            measure(*common, "none")
            continue
        first = seed == 0 and split == "val"
        beyond, exits = (BEYOND, EXIT) if first else (CHOSEN, CHOSEN_EXIT)
        measure(*common, "paper", *beyond, "--criterion", KINDS[kind])
        if kind == "paumer":
            measure(name, f"{split}-exit", "--split", split, "--grid", *exits, "--early-exit")
        if kind == "paumer" and seed == 0:
            how = ["--grid", "paper", "--criterion", "oracle"]
            measure(name, f"{split}-oracle", "--split", split, *how)


start = arguments.init
for name, recipe in LEGS.items():
    train(name, recipe, "--init", start)
    start = arguments.runs / name / "model"
measure(BASE, "val", "--split", "val", "--grid", "none")
with ThreadPoolExecutor(arguments.jobs) as pool:
    aux = pool.submit(train, AUX, "recipes/camvid-aux.yaml", "--init", start)
    every = [(kind, seed) for seed in range(arguments.seeds) for kind in KINDS]
    for done in [pool.submit(branch, *each, aux) for each in every]:
        done.result()
