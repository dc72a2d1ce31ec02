import errno
import json
import os
import random
import signal
import time

import pytest
import torch
from safetensors.torch import save_file

from paumer import disk
from paumer.disk import replace_file
from paumer.training.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)


def state(number, size=1000):
    return {
        "network": {"a.weight": torch.full((size,), float(number))},
        "optimizer": {
            "state": {
                0: {"step": torch.tensor(3.0), "exp_avg": torch.full((size,), -number * 1.0)}
            },
            "param_groups": [{"lr": 0.1, "betas": [0.9, 0.999], "params": [0], "foreach": None}],
        },
    }


def test_a_state_survives_exactly(tmp_path):
    save_checkpoint(tmp_path, 7, state(7))
    step, loaded = load_checkpoint(tmp_path)
    assert step == 7
    assert torch.equal(loaded["network"]["a.weight"], state(7)["network"]["a.weight"])
    moments = loaded["optimizer"]["state"][0]
    assert torch.equal(moments["exp_avg"], state(7)["optimizer"]["state"][0]["exp_avg"])
    assert loaded["optimizer"]["param_groups"] == state(7)["optimizer"]["param_groups"]


def test_an_optimizer_continues_where_it_was(tmp_path):
    def run(optimizer, weight, steps):
        for step in steps:
            optimizer.zero_grad()
            (weight * step).sin().sum().backward()
            optimizer.step()

    first = torch.nn.Parameter(torch.arange(5.0))
    optimizer = torch.optim.AdamW([first], lr=0.1)
    run(optimizer, first, range(3))
    save_checkpoint(tmp_path, 3, {"weight": first, "optimizer": optimizer.state_dict()})
    run(optimizer, first, range(3, 6))
    _, loaded = load_checkpoint(tmp_path)
    second = torch.nn.Parameter(loaded["weight"])
    resumed = torch.optim.AdamW([second], lr=0.1)
    resumed.load_state_dict(loaded["optimizer"])
    run(resumed, second, range(3, 6))
    assert torch.equal(first, second)


def test_old_ones_go_only_after_the_new_one_is_there(tmp_path):
    for step in range(5):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-00000004.safetensors",
        "step-00000003.safetensors",
    ]


def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path):
    save_checkpoint(tmp_path, 1, state(1))
    path = save_checkpoint(tmp_path, 2, state(2))
    path.write_bytes(path.read_bytes()[:-100])
    assert load_checkpoint(tmp_path)[0] == 1
    path.write_bytes(b"")
    assert load_checkpoint(tmp_path)[0] == 1


def test_nothing_to_load_is_said_with_the_reason(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(tmp_path)
    (tmp_path / "step-00000001.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"step-00000001\.safetensors: "):
        load_checkpoint(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "step-00000001.safetensors")  # Of another program.
    with pytest.raises(ValueError, match=r"step-00000001\.safetensors: it is not a checkpoint"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["fsync", "replace", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_whatever_call_fails_the_old_or_the_new_loads(tmp_path, monkeypatch, name, code, every):
    save_checkpoint(tmp_path, 0, state(0))
    calls = 0
    real = open if name == "open" else getattr(os, name)

    def failing(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls % every == 0:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    if name == "open":
        monkeypatch.setattr(disk, "open", failing, raising=False)
    else:
        monkeypatch.setattr(os, name, failing)
    saved = [0]
    for step in range(1, 9):
        try:
            save_checkpoint(tmp_path, step, state(step))
            saved.append(step)
        except OSError as error:
            assert error.errno == code  # noqa: PT017
        step_found, loaded = load_checkpoint(tmp_path)
        assert step_found >= saved[-1]
        assert float(loaded["network"]["a.weight"][0]) == step_found
    assert calls >= every


def test_a_full_disk_is_named_and_leaves_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    replace_file(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device; what was saved before is intact"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fifty_kills_while_saving_lose_nothing(tmp_path):
    rng = random.Random(0)
    save_checkpoint(tmp_path, 0, state(0))
    step = 0
    for _ in range(50):
        child = os.fork()
        if child == 0:
            while True:
                step += 1
                save_checkpoint(tmp_path, step, state(step, 20_000))
        time.sleep(rng.uniform(0.005, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found, loaded = load_checkpoint(tmp_path)
        assert found >= step
        assert (loaded["network"]["a.weight"] == found).all()
        step = found
    assert step > 5  # most children got far enough to save


def test_the_header_is_plain_json(tmp_path):
    from safetensors import safe_open

    path = save_checkpoint(tmp_path, 3, state(3))
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["outline"])["dict"][0][0] == "network"


def test_what_was_just_written_is_never_removed(tmp_path):
    for step in (4, 6):
        (tmp_path / f"step-{step:08d}.safetensors").write_bytes(b"junk")
    save_checkpoint(tmp_path, 2, state(2))
    assert load_checkpoint(tmp_path)[0] == 2


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"step": "2"},
        {"step": "two", "outline": "{}"},
        {"step": "3", "outline": '{"dict": []}'},
        {"step": "2", "outline": "null"},
        {"step": "2", "outline": "[]"},
        {"step": "2", "outline": "{"},
        {"step": "2", "outline": "{}"},
        {"step": "2", "outline": '{"dict": 5}'},
        {"step": "2", "outline": '{"dict": [[[1], 2]]}'},
        {"step": "2", "outline": '{"dict": [["a", {"tensor": 5}]]}'},
        {"step": "2", "outline": '{"dict": [["a", {"tensor": "b"}]]}'},
        {"step": "2", "outline": "[" * 100_000},
    ],
)
def test_a_checkpoint_whose_header_says_nothing_of_use_is_skipped(tmp_path, metadata):
    save_checkpoint(tmp_path, 1, state(1))
    path = tmp_path / "step-00000002.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata)
    assert load_checkpoint(tmp_path)[0] == 1
    (tmp_path / "step-00000001.safetensors").unlink()
    with pytest.raises(ValueError, match=r"can be read \(step-00000002\.safetensors: .+\): bring"):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_not_a_file_is_not_a_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, state(1))
    os.mkfifo(tmp_path / "step-00000002.safetensors")
    (tmp_path / "step-00000003.safetensors").mkdir()
    assert load_checkpoint(tmp_path)[0] == 1
