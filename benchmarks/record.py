"""Train runs and measure them; each finished run's small files are kept, and done work skipped."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def add_arguments(parser):
    """What every script that records is told."""
    parser.add_argument("--data", required=True, help="camvid:DIR")
    parser.add_argument("--init", default="timm", help="weights of deit_tiny_patch16_224, or timm")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--results", type=Path, default=Path("results"))


def paumer(*words):
    """Run a command of paumer with one thread."""
    command = [sys.executable, "-m", "paumer", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class Record:
    """Runs of one kind of data in a folder, and their small files in another."""

    def __init__(self, arguments):
        self.data, self.runs, self.results = arguments.data, arguments.runs, arguments.results

    def model(self, name):
        """Where a run's model lies."""
        return self.runs / name / "model"

    def train(self, name, recipe, *words):
        """Train a run, go on with it, or leave it if it is complete; keep its small files."""
        run, kept = self.runs / name, self.results / name
        if (run / "args.yaml").exists():
            paumer("train", "--resume", run)
        elif not (kept / "metrics.csv").exists():
            paumer("train", "--config", recipe, "--data", self.data, "--out", run, *words)
        if run.exists():
            kept.mkdir(parents=True, exist_ok=True)
            for file in ("metrics.csv", "env.json"):
                shutil.copy(run / file, kept / file)
            # Where things lay on this machine is nobody's business.
            kind, here = self.data.split(":")[0], self.runs.resolve().parents[1]
            text = (run / "args.yaml").read_text().replace(self.data, f"{kind}:DIR")
            text = re.sub("^init: /.*/", "init: ", text.replace(f"{here}/", ""), flags=re.M)
            (kept / "args.yaml").write_text(text)

    def measure(self, name, title, *words):
        """Sweep a run over a split, and keep what was counted."""
        kept = self.results / name / f"{title}.jsonl"
        if not kept.exists():
            out = self.runs / name / "sweeps" / title
            common = ["--model", self.model(name), "--data", self.data, "--out", out]
            paumer("sweep", *common, "--speed", "none", "--threads", 1, *words)
            shutil.copy(out / "sweep.jsonl", kept)
            shutil.copy(out / "sweep.npz", kept.with_suffix(".npz"))
