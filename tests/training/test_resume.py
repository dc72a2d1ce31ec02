"""Runs that were interrupted, killed, changed or damaged: resumed exactly, or refused in words."""

import csv
import errno
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import yaml

from paumer import PausingSegmenter
from paumer.data.datasets import open_dataset
from paumer.training import run
from paumer.training.checkpoint import list_checkpoints
from paumer.training.data_record import check_same_data, record_data
from paumer.training.loop import Training, learning_rate
from paumer.training.options import TrainOptions, plain_options


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_three_times_and_resumed_equals_undisturbed(tiny, whole, tmp_path, assert_same):
    out, rng = tmp_path / "run", random.Random(3)
    for stop in sorted(rng.sample(range(1, 8), 3)):
        child = os.fork()
        if child == 0:
            if out.exists():
                run.resume(out)
            else:
                run.train(replace(tiny, out=out))
            os._exit(0)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = list_checkpoints(out / "checkpoints")
            if found and int(found[0].stem[5:]) >= stop:
                break
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert_same(run.resume(out), whole)
    assert (out / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()


@pytest.mark.parametrize("workers", [0, 1])
def test_sigterm_saves_and_says_how_to_resume(
    tiny, whole, tmp_path, monkeypatch, assert_same, workers
):
    out = tmp_path / "run"
    learn = Training._learn

    def signalled(task, batch):
        metrics = learn(task, batch)
        if batch.step == 3:  # As a scheduler does: to all processes of the run.
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    monkeypatch.setattr(Training, "_learn", signalled)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(
        InterruptedError, match="SIGTERM after step 4, which is saved: resume with --resume"
    ):
        run.train(replace(tiny, out=out, save_every=100, workers=workers))
    monkeypatch.undo()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert [path.stem for path in list_checkpoints(out / "checkpoints")] == ["step-00000004"]
    assert_same(run.resume(out), whole)


def test_a_run_that_is_being_trained_is_left_alone(tiny, tmp_path, in_another_process):
    directory = run.train(replace(tiny, out=tmp_path / "run", steps=2))
    options = directory / "args.yaml"
    options.write_text(options.read_text().replace("steps: 2", "steps: 4"))
    refused = pytest.raises(BlockingIOError, match="another process is at work")
    with in_another_process(directory), refused:
        run.resume(directory)
    assert run.resume(directory) == directory


def test_a_finished_run_is_left_alone(whole):
    said = []
    before = (whole / "metrics.csv").stat().st_mtime_ns
    assert run.resume(whole, said.append) == whole
    assert "complete" in said[0]
    assert (whole / "metrics.csv").stat().st_mtime_ns == before


class Kill(BaseException):
    pass


@contextmanager
def fails_at(monkeypatch, step):
    """A context in which training ends before that step is done."""

    def learn(task, batch, real=Training._learn):
        if batch.step == step:
            raise Kill
        return real(task, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_learn", learn)
        yield


EVERYTHING = {
    "ema": 0.9,
    "layer_decay": 0.8,
    "dice": 0.5,
    "focal": 2.0,
    "label_smoothing": 0.1,
    "colour": 1.5,
    "blur": 0.5,
    "noise": 0.1,
    "compress": 0.5,
    "cutout": 0.5,
    "balance": 0.5,
}


@pytest.mark.slow
def test_with_every_option_on_a_stopped_run_resumes_exactly(
    tiny, tmp_path, monkeypatch, assert_same
):
    options = replace(tiny, steps=6, val_every=2, **EVERYTHING)
    whole = run.train(replace(options, out=tmp_path / "whole"))

    with fails_at(monkeypatch, 3), pytest.raises(Kill):
        run.train(replace(options, out=tmp_path / "run", workers=1))
    assert_same(run.resume(tmp_path / "run"), whole)
    assert (tmp_path / "run/metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    best = [PausingSegmenter.from_pretrained(path / "best") for path in (tmp_path / "run", whole)]
    assert torch.equal(*(model.aux_head.weight for model in best))


def test_a_finished_run_is_extended_by_the_schedule_of_a_longer_one(tiny, tmp_path):
    directory, said = run.train(replace(tiny, steps=4, out=tmp_path / "run")), []
    run.resume(directory, said.append, steps=8)
    assert said[0].startswith(
        "now 8 steps: the learning rate continues at 0.00536 (it was 0.00288)"
    )
    assert run.read_options(directory).steps == 8
    assert list_checkpoints(directory / "checkpoints")[0].stem == "step-00000008"
    lines = (directory / "metrics.csv").read_text().splitlines()
    rates = [float(row["lr"]) for row in csv.DictReader(lines)]
    expected = [learning_rate(replace(tiny, steps=n), n - 1) for n in (4, 8)]
    assert rates == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="has done 8 steps: give --steps more than that"):
        run.resume(directory, steps=5)
    assert run.read_options(directory).steps == 8


def test_a_run_resumes_without_the_model_it_started_from(tiny, whole, tmp_path):
    shutil.copytree(whole / "model", tmp_path / "start")
    options = replace(tiny, init=str(tmp_path / "start"), out=tmp_path / "run", steps=2)
    run.train(options)
    shutil.rmtree(tmp_path / "start")
    assert run.resume(options.out, steps=3) == options.out


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(tiny, tmp_path):
    directory = run.train(replace(tiny, out=tmp_path / "run", steps=3))
    for path in list_checkpoints(directory / "checkpoints"):
        path.write_bytes(b"junk")
    with pytest.raises(ValueError, match="can be read"):
        run.resume(directory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no options"),
        ("steps: abc", 'steps is "abc" in .*: give a whole number'),
        ("steps: null", 'steps is "None" in .*: give a whole number'),
        ("steps: .nan", 'steps is "nan" in .*: give a whole number'),
        (f"steps: 1{'0' * 90}", "steps is .* in .*: give a whole number"),
        ("seed: x", 'seed is "x" in .*: give a whole number'),
        ("lr: true", 'lr is "True" in .*: give a number, such as 0.001'),
        ("clip: abc", 'clip is "abc" in .*: give a number, such as 0.001 or None'),
        ("workers: [1]", 'workers is "[^ ]*" in .*: give a whole number'),
        ("context: 1", 'context is "1" in .*: give true or false'),
        ("criterion: xx", 'criterion is "xx" in .*: give entropy, random, none'),
        ("decoder: [mask]", "decoder is .* in .*: give mask, linear, pup, pup-tiny or None"),
        ("val_mode: none", 'val_mode is "none" in .*: give a list, each a text'),
        ("val_mode:", 'val_mode is "None" in .*: give a list, each a text'),
        ("init: 2001-01-01", 'init is "2001-01-01" in .*: give a text'),
        ("steps: 4\nsteps: 5", r'args\.yaml" is not valid YAML: line 3, "steps" is written twice'),
        ("steps: " + "[" * 5000, r'args\.yaml" is not valid YAML: line 2, .*more than 50 levels'),
        ("steps: &a [*a]", r'args\.yaml" is not valid YAML: line 2, the alias'),
        ("steps: \x00", r'args\.yaml" is not valid YAML: line 2, special characters'),
        ("stepps: 4", r'not known: line 2, stepps \(did you mean "steps"\?\)'),
        ("steps: [4", r'args\.yaml" is not valid YAML: line 3, '),
        ("- steps", r'args\.yaml" is not valid YAML: line 2, '),
        ("save_every: 0", "save_every is 0"),
    ],
)
def test_options_edited_by_hand_are_checked(tiny, tmp_path, text, message):
    (tmp_path / "args.yaml").write_text(f"data: {tiny.data}\n{text}\n" if text else "")
    with pytest.raises(ValueError, match=message):
        run.resume(tmp_path)


REMOVED = {
    "stages": (1, 2),
    "distil": (0.0, 0.5),
    "exits": (0.0, 0.3),
    "rejoin": (None, 5),
    "aux_norm": (False, True),
}
"""Options of 0.1, each with the value that left it out and one that used it."""


def write_old(directory, options, **changes):
    """The options of a run as 0.1 wrote them."""
    values = (
        plain_options(options) | {name: usual for name, (usual, _) in REMOVED.items()} | changes
    )
    values["val_pause"] = values.pop("val_mode")
    directory.mkdir(exist_ok=True)
    (directory / "args.yaml").write_text(yaml.safe_dump(values))


@pytest.mark.parametrize("name", REMOVED)
def test_a_run_of_0_1_that_used_a_removed_option_is_refused_by_its_name(tiny, tmp_path, name):
    write_old(tmp_path / "run", tiny, **{name: REMOVED[name][1]})
    message = rf'args\.yaml" uses {name}, which was removed in 0\.2: resume it with paumer 0\.1'
    with pytest.raises(ValueError, match=message):
        run.read_options(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        run.resume(tmp_path / "run")


def test_a_run_of_0_1_that_used_none_is_resumed(tiny, tmp_path, whole, assert_same):
    options = replace(tiny, out=tmp_path / "run")
    write_old(options.out, options)
    assert run.read_options(options.out) == options
    assert_same(run.resume(options.out), whole)


def test_options_that_0_1_did_not_have_are_as_usual(tiny, tmp_path):
    (tmp_path / "args.yaml").write_text(f"data: {tiny.data}\nval_pause: [none, '2:0.4']\n")
    options = run.read_options(tmp_path)
    assert options == TrainOptions(data=tiny.data, val_mode=("none", "2:0.4"), out=tmp_path)


@pytest.fixture(scope="module")
def short(tiny, tmp_path_factory):
    """Options of a run that validates after every step, and its metrics."""
    options = replace(tiny, steps=2, val_every=1, val_mode=("none",), val_images=1)
    whole = run.train(replace(options, out=tmp_path_factory.mktemp("short") / "run"))
    return options, (whole / "metrics.csv").read_text()


@pytest.mark.parametrize("nth", range(3, 10))
def test_no_row_is_lost_or_doubled_wherever_a_run_is_killed(short, tmp_path, monkeypatch, nth):
    options, calls, real = replace(short[0], out=tmp_path / "run"), [], os.replace

    def fragile(source, target):
        calls.append(target)
        if len(calls) == nth:
            raise Kill
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fragile)
        with pytest.raises(Kill):
            run.train(options)
    again = run.resume(options.out) if options.out.exists() else run.train(options)
    assert (again / "metrics.csv").read_text() == short[1]


@pytest.fixture(scope="module")
def stopped_once(tiny, tmp_path_factory, folder):
    root = tmp_path_factory.mktemp("stopped")
    run.train(replace(tiny, data=folder(root / "data"), steps=2, out=root / "run"))
    continue_until(root / "run", 3)
    return root


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A run that has a step to do, on data of its own."""
    shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True)
    args = tmp_path / "run" / "args.yaml"
    args.write_text(args.read_text().replace(str(stopped_once), str(tmp_path)))
    return tmp_path / "run"


def continue_until(directory, steps):
    path = directory / "args.yaml"
    path.write_text(path.read_text().replace("steps: 2\n", f"steps: {steps}\n"))


def edit_data(root, old, new):
    text = (root / "data.yaml").read_text()
    assert old in text
    (root / "data.yaml").write_text(text.replace(old, new))


def add_images(root, count, split="train"):
    for number in range(count):
        for kind in ("images", "masks"):
            image = (root / kind / split / "0.png").read_bytes()
            (root / kind / split / f"new{number}.png").write_bytes(image)


CHANGES = [
    (lambda root: edit_data(root, "[a, b, c]", "[a, c, b]"), "class 1 was b and is c; class 2 was"),
    (lambda root: edit_data(root, "c]", "c, d]"), "class 3 was nothing and is d"),
    (lambda root: add_images(root, 3), "3 images were added in train, such as images/train/new0"),
    (lambda root: add_images(root, 1, "val"), "1 image was added in val, such as images/val/new0"),
    (
        lambda root: [path.unlink() for path in root.glob("*/train/2.png")],
        r"1 image was removed in train, such as images/train/2\.png",
    ),
    (
        lambda root: [
            (root / "masks" / "train").rename(root / "masks" / "other"),
            edit_data(root, "masks/train", "masks/other"),
        ],
        "the masks are other files",
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_run_is_not_resumed_on_other_data(stopped, change, message):
    change(stopped.parent / "data")
    with pytest.raises(ValueError, match=rf"changed since the run began: {message}.*Bring back"):
        run.resume(stopped)


def test_a_run_of_before_and_one_whose_owner_says_so_resume_on_other_data(stopped):
    add_images(stopped.parent / "data", 1)
    (stopped / "data.json").unlink()
    assert run.resume(stopped) == stopped
    assert list_checkpoints(stopped / "checkpoints")[0].name == "step-00000003.safetensors"


def test_a_data_set_may_move(stopped):
    (stopped.parent / "data").rename(stopped.parent / "moved")
    args = stopped / "args.yaml"
    args.write_text(args.read_text().replace("/data/data.yaml", "/moved/data.yaml"))
    assert run.resume(stopped) == stopped


def test_before_the_first_checkpoint_data_may_change(tiny, tmp_path, folder, monkeypatch):
    options = replace(tiny, data=folder(tmp_path / "data"), out=tmp_path / "run", steps=2)
    with fails_at(monkeypatch, 1), pytest.raises(Kill):
        run.train(replace(options, save_every=100))
    for path in (tmp_path / "data").glob("*/train/2.png"):
        path.unlink()
    run.resume(options.out)
    continue_until(options.out, 3)
    assert run.resume(options.out) == options.out


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"[]", b"{}", b'{"classes": 5}', b"[" * 99999]
)
def test_a_damaged_list_of_the_data_is_named(stopped, content):
    (stopped / "data.json").write_bytes(content)
    with pytest.raises(ValueError, match=r'cannot read "\S*data\.json" .*bring it back, or remove'):
        run.resume(stopped)


def test_scenes_are_noted_by_their_number(tmp_path):
    four, five = (open_dataset(f"scenes:{count}") for count in (4, 5))
    record_data(tmp_path, four, four)
    check_same_data(tmp_path, four, four)
    with pytest.raises(ValueError, match="1 image was added in val, such as scene 4"):
        check_same_data(tmp_path, four, five)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6, 7])
def test_a_disk_that_is_full_from_the_start_leaves_nothing_in_the_way(
    tiny, tmp_path, monkeypatch, nth
):
    calls, real = 0, os.fsync

    def full(handle):
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    options = replace(tiny, steps=1, out=tmp_path / "run")
    message = r"No space left on device; what was saved before is intact: '\S*/run\b"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=message):
            run.train(options)
    assert [path for path in tmp_path.rglob(".*") if path.name != ".lock"] == []
    again = run.resume(options.out) if options.out.exists() else run.train(options)
    assert (again / "model" / "config.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such permissions")
def test_whoever_the_umask_lets_may_read_a_run(whole):
    umask = os.umask(0)
    os.umask(umask)
    files = [path for path in whole.rglob("*") if path.is_file()]
    assert {path for path in files if path.stat().st_mode & 0o777 != 0o666 & ~umask} == set()


def test_a_checkpoint_that_does_not_fit_the_options_is_refused_in_words(stopped):
    args = stopped / "args.yaml"
    args.write_text(args.read_text().replace("decoder: null", "decoder: linear"))
    with pytest.raises(
        ValueError, match=r'of step 2 does not fit the options in "\S*args\.yaml" \('
    ):
        run.resume(stopped)


def test_a_damaged_table_of_metrics_is_named(stopped):
    (stopped / "metrics.csv").write_bytes(b"\x00\xff")
    with pytest.raises(ValueError, match=r'cannot read "\S*metrics\.csv"'):
        run.resume(stopped)
