"""The search through sizes, mergings, pauses and exits."""

from functools import partial

import pytest

from paumer import Measurement, Mode
from paumer.study.cost import predict_speed
from paumer.study.dial import MARGIN, dial_modes, near, search_dial, smaller_sides


def test_sizes_are_smaller_and_of_whole_patches():
    sides = smaller_sides(360, 16)
    assert sides == sorted(sides, reverse=True)
    assert all(side % 16 == 0 and 170 < side < 360 for side in sides)
    assert len(sides) == 5
    assert smaller_sides(32, 16) == []


TEMPLATE = Mode.parse("1:0.5 by=neighbours protect=a")


@pytest.mark.parametrize("depth", [4, 6, 12, 24])
def test_modes_are_of_all_kinds_and_each_can_run(depth):
    modes = dial_modes(depth, [32, 48], TEMPLATE)
    assert len(set(modes)) == len(modes)
    kinds = {(bool(m.merge), bool(m.pause), m.early_exit, m.size) for m in modes}
    assert len(kinds) == 3 * 6 - 1  # Three sizes; all but nothing at all at the usual one.
    for mode in modes:
        mode.pause.check(depth, mode.early_exit)
        assert all(block < depth for block, _ in mode.merge.stages)
        assert mode.criterion == ("neighbours" if mode.pause else "entropy")
        assert mode.protect == (("a",) if mode.pause else ())
        assert Mode.parse(str(mode)) == mode
    assert not any(mode.early_exit for mode in dial_modes(depth, [], TEMPLATE, exits=False))


@pytest.fixture
def predict(plain_table):
    return partial(predict_speed, {None: plain_table(), 48: plain_table(60)})


def test_only_what_should_just_be_fast_enough_is_near(predict):
    modes = dial_modes(6, [48], Mode.parse("1:0.5"))
    found = near(predict, modes, 1.5)
    assert 10 < len(found) < len(modes)
    assert all(1.5 <= predict(mode).speed_up <= MARGIN * 1.5 for mode in found)
    assert {mode.size for mode in found} == {None, 48}
    assert {bool(mode.merge) for mode in found} == {True, False}


def test_the_best_of_few_images_are_counted_on_all(predict):
    modes, calls = dial_modes(6, [48], Mode.parse("1:0.5")), []

    def measure(modes, few):
        calls.append((few, list(modes)))
        found = [predict(mode) for mode in modes]
        # Merging loses least here.
        return [
            Measurement(
                mode=item.mode,
                images_per_second=item.images_per_second,
                speed_up=item.speed_up,
                miou=0.7 - 0.1 * bool(item.mode.pause),
            )
            for item in found
        ]

    found = search_dial(measure, predict, modes, [1.2], most=24)
    (few, tried), (all_of_them, best) = calls
    assert (few, all_of_them) == (True, False)
    assert len(tried) == 24
    assert len(best) == 6
    assert [item.mode for item in found] == best
    assert set(best) <= set(tried)
    merging = [mode for mode in tried if not mode.pause]
    assert len(merging) >= 4
    assert sum(not mode.pause for mode in best) == min(len(best), len(merging))
    assert search_dial(measure, predict, modes, [50.0], most=4) == []
