"""Kill a process at random moments and start it again, for kill_sweep.py and kill_training.py."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Process = subprocess.Popen[bytes]


def start(command: str, *words: object) -> Process:
    """A process of paumer that prints errors alone."""
    line = [sys.executable, "-m", "paumer", command, *map(str, words)]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL)


def leftovers(directory: Path) -> list[Path]:
    """What is half-written below a directory: hidden, and not the lock."""
    return [path for path in directory.rglob(".*") if path.name != ".lock"]


def kill_often(
    begin: Callable[[], Process],
    resume: Callable[[], Process],
    progress: Callable[[], int],
    kills: int,
    rng: random.Random,
    inspect: Callable[[], None] = lambda: None,
) -> tuple[int, int, bool]:
    """How often it was killed, how often progress went back, and whether the last one finished.

    Each kill comes up to a quarter of a second after ``progress`` rose, so that most fall into or
    beside a write. ``inspect`` is called after each of them.
    """
    process, done, lost = begin(), 0, 0
    while done < kills:
        before = progress()
        while process.poll() is None and progress() <= before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.25))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        done += 1
        lost += progress() < before
        print(f"kill {done}: at {progress()}", flush=True)
        inspect()
        process = resume()
    return done, lost, process.wait() == 0
