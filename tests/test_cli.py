import csv
import json
import subprocess
import sys

import pytest

from paumer.cli import app, main, parse_size

SMALL = ["bench", "--backbone", "test_vit", "--size", "32"]
HEAVY = ("torch", "timm", "lightning", "torchvision", "matplotlib")


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["import", "--help"]])
def test_help_answers_without_heavy_imports(arguments):
    code = (
        "import sys\n"
        "from paumer.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert "Usage: paumer" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--pause", "3:1.2"], "3:1.2"),
        ([*SMALL, "--pause", "14:0.3"], "cannot pause after block 14: this backbone has 6 blocks"),
        (["bench", "--size", "big"], 'size "big" is not a side or WIDTHxHEIGHT'),
        ([*SMALL, "--pause", "3:0.4", "--batch", "0"], "batch is 0"),
        (["bench", "--backbone", "convnext_tiny"], "is not a plain ViT"),
        (["import", "nothing.pth", "--out", "somewhere"], 'no checkpoint at "nothing.pth"'),
    ],
)
def test_a_mistake_ends_with_one_clear_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paumer", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    complaint = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in complaint
    assert len(complaint.strip().splitlines()) == 1


def test_bench_writes_what_it_measured(tmp_path, capsys):
    files = [tmp_path / name for name in ("deep/speed.json", "speed.csv", "speed.png")]
    arguments = ["bench", "--backbone", "test_vit", "--size", "64x32", "--batch", "2"]
    arguments += ["--rounds", "2", "--warmup", "1", "--threads", "1", "--no-upsample"]
    arguments += ["--pause", "none", "2:0.5", "1:0.2,3:0.4"]
    arguments += ["--json", str(files[0]), "--csv", str(files[1]), "--plot", str(files[2])]
    app(arguments, result_action="return_value")
    report = json.loads(files[0].read_text())
    rows = report["measurements"]
    assert [row["pause"] for row in rows] == ["none", "2:0.5", "1:0.2,3:0.4"]
    wanted = {"images_per_second", "latency_ms", "latency_ms_p95", "speed_up", "mac_ratio", "gmacs"}
    assert all(wanted < set(row) for row in rows)
    assert rows[0]["speed_up"] == rows[0]["mac_ratio"] == 1
    assert rows[1]["mac_ratio"] > 1.1
    assert report["environment"]["size"] == [32, 64]
    assert report["environment"]["threads"] == 1
    assert report["reference_ratio"] > 0
    with files[1].open() as file:
        assert [row["pause"] for row in csv.DictReader(file)] == [row["pause"] for row in rows]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "2:0.5" in capsys.readouterr().out


def test_bench_searches_the_batch(capsys):
    arguments = [*SMALL, "--batch", "auto", "--rounds", "1", "--pause", "2:0.5"]
    app(arguments, result_action="return_value")
    assert "best batch size:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("512", (512, 512)), ("64x32", (64, 32)), ("64X32", (64, 32))]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "3x", "0", "-1", "1x2x3", "3.5"])
def test_bad_sizes_are_named(text):
    with pytest.raises(ValueError, match="is not a side"):
        parse_size(text)
