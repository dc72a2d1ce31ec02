import pytest

from paumer import PAPER_CONFIGS, Mode
from paumer.study.grids import count, grid, one, spaced, two


def test_sizes_of_the_grids():
    assert len(one(12)) == 11 * 20
    assert len(two(12)) == 21 * 100
    assert len(two(12, 1, 11)) == 55 * 100
    assert len(count(12)) == 2**11 - 1
    assert len(count(12, most=2)) == 11 + 55


def test_no_pausing_comes_first_and_nothing_twice():
    found = grid(["paper", "one", "3:0.2", "none"], 12, {})
    assert str(found[0]) == "none"
    assert len(found) == len(set(found))
    assert {Mode(pause=pause) for pause in (*PAPER_CONFIGS, *one(12))} <= set(found)
    assert [str(mode) for mode in grid(["3:0.2,5:0.4"], 12, {})] == ["none", "3:0.2,5:0.4"]


def test_words_behind_a_grid_are_for_all_of_it():
    found = grid(["paper exit by=neighbours", "one size=288"], 12, {})
    paper = [Mode.parse(f"{pause} exit by=neighbours") for pause in PAPER_CONFIGS]
    single = [Mode.parse(f"{pause} size=288") for pause in one(12)]
    assert found == [Mode(), *paper, *single]


def test_operating_points_are_known_by_name():
    points = {"fast": Mode.parse("3:0.8 exit")}
    assert grid(["fast", "3:0.2"], 12, points) == [Mode(), points["fast"], Mode.parse("3:0.2")]


def test_all_configurations_can_run():
    for mode in grid(["one", "two", "count"], 6, {}):
        mode.pause.check(6)
    assert all(0 < share < 1 for share in spaced(20))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="three"):
        grid(["three"], 12, {})
