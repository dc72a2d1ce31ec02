import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.inference.governor import Due, Governor, Pace, ladder
from paumer.measurement import Measurement
from paumer.mode import UNPAUSED, Mode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import traces


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
SPEEDS = (1, 1.4, 1.93, 2.39, 3)
SECONDS = tuple(1 / speed for speed in SPEEDS)
MIOU = (59.6, 59.4, 59.1, 58.6, 57.9)
TARGET = 8.0


def test_the_ladder_goes_from_accurate_to_fast():
    assert [str(rung.mode) for rung in ladder(POINTS)] == ["none", "3:0.4", "3:0.6"]
    assert [str(rung.mode) for rung in ladder(POINTS, 0.68)] == ["none", "3:0.4"]
    with pytest.raises(ValueError, match=r"reaches an mIoU of 90: the best has 70\.00"):
        ladder(POINTS, 0.9)
    with pytest.raises(ValueError, match="run paumer tune first"):
        ladder([Measurement(mode=UNPAUSED)])


deadlines = st.lists(st.floats(0.0, 20.0), max_size=12)
factors = st.floats(0.3, 4)


def due(times):
    return [Due(by, SECONDS) for by in sorted(times)]


@given(deadlines, factors)
def test_no_accuracy_is_given_up_that_no_deadline_asks_for(times, factor):
    governor = Governor(len(SECONDS), factor=factor)
    rung = governor.choose([0.0], due(times))
    in_time = [
        max(governor.late([0.0], due(times), rung), default=0) <= 0 for rung in range(len(SECONDS))
    ]
    assert rung == (in_time.index(True) if any(in_time) else len(SECONDS) - 1)


@given(deadlines, factors, st.floats(0, 5), st.floats(0, 5))
def test_more_load_never_gets_a_slower_rung(times, factor, sooner, more):
    def rung(times, factor=factor):
        return Governor(len(SECONDS), factor=factor).choose([0.0], due(times))

    usual = rung(times)
    assert rung([by - sooner for by in times]) >= usual
    assert rung([*times, more]) >= usual
    assert rung(times, factor + more) >= usual


def test_every_rung_is_used_as_the_queue_grows():
    governor = Governor(len(SECONDS))
    rungs = [governor.choose([0.0], due([4.0] * count)) for count in range(13)]
    assert rungs == sorted(rungs)
    assert set(rungs) == set(range(len(SECONDS)))
    assert governor.changes == len(SECONDS) - 1
    assert governor.choose([0.0], []) == 0


def test_a_slower_machine_is_learned_and_a_stall_is_not():
    governor = Governor(2)
    governor.note(0.1, 50.0)
    assert governor.factor < 1.3
    for _ in range(100):
        governor.note(0.1, 0.2)
    assert governor.factor == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("name", traces.MADE)
def test_a_trace_is_served_nearly_as_well_as_by_one_who_knows_the_future(name):
    trace = traces.read_traces()[name]
    best = traces.best(trace, SECONDS, MIOU, TARGET)
    found = traces.simulate(trace, SECONDS, MIOU, TARGET)
    assert found.in_time >= 0.99 * found.accepted
    assert found.in_time >= 0.95 * best.in_time
    assert found.accuracy >= best.accuracy - 0.5


@pytest.mark.parametrize("level", [0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
def test_the_target_holds_at_every_load(level):
    found = traces.simulate(traces.steady(level, 300.0, 1), SECONDS, MIOU, TARGET, wavers=0.1)
    assert found.p99() <= 0.76 * TARGET
    assert found.accepted >= 0.9 * min(1, SPEEDS[-1] / level) * found.requests


def test_little_load_runs_without_pausing():
    found = traces.simulate(traces.steady(0.5, 600.0, 2), SECONDS, MIOU, TARGET)
    assert found.rungs[0] >= 0.95 * found.accepted


def test_the_traces_are_those_that_are_made(tmp_path):
    traces.write_traces(tmp_path)
    assert traces.read_traces() == traces.read_traces(tmp_path)


def test_the_best_of_one_who_knows_the_future():
    crowd = [0.0, 0.0, 0.0]
    assert traces.best(crowd, (1.0, 0.5), (2.0, 1.0), 1.0).in_time == 2
    assert traces.best(crowd, (1.0, 0.5), (2.0, 1.0), 1.5).accuracy == 1
    assert traces.best(crowd, (1.0, 0.5), (2.0, 1.0), 2.5).accuracy == pytest.approx(5 / 3)
    assert traces.best([0.0, 5.0], (1.0, 0.5), (2.0, 1.0), 1.0).accuracy == 2


def drive(target, seconds=300, slow=lambda now: 1.0, camera=None):
    """A video on a clock of its own: when each frame was done, which were late, their rungs."""
    rng, now, done, late, rungs = random.Random(0), 0.0, [], [], []
    pace = Pace(ladder(POINTS), target)
    while now < seconds:
        arrived = len(done) / camera if camera else 0.0
        now = max(now, arrived)
        lag = pace.lag(arrived, now)
        rung = pace.choose(now, lag)
        took = seconds_of(rung) * rng.uniform(0.9, 1.2) * slow(now)
        pace.note(took)
        now += took
        done.append(now)
        late.append(lag + took > 2 * target)
        rungs.append(pace.governor.rung)
    return done, late, rungs


def test_a_camera_slower_than_the_target_is_no_hurry():
    _, late, rungs = drive(1 / 7, camera=5)
    assert not any(late)
    assert set(rungs) == {0}


def test_being_ahead_is_no_credit():
    _, late, _ = drive(1 / 8, slow=lambda now: 4.0 if 100 < now < 110 else 1.0)
    assert sum(late) > 10


@pytest.mark.parametrize("rate", [8, 9.5, 11, 12, 13, 14, 15.5, 17])
def test_a_rate_between_the_slowest_and_the_fastest_point_is_held(rate):
    done, late, rungs = drive(1 / rate)
    assert len(done) / done[-1] >= 0.99 * rate
    assert sum(late) <= 0.02 * len(late)
    # Of two neighbouring rungs as much of the accurate one as there is time for.
    mean = sum(seconds_of(POINTS[rung]) for rung in rungs) / len(rungs)
    assert mean * 1.05 >= 0.97 * min(1 / rate, seconds_of(POINTS[0]))


@pytest.mark.parametrize("rate", [9.5, 11, 13])
def test_a_rate_is_held_while_another_takes_a_part_of_the_machine(rate):
    done, late, _ = drive(1 / rate, slow=lambda now: 1.35 if 100 < now < 200 else 1.0)
    assert len(done) / done[-1] >= 0.99 * rate
    assert sum(late) <= 0.05 * len(late)


def test_an_image_has_its_target():
    pace = Pace(ladder(POINTS), target=0.2)
    assert pace.choose(0.0).miou == 0.70
    for _ in range(40):
        pace.note(2.2 * seconds_of(pace.choose(0.0)))
    assert pace.choose(0.0).miou == 0.69


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="at least one operating point"):
        Pace((), 1.0)
    with pytest.raises(ValueError, match="target of 0 s"):
        Pace(ladder(POINTS), 0.0)
