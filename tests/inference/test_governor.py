import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.inference.governor import Governor, ladder
from paumer.measurement import Measurement
from paumer.mode import UNPAUSED, Mode


def point(text, speed, miou):
    return Measurement(mode=Mode.parse(text), images_per_second=speed, miou=miou)


def seconds_of(rung):
    return 1 / rung.images_per_second


POINTS = [
    point("none", 10.0, 0.70),
    point("3:0.4", 15.0, 0.69),
    point("3:0.6", 20.0, 0.67),
    point("5:0.2", 11.0, 0.60),  # Beaten in both.
]


def test_the_ladder_goes_from_accurate_to_fast():
    assert [str(rung.mode) for rung in ladder(POINTS)] == ["none", "3:0.4", "3:0.6"]
    assert [str(rung.mode) for rung in ladder(POINTS, 0.68)] == ["none", "3:0.4"]
    with pytest.raises(ValueError, match=r"reaches an mIoU of 90: the best has 70\.00"):
        ladder(POINTS, 0.9)
    with pytest.raises(ValueError, match="run paumer tune first"):
        ladder([Measurement(mode=UNPAUSED)])


def test_it_starts_with_the_most_accurate_and_hurries_at_once():
    governor = Governor(ladder(POINTS), target=0.2)
    assert governor.choose(0.0).miou == 0.70
    governor.note(0.25)
    assert governor.choose(0.1).miou == 0.69
    assert governor.choose(0.2, lag=0.3).miou == 0.67
    assert governor.changes == 2


def test_it_goes_back_only_after_a_while_and_with_room_to_spare():
    governor = Governor(ladder(POINTS), target=0.12, dwell=2.0)
    governor.choose(0.0, lag=0.5)
    assert governor.choose(1.0).miou == 0.67
    assert governor.choose(2.5).miou == 0.69
    assert governor.choose(9.0).miou == 0.69
    for _ in range(20):
        governor.note(0.8 * seconds_of(governor.rung))
    assert governor.choose(9.1).miou == 0.70


def test_it_learns_that_the_machine_is_slower():
    governor = Governor(ladder(POINTS), target=0.12)
    for step in range(20):
        rung = governor.choose(step)
        governor.note(2 * seconds_of(rung))
    assert governor.factor == pytest.approx(2, rel=0.05)
    assert governor.rung.miou == 0.67


def drive(target, seconds=300, slow=lambda now: 1.0, camera=None):
    """A video on a clock of its own: when each frame was done, which were late, the changes."""
    rng, now, done, late, changes = random.Random(0), 0.0, [], [], []
    governor = Governor(ladder(POINTS), target, dwell=1.0)
    while now < seconds:
        arrived = len(done) / camera if camera else 0.0
        now = max(now, arrived)
        lag = governor.lag(arrived, now)
        rung = governor.choose(now, lag)
        took = seconds_of(rung) * rng.uniform(0.9, 1.2) * slow(now)
        governor.note(took)
        now += took
        done.append(now)
        late.append(lag + took > 2 * target)
        changes.append(governor.changes)
    return done, late, changes


def test_a_camera_slower_than_the_target_is_no_hurry():
    _, late, changes = drive(1 / 7, camera=5)
    assert not any(late)
    assert changes[-1] == 0


def test_being_ahead_is_no_credit():
    _, late, _ = drive(1 / 8, slow=lambda now: 4.0 if 100 < now < 110 else 1.0)
    assert sum(late) > 10


@pytest.mark.parametrize("rate", [8, 9.5, 11, 12, 13, 14, 15.5])
def test_a_rate_between_the_slowest_and_the_fastest_point_is_held_without_flapping(rate):
    done, late, changes = drive(1 / rate)
    assert len(done) / done[-1] >= 0.99 * rate
    assert sum(late) <= 0.02 * len(late)
    assert changes[-1] - changes[100] <= 2


@pytest.mark.parametrize("rate", [9.5, 11, 13])
def test_a_rate_is_held_while_another_takes_a_part_of_the_machine(rate):
    done, late, _ = drive(1 / rate, slow=lambda now: 1.35 if 100 < now < 200 else 1.0)
    assert len(done) / done[-1] >= 0.99 * rate
    assert sum(late) <= 0.05 * len(late)


@given(st.lists(st.floats(0.2, 5), max_size=20), st.floats(0, 2), st.floats(0, 2))
def test_more_lag_never_gets_a_slower_point(factors, lag, more):
    def run(last):
        governor = Governor(ladder(POINTS), target=0.3, dwell=0.5)
        for step, factor in enumerate(factors):
            rung = governor.choose(step / 10)
            governor.note(seconds_of(rung) * factor)
        return governor.choose(len(factors) / 10, last)

    assert seconds_of(run(lag + more)) <= seconds_of(run(lag))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="at least one operating point"):
        Governor((), 1.0)
    with pytest.raises(ValueError, match="target of 0 s"):
        Governor(ladder(POINTS), 0.0)
