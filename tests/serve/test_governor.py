import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer import PauseConfig
from paumer.serve.governor import Governor, ladder
from paumer.study.tradeoff import Measurement


def point(text, speed, miou):
    return Measurement(pause=PauseConfig.parse(text), images_per_second=speed, miou=miou)


POINTS = [
    point("none", 10.0, 0.70),
    point("3:0.4", 15.0, 0.69),
    point("3:0.6", 20.0, 0.67),
    point("5:0.2", 11.0, 0.60),  # Beaten in both.
]


def test_the_ladder_goes_from_accurate_to_fast():
    assert [str(rung.point.pause) for rung in ladder(POINTS)] == ["none", "3:0.4", "3:0.6"]
    assert [str(rung.point.pause) for rung in ladder(POINTS, 0.68)] == ["none", "3:0.4"]
    with pytest.raises(ValueError, match=r"reaches an mIoU of 90: the best has 70\.00"):
        ladder(POINTS, 0.9)
    with pytest.raises(ValueError, match="run paumer tune first"):
        ladder([Measurement(pause=PauseConfig())])


def test_it_starts_with_the_most_accurate_and_hurries_at_once():
    governor = Governor(ladder(POINTS), target=0.2)
    assert governor.choose(0.0).point.miou == 0.70
    assert governor.choose(0.01, pictures=2.5).point.miou == 0.69
    assert governor.choose(0.02, pictures=9).point.miou == 0.67
    assert governor.changes == 2


def test_it_goes_back_only_after_a_while_and_with_room_to_spare():
    governor = Governor(ladder(POINTS), target=0.2, dwell=2.0)
    governor.choose(0.0, pictures=9)
    assert governor.choose(1.0).point.miou == 0.67
    assert governor.choose(2.5, pictures=1.6).point.miou == 0.69
    assert governor.choose(9.0, pictures=1.6).point.miou == 0.69
    assert governor.choose(9.1, pictures=1).point.miou == 0.70


def test_it_learns_that_the_machine_is_slower():
    governor = Governor(ladder(POINTS), target=0.12)
    for step in range(20):
        rung = governor.choose(step)
        governor.note(rung, 2 * rung.seconds)
    assert governor.factor == pytest.approx(2, rel=0.05)
    assert governor.rung.point.miou == 0.67


def test_steady_load_never_flaps():
    dice = random.Random(0)
    for load in (0.5, 0.8, 1.2, 1.5):
        governor = Governor(ladder(POINTS), target=0.2)
        now = 0.0
        for step in range(3000):
            rung = governor.choose(now, pictures=load)
            took = rung.seconds * dice.uniform(0.95, 1.1)
            governor.note(rung, took)
            now += took
            if step == 100:
                settled = governor.changes
        assert governor.changes - settled <= 1


@given(
    st.lists(st.floats(0.1, 20), max_size=20),
    st.lists(st.floats(0.2, 5), max_size=20),
    st.floats(0.1, 20),
    st.floats(0, 20),
)
def test_more_load_never_gets_a_slower_point(loads, factors, load, more):
    def run(last):
        governor = Governor(ladder(POINTS), target=0.3, dwell=0.5)
        for step, pictures in enumerate(loads):
            rung = governor.choose(step / 10, pictures)
            if step < len(factors):
                governor.note(rung, rung.seconds * factors[step])
        return governor.choose(len(loads) / 10, last)

    assert run(load + more).seconds <= run(load).seconds


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="at least one operating point"):
        Governor((), 1.0)
    with pytest.raises(ValueError, match="target of 0 s"):
        Governor(ladder(POINTS), 0.0)
    with pytest.raises(ValueError, match="calm < alarm"):
        Governor(ladder(POINTS), 1.0, alarm=0.5, calm=0.6)
