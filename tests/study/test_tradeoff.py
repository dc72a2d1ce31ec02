import pytest

from paumer import Measurement, Mode
from paumer.study.tradeoff import Budget, average, choose, spline, spline_table


def point(text, speed, miou, **known):
    mode = Mode.parse(text)
    return Measurement(mode=mode, images_per_second=speed, speed_up=speed / 10, miou=miou, **known)


POINTS = [
    point("none", 10.0, 0.70, latency_ms=100.0),
    point("3:0.2", 12.0, 0.698, latency_ms=83.0),
    point("3:0.4", 15.0, 0.695, latency_ms=67.0),
    point("5:0.8", 14.0, 0.65, latency_ms=71.0),
    point("3:0.6,5:0.6", 20.0, 0.66, latency_ms=50.0),
]


@pytest.mark.parametrize(
    ("budget", "text", "within"),
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
def test_the_choice_for_a_budget(budget, text, within):
    chosen, met = choose(POINTS, budget)
    assert (str(chosen.mode), met) == (text, within)


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
    assert [round(column["speed_up"], 2) for column in table] == [
        1.2, 1.31, 1.43, 1.54, 1.66, 1.77, 1.89, 2.0,
    ]  # fmt: skip
    assert table[0]["miou"] == pytest.approx(0.698)
    assert table[0]["difference"] == pytest.approx(-0.002)
    assert table[-1]["miou"] == pytest.approx(0.66)
    beyond = spline_table(POINTS, base=point("none", 1.0, 0.75), columns=2, most=3.0)
    assert [column["images_per_second"] for column in beyond] == [12.0, 30.0]
    assert beyond[0]["difference"] == pytest.approx(0.698 - 0.75)
    assert (beyond[1]["miou"], beyond[1]["difference"]) == (None, None)


def test_runs_are_averaged_by_mode():
    """Modes of the same stages are not the same mode, and what one run lacks does not count."""
    first = [point("none", 10.0, 0.7), point("3:0.4", 15.0, 0.6), point("3:0.4 exit", 16.0, 0.5)]
    second = [point("3:0.4 exit", 99.0, 0.3), point("none", 99.0, 0.8), point("5:0.4", 99.0, 0.1)]
    both = average([first, second])
    assert [str(item.mode) for item in both] == ["none", "3:0.4 exit"]
    assert [item.images_per_second for item in both] == [10.0, 16.0]
    assert [item.miou for item in both] == pytest.approx([0.75, 0.4])
    assert [(item.miou_low, item.miou_high) for item in both] == [(0.7, 0.8), (0.3, 0.5)]
    assert average([first]) == first
