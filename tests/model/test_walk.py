"""Many modes in one walk: every step once, and each result as if its mode had run alone."""

import copy
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paumer import Mode, PauseConfig, criteria
from paumer.model.config import ModelConfig
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Branch, Pause, active_counts

DEPTH = 6


def random_images(batch=2, height=40, width=56):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def configured(model, **options):
    """The same weights in a network whose classes have names."""
    other = copy.copy(model)
    other.config = ModelConfig("by hand", "mask", tuple("abcde"), (48, 48), **options)
    return other


def parse(*texts):
    return [Mode.parse(text) for text in texts]


# The tree


def test_equal_beginnings_are_one_branch():
    first, second, third = (Pause(block, 0.4, criteria.entropy) for block in (2, 4, 5))
    chains = [(0, []), (1, [first, third]), (2, [second]), (3, [first]), (4, [first, second])]
    tree = Branch.tree(chains)
    assert list(tree.ends) == [0]
    (pause, shared), (later, last) = tree.coming
    assert (pause, later) == (first, second)
    assert (list(shared.ends), list(last.ends)) == ([3], [2])
    assert [(pause, list(branch.ends)) for pause, branch in shared.coming] == [
        (second, [4]),
        (third, [1]),
    ]


def test_another_criterion_is_another_branch():
    own = [Pause(2, 0.4, criteria.entropy), Pause(2, 0.4, criteria.neighbours((5, 7)))]
    tree = Branch.tree([(number, [pause]) for number, pause in enumerate(own)])
    assert [pause for pause, _ in tree.coming] == own


# The steps


def expected_steps(modes):
    """Every block, pause and end that the modes need, each of them once."""
    blocks, pauses = set(), set()
    for mode in modes:
        key, stages = (mode.criterion, mode.protect), mode.pause.stages
        for block in range(1, DEPTH + 1):
            before = tuple(stage for stage in stages if stage[0] < block)
            blocks.add((block, before, key if before else None))
        pauses |= {(stages[: count + 1], key) for count in range(len(stages))}
    return blocks, pauses


def paused_blocks(stages):
    return tuple(block for block, _ in stages)


stages = st.dictionaries(st.integers(1, DEPTH - 1), st.sampled_from([0.0, 0.3, 0.6]), max_size=3)
some_modes = st.lists(
    st.builds(
        lambda chosen, criterion: Mode(
            pause=PauseConfig(tuple(sorted(chosen.items()))), criterion=criterion
        ),
        stages,
        st.sampled_from(["entropy", "neighbours"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25)
@given(some_modes)
def test_steps_are_every_block_pause_and_end_once(small_model, modes):
    model, images = small_model(), random_images(1, 16, 24)
    with torch.inference_mode():
        branch = model.plan(modes, model.grid(images), {})
        steps = list(model.steps(images, branch))
    for step in steps:
        assert len(step.walks) == 1
        assert not (step.paused and step.ends)
    blocks, pauses = expected_steps(modes)
    found = Counter(
        (step.block, tuple(stage.block for stage in step.walks[0].stages))
        for step in steps
        if not step.paused and not step.ends
    )
    assert found == Counter((block, paused_blocks(before)) for block, before, _ in blocks)
    found = Counter(
        tuple(stage.block for stage in step.walks[0].stages) for step in steps if step.paused
    )
    assert found == Counter(paused_blocks(before) for before, _ in pauses)
    ends = [number for step in steps for number in step.ends]
    assert sorted(ends) == list(range(len(modes)))
    for step in steps:
        own = tuple(stage.block for stage in step.walks[0].stages)
        assert all(modes[number].pause.blocks == own for number in step.ends)
        assert not step.ends or step.block == DEPTH


def test_blocks_and_pauses_come_in_order(small_model):
    images = random_images(1)
    model = small_model()
    branch = model.plan(parse("2:0.4", "none", "2:0.4,5:0.5"), model.grid(images), {})
    with torch.inference_mode():
        seen = [(step.block, step.paused, list(step.ends)) for step in model.steps(images, branch)]
    block, pause = False, True
    assert seen == [
        *((number, block, []) for number in (1, 2)),
        (2, pause, []),
        *((number, block, []) for number in (3, 4, 5)),
        (5, pause, []),
        (6, block, []),
        (6, block, [2]),
        (6, block, []),  # The walk that paused once had gone to block 5 already.
        (6, block, [0]),
        *((number, block, []) for number in (3, 4, 5, 6)),
        (6, block, [1]),
    ]


def test_each_step_is_reported_and_may_stop_the_walk(small_model):
    modes, images, seen = parse("2:0.4", "2:0.4,4:0.5 exit", "none"), random_images(), []
    model = small_model()
    with torch.inference_mode():
        branch = model.plan(modes, model.grid(images), {})
        count = len(list(model.steps(images, branch)))
        list(model.forward_many(images, modes, each_step=lambda: seen.append(1)))
    assert len(seen) == count

    def stop():
        seen.append(1)
        if len(seen) == 5:
            raise TimeoutError

    seen.clear()
    with torch.inference_mode(), pytest.raises(TimeoutError):
        list(model.forward_many(images, modes, each_step=stop))
    assert len(seen) == 5


@pytest.mark.parametrize("kind", ["plain", "registers", "rotary"])
def test_each_block_gives_what_timms_blocks_give(small_model, kind):
    model, images = small_model(kind), random_images()
    with torch.inference_mode():
        found = list(model.each_block(images))
        tokens, table = model.backbone.embed(images)
        assert len(found) == DEPTH
        for block, after in zip(model.backbone.vit.blocks, found, strict=True):
            tokens = block(tokens) if table is None else block(tokens, rope=table)
            assert torch.equal(after, tokens)


# The results


MANY = (
    "none",
    "2:0.4",
    "2:0.4 exit",
    "2:0.4,4:0.5",
    "2:0.4,4:0.5 exit",
    "2:0.4 by=neighbours",
    "2:0.4,4:0.5 exit by=neighbours",
    "2:0.4 protect=c",
    "2:0.4,4:0.5 by=neighbours protect=b+d",
    "2:0.4,4:0.5 exit protect=b+d",
    "2:<1.2,4:<1.2",
    "2:<1.2,4:0.3 exit by=neighbours",
    "4:0.3 by=random",
    "2:0.4,4:0.5 exit by=oracle protect=c",
    "2:0.4",
)


@pytest.mark.parametrize("kind", ["plain", "registers", "rotary", "rotary only"])
@pytest.mark.parametrize("context", [False, True])
def test_many_modes_are_each_mode_alone_to_the_last_bit(small_model, kind, context):
    model = configured(small_model(kind, "mask", depth=1), context=context)
    images, modes = random_images(3), parse(*MANY)
    truth = torch.randint(0, 5, (3, 35), generator=torch.Generator().manual_seed(0))
    known = {"random": criteria.random(3), "oracle": criteria.oracle(truth)}
    with torch.inference_mode():
        together = list(model.forward_many(images, modes, known))
        assert sorted(number for number, _ in together) == list(range(len(modes)))
        for number, found in together:
            own = known.get(modes[number].criterion)
            alone = model(images, modes[number], own, full_size=False)
            assert torch.equal(found.logits, alone.logits)
            assert torch.equal(found.paused_after(), alone.paused_after())
            for one, other in zip(found.stages, alone.stages, strict=True):
                assert torch.equal(one.score, other.score)
    results = {str(modes[number]): found.logits for number, found in together}
    differ = [logits for text, logits in results.items() if "2:0.4" in text]
    assert all(
        not torch.equal(one, other)
        for place, one in enumerate(differ)
        for other in differ[place + 1 :]
    )


def test_what_modes_have_in_common_is_computed_once(small_model, monkeypatch):
    model, images = configured(small_model()), random_images()
    modes = parse("none", "3:0.4", "3:0.4 exit", "3:0.4,5:0.5", "3:0.4 by=neighbours", "5:0.2")
    blocks, pauses = expected_steps(modes)
    calls = Counter()
    for name in ("run_block", "pause"):
        own = getattr(PausingSegmenter, name)

        def counted(self, *args, own=own, name=name):
            calls[name] += 1
            return own(self, *args)

        monkeypatch.setattr(PausingSegmenter, name, counted)
    with torch.inference_mode():
        list(model.forward_many(images, modes))
    assert calls == {"run_block": len(blocks), "pause": len(pauses)}
    assert len(blocks) < len(modes) * DEPTH


def test_each_stage_counts_what_the_ones_before_it_left():
    counts = active_counts(1024, Mode.parse("3:0.4,5:0,7:0.2"))
    assert counts == [(3, False, 615), (5, False, 615), (7, False, 492)]
    mixed = active_counts(100, Mode.parse("1-2:~0.1,2:0.5,4:1 exit"))
    assert mixed == [(1, True, 90), (2, True, 81), (2, False, 41), (4, False, 0)]
    assert active_counts(1, Mode.parse("3:0.9")) == [(3, False, 1)]
    assert active_counts(1, Mode.parse("3:~0.5")) == [(3, True, 1)]
    assert active_counts(9, Mode()) == []
    with pytest.raises(ValueError, match="depends on the image"):
        active_counts(9, Mode.parse("3:0.4,5:<1"))
