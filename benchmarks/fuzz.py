"""Feeds hostile input to all that reads what others made, and reports what breaks, hangs or bloats.

    python benchmarks/fuzz.py images http --seconds 3600 --seed 0 --out out/fuzz

Kinds: images, models, yaml, import, http; by default all, one after the other. Case N of a seed is
always the same, and `--first N --cases 1` runs it again. Each runs in a process of its kind. It is
a finding if that process dies, raises what the command line would show as a traceback, needs too
much time or memory, or if a service answers 5xx or no honest request any more.
"""

import argparse
import faulthandler
import importlib
import json
import math
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

KINDS = {
    "images": "fuzz_images:Images",
    "models": "fuzz_models:Models",
    "yaml": "fuzz_models:Yaml",
    "import": "fuzz_checkpoints:Import",
    "http": "fuzz_http:Http",
}
MOST_SECONDS, MOST_WAIT, MOST_MB, MOST_LETTERS = 5.0, 30.0, 300.0, 2000
"""The bounds of a case: seconds, seconds until it is ended, megabytes above its process's start,
letters of a message. Seconds are of CPU time, or asleep with a core to spare; what was found by the
clock counts if it is found twice."""
KEPT = 5
"""Findings that look the same and are shown, with their inputs saved; more are only counted."""
_START = 120.0  # Seconds in which a worker must be ready.
_BY_CLOCK = re.compile(r" asleep|no answer|more than \d+ s")
_ENDED = ("no answer within", "the process died")
_TICK = 0.05  # Seconds.


class Target(Protocol):
    """What a kind of input is fed to; made once in a worker, with a folder for what it needs."""

    def __init__(self, folder: Path) -> None: ...

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """The files of a case, by their names."""

    def run(self, case: Path, number: int) -> bool:
        """Whether the case, whose files lie in a folder, was read; refusals may also be raised."""

    def bounded(self, number: int) -> bool:
        """Whether the bounds of CPU time and memory hold for a case."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case; ``what`` says why it is a finding, if it is one."""

    read: bool = False
    seconds: float = 0.0
    megabytes: float = 0.0
    what: str = ""
    bounded: bool = True
    asleep: float = 0.0

    def checked(self) -> "Outcome":
        """The outcome as a finding, if it took too much time or memory."""
        if self.bounded and not self.what:
            if self.megabytes > MOST_MB:
                return replace(self, what=f"{self.megabytes:.0f} MB")
            if self.seconds > MOST_SECONDS:
                return replace(self, what=f"{self.seconds:.1f} s of CPU time")
            if self.asleep > MOST_SECONDS:
                return replace(self, what=f"{self.asleep:.1f} s asleep")
        return self


def work(kind: str, name: str, folder: Path, seed: str) -> None:
    """The worker: runs cases whose numbers come from standard input, and prints outcomes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    faulthandler.enable()
    module, _, attribute = name.partition(":")
    target: Target = getattr(importlib.import_module(module), attribute)(folder)
    case = folder / "case"
    importlib.import_module("paumer.study.speed")  # Its seconds count for no case.
    start, clock = resident(), Clock()
    answers.write("ready\n")
    for line in sys.stdin:
        number = int(line)
        rng = random.Random(f"{seed}/{kind}/{number}")
        shutil.rmtree(case, ignore_errors=True)
        for file, content in target.make(rng, number).items():
            (case / file).parent.mkdir(parents=True, exist_ok=True)
            (case / file).write_bytes(content)
        os.ftruncate(2, 0)  # Of what is printed, the last case's is kept.
        before = max(0.0, resident() - start)
        outcome = run_case(target, case, number, clock)
        outcome = replace(outcome, megabytes=before + outcome.megabytes)
        answers.write(json.dumps(asdict(outcome)) + "\n")


def resident() -> float:
    """Megabytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Clock:
    """A clock that stands still while this process is stopped or waits for a core."""

    def __init__(self) -> None:
        self.seconds = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(_TICK)
            self.seconds += min(time.monotonic() - before, 2 * _TICK)

    def asleep(self) -> float:
        """The same without the time in which this thread runs, or waits for a core."""
        runs, waits, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
        return self.seconds - (runs + waits) / 1e9


def run_case(target: Target, case: Path, number: int, clock: Clock) -> Outcome:
    """Run one case and measure what it takes."""
    import torch

    from paumer.study.speed import peak_memory

    read, what = False, ""

    def call() -> None:
        nonlocal read, what
        try:
            read = target.run(case, number)
        except (ValueError, OSError) as error:  # What the command line prints as a sentence.
            if len(str(error)) > MOST_LETTERS:
                what = f"a message of {len(str(error))} letters: {str(error)[:100]}"
        except BaseException as error:
            traceback.print_exc()
            frames = [
                f for f in traceback.extract_tb(error.__traceback__) if "paumer" in f.filename
            ]
            where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            what = f"{type(error).__name__}{where}: {str(error)[:200]}"

    begin, asleep = time.process_time(), clock.asleep()
    megabytes = peak_memory(call, torch.device("cpu")) or 0.0
    seconds, asleep = time.process_time() - begin, clock.asleep() - asleep
    return Outcome(read, seconds, megabytes, what, target.bounded(number), asleep)


class Worker:
    """A process that runs cases of one kind."""

    def __init__(self, kind: str, target: str, folder: Path, seed: int) -> None:
        self.log = folder / "stderr.txt"
        words = [sys.executable, __file__, "work", kind, target, str(folder), str(seed)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        if self._line(_START) != b"ready\n":
            self.close()
            raise RuntimeError(f"no worker for {kind}: {self.log.read_text('utf-8', 'replace')}")

    def ask(self, number: int) -> Outcome:
        """What became of a case."""
        assert self.process.stdin
        begin = time.monotonic()
        self.process.stdin.write(b"%d\n" % number)
        self.process.stdin.flush()
        line = self._line(MOST_WAIT)
        if line:
            return Outcome(**json.loads(line)).checked()
        seconds = time.monotonic() - begin
        if line is None:
            return Outcome(seconds=seconds, what=f"no answer within {MOST_WAIT:g} s")
        code = self.process.wait()
        if code > 0:  # Raised outside of a case.
            raise RuntimeError(f"case {number}: {self.log.read_text('utf-8', 'replace')[-3000:]}")
        death = signal.Signals(-code).name if code else "as if it had nothing to do"
        return Outcome(seconds=seconds, what=f"the process died: {death}")

    def _line(self, seconds: float) -> bytes | None:
        """The next line; empty where the process has ended, None where it does not answer."""
        output: IO[bytes] | None = self.process.stdout
        assert output
        for _ in range(math.ceil(seconds)):  # While this process is stopped no second passes.
            if select.select([output], [], [], 1)[0]:
                return output.readline()
        return None

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


@dataclass
class Tally:
    """What became of the cases of a kind."""

    cases: int = 0
    read: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    megabytes: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        self.cases += 1
        self.read += outcome.read
        if outcome.bounded:
            self.seconds = max(self.seconds, outcome.seconds)
            self.megabytes = max(self.megabytes, outcome.megabytes)
        if outcome.what:
            self.findings[alike(outcome)] += 1

    def row(self, kind: str) -> str:
        """The line of the table."""
        found = self.findings.total()
        counts = f"{self.cases:8} {self.cases - self.read:8} {self.read:8} {found:8}"
        return f"{kind:8}{counts} {self.seconds:8.2f} {self.megabytes:8.0f}"


def alike(outcome: Outcome) -> str:
    """What findings of the same fault have in common."""
    return re.sub(r"[\d.]+ ", "", outcome.what)[:40]


def fuzz(
    kind: str,
    out: Path,
    seed: int,
    seconds: float,
    numbers: Sequence[int] = range(2**40),
    target: str = "",
    say: Callable[[str], None] = print,
) -> Tally:
    """Run cases of a kind for so many seconds; findings are saved below ``out``."""
    tally, clock, said = Tally(), Clock(), 0.0
    worker: Worker | None = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for number in numbers:
                if clock.seconds >= seconds:
                    break
                if clock.seconds - said >= 60:
                    said = clock.seconds
                    found = tally.findings.total()
                    say(f"{kind}: {tally.cases} cases, {tally.read} read, {found} findings")
                for _ in range(2):
                    worker = worker or Worker(kind, target or KINDS[kind], folder, seed)
                    outcome = worker.ask(number)
                    if outcome.what.startswith(_ENDED):
                        worker.close()
                        worker = None
                    if not _BY_CLOCK.search(outcome.what):
                        break
                tally.add(outcome)
                if outcome.what:
                    new = tally.findings[alike(outcome)] <= KEPT
                    record(out, f"{kind}-{seed}-{number}", outcome, folder if new else None)
                    if new:
                        say(f"{kind} {number}: {outcome.what}")
        finally:
            if worker:
                worker.close()
    return tally


def record(out: Path, name: str, outcome: Outcome, folder: Path | None) -> None:
    """Write a finding to findings.jsonl, and the input in a worker's folder beside it."""
    out.mkdir(parents=True, exist_ok=True)
    kind, seed, number = name.rsplit("-", 2)
    values = {"kind": kind, "seed": int(seed), "number": int(number), **asdict(outcome)}
    values.pop("bounded")
    with (out / "findings.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
    if folder:
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(folder / "case", out / name)
        shutil.copy(folder / "stderr.txt", out / name)


def main() -> None:
    """Fuzz some kinds; the exit code is 1 if there are findings."""
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=3600, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=2**40, help="most cases of a kind")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    arguments = parser.parse_args()
    kinds = arguments.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    numbers = range(arguments.first, arguments.first + arguments.cases)
    each = arguments.seconds / len(kinds)
    tallies = {kind: fuzz(kind, arguments.out, arguments.seed, each, numbers) for kind in kinds}
    print(f"{'kind':8}   cases  refused     read findings  worst s worst MB")
    for kind, tally in tallies.items():
        print(tally.row(kind))
    if any(tally.findings for tally in tallies.values()):
        print(f"findings and their inputs: {arguments.out}")
        sys.exit(1)


if __name__ == "__main__":
    main()
