"""Train runs and measure them; each finished run's small files are kept, and done work skipped."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple

SEGMENTER, SEGMENTER_AUX = "evidence/segmenter", "evidence/segmenter-aux"
CONTINUE = "recipes/camvid-continue.yaml"


class Plan(NamedTuple):
    """How a run is trained: from what, a run's name or weights, by what recipe and options.

    Its data are those of all runs unless it names others.
    """

    start: str
    recipe: str
    options: tuple[object, ...] = ()
    more_data: str = ""
    """Added to the data set's name, such as +scenes:400."""
    data: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of every script that records."""
    parser.add_argument("--data", required=True, help="camvid:DIR")
    parser.add_argument("--init", default="timm", help="weights of deit_tiny_patch16_224, or timm")
    parser.add_argument("--precision", default="fp32", help="of training: fp32 or bf16")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results"))


def first_plans(arguments: Namespace) -> dict[str, Plan]:
    """A plain Segmenter in two legs, and an auxiliary head that is trained alone on it."""
    # Nothing else can run before these are done; they have 8 and 4 images a step to share.
    alone = ("--devices", math.gcd(arguments.jobs, 4))
    first = "evidence/segmenter-first"
    return {
        first: Plan(arguments.init, "recipes/camvid-segmenter.yaml", alone),
        SEGMENTER: Plan(first, "recipes/camvid-segmenter-whole.yaml", alone),
        SEGMENTER_AUX: Plan(SEGMENTER, "recipes/camvid-aux.yaml"),
    }


def paumer(*words: object) -> None:
    """Run a command of paumer with one thread."""
    command = [sys.executable, "-m", "paumer", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class Record:
    """Runs on one data set in a folder, and their small files in another."""

    def __init__(self, arguments: Namespace, plans: Mapping[str, Plan]) -> None:
        self.data: str = arguments.data
        self.runs: Path = arguments.runs
        self.results: Path = arguments.results
        self.precision: str = arguments.precision
        self.plans = plans
        self._models: dict[str, Path] = {}
        self._locks = {name: Lock() for name in plans}

    def train(self, name: str) -> None:
        """Train a run whose small files are not kept yet."""
        if not (self.results / name / "metrics.csv").exists():
            self.model(name)

    def model(self, name: str) -> Path:
        """A run's model; the run is trained, or resumed, where it is not complete."""
        with self._locks[name]:
            if name not in self._models:
                self._models[name] = self._train(name)
            return self._models[name]

    def _train(self, name: str) -> Path:
        run, plan = self.runs / name, self.plans[name]
        fresh = not (run / "args.yaml").exists()
        if fresh:
            start = self.model(plan.start) if plan.start in self.plans else plan.start
            data = (plan.data or self.data) + plan.more_data
            common = ("--config", plan.recipe, "--data", data, "--init", start)
            output = ("--out", run, "--precision", self.precision)
            paumer("train", *common, *output, *plan.options)
        else:
            paumer("train", "--resume", run)
        kept = self.results / name
        if fresh:  # What was counted of other weights does not count any more.
            shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "args.yaml").write_text(self._arguments(run))
        shutil.copy(run / "metrics.csv", kept / "metrics.csv")
        return run / "model"

    def _arguments(self, run: Path) -> str:
        """The options of a run below a line that names its machine, without folders of it."""
        kind, here = self.data.split(":")[0], self.runs.resolve().parent
        text = (run / "args.yaml").read_text().replace(self.data, f"{kind}:DIR")
        text = re.sub("^init: /.*/", "init: ", text.replace(f"{here}/", ""), flags=re.M)
        return f"# {describe_machine(json.loads((run / 'env.json').read_text()))}\n{text}"

    def measure(self, name: str, split: str, modes: Iterable[str], counts: bool = False) -> None:
        """Sweep a run over a split and keep what was measured, with counts also by image."""
        kept = self.results / name / f"{split}.jsonl"
        if kept.exists():
            return
        out = self.runs / name / "sweeps" / split
        source = ("--model", self.model(name), "--data", self.data, "--split", split)
        paumer("sweep", *source, "--out", out, "--speed", "none", "--threads", 1, "--grid", *modes)
        if counts:
            repack(out / "sweep.npz", kept.with_suffix(".npz"))
        shutil.copy(out / "sweep.jsonl", kept)


def describe_machine(env: dict[str, object]) -> str:
    """When and on what a run was made, as one line, from its env.json."""
    versions = env["versions"]
    assert isinstance(versions, dict)
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = f"{env['device']}, {env['cores']} cores, {env['threads']} thread(s)"
    return f"{env['when']} on {machine}; {env['system']}; Python {env['python']}, {packages}"


def repack(source: Path, target: Path) -> None:
    """Write a .npz file again with LZMA, which numpy reads too: little more than half the size."""
    with (
        zipfile.ZipFile(source) as arrays,
        zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as packed,
    ):
        for name in arrays.namelist():
            packed.writestr(name, arrays.read(name))
