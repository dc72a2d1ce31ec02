import pytest

from paumer import PAPER_CONFIGS
from paumer.study.grids import count, grid, one, spaced, two


def test_sizes_of_the_grids():
    assert len(one(12)) == 11 * 20
    assert len(two(12)) == 21 * 100
    assert len(two(12, 1, 11)) == 55 * 100
    assert len(count(12)) == 2**11 - 1
    assert len(count(12, most=2)) == 11 + 55


def test_no_pausing_comes_first_and_nothing_twice():
    found = grid(["paper", "one", "3:0.2", "none"], 12)
    assert str(found[0]) == "none"
    assert len(found) == len(set(found))
    assert set(PAPER_CONFIGS) | set(one(12)) <= set(found)
    assert [str(pause) for pause in grid(["3:0.2,5:0.4"], 12)] == ["none", "3:0.2,5:0.4"]


def test_all_configurations_can_run():
    for pause in grid(["one", "two", "count"], 6):
        pause.check(6)
    assert all(0 < share < 1 for share in spaced(20))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="three"):
        grid(["three"], 12)
