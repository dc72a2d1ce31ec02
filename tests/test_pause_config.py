"""The pause configuration: its spelling, its errors, the paper's thirteen, the seeded draw."""

import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.pause_config import (
    DEFAULT_RANGES,
    NO_PAUSE,
    PAPER_CONFIGS,
    MergeConfig,
    PauseConfig,
    Threshold,
    parse_ranges,
)

ratios = st.floats(0, 1, exclude_max=True)
thresholds = st.floats(allow_nan=False, allow_infinity=False).map(Threshold)
blocks = st.sets(st.integers(1, 40), max_size=6).map(sorted)


@st.composite
def configs(draw):
    return PauseConfig(tuple((block, draw(ratios | thresholds)) for block in draw(blocks)))


@given(configs())
def test_reading_what_was_printed_gives_the_same_configuration(config):
    again = PauseConfig.parse(str(config))
    assert again == config
    assert hash(again) == hash(config)
    assert str(again) == str(config)


@given(configs())
def test_the_text_is_also_the_json_form(config):
    line = json.dumps({"pause": str(config)})
    assert PauseConfig.parse(json.loads(line)["pause"]) == config


@given(configs(), configs())
def test_configurations_are_equal_exactly_when_their_texts_are(one, other):
    assert (one == other) == (str(one) == str(other))


def test_zero_has_one_spelling():
    assert str(PauseConfig(((3, -0.0),))) == "3:0"
    assert str(PauseConfig(((3, Threshold(-0.0)),))) == "3:<0"


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("none", ()),
        ("", ()),
        ("3:0.4", ((3, 0.4),)),
        ("3:.4", ((3, 0.4),)),
        (" 3 : 0.2 , 5:0.4 ", ((3, 0.2), (5, 0.4))),
        ("3:0", ((3, 0.0),)),
        ("3:<0.5", ((3, Threshold(0.5)),)),
        ("3:0.2,5:< 1.5", ((3, 0.2), (5, Threshold(1.5)))),
        ("1:4e-1", ((1, 0.4),)),
    ],
)
def test_texts_are_read(text, stages):
    assert PauseConfig.parse(text).stages == stages


def test_it_is_a_value():
    config = PauseConfig.parse("3:0.2,5:<0.4")
    assert {config: 1}[PauseConfig(((3, 0.2), (5, Threshold(0.4))))] == 1
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.blocks == (3, 5)
    assert config
    assert not PauseConfig()
    assert PauseConfig() == NO_PAUSE
    with pytest.raises(FrozenInstanceError):
        config.stages = ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("3:1.2", '"3:1.2"'),
        ("3:1,5:0.2", '"3:1.0"'),
        ("3:-0.2", '"3:-0.2"'),
        ("3:1e999", '"3:inf"'),
        ("3:0.2,3:0.4", "block 3 is given twice"),
        ("5:0.2,3:0.2", "block 3 stands after block 5"),
        ("x:0.2", '"x:0.2"'),
        ("0:0.2", '"0:0.2"'),
        ("-1:0.2", '"-1:0.2"'),
        ("3:nan", '"3:nan"'),
        ("3:inf", '"3:inf"'),
        ("3:", '"3:"'),
        ("3", '"3"'),
        (":0.2", '":0.2"'),
        ("3:0.2,", '"3:0.2,"'),
        ("3:0.2;5:0.2", '"3:0.2;5:0.2"'),
        ("3:0.2,none", '"none"'),
        ("3:<nan", '"3:<nan"'),
        ("3:<", '"3:<"'),
        ("3:<1e999", "<inf"),
        ("3.5:0.2", '"3.5:0.2"'),
        ("9" * 5000 + ":0.2", "999:0.2"),
    ],
)
def test_bad_text_is_refused_naming_the_part(text, named):
    with pytest.raises(ValueError) as raised:
        PauseConfig.parse(text)
    assert named in str(raised.value)
    assert type(raised.value) is ValueError


@given(st.text("0123456789:,.<eE+-naif x", max_size=12))
def test_any_text_is_read_or_refused_in_words(text):
    try:
        config = PauseConfig.parse(text)
    except ValueError as error:
        said = str(error)
    else:
        said = f'"{PauseConfig.parse(str(config))}"'
    assert '"' in said


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, 1.5, -1e-9])
def test_impossible_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match="out of range"):
        PauseConfig(((3, ratio),))


@pytest.mark.parametrize("block", [3.0, 3.5, True, "3", None])
def test_a_block_is_a_whole_number(block):
    with pytest.raises(TypeError, match=f"^block is {block!r}: give a whole number"):
        PauseConfig(((block, 0.4),))


def test_numbers_of_numpy_become_plain_ones():
    config = PauseConfig(((np.int64(3), np.float32(0.5)),))
    assert config == PauseConfig.parse("3:0.5")
    assert [type(value) for value in config.stages[0]] == [int, float]


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("3:0-0.9,5:0.2-0.6", {3: (0, 0.9), 5: (0.2, 0.6)}),
        ("3-9:0.2-0.8", DEFAULT_RANGES),
        (" 2-3 : .1-.5 ", {2: (0.1, 0.5), 3: (0.1, 0.5)}),
    ],
)
def test_ranges_are_read(text, ranges):
    assert parse_ranges(text) == ranges


@pytest.mark.parametrize("text", ["3:.-.", "3:0.1.2-0.5", "3:0.4", "x", "", "3-:0-0.5", "3:0.2-"])
def test_ranges_that_cannot_be_read_are_refused_in_words(text):
    with pytest.raises(ValueError, match=r"^cannot read .* in ranges .*: write block:least-most"):
        parse_ranges(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3:0.5-0.2", "ratios of .* must rise from 0 or more to less than 1"),
        ("3:0.5-1", "ratios of"),
        ("5-3:0-0.5", "names no blocks"),
        ("0:0-0.5", "names no blocks"),
    ],
)
def test_ranges_that_cannot_be_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_ranges(text)


@pytest.mark.parametrize("below", [math.nan, math.inf, -math.inf])
def test_a_threshold_must_be_a_finite_number(below):
    with pytest.raises(ValueError, match="threshold"):
        Threshold(below)


def test_a_block_beyond_the_backbone_is_refused_in_one_sentence():
    with pytest.raises(ValueError) as raised:
        PauseConfig.parse("3:0.2,14:0.5").check(12)
    assert str(raised.value) == (
        "cannot pause after block 14: this backbone has 12 blocks "
        '(pause configuration "3:0.2,14:0.5")'
    )


def test_pausing_after_the_last_block_needs_early_exit():
    config = PauseConfig.parse("12:0.5")
    config.check(12, early_exit=True)
    config.check(13)
    with pytest.raises(ValueError, match="early exit"):
        config.check(12)
    with pytest.raises(ValueError, match="has 11 blocks"):
        config.check(11, early_exit=True)


def test_the_papers_thirteen_are_in_its_order():
    assert [str(config) for config in PAPER_CONFIGS] == [
        "3:0.2",
        "3:0.4",
        "3:0.6",
        "5:0.2",
        "5:0.4",
        "5:0.6",
        "5:0.8",
        "3:0.2,5:0.2",
        "3:0.3,5:0.3",
        "3:0.4,5:0.4",
        "3:0.2,5:0.2,7:0.2",
        "3:0.3,5:0.3,7:0.3",
        "3:0.4,5:0.4,7:0.4",
    ]


@given(
    st.integers(),
    st.integers(0, 10**9),
    st.dictionaries(st.integers(1, 24), st.tuples(ratios, ratios).map(sorted).map(tuple)),
)
def test_a_draw_is_one_block_of_the_ranges_with_a_ratio_in_its_range(seed, step, ranges):
    if not ranges:
        with pytest.raises(ValueError, match="no block to draw from"):
            PauseConfig.draw(seed, step, ranges)
        return
    ((block, ratio),) = PauseConfig.draw(seed, step, ranges).stages
    low, high = ranges[block]
    assert low <= ratio <= high
    assert PauseConfig.draw(seed, step, dict(reversed(ranges.items()))).stages == ((block, ratio),)


@given(st.integers(), st.integers(0, 10**9), st.integers(1, 5), st.integers(0, 6))
def test_a_drawn_merging_has_one_ratio_up_to_a_block(seed, step, first, more):
    ranges = dict.fromkeys(range(first, first + more + 1), (0.1, 0.3))
    drawn = MergeConfig.draw(seed, step, ranges)
    blocks, ratios = zip(*drawn.stages, strict=True)
    assert blocks == tuple(range(first, blocks[-1] + 1))
    assert blocks[-1] in ranges
    assert len(set(ratios)) == 1
    assert 0.1 <= ratios[0] <= 0.3
    assert drawn == MergeConfig.draw(seed, step, ranges)


def test_draws_are_roughly_uniform_over_blocks_and_ratios():
    drawn = [PauseConfig.draw(7, step).stages[0] for step in range(7000)]
    counts = Counter(block for block, _ in drawn)
    assert set(counts) == set(DEFAULT_RANGES) == set(range(3, 10))
    assert all(abs(count - 1000) < 150 for count in counts.values())
    tenths = Counter(int((ratio - 0.2) / 0.06) for _, ratio in drawn)
    assert all(abs(tenths[tenth] - 700) < 120 for tenth in range(10))


def test_draws_differ_by_seed_and_by_step():
    assert len({PauseConfig.draw(seed, step) for seed in range(20) for step in range(20)}) == 400
    assert PauseConfig.draw(1, 11) != PauseConfig.draw(11, 1)


def test_another_process_draws_alike():
    code = (
        "from paumer.pause_config import PauseConfig\n"
        "print([str(PauseConfig.draw(3, step)) for step in range(50)])"
    )
    here = str([str(PauseConfig.draw(3, step)) for step in range(50)])
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here
