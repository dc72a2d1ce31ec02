"""A network that merges patches, against a slow loop and against itself."""

import merge_loop
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paumer.merging import merged_count
from paumer.mode import Mode

KINDS = ("plain", "distilled", "registers", "no prefix", "rotary")
TEXTS = (
    "1:~0.2", "1-3:~0.2", "1:~0.3,2:0.3", "1:0.3,2:~0.3", "1-4:~0.1,2:0.3,4:0.3",
    "2:~0.3,2:0.4", "1-3:~0.2,4:0.5 exit", "1:0.2,2:~0.4,3:0.3 exit", "3:1 exit",
    "1-2:~0.3,4:1 exit", "1:0.3,2:~0.2,3:1 exit", "6:~0.4",
)  # fmt: skip


def images(batch=2, height=40, width=56, seed=1, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=rng, dtype=torch.float64).to(dtype)


def agree(model, text, batch=2):
    given = images(batch)
    with torch.inference_mode():
        found = model(given, text, full_size=False)
        for number, image in enumerate(given):
            logits, paused, merged = merge_loop.segment(model, image, Mode.parse(text))
            assert found.paused_after()[number].flatten().tolist() == paused
            assert found.merged_after()[number].flatten().tolist() == merged
            assert torch.allclose(found.logits[number], logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_it_does_what_the_loop_does(small_model, kind, text):
    agree(small_model(kind, double=True), text)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("text", TEXTS)
def test_the_mask_decoder_sees_merged_patches_as_if_they_were_all_there(small_model, depth, text):
    agree(small_model("plain", "mask", depth=depth, double=True), text, batch=1)


@pytest.mark.parametrize("text", [text for text in TEXTS if "exit" not in text])
def test_pup_gets_every_patch(small_model, text):
    agree(small_model("plain", "pup", channels=16, double=True), text, batch=1)


@pytest.mark.parametrize("text", ["1-5:~0", "1-5:~0.001", "1:~0,3:0.4"])
def test_merging_none_changes_no_bit(small_model, text):
    model = small_model("plain", "mask", depth=1)
    plain = ",".join(part for part in text.split(",") if "~" not in part) or "none"
    with torch.inference_mode():
        one, other = (model(images(dtype=torch.float32), mode) for mode in (text, plain))
    assert torch.equal(one.logits, other.logits)
    assert not one.merges


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_merging_equal_patches_changes_nothing(small_model, decoder, monkeypatch):
    model = small_model("plain", decoder, double=True)
    monkeypatch.setattr(model.backbone, "_positions_of", lambda grid: (None, None))
    even = torch.ones(1, 3, 40, 56).double()
    with torch.inference_mode():
        one, other = model(even, "1-4:~0.4"), model(even)
    assert one.merges
    assert torch.allclose(one.logits, other.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_an_image_does_not_feel_its_companions(small_model, text):
    model, given = small_model("plain", "mask", depth=1, double=True), images(3)
    with torch.inference_mode():
        together = model(given, text).logits
        alone = torch.cat([model(one[None], text).logits for one in given])
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)


def test_a_threshold_after_merging_groups_images(small_model):
    model, given = small_model("plain", "mask", depth=1, double=True), images(4)
    with torch.inference_mode():
        together = model(given, "1:~0.2,2:<1.3,3:~0.2")
        alone = [model(one[None], "1:~0.2,2:<1.3,3:~0.2") for one in given]
    assert len({int((one.paused_after() > 0).sum()) for one in alone}) > 1
    for number, one in enumerate(alone):
        assert torch.allclose(together.logits[number], one.logits[0], rtol=0, atol=1e-12)
        assert torch.equal(together.paused_after()[number], one.paused_after()[0])
        assert torch.equal(together.merged_after()[number], one.merged_after()[0])


def test_modes_that_share_a_beginning_give_what_each_gives_alone(small_model):
    model, given = small_model("plain", "mask", depth=1), images(2, dtype=torch.float32)
    modes = [Mode.parse(text) for text in (*TEXTS, "none", "2:0.4")]
    with torch.inference_mode():
        found = dict(model.forward_many(given, modes))
        for number, mode in enumerate(modes):
            assert torch.equal(found[number].logits, model(given, mode, full_size=False).logits)


@pytest.mark.parametrize(
    ("decoder", "options"), [("linear", {}), ("mask", {"depth": 2}), ("pup", {"channels": 16})]
)
@pytest.mark.parametrize("text", TEXTS)
def test_macs_are_what_a_counter_counts(small_model, decoder, options, text):
    if decoder == "pup" and "exit" in text:
        pytest.skip("PUP has no early exit")
    model = small_model("plain", decoder, **options)
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(images(1, dtype=torch.float32), text)
    assert 2 * model.macs((40, 56), text) == counter.get_total_flops()


def test_all_that_leave_spare_the_rest(small_model):
    model = small_model("plain", "mask", depth=2)
    assert model.macs((40, 56), "3:1 exit") < model.macs((40, 56), "3:0.99 exit")
    with torch.inference_mode():
        found = model(images(1, dtype=torch.float32), "3:1 exit", full_size=False)
    assert (found.paused_after() == 3).all()


@pytest.mark.parametrize("text", ["1-3:~0.3", "1-2:~0.2,3:0.4", "1:~0.3,4:0.5 exit"])
def test_every_parameter_gets_a_gradient(small_model, text):
    model = small_model("plain", "mask", depth=1)
    found = model(images(2, dtype=torch.float32), text)
    (found.logits.square().sum() + sum(s.logits.square().sum() for s in found.stages)).backward()
    unused = () if found.stages else ("aux_head.weight", "aux_head.bias")
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) or name in unused, name
    model.zero_grad()


def test_it_runs_in_mixed_precision(small_model):
    model = small_model("plain", "mask", depth=1)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        low = model(images(1, dtype=torch.float32), "1-3:~0.2").logits.float()
    assert low.isfinite().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7:~0.1", "nothing is left to merge after block 7"),
        ("3:~0.1,2:1 exit", "nothing is left to merge after block 3"),
    ],
)
def test_mergings_that_cannot_happen_are_refused(small_model, text, message):
    with pytest.raises(ValueError, match=message):
        small_model()(images(1, dtype=torch.float32), text)


def test_a_half_is_the_most(small_model):
    model = small_model()
    with torch.inference_mode():
        found = model(images(1, dtype=torch.float32), "1:~0.5", full_size=False)
    patches = found.grid[0] * found.grid[1]
    assert int((found.merged_after() > 0).sum()) == patches - merged_count(patches, 0.5)
