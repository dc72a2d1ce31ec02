"""Kill a process at random moments and start it again, for the kill_*.py files."""

import importlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from paumer.cli.main import main

_MODULES = {
    "train": "paumer.training.run",
    "sweep": "paumer.study.sweep",
    "predict": "paumer.inference.jobs",
    "export": "paumer.exporting.onnx",
}


class Process:
    """A call in a process of its own, forked from this one, so that it starts at once."""

    def __init__(self, call: Callable[[], object]) -> None:
        torch.set_num_threads(1)  # More would not survive the fork.
        self.process = multiprocessing.get_context("fork").Process(target=call)
        self.process.start()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.exitcode

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.process.kill()
        self.process.join()

    def wait(self) -> int | None:
        """Its exit code, once it has one."""
        self.process.join()
        return self.process.exitcode


def start(command: str, *words: object) -> Process:
    """A process of paumer that prints errors alone."""
    importlib.import_module(_MODULES[command])

    def call() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["paumer", command, *map(str, words)]
        main()

    return Process(call)


def leftovers(directory: Path) -> list[Path]:
    """What is half-written below a directory: hidden, and not the lock."""
    return [path for path in directory.rglob(".*") if path.name != ".lock"]


def added(directory: Path, whole: Path) -> list[Path]:
    """What is below a directory and not below an undisturbed one."""
    files = [{path.relative_to(root) for path in root.rglob("*")} for root in (directory, whole)]
    return sorted(files[0] - files[1])


def kill_often(
    begin: Callable[[], Process],
    resume: Callable[[], Process],
    progress: Callable[[], int],
    kills: int,
    rng: random.Random,
    inspect: Callable[[], None] = lambda: None,
    within: float = 0.25,
) -> tuple[int, int, bool]:
    """How often it was killed, how often progress went back, and whether the last one finished.

    Each kill comes ``within`` so many seconds after ``progress`` rose, so that most fall into or
    beside a write. ``inspect`` is called after each of them.
    """
    process, done, lost = begin(), 0, 0
    while done < kills:
        before = progress()
        while process.poll() is None and progress() <= before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, within))
        if process.poll() is not None:
            break
        process.kill()
        done += 1
        lost += progress() < before
        print(f"kill {done}: at {progress()}", flush=True)
        inspect()
        process = resume()
    return done, lost, process.wait() == 0
