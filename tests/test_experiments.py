"""The scripts of experiments/ and benchmarks/, and the records that they report."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from paumer.measurement import read_measurements

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FILES = [*sorted((ROOT / "experiments").glob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]
SCRIPTS = [file for file in FILES if "\ndef main() -> None:\n" in file.read_text("utf-8")]
RECORDS = [p for p in sorted(RESULTS.rglob("*.jsonl")) if p.stem in ("val", "test")]


def run(script, *words):
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_starts(script):
    result = run(script, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("experiments/evidence_report.py", ("--split", "val")),
        ("experiments/evidence_report.py", ("--split", "test")),
        ("experiments/studies_report.py", ()),
    ],
)
def test_report_prints_the_documented_numbers(tmp_path, script, words):
    result = run(script, *words, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    pages = ((ROOT / "docs" / name).read_text("utf-8") for name in ("results.md", "log.md"))
    documented = {row for page in pages for row in rows(page)}
    printed = rows(result.stdout)
    assert len(printed) > 10
    assert [row for row in printed if row not in documented] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_new_user_gets_a_model_of_their_own(tmp_path):
    words = ("--out", tmp_path / "user", "--images", 8, "--only", "indices")
    result = run("experiments/new_user.py", *words)
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout
    commands = "data init|check-data|train --data|train --resume|predict photo.png|export"
    counts = Counter(re.findall(rf"^\$ paumer ({commands}) ", said, re.M))
    assert counts == dict.fromkeys(commands.split("|"), 1)


def rows(text):
    """Numbers of the rows of all tables; titles and empty cells at the end do not count.

    Without the spline tables ("points"), which are in the docs of val alone and put together.
    """
    lines = re.findall(r"^\| (?!points)(.*) \|$", text, re.M)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    for row in cells:
        while row and not row[-1]:
            row.pop()
    numeric = [row for row in cells if len(row) > 1 and re.match(r"[-+\d].*[\d)]$", row[-1])]
    return [tuple(row if row[0].startswith("`") else row[1:]) for row in numeric]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_record_is_read_and_agrees_with_its_counts(path, reading):
    measurements = {str(item.mode): item for item in read_measurements(path)}
    assert "none" in measurements
    if path.with_suffix(".npz").exists():
        for mode, tally in reading.load_tallies(path.with_suffix(".npz")).items():
            assert tally.miou == pytest.approx(measurements[mode].miou, abs=1e-12)
            assert len(tally.images) == measurements[mode].images


def test_every_record_is_small_and_described():
    readme = (RESULTS / "README.md").read_text("utf-8")
    for folder in RESULTS.iterdir():
        if folder.is_dir():
            assert f"`{folder.name}" in readme
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2.5e6
    for path in files:
        if path.suffix == ".jsonl":
            for line in path.read_text("utf-8").splitlines():
                json.loads(line)
