"""Work ahead of what uses it: in order, bounded, and ended by whatever ends its use."""

import threading
from itertools import count, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.inference.ahead import map_ahead


@given(st.lists(st.integers(), max_size=12), st.integers(1, 3), st.integers(0, 4))
def test_it_is_map(items, threads, ahead):
    assert list(map_ahead(str, items, threads, ahead)) == [str(item) for item in items]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_few_wait_to_be_taken(ahead):
    begun = []
    results = map_ahead(lambda item: begun.append(item) or item, count(), 2, ahead)
    for taken in range(10):
        assert next(results) == taken
        assert len(begun) <= taken + 1 + ahead
    results.close()
    assert threading.active_count() == 1 or not any("Pool" in t.name for t in threading.enumerate())


def test_the_next_runs_while_one_is_used():
    second = threading.Event()
    results = map_ahead(lambda item: item and second.set(), range(3))
    next(results)
    assert second.wait(5)


def test_an_error_comes_in_its_turn():
    results = map_ahead(lambda item: 1 / item, (1, 2, 0, 4), threads=2, ahead=3)
    assert [next(results), next(results)] == [1, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_are_made_where_the_results_are_used():
    frames = iter("ab")
    names = []

    def items():
        for _ in repeat(None, 3):
            names.append(threading.current_thread().name)
            yield frames

    assert list(map_ahead(lambda each: next(each, None), items())) == ["a", "b", None]
    assert set(names) == {threading.current_thread().name}
