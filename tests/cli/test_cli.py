import csv
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from paumer import PAPER_CONFIGS
from paumer.cli.main import _with_recipe, app, check_tokens, main
from paumer.training.options import TrainOptions, parse_size

SMALL = ["bench", "--backbone", "test_vit", "--input", "32"]
HEAVY = ("torch", "timm", "lightning", "torchvision", "matplotlib")


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["import", "--help"]])
def test_help_answers_without_heavy_imports(arguments):
    code = (
        "import sys\n"
        "from paumer.cli.main import app\n"
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
        (["bench", "--mode", "3:1.2"], "3:1.2"),
        ([*SMALL, "--mode", "14:0.3"], "cannot pause after block 14: this backbone has 6 blocks"),
        (["bench", "--input", "big"], 'size "big" is not a side or WIDTHxHEIGHT'),
        ([*SMALL, "--mode", "3:0.4", "--batch", "0"], "batch is 0"),
        (["bench", "--backbone", "convnext_tiny"], "is not a plain ViT"),
        (["import", "nothing.pth", "--out", "somewhere"], 'no checkpoint at "nothing.pth"'),
    ],
)
def test_a_mistake_ends_with_one_clear_line(arguments, message, complaint):
    assert message in complaint(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "x.png", "--pause", "3:0.4"), "--pause is now part of the mode: write --mode"),
        (("bench", "--pause=3:0.4"), "--pause is now part of the mode: write --mode 3:0.4,5:0.4"),
        (("evaluate", "--early-exit"), 'of the mode: write --mode "3:0.4 exit"'),
        (("sweep", "--criterion", "random"), 'the mode: write --mode "3:0.4 by=neighbours"'),
        (("predict", "x.png", "--protect", "a"), '--mode "3:0.4 protect=pedestrian+bicyclist"'),
        (("predict", "x.png", "--short-side", "288"), 'write --mode "3:0.4 size=288"'),
        (("bench", "--size", "512"), "--size is now --input"),
        (("export", "--size=512", "--out", "x.onnx"), "--size is now --input"),
        (("study", "blocks", "--size", "512"), "--size is now --input"),
        (("train", "--val-pause", "3:0.4"), "--val-pause is now --val-mode"),
        (("tune", "--adaptive", "--speed-up", "2"), "--adaptive was removed in 0.2"),
        *(
            (("train", option), f"{option} was removed in 0.2: see docs/negative-results.md")
            for option in ("--rejoin", "--distil", "--exits", "--stages", "--aux-norm")
        ),
        (("calibrate", "--model", "x"), "calibrate was removed in 0.2"),
    ],
)
def test_an_option_of_0_1_is_refused_with_what_replaces_it(arguments, message, monkeypatch, capsys):
    assert call(monkeypatch, *arguments) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["train", "--criterion", "random", "--val-mode", "3:0.4 exit"],
        ["scenes", "--out", "x", "--size", "64x48"],
        ["predict", "calibrate", "--mode", "3:0.4 exit by=neighbours protect=a size=288"],
    ],
)
def test_options_of_today_pass(arguments):
    check_tokens(arguments)


def test_bench_writes_what_it_measured(tmp_path, capsys):
    files = [tmp_path / name for name in ("deep/speed.json", "speed.csv", "speed.png")]
    arguments = ["bench", "--backbone", "test_vit", "--input", "64x32", "--batch", "2"]
    arguments += ["--rounds", "2", "--warmup", "1", "--threads", "1", "--no-upsample"]
    arguments += ["--mode", "none", "2:0.5", "1:0.2,3:0.4"]
    arguments += ["--json", str(files[0]), "--csv", str(files[1]), "--plot", str(files[2])]
    app(arguments, result_action="return_value")
    report = json.loads(files[0].read_text())
    rows = report["measurements"]
    assert [row["mode"] for row in rows] == ["none", "2:0.5", "1:0.2,3:0.4"]
    wanted = {"images_per_second", "latency_ms", "latency_ms_p95", "speed_up", "mac_ratio", "gmacs"}
    assert all(wanted < set(row) for row in rows)
    assert rows[0]["speed_up"] == rows[0]["mac_ratio"] == 1
    assert rows[1]["mac_ratio"] > 1.1
    assert report["environment"]["size"] == [32, 64]
    assert report["environment"]["threads"] == 1
    assert report["reference_ratio"] > 0
    with files[1].open() as file:
        assert [row["mode"] for row in csv.DictReader(file)] == [row["mode"] for row in rows]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "2:0.5" in capsys.readouterr().out


def test_bench_searches_the_batch(capsys, monkeypatch):
    monkeypatch.setattr("paumer.study.speed.best_batch", lambda *_: 3)
    arguments = [*SMALL, "--batch", "auto", "--rounds", "1", "--mode", "2:0.5"]
    app(arguments, result_action="return_value")
    assert ", batch 3, " in capsys.readouterr().out


def test_the_paper_with_more_words_is_thirteen_modes(tmp_path, capsys):
    arguments = ["bench", "--input", "32", "--rounds", "1", "--warmup", "0", "--threads", "1"]
    arguments += ["--mode", "paper exit by=neighbours", "--json", str(tmp_path / "speed.json")]
    app(arguments, result_action="return_value")
    rows = json.loads((tmp_path / "speed.json").read_text())["measurements"]
    wanted = [f"{pause} exit by=neighbours" for pause in PAPER_CONFIGS]
    assert [row["mode"] for row in rows] == ["none", *wanted]
    printed = capsys.readouterr().out
    assert "3:0.4,5:0.4,7:0.4 exit by=neighbours" in printed
    assert "efficiency" in printed


def test_bench_scales_its_images_to_the_size_of_a_mode(tmp_path):
    arguments = [*SMALL, "--rounds", "1", "--threads", "1", "--json", str(tmp_path / "speed.json")]
    arguments += ["--mode", "none", "none size=64", "2:0.5 size=64"]
    app(arguments, result_action="return_value")
    rows = json.loads((tmp_path / "speed.json").read_text())["measurements"]
    assert [row["mode"] for row in rows] == ["none", "none size=64", "2:0.5 size=64"]
    assert rows[0]["mac_ratio"] == 1
    assert rows[1]["mac_ratio"] < rows[2]["mac_ratio"] < 1


@pytest.mark.parametrize(
    ("text", "size"), [("512", (512, 512)), ("64x32", (64, 32)), ("64X32", (64, 32))]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "3x", "0", "-1", "1x2x3", "3.5"])
def test_bad_sizes_are_named(text):
    with pytest.raises(ValueError, match="is not a side"):
        parse_size(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from paumer import build_model

    path = tmp_path_factory.mktemp("model") / "m"
    build_model("test_vit", "mask", ["a", "b", "c"], image_size=32).save_pretrained(path)
    return str(path)


def call(monkeypatch, *arguments):
    """The exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["paumer", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_predict_continues_after_a_broken_image(model, tmp_path, monkeypatch, capsys):
    bad, good = tmp_path / "bad [bold].png", tmp_path / "good.png"
    bad.write_bytes(b"nothing")
    Image.new("RGB", (40, 30), (1, 2, 3)).save(good)
    out = tmp_path / "out"
    assert call(monkeypatch, "predict", bad, good, "--model", model, "--out", out) == 1
    names = {path.name for path in out.iterdir()}
    images = {"good_mask.png", "good_overlay.png", "good_paused.png"}
    assert names == images | {"predictions.jsonl"}
    assert "bad [bold].png" in capsys.readouterr().err


def test_predict_never_overwrites_its_own_results(model, tmp_path, monkeypatch, capsys):
    for name in ("x.png", "x.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    files = [tmp_path / "x.png", tmp_path / "x.jpg"]
    assert call(monkeypatch, "predict", *files, "--model", model, "--out", tmp_path / "out") == 0
    names = {path.name for path in (tmp_path / "out").glob("*_mask.png")}
    assert names == {"x.png_mask.png", "x.jpg_mask.png"}
    (tmp_path / "deep").mkdir()
    shutil.copy(files[0], tmp_path / "deep/x.png")
    both = [files[0], tmp_path / "deep/x.png"]
    assert call(monkeypatch, "predict", *both, "--model", model, "--out", tmp_path / "other") == 2
    assert "would overwrite each other" in capsys.readouterr().err


def test_scenes_are_written_checked_and_never_overwritten(tmp_path, monkeypatch, capsys):
    out, report = tmp_path / "scenes", tmp_path / "report"
    assert call(monkeypatch, "scenes", "--out", out, "--count", 2, "--size", "64x48") == 0
    assert call(monkeypatch, "check-data", out / "data.yaml", "--out", report) == 0
    assert {path.name for path in report.iterdir()} == {
        "report.json",
        "class_shares.png",
        "samples.png",
    }
    assert [part["split"] for part in json.loads((report / "report.json").read_text())] == [
        "train",
        "val",
        "test",
    ]
    assert call(monkeypatch, "scenes", "--out", out, "--count", 2) == 2
    next((out / "masks" / "train").iterdir()).unlink()
    assert call(monkeypatch, "check-data", out / "data.yaml") == 1
    assert "1 problem" in capsys.readouterr().out


def test_data_without_splits_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "data.yaml").write_text("classes: [a, b]\n")
    assert call(monkeypatch, "check-data", tmp_path / "data.yaml") == 2
    assert "names no split" in capsys.readouterr().err


def test_bench_runs_on_images_and_writes_valid_json(tmp_path, monkeypatch):
    Image.new("RGB", (50, 40), (9, 9, 9)).save(tmp_path / "a.png")
    file = tmp_path / "speed.json"
    arguments = [*SMALL, "--mode", "2:0.5", "--rounds", 1, "--images", tmp_path, "--json", file]
    assert call(monkeypatch, *arguments) == 0

    def refuse(name):
        raise AssertionError(name)

    report = json.loads(file.read_text(), parse_constant=refuse)
    assert report["reference_ratio"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--warmup", "-2"], "warmup is -2"),
        (["--threads", "0"], "threads is 0"),
        (["--device", "foo"], 'cannot use device "foo"'),
        (["--mode", "2:0.5 by=random"], "by=random is for evaluate and sweep alone"),
        (["--mode", "2:<0.5"], "depends on the image"),
    ],
)
def test_bench_refuses_before_it_measures(arguments, message, monkeypatch, capsys):
    assert call(monkeypatch, *SMALL, "--mode", "2:0.5", *arguments) == 2
    assert message in capsys.readouterr().err


def test_tiny_images_run(monkeypatch):
    arguments = ["bench", "--backbone", "test_vit", "--input", "8", "--mode", "2:0.5"]
    assert call(monkeypatch, *arguments, "--rounds", "1") == 0


def test_resuming_takes_no_other_options(tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, "train", "--resume", tmp_path, "--lr", "1") == 2
    assert "give no others but --steps" in capsys.readouterr().err


@pytest.mark.parametrize(("tokens", "steps"), [([], None), (["--steps", "2000"], 2000)])
def test_resuming_extends_a_run_to_the_steps_that_are_asked_for(
    tokens, steps, tmp_path, monkeypatch, capsys
):
    from paumer.training import run

    def resume(directory, say, progress, steps):
        seen.append((directory, steps))
        return directory

    seen = []
    (tmp_path / "args.yaml").write_text("data: scenes:3\n")
    monkeypatch.setattr(run, "resume", resume)
    assert call(monkeypatch, "train", "--resume", tmp_path, *tokens) == 0
    assert seen == [(tmp_path, steps)]
    advice = f"next: paumer tune --model {tmp_path} --data scenes:3 --speed-up 1.5"
    assert capsys.readouterr().out.splitlines()[-1] == advice


@pytest.mark.parametrize("rank", [0, 1])
def test_training_can_end_with_operating_points(rank, tmp_path, monkeypatch, capsys):
    from paumer.cli import main as commands
    from paumer.training import run

    tuned = []
    (tmp_path / "args.yaml").write_text("data: scenes:3\n")
    monkeypatch.setattr(run, "resume", lambda directory, *_: directory)
    monkeypatch.setattr(commands, "tune", tuned.append)
    monkeypatch.setenv("RANK", str(rank))
    assert call(monkeypatch, "train", "--resume", tmp_path, "--tune") == 0
    wanted = [(str(tmp_path), "scenes:3", 1.0, "balanced")] if rank == 0 else []
    assert [(o.model, o.data, o.max_drop, o.name) for o in tuned] == wanted
    assert ("--mode balanced" in capsys.readouterr().out) is (rank == 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_training_says_how_to_resume(number, code, tmp_path, monkeypatch, capsys):
    from paumer.training.loop import Training

    def learn(task, batch, real=Training._learn):
        signal.raise_signal(number)
        return real(task, batch)

    monkeypatch.setattr(Training, "_learn", learn)
    out = tmp_path / "run"
    options = "--data scenes:2@64x48 --backbone test_vit --init none --ranges 2-4:0.2-0.8 --crop 32"
    more = "--batch 1 --workers 0 --accelerator cpu --val-mode none --steps 5 --out"
    assert call(monkeypatch, "train", *options.split(), *more.split(), out) == code
    complaint = capsys.readouterr().err
    assert "after step 1, which is saved: resume with --resume" in complaint
    assert len(complaint.strip().splitlines()) == 1
    assert (out / "checkpoints/step-00000001.safetensors").is_file()


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"]])
def test_a_recipe_counts_where_the_command_line_is_silent(form, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: nowhere\nsteps: 7\n")
    arguments = [part.format(recipe) for part in form]
    assert call(monkeypatch, "train", *arguments, "--out", tmp_path / "run") == 2
    assert "nowhere" in capsys.readouterr().err


def test_every_recipe_is_understood(tmp_path, monkeypatch):
    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    assert len(recipes) > 10
    for recipe in recipes:
        tokens = _with_recipe(["train", "--config", str(recipe)])
        _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
        options = bound.arguments["options"]
        assert isinstance(options, TrainOptions)
        assert options.steps != TrainOptions().steps
        app["train"].config = ()


def test_export_overwrites_neither_a_file_nor_the_script_beside_it(tmp_path, complaint):
    (tmp_path / "mine.py").write_text("precious = 1")
    for out, reason in (("mine.onnx", "mine.py"), ("other.py", "is to be a .onnx file")):
        assert reason in complaint("export", "--out", tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert (tmp_path / "mine.py").read_text() == "precious = 1"
