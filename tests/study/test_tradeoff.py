import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer import PauseConfig
from paumer.study.tradeoff import Budget, Measurement, choose, skyline, spline, spline_table


def point(pause, speed, miou, **known):
    config = PauseConfig.parse(pause)
    return Measurement(
        pause=config, images_per_second=speed, speed_up=speed / 10, miou=miou, **known
    )


POINTS = [
    point("none", 10.0, 0.70, latency_ms=100.0),
    point("3:0.2", 12.0, 0.698, latency_ms=83.0),
    point("3:0.4", 15.0, 0.695, latency_ms=67.0),
    point("5:0.8", 14.0, 0.65, latency_ms=71.0),
    point("3:0.6,5:0.6", 20.0, 0.66, latency_ms=50.0),
]


def test_a_measurement_survives_json():
    one = Measurement(pause=PauseConfig.parse("3:0.2,5:0.4"), speed_up=1.3, miou=0.7)
    line = json.dumps(one.to_json())
    assert json.loads(line)["pause"] == "3:0.2,5:0.4"
    assert "latency_ms" not in json.loads(line)
    assert Measurement.from_json(json.loads(line)) == one


def test_a_measurement_in_words():
    pause = PauseConfig.parse("3:0.2,5:0.4")
    assert Measurement(pause=pause).how == "3:0.2,5:0.4"
    told = Measurement(pause=pause, early_exit=True, criterion="neighbours").how
    assert told == "3:0.2,5:0.4, early exit, neighbours"


values = st.floats(0.1, 1, allow_nan=False).map(lambda v: round(v, 2))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=30))
def test_no_member_of_the_skyline_is_dominated_and_every_other_point_is(pairs):
    points = [point("none", speed, miou) for speed, miou in pairs]
    best = skyline(points)

    def beaten(one):
        return any(
            o.images_per_second >= one.images_per_second
            and o.miou >= one.miou
            and (o.images_per_second > one.images_per_second or o.miou > one.miou)
            for o in points
        )

    assert not any(beaten(one) for one in best)
    kept = {(one.images_per_second, one.miou) for one in best}
    assert all(beaten(o) for o in points if (o.images_per_second, o.miou) not in kept)
    speeds = [one.images_per_second for one in best]
    assert speeds == sorted(speeds)


@pytest.mark.parametrize(
    ("budget", "pause", "within"),
    [
        (Budget(speed_up=1.5), "3:0.4", True),
        (Budget(speed_up=1.1), "3:0.2", True),
        (Budget(speed_up=2.5), "3:0.6,5:0.6", False),
        (Budget(latency_ms=60.0), "3:0.6,5:0.6", True),
        (Budget(latency_ms=40.0), "3:0.6,5:0.6", False),
        (Budget(max_drop=0.7), "3:0.4", True),
        (Budget(max_drop=5.0), "3:0.6,5:0.6", True),
        (Budget(max_drop=0.1), "none", True),
    ],
)
def test_the_choice_for_a_budget(budget, pause, within):
    chosen, met = choose(POINTS, budget)
    assert (str(chosen.pause), met) == (pause, within)


def test_a_budget_is_one_bound():
    for bounds in ({}, {"speed_up": 1.5, "max_drop": 1.0}, {"latency_ms": -1.0}):
        with pytest.raises(ValueError, match="exactly one"):
            Budget(**bounds)


def test_choosing_needs_the_unpaused_model():
    with pytest.raises(ValueError, match="none"):
        choose(POINTS[1:], Budget(speed_up=1.2))


def test_the_spline_goes_through_the_points_and_not_beyond():
    line = [(1.0, 0.5), (2.0, 0.3), (2.0, 0.5), (4.0, 0.2)]
    assert spline(line, 1.0) == 0.5
    assert spline(line, 2.0) == pytest.approx(0.4)
    assert spline(line, 3.0) == pytest.approx(0.3)
    assert spline(line, 0.5) is None
    assert spline(line, 4.1) is None


def test_the_table_has_the_papers_columns():
    table = spline_table(POINTS)
    assert [round(column.speed_up, 2) for column in table] == [
        1.2, 1.31, 1.43, 1.54, 1.66, 1.77, 1.89, 2.0,
    ]  # fmt: skip
    assert table[0].miou == pytest.approx(0.698)
    assert table[0].difference == pytest.approx(-0.002)
    assert table[-1].miou == pytest.approx(0.66)
