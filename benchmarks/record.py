"""Train runs and measure them; each finished run's small files are kept, and done work skipped."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import NamedTuple


class Plan(NamedTuple):
    """How a run is trained: from what, a run's name or weights, and by what recipe."""

    start: str
    recipe: str
    words: tuple = ()


def add_arguments(parser):
    """The arguments of every script that records."""
    parser.add_argument("--data", required=True, help="camvid:DIR")
    parser.add_argument("--init", default="timm", help="weights of deit_tiny_patch16_224, or timm")
    parser.add_argument("--precision", default="fp32", help="of training: fp32 or bf16")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--results", type=Path, default=Path("results"))


def first_plans(arguments):
    """A plain Segmenter in two legs, and an auxiliary head that is trained alone on it."""
    # Nothing else can run before these are done; they have 8 and 4 images a step to share.
    alone = ("--devices", math.gcd(arguments.jobs, 4))
    return {
        "segmenter-first": Plan(arguments.init, "recipes/camvid-segmenter.yaml", alone),
        "segmenter": Plan("segmenter-first", "recipes/camvid-segmenter-whole.yaml", alone),
        "segmenter-aux": Plan("segmenter", "recipes/camvid-aux.yaml"),
    }


def paumer(*words):
    """Run a command of paumer with one thread."""
    command = [sys.executable, "-m", "paumer", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class Record:
    """Runs on one data set in a folder, and their small files in another."""

    def __init__(self, arguments, plans):
        self.data, self.runs, self.results = arguments.data, arguments.runs, arguments.results
        self.precision, self.plans, self._models = arguments.precision, plans, {}
        self._locks = {name: Lock() for name in plans}

    def train(self, name):
        """Train a run whose small files are not kept yet."""
        if not (self.results / name / "metrics.csv").exists():
            self.model(name)

    def model(self, name):
        """A run's model; the run is trained, or resumed, where it is not complete."""
        with self._locks[name]:
            if name not in self._models:
                self._models[name] = self._train(name)
            return self._models[name]

    def _train(self, name):
        run, plan = self.runs / name, self.plans[name]
        fresh = not (run / "args.yaml").exists()
        if not fresh:
            paumer("train", "--resume", run)
        else:
            start = self.model(plan.start) if plan.start in self.plans else plan.start
            common = ["--config", plan.recipe, "--data", self.data, "--init", start]
            how = ["--out", run, "--precision", self.precision]
            paumer("train", *common, *how, *plan.words)
        kept = self.results / name
        if fresh:  # What was counted of other weights does not count any more.
            shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        # Where things lay on this machine is nobody's business.
        kind, here = self.data.split(":")[0], self.runs.resolve().parents[1]
        text = (run / "args.yaml").read_text().replace(self.data, f"{kind}:DIR")
        text = re.sub("^init: /.*/", "init: ", text.replace(f"{here}/", ""), flags=re.M)
        (kept / "args.yaml").write_text(text)
        for file in ("env.json", "metrics.csv"):
            shutil.copy(run / file, kept / file)
        return run / "model"

    def measure(self, name, title, split, grid, words=""):
        """Sweep a run over a split, and keep what was counted; all stages get the same words."""
        kept = self.results / name / f"{title}.jsonl"
        if not kept.exists():
            out = self.runs / name / "sweeps" / title
            what = ["--model", self.model(name), "--data", self.data, "--split", split]
            modes = [f"{stages} {words}".strip() for stages in grid]
            paumer(
                "sweep", *what, "--out", out, "--grid", *modes, "--speed", "none", "--threads", 1
            )
            shutil.copy(out / "sweep.npz", kept.with_suffix(".npz"))
            shutil.copy(out / "sweep.jsonl", kept)
