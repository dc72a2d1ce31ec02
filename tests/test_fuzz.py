"""The fuzzing harness of benchmarks/: it finds planted faults, and none in what reads input."""

import importlib
import json
import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SEED = 20
SECONDS = {"images": 30, "models": 15, "yaml": 15, "import": 15, "http": 15}

PLANTED = """
import os, signal, time

class Planted:
    def __init__(self, folder):
        pass

    def make(self, rng, number):
        return {"input.bin": rng.randbytes(100)}

    def bounded(self, number):
        return number != 5

    def run(self, case, number):
        if number == 1:
            raise ValueError("it is not an image")
        if number == 2:
            raise KeyError("size")
        if number == 3:
            raise ValueError("x" * 3000)
        if number in (4, 5):
            return len(b"x" * (400 * 10**6)) > 0
        begin = time.process_time()
        while number == 6 and time.process_time() - begin < 1.2:
            pass
        if number == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in (8, 9):
            time.sleep(60 if number == 9 else 1.3)
        return True
"""


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fuzz")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_planted_faults_are_found(harness, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(PLANTED, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(harness, "MOST_WAIT", 8.0)
    monkeypatch.setattr(harness, "MOST_SECONDS", 1.0)
    out, said = tmp_path / "out", []
    tally = harness.fuzz("planted", out, 3, 600, range(10), "planted:Planted", said.append)
    lines = (out / "findings.jsonl").read_text("utf-8").splitlines()
    found = {line["number"]: line["what"] for line in map(json.loads, lines)}
    assert sorted(found) == [2, 3, 4, 6, 7, 8, 9]
    expected = {
        2: "KeyError",
        3: "3000 letters",
        4: "MB",
        6: "s of CPU",
        7: "SIGKILL",
        8: "asleep",
        9: "no answer",
    }
    assert [number for number, word in expected.items() if word not in found[number]] == []
    assert (tally.cases, tally.read, tally.findings.total(), len(said)) == (10, 5, 7, 7)
    saved = (out / "planted-3-7" / "input.bin").read_bytes()
    assert saved == random.Random("3/planted/7").randbytes(100)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["images", "models", "yaml", "import"])
def test_a_case_is_always_the_same(harness, kind, tmp_path):
    module, _, name = harness.KINDS[kind].partition(":")
    make = getattr(importlib.import_module(module), name)
    first, second = make(tmp_path / "first"), make(tmp_path / "second")
    for number in range(30):
        files = [t.make(random.Random(f"0/{number}"), number) for t in (first, second)]
        assert files[0] == files[1]
        assert files[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECONDS)
def test_hostile_input_is_read_or_refused(harness, kind, tmp_path):
    tally = harness.fuzz(kind, tmp_path, SEED, SECONDS[kind])
    assert dict(tally.findings) == {}
    assert 0 < tally.read < tally.cases
