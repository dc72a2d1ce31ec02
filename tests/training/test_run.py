import csv
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import PausingSegmenter
from paumer.data.datasets import open_dataset
from paumer.inference.predictor import Predictor
from paumer.mode import Mode, parse_modes
from paumer.pause_config import NO_MERGE, NO_PAUSE, MergeConfig, PauseConfig, parse_ranges
from paumer.study.accuracy import evaluate
from paumer.training import run, start
from paumer.training.checkpoint import list_checkpoints, load_checkpoint
from paumer.training.initial import initial_network


def tensors(directory):
    return PausingSegmenter.from_pretrained(directory / "model").state_dict()


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


def test_what_is_validated_is_the_average_that_is_saved(tiny, tmp_path, monkeypatch):
    seen = []

    def note(predictor, *rest, **more):
        seen.append(predictor.network.aux_head.weight.clone())
        return evaluate(predictor, *rest, **more)

    monkeypatch.setattr(run, "evaluate", note)
    directory = run.train(replace(tiny, steps=3, ema=0.9, out=tmp_path / "run"))
    assert torch.equal(tensors(directory)["aux_head.weight"], seen[-1])
    _, state = load_checkpoint(directory / "checkpoints")
    assert not torch.equal(state["network"]["aux_head.weight"], seen[-1])


def test_training_changes_every_weight(tiny, whole):
    before = initial_network(tiny, open_dataset(tiny.data, "train")).state_dict()
    after = tensors(whole)
    same = [name for name in before if torch.equal(before[name], after[name])]
    assert same == []


@pytest.mark.slow
def test_the_seed_decides_everything(tiny, whole, tmp_path, assert_same):
    again = run.train(replace(tiny, out=tmp_path / "again", workers=2))
    assert_same(whole, again)
    other = run.train(replace(tiny, out=tmp_path / "other", seed=1))
    assert not torch.equal(tensors(whole)["aux_head.weight"], tensors(other)["aux_head.weight"])


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


AUGMENTED = {"balance": 0.5, "blur": 0.5, "noise": 0.1, "compress": 0.5, "cutout": 0.5}


# Not among the slow ones: there others have started threads, and it forks.
def test_two_processes_do_what_one_does_with_every_option_on(plain, tmp_path, two_processes):
    losses = {"dice": 1.0, "focal": 1.0, "label_smoothing": 0.1, "layer_decay": 0.9, "ema": 0.5}
    options = replace(plain, **AUGMENTED, **losses)
    one = run.train(replace(options, out=tmp_path / "one"))
    two_processes(lambda: run.train(replace(options, devices=2, out=tmp_path / "two")))
    assert_same_updates(options, one, tmp_path / "two")


@pytest.mark.slow
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
def test_a_corrupt_image_is_named(tiny, tmp_path, folder, workers, monkeypatch):
    monkeypatch.setattr(start, "LOOK_AT", 1)
    options = replace(tiny, data=folder(tmp_path, bad=True), out=tmp_path / "run", workers=workers)
    with pytest.raises(ValueError, match=r"2\.png.*--skip-bad to skip it\)"):
        run.train(options)
    assert not options.out.exists()  # It was in the first step: there is nothing to resume.


@pytest.mark.parametrize("split", ["train", "val"])
def test_labels_are_checked_before_the_first_step(tiny, tmp_path, folder, monkeypatch, split):
    data = folder(tmp_path / "data")
    Image.fromarray(np.full((40, 48), 7, np.uint8)).save(tmp_path / f"data/masks/{split}/3.png")
    monkeypatch.setattr(run, "_fit", None)
    options = replace(tiny, data=data, out=tmp_path / "run")
    message = rf'the mask "\S*{split}/3\.png" holds label ids .*: 7 \(.*`paumer check-data .*data'
    with pytest.raises(ValueError, match=message):
        run.train(options)
    assert not options.out.exists()


def test_so_many_labels_are_looked_at(tiny, monkeypatch):
    seen, real = [], start.read

    def note(dataset, index, bad_list):
        seen.append(index)
        return real(dataset, index, bad_list)

    data = open_dataset(tiny.data, "train")
    monkeypatch.setattr(start, "read", note)
    monkeypatch.setattr(start, "LOOK_AT", 2)
    assert start.check_samples(data, tiny) == 40
    assert seen == [0, 3]
    assert start.check_samples(open_dataset("scenes:3@96x64"), tiny) == 64
    assert seen == [0, 3, 0]  # Scenes are alike: one is enough.


@pytest.mark.parametrize("resumed", [False, True])
def test_the_model_knows_the_size_of_the_images_of_training(tiny, tmp_path, folder, resumed):
    data = folder(tmp_path, sides=(40, 90, 40, 56))  # The median of the lower middle is 40.
    options = replace(tiny, data=data, steps=1, out=tmp_path / "run")
    directory = run.train(options)
    if resumed:
        directory = run.resume(directory, steps=2)
    for name in ("model", "best"):
        predictor = Predictor(PausingSegmenter.from_pretrained(directory / name))
        assert predictor.config.trained_side == 40
        assert predictor.scaled((80, 120)) == (40, 60)
        assert predictor.scaled((39, 200)) == (39, 200)


def test_images_that_are_fitted_have_no_other_size(tiny, tmp_path):
    network = initial_network(replace(tiny, fit="64x48"), open_dataset(tiny.data, "train"))
    start.note_side(network, replace(tiny, fit="64x48"), 40)
    assert network.config.trained_side is None
    assert network.config.short_side == 48


def test_advice_is_given_where_it_helps(tiny):
    assert list(start.advice(tiny, 127)) == []
    (line,) = start.advice(tiny, 128)
    assert "a crop's 32" in line
    assert "--fit 85x64" in line
    assert list(start.advice(replace(tiny, fit="85x64"), 128)) == []
    tuned = replace(tiny, init="street-tiny")
    (line,) = start.advice(tuned, 40)
    assert line.startswith("a rate of 0.01 may make a trained model forget")
    for change in ({"lr": 2e-4}, {"optimizer": "sgd"}, {"learn": "aux"}):
        assert list(start.advice(replace(tuned, **change), 40)) == []


def test_a_run_that_fails_before_its_first_step_leaves_nothing(tiny, tmp_path):
    with pytest.raises((ValueError, RuntimeError)):
        run.train(replace(tiny, out=tmp_path / "run", accelerator="abacus"))
    assert list(tmp_path.iterdir()) == []


def test_the_best_model_is_kept_beside_the_last(tiny, tmp_path, monkeypatch):
    values, saved, save = iter([0.2, 0.4, 0.3]), {}, PausingSegmenter.save_pretrained

    def note(self, metrics, real=run.RunCallback._note):
        if any(name.startswith("miou") for name in metrics):
            metrics = dict.fromkeys(metrics, next(values))
        real(self, metrics)

    def noted(self, directory):
        saved.setdefault(directory.name, []).append(self.aux_head.weight.detach().clone())
        save(self, directory)

    monkeypatch.setattr(run.RunCallback, "_note", note)
    monkeypatch.setattr(PausingSegmenter, "save_pretrained", noted)
    directory = run.train(replace(tiny, steps=6, val_every=2, out=tmp_path / "run"))
    assert [len(saved[name]) for name in ("model", "best")] == [3, 2]
    for name, step in (("model", 2), ("best", 1)):
        found = PausingSegmenter.from_pretrained(directory / name).aux_head.weight
        assert torch.equal(found, saved["model"][step])


def test_images_held_out_are_validated_on_and_not_learnt_from(tiny, tmp_path, folder, monkeypatch):
    opened = []
    monkeypatch.setattr(run, "_fit", lambda *given: opened.extend(given[2:4]) or given[0].out)
    data = folder(tmp_path / "data")
    every = open_dataset(data, "train")
    first = every.files(0)[0].stem
    run.train(replace(tiny, data=data, hold_out=first, out=tmp_path / "run"))
    training, validation = opened
    assert [validation.files(n)[0].stem for n in range(len(validation))] == [first]
    assert len(training) == len(every) - 1
    assert first not in [training.files(n)[0].stem for n in range(len(training))]


def test_a_corrupt_image_can_be_skipped_and_is_listed(tiny, tmp_path, folder):
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
    monkeypatch.setattr(run, "check_samples", lambda *_: None)
    with pytest.raises(OSError, match=r"a process that reads images died.*--resume"):
        run.train(replace(tiny, out=tmp_path / "run", workers=1))


def test_a_run_is_never_overwritten(tiny, whole):
    with pytest.raises(ValueError, match="exists: name another --out, or resume it with --resume"):
        run.train(replace(tiny, out=whole))


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
    assert run.is_first() is first


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


def test_steps_pause_merge_do_both_or_nothing_as_was_drawn(tiny, tmp_path, monkeypatch):
    seen, forward = [], PausingSegmenter.forward

    def spy(self, images, mode, criterion, full_size=True):
        seen.append(Mode.parse(mode))
        return forward(self, images, mode, criterion, full_size)

    monkeypatch.setattr(PausingSegmenter, "forward", spy)
    kinds = ("pause", "merge", "both", "none")
    options = replace(tiny, draw=kinds, merging="1-3:0.1-0.3", steps=12, val_every=12)
    directory = run.train(replace(options, out=tmp_path / "run"))
    assert run.read_options(directory).draw == kinds
    assert {(bool(mode.pause), bool(mode.merge)) for mode in seen} == {
        (True, False), (False, True), (True, True), (False, False),
    }  # fmt: skip
    for step, mode in enumerate(seen):
        assert mode.pause in (PauseConfig.draw(0, step, parse_ranges(tiny.ranges)), NO_PAUSE)
        assert mode.merge in (MergeConfig.draw(0, step, parse_ranges("1-3:0.1-0.3")), NO_MERGE)


def test_how_far_a_run_is_can_be_shown(tiny, tmp_path):
    shown, said = [], []
    options = replace(tiny, out=tmp_path / "run", steps=3)
    run.train(options, said.append, lambda *now: shown.append(now))
    assert [(step, steps) for step, steps, _ in shown] == [(1, 3), (2, 3), (3, 3)]
    for _, _, values in shown:
        assert {"loss", "aux_loss", "images_per_second", "seconds_left"} <= values.keys()
        assert values["images_per_second"] > 0
    assert shown[-1][2]["seconds_left"] == 0
    assert "val mIoU none " in said[-1]
    assert ", 2:0.5 exit by=neighbours " in said[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"crop": "15"}, "crop is 15: give at least 16"),
        ({"ranges": "3"}, "cannot read"),
        ({"ranges": "3-6:0.2-0.8"}, "reach block 6"),
        ({"draw": ("rest",)}, 'draw is "rest": choose from pause, merge, both, none'),
        ({"draw": ()}, "choose from pause"),
        ({"draw": ("both",), "merging": "1-6:0.1-0.2"}, "blocks before the last one, 6"),
        ({"draw": ("merge",), "merging": "1-3:0.1-0.6"}, "at most half of the patches"),
        ({"val_mode": ("2:2",)}, "out of range"),
        ({"learn": "aux"}, "needs a trained model as --init"),
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
        ({"blur": 1.5}, "blur is 1.5: give a probability from 0"),
        ({"balance": -0.1}, "balance is -0.1: give a probability"),
        ({"colour": 3.0}, "colour is 3: give a strength from 0"),
        ({"noise": 2.0}, "noise is 2: give a part of the range"),
        ({"dice": -1.0}, "dice is -1: give 0"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1: give a part"),
        ({"layer_decay": 0.0}, "layer_decay is 0: give a factor"),
        ({"ema": 1.0}, "ema is 1: give a part"),
        ({"init": "nowhere/at-all"}, 'no model directory at "nowhere/at-all"'),
        ({"init": __file__}, "neither a .safetensors file of a backbone nor a model directory"),
    ],
)
def test_mistakes_are_found_before_training(tiny, tmp_path, change, message):
    with pytest.raises((ValueError, OSError), match=message):
        run.train(replace(tiny, out=tmp_path / "run", **change))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["lr", "head_lr", "aux_weight", "clip", "warmup", "min_lr"])
def test_numbers_that_cannot_be_are_refused_before_anything_is_written(tiny, tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is -1"):
        run.train(replace(tiny, out=tmp_path / "run", **{name: -1}))
    assert not (tmp_path / "run").exists()
