from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from paumer import PauseConfig, build_model
from paumer.criteria import entropy
from paumer.options import TrainOptions
from paumer.train.task import TrainTask


@pytest.fixture
def task(lively):
    network = lively(build_model("test_vit", "mask", 3, image_size=64, dropout=0.0))
    options = TrainOptions(stages=2, distil=1.0, dropout=0.0, drop_path=0.0)
    return TrainTask(network.train(), options, {1: (0.2, 0.8), 3: (0.2, 0.8)})


@pytest.fixture
def batch():
    dice = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 60, 64, generator=dice)
    return images, torch.randint(0, 3, (2, 60, 64), generator=dice)


def losses(task, batch, text):
    return task.losses(*batch, PauseConfig.parse(text), entropy)


def test_a_pause_of_nobody_is_no_distance_from_no_pause(task, batch):
    assert losses(task, batch, "2:0").distil.item() == pytest.approx(0, abs=1e-3)
    assert losses(task, batch, "2:0.6").distil.item() > 1


def test_the_teacher_learns_nothing(task, batch):
    losses(task, batch, "2:0.6").distil.backward()
    gradients = {name: p.grad for name, p in task.network.named_parameters()}
    assert gradients["backbone.vit.blocks.0.attn.qkv.weight"].abs().sum() > 0
    assert gradients["aux_head.weight"] is None


def test_each_pause_has_its_auxiliary_loss(task, batch):
    first, both = (losses(task, batch, text).aux for text in ("1:0.5", "1:0.5,3:0.5"))
    second = losses(task, batch, "3:0.5").aux
    assert both > first
    # The second one sees fewer patches, and those of the paused ones as they were before.
    assert (both - first).item() != pytest.approx(second.item(), rel=1e-3)


def test_paused_patches_are_not_learnt_from_again(task, batch):
    images, labels = batch
    prediction = task.network(images, PauseConfig.parse("1:0.5,3:0.5"), full_size=False)
    first, second = prediction.stages
    once = task._aux_loss([first], prediction.grid, labels)
    both = task._aux_loss([first, second], prediction.grid, labels)
    (alone,) = torch.autograd.grad(once, first.logits, retain_graph=True)
    again, later = torch.autograd.grad(both, [first.logits, second.logits])
    assert torch.allclose(again, alone)
    assert later.abs().sum() > 0


def test_draws_follow_the_options(task):
    drawn = {len(task.draw(step).stages) for step in range(20)}
    assert drawn == {1, 2}


def test_a_share_of_the_steps_exits_early(task, batch):
    task.options = replace(task.options, exits=0.3)
    assert 200 < sum(task.exits(step) for step in range(1000)) < 400
    task.options = replace(task.options, distil=0.0)
    images, labels = batch
    pause = PauseConfig.parse("2:0.6")
    task.losses(images, labels, pause, entropy, early_exit=True).main.backward()
    assert task.network.aux_head.weight.grad.abs().sum() > 0


def test_in_bf16_on_a_cpu_attention_is_plain_products_and_says_the_same(task, batch):
    expected = losses(task, batch, "none").main.item()
    task.options = replace(task.options, precision="bf16")
    fused = {}
    for how, attention in {"usual": nullcontext(), "plain": task.attention()}.items():
        bf16 = torch.autocast("cpu", torch.bfloat16)
        with torch.profiler.profile() as profile, attention, bf16:
            assert losses(task, batch, "none").main.item() == pytest.approx(expected, rel=0.01)
        fused[how] = any("flash" in event.key for event in profile.key_averages())
    assert fused == {"usual": True, "plain": False}
