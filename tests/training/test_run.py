import csv
import math
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from paumer import PausingSegmenter
from paumer.data.datasets import open_dataset
from paumer.inference.predictor import Predictor
from paumer.mode import parse_modes
from paumer.pause_config import PauseConfig, parse_ranges
from paumer.study.accuracy import evaluate
from paumer.training import run
from paumer.training.checkpoint import list_checkpoints
from paumer.training.loop import Training
from paumer.training.options import TrainOptions, plain_options
from paumer.training.start import initial_network

TINY = TrainOptions(
    data="",
    backbone="test_vit",
    init="none",
    ranges="2-4:0.2-0.8",
    crop="32",
    batch=4,
    steps=8,
    val_every=100,
    val_mode=("none", "2:0.5 exit by=neighbours"),
    val_images=2,
    save_every=1,
    workers=0,
    accelerator="cpu",
    lr=1e-2,
)


def folder(path, bad=False):
    """A small data set of one's own; ``bad`` breaks one training image."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (path / kind / split).mkdir(parents=True)
        for number in range(4):
            image = rng.integers(0, 255, (40, 48, 3), np.uint8)
            Image.fromarray(image).save(path / "images" / split / f"{number}.png")
            Image.fromarray(image[..., 0] % 3).save(path / "masks" / split / f"{number}.png")
    if bad:
        (path / "images/train/2.png").write_bytes(b"not an image")
    text = "train: {images: images/train, masks: masks/train}\n"
    text += "val: {images: images/val, masks: masks/val}\nclasses: [a, b, c]\n"
    (path / "data.yaml").write_text(text)
    return str(path / "data.yaml")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Options of a small run."""
    return replace(TINY, data=folder(tmp_path_factory.mktemp("data")))


def tensors(directory):
    return PausingSegmenter.from_pretrained(directory / "model").state_dict()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """An undisturbed run."""
    return run.train(replace(tiny, out=tmp_path_factory.mktemp("whole") / "run"))


def test_a_run_leaves_what_people_look_for(whole):
    names = {"args.yaml", "env.json", "metrics.csv", "checkpoints", "model", "plots", "tensorboard"}
    assert names <= {path.name for path in whole.iterdir()}
    assert {path.name for path in (whole / "plots").iterdir()} == {"training.png", "samples.png"}
    with (whole / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["step"] == "8"
    options = run.read_options(whole)
    assert options.steps == 8
    predictor = Predictor(PausingSegmenter.from_pretrained(whole / "model"))
    data, modes = open_dataset(options.data, "val"), parse_modes(options.val_mode)
    for mode, tally in zip(modes, evaluate(predictor, data, modes, indices=[0, 3]), strict=True):
        assert rows[-1][f"miou {mode}"] == f"{tally.miou:.6g}"


def test_training_changes_every_weight(tiny, whole):
    before = initial_network(tiny, open_dataset(tiny.data, "train")).state_dict()
    after = tensors(whole)
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert same == []


def test_the_seed_decides_everything(tiny, whole, tmp_path):
    again = run.train(replace(tiny, out=tmp_path / "again", workers=2))
    assert_equal(tensors(whole), tensors(again))
    other = run.train(replace(tiny, out=tmp_path / "other", seed=1))
    assert not torch.equal(tensors(whole)["aux_head.weight"], tensors(other)["aux_head.weight"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_three_times_and_resumed_equals_undisturbed(tiny, whole, tmp_path):
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
    assert_equal(tensors(run.resume(out)), tensors(whole))
    assert (out / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()


@pytest.mark.parametrize("workers", [0, 1])
def test_sigterm_saves_and_says_how_to_resume(tiny, whole, tmp_path, monkeypatch, workers):
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
    with pytest.raises(InterruptedError, match="SIGTERM after step 4: resume with --resume"):
        run.train(replace(tiny, out=out, save_every=100, workers=workers))
    monkeypatch.undo()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert [path.stem for path in list_checkpoints(out / "checkpoints")] == ["step-00000004"]
    assert_equal(tensors(run.resume(out)), tensors(whole))


@pytest.fixture
def plain(tiny):
    """A short run in which nothing depends on how the batch is split: no dropout, no scaling."""
    return replace(
        tiny, drop_path=0.0, dropout=0.0, steps=5, criterion="random", optimizer="sgd", lr=0.1
    )


def assert_same_updates(options, one, other):
    """Both runs moved every weight alike, relative to how far it moved."""
    start = initial_network(options, open_dataset(options.data, "train")).state_dict()
    first, second = tensors(one), tensors(other)
    for name, before in start.items():
        moved = first[name] - before
        assert moved.norm() > 0, name
        assert (second[name] - first[name]).norm() < 0.01 * moved.norm(), name


def test_two_processes_do_what_one_does(plain, tmp_path, two_processes):
    one = run.train(replace(plain, out=tmp_path / "one"))
    two_processes(lambda: run.train(replace(plain, devices=2, out=tmp_path / "two")))
    assert_same_updates(plain, one, tmp_path / "two")


def test_parts_of_a_batch_add_up_to_the_whole(plain, tmp_path):
    whole = run.train(replace(plain, out=tmp_path / "whole"))
    parts = run.train(replace(plain, out=tmp_path / "parts", accumulate=2))
    assert_same_updates(plain, whole, parts)


def test_the_plain_segmenter_never_pauses_and_keeps_its_auxiliary_head(tiny, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("paused")

    monkeypatch.setattr(PausingSegmenter, "pause", refuse)
    options = replace(tiny, criterion="none", steps=2, val_mode=("none",), out=tmp_path / "run")
    fresh = initial_network(options, open_dataset(options.data, "train"))
    after = tensors(run.train(options))
    assert torch.equal(after["aux_head.weight"], fresh.aux_head.weight)
    assert not torch.equal(after["decoder.project.weight"], fresh.decoder.project.weight)


@pytest.mark.parametrize("learn", ["aux", "block-heads"])
def test_heads_learn_on_a_frozen_segmenter(tiny, whole, tmp_path, learn):
    options = replace(tiny, init=str(whole / "model"), learn=learn, steps=2, out=tmp_path / learn)
    before, after = tensors(whole), tensors(run.train(options))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == ({"aux_head.weight", "aux_head.bias"} if learn == "aux" else set())
    assert (tmp_path / learn / "heads.safetensors").exists() == (learn == "block-heads")


def test_a_context_is_trained_and_kept(tiny, tmp_path):
    model = run.train(replace(tiny, context=True, steps=2, out=tmp_path / "run")) / "model"
    assert PausingSegmenter.from_pretrained(model).context
    data = open_dataset(tiny.data, "val")
    assert initial_network(replace(tiny, init=str(model)), data).context
    assert not initial_network(tiny, data).context


def test_another_decoder_starts_afresh_on_a_trained_encoder(tiny, whole):
    data, before = open_dataset(tiny.data, "train"), tensors(whole)
    options = replace(tiny, init=str(whole / "model"))
    own = initial_network(options, data).state_dict()
    assert all(torch.equal(own[name], before[name]) for name in before)
    other = initial_network(replace(options, decoder="linear"), data)
    assert other.config.decoder == "linear"
    new = other.state_dict()
    assert all(torch.equal(new[n], before[n]) for n in before if not n.startswith("decoder."))
    fresh = {name for name in new if name.startswith("decoder.")}
    assert fresh == {"decoder.head.weight", "decoder.head.bias"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_named(tiny, tmp_path, workers):
    options = replace(tiny, data=folder(tmp_path, bad=True), out=tmp_path / "run", workers=workers)
    with pytest.raises(ValueError, match=r"2\.png.*--skip-bad"):
        run.train(options)


def test_a_corrupt_image_can_be_skipped_and_is_listed(tiny, tmp_path):
    options = replace(tiny, data=folder(tmp_path, bad=True), out=tmp_path / "run", skip_bad=True)
    run.train(options)
    assert (tmp_path / "run" / "bad_images.txt").read_text().count("2.png") == 1


def test_a_loss_that_is_no_number_ends_with_advice_and_keeps_checkpoints(tiny, tmp_path):
    options = replace(tiny, lr=1e30, optimizer="sgd", out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"the loss became (nan|inf) at step \d.*lower --lr"):
        run.train(options)
    assert list_checkpoints(tmp_path / "run" / "checkpoints")


@pytest.mark.slow
def test_a_dead_worker_is_reported(tiny, tmp_path, monkeypatch):
    from paumer.data.folders import FolderDataset

    def die(self, index):
        os._exit(1)

    monkeypatch.setattr(FolderDataset, "__getitem__", die)
    with pytest.raises(OSError, match=r"a process that reads images died.*--resume"):
        run.train(replace(tiny, out=tmp_path / "run", workers=1))


def test_a_run_is_never_overwritten(tiny, whole):
    with pytest.raises(ValueError, match="exists: name another --out, or resume it with --resume"):
        run.train(replace(tiny, out=whole))


def test_a_run_that_is_being_trained_is_left_alone(tiny, tmp_path, in_another_process):
    directory = run.train(replace(tiny, out=tmp_path / "run", steps=2))
    options = directory / "args.yaml"
    options.write_text(options.read_text().replace("steps: 2", "steps: 4"))
    refused = pytest.raises(BlockingIOError, match="another process is at work")
    with in_another_process(directory), refused:
        run.resume(directory)
    assert run.resume(directory) == directory


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1"}, False),
    ],
)
def test_one_process_looks_after_the_directory(monkeypatch, environment, first):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run._is_first() is first


def test_steps_attend_by_plain_products_in_bf16_and_leave_no_trace(tiny, tmp_path, monkeypatch):
    seen, forward = [], PausingSegmenter.forward

    def spy(self, images, mode, criterion, full_size=True):
        seen.append(torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed())
        return forward(self, images, mode, criterion, full_size)

    monkeypatch.setattr(PausingSegmenter, "forward", spy)
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    run.train(replace(tiny, out=tmp_path / "run", steps=2, precision="bf16"))
    assert seen == [True] * 2
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before


def test_each_step_pauses_as_was_drawn_for_it(tiny, tmp_path, monkeypatch):
    seen, forward = [], PausingSegmenter.forward

    def spy(self, images, mode, criterion, full_size=True):
        prediction = forward(self, images, mode, criterion, full_size)
        seen.append((str(mode), [stage.block for stage in prediction.stages]))
        return prediction

    monkeypatch.setattr(PausingSegmenter, "forward", spy)
    run.train(replace(tiny, out=tmp_path / "run", steps=4))
    drawn = [PauseConfig.draw(0, step, parse_ranges(tiny.ranges)) for step in range(4)]
    assert seen == [(str(pause), list(pause.blocks)) for pause in drawn]
    assert len({str(pause) for pause in drawn}) == 4


def test_how_far_a_run_is_can_be_shown(tiny, tmp_path):
    shown, said = [], []
    options = replace(tiny, out=tmp_path / "run", steps=3)
    run.train(options, said.append, lambda *now: shown.append(now))
    assert [(step, steps) for step, steps, _ in shown] == [(1, 3), (2, 3), (3, 3)]
    for _, _, values in shown:
        assert {"loss", "aux_loss", "images_per_second", "seconds_left"} <= values.keys()
        assert values["images_per_second"] > 0
    assert shown[-1][2]["seconds_left"] == 0
    assert said[-1].startswith("step 3: val mIoU none ")
    assert ", 2:0.5 exit by=neighbours " in said[-1]


def test_a_finished_run_is_left_alone(whole):
    said = []
    before = (whole / "metrics.csv").stat().st_mtime_ns
    assert run.resume(whole, said.append) == whole
    assert "complete" in said[0]
    assert (whole / "metrics.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"ranges": "3"}, "cannot read"),
        ({"ranges": "3-6:0.2-0.8"}, "reach block 6"),
        ({"val_mode": ("2:2",)}, "out of range"),
        ({"learn": "aux"}, "needs a trained model directory"),
        ({"val_mode": ("14:0.4",)}, "cannot pause after block 14"),
        ({"val_mode": ("6:0.4",)}, "after block 6"),
        ({"val_mode": ()}, "val_mode is empty"),
        ({"val_mode": ("2:0.4 by=oracle",)}, "by=oracle is for evaluate and sweep alone"),
        ({"val_mode": ("2:0.4 protect=tree",)}, 'no class "tree" to protect'),
        ({"val_mode": ("2:0.4 exit",), "decoder": "pup"}, "early exit is not possible"),
        ({"stride": 16}, "without a window"),
        ({"scale": "junk"}, "junk"),
        ({"batch": 3, "devices": 2}, "cannot be shared by 2"),
        ({"workers": -1}, "workers is -1: give 0 or more"),
        ({"val_images": 0}, "val_images is 0: give at least 1"),
        ({"lr": math.inf}, "lr is inf: give 0 or more"),
        ({"lr": math.nan}, "lr is nan: give 0 or more"),
        ({"clip": 0.0}, "clip is 0: give a norm above 0"),
        ({"class_weights": 1.5}, "class_weights is 1.5: give a power from 0"),
        ({"batch": 3, "devices": 1, "data": "nowhere"}, "nowhere"),
    ],
)
def test_mistakes_are_found_before_training(tiny, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        run.train(replace(tiny, out=tmp_path / "run", **change))
    assert not (tmp_path / "run").exists()


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
        ("steps: abc", 'steps is "abc" in .*: give a number'),
        ("steps: null", 'steps is "None" in .*: give a number'),
        ("clip: abc", 'clip is "abc" in .*: give a number'),
        ("workers: [1]", 'workers is "[^ ]*" in .*: give a number'),
        ("stepps: 4", r"not known: stepps \(did you mean steps\?\)"),
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


def test_a_run_of_0_1_that_used_none_is_resumed(tiny, tmp_path, whole):
    options = replace(tiny, out=tmp_path / "run")
    write_old(options.out, options)
    assert run.read_options(options.out) == options
    assert_equal(tensors(run.resume(options.out)), tensors(whole))


def test_options_that_0_1_did_not_have_are_as_usual(tiny, tmp_path):
    (tmp_path / "args.yaml").write_text(f"data: {tiny.data}\nval_pause: [none, '2:0.4']\n")
    options = run.read_options(tmp_path)
    assert options == TrainOptions(data=tiny.data, val_mode=("none", "2:0.4"), out=tmp_path)


@pytest.mark.parametrize("name", ["lr", "head_lr", "aux_weight", "clip", "warmup", "min_lr"])
def test_numbers_that_cannot_be_are_refused_before_anything_is_written(tiny, tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is -1"):
        run.train(replace(tiny, out=tmp_path / "run", **{name: -1}))
    assert not (tmp_path / "run").exists()
