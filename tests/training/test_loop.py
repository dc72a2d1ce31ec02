"""The training loop: what a step draws, how it attends, at what rate it learns."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

from paumer import Mode, build_model
from paumer.criteria import entropy
from paumer.pause_config import PauseConfig
from paumer.training.feed import Batch
from paumer.training.loop import Training, attention, learning_rate, make_optimizer
from paumer.training.losses import LossSettings, PausingLoss
from paumer.training.options import TrainOptions

CPU = torch.device("cpu")


@pytest.fixture
def training(lively):
    network = lively(
        build_model("test_vit", "mask", 3, image_size=64, decoder_options={"dropout": 0.0})
    )
    options = TrainOptions(ranges="1:0.2-0.8,3:0.5-0.6", dropout=0.0, drop_path=0.0)
    return Training(options, Fabric(accelerator="cpu", devices=1), PausingLoss(network).train())


@pytest.fixture
def batch():
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 60, 64, generator=rng)
    return Batch(5, ("a", "b"), images, torch.randint(0, 3, (2, 60, 64), generator=rng))


def test_a_step_draws_one_pause_from_the_ranges(training):
    modes = [training.draw(step) for step in range(40)]
    assert modes == [training.draw(step) for step in range(40)]
    ranges = {1: (0.2, 0.8), 3: (0.5, 0.6)}
    assert modes == [Mode(pause=PauseConfig.draw(0, step, ranges)) for step in range(40)]
    for mode in modes:
        ((block, ratio),) = mode.pause.stages
        assert ranges[block][0] <= ratio <= ranges[block][1]
    assert {mode.pause.blocks for mode in modes} == {(1,), (3,)}
    assert len(set(modes)) == 40


@pytest.mark.parametrize("change", [{"criterion": "none"}, {"learn": "aux"}])
def test_where_nothing_learns_to_pause_nothing_pauses(training, change):
    training.options = replace(training.options, **change)
    assert {training.draw(step) for step in range(20)} == {Mode()}


def test_at_random_a_patch_scores_the_same_in_any_part_of_the_batch(training, batch):
    logits = torch.zeros(2, 16, 3)
    indices = torch.arange(32).view(2, 16)
    assert training.criterion(batch, 0) is entropy
    training.options = replace(training.options, criterion="random")
    whole = training.criterion(batch, 0)(logits, indices)
    later = training.criterion(batch, 1)(logits[:1], indices[:1])
    assert torch.equal(whole[1:], later)
    other = training.criterion(batch._replace(step=6), 0)(logits, indices)
    assert not torch.equal(whole, other)


def test_in_bf16_on_a_cpu_attention_is_plain_products_and_says_the_same(training, batch):
    loss, options = training.loss, replace(training.options, precision="bf16")
    expected = loss(batch.images, batch.labels, "none", entropy).main.item()
    fused = {}
    for how, context in {"usual": nullcontext(), "plain": attention(options, CPU)}.items():
        bf16 = torch.autocast("cpu", torch.bfloat16)
        with torch.profiler.profile() as profile, context, bf16:
            found = loss(batch.images, batch.labels, "none", entropy).main.item()
        assert found == pytest.approx(expected, rel=0.01)
        fused[how] = any("flash" in event.key for event in profile.key_averages())
    assert fused == {"usual": True, "plain": False}


def test_the_learning_rate_rises_and_then_falls():
    options = TrainOptions(lr=1.0, min_lr=0.1, warmup=4, steps=14)
    rates = [learning_rate(options, step) for step in range(14)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[9] == pytest.approx(0.1 + 0.9 * 0.5**0.9)
    assert 0.1 < rates[-1] < 0.25


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_only_matrices_decay_and_heads_have_a_rate_of_their_own(training, name):
    options = replace(training.options, optimizer=name, weight_decay=0.3, head_lr=5.0)
    groups = make_optimizer(training.loss, options).param_groups
    names = {parameter: key for key, parameter in training.loss.network.named_parameters()}
    seen = []
    for group in groups:
        for parameter in group["params"]:
            key = names[parameter]
            seen.append(key)
            bare = parameter.ndim < 2 or key.endswith(("_token", "pos_embed", "_embedding"))
            assert group["weight_decay"] == (0.0 if bare else 0.3), key
            assert group["factor"] == (1.0 if key.startswith("backbone.") else 5.0), key
    assert sorted(seen) == sorted(names.values())


def test_each_block_learns_at_a_lower_rate_than_the_next(training):
    options = replace(training.options, layer_decay=0.5, head_lr=3.0)
    groups = make_optimizer(training.loss, options).param_groups
    names = {parameter: key for key, parameter in training.loss.network.named_parameters()}
    depth, seen = training.loss.network.backbone.depth, set()
    for group in groups:
        for parameter in group["params"]:
            parts = names[parameter].split(".")
            if parts[0] != "backbone":
                layer, expected = "head", 3.0
            elif parts[2] == "blocks":
                layer = int(parts[3]) + 1
                expected = 0.5 ** (depth + 1 - layer)
            else:
                layer = depth + 1 if parts[2] == "norm" else 0
                expected = 0.5 ** (depth + 1 - layer)
            assert group["factor"] == expected, names[parameter]
            seen.add(layer)
    assert seen == {"head", *range(depth + 2)}


def test_the_average_of_the_weights_is_an_exponential_one(training, batch):
    options = replace(training.options, ema=0.75)
    task = Training(options, training.fabric, training.loss)
    expected = None
    for step in range(4):
        task.run([batch._replace(step=step)], after=lambda _: None)
        weights = task.loss.network.aux_head.weight.detach().clone()
        expected = weights if expected is None else 0.75 * expected + 0.25 * weights
    found = task.result.network
    assert torch.allclose(found.aux_head.weight, expected, rtol=1e-6)
    assert not torch.allclose(found.aux_head.weight, weights, rtol=1e-4)
    assert training.result is training.loss
    assert "average" not in training.state()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_dice_is_a_mean_over_images_times_its_weight(training, batch, accumulate):
    network = training.loss.network.eval()
    loss = PausingLoss(network, settings=LossSettings(dice=True))
    parts = loss(batch.images, batch.labels, "none", entropy)
    wanted = parts.main / batch.labels.numel() + 3 * parts.dice / 2
    expected = torch.autograd.grad(wanted, network.decoder.project.weight)[0]
    options = replace(training.options, dice=3.0, batch=2, criterion="none", accumulate=accumulate)
    task, metrics = Training(options, training.fabric, loss), []
    task.run([batch], after=metrics.append)
    found = network.decoder.project.weight.grad
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-6)
    assert metrics[0]["dice_loss"] == pytest.approx(parts.dice.item() / 2, rel=1e-5)
