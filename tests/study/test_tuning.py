from dataclasses import replace

import pytest

from paumer import Measurement, Mode
from paumer.study import tuning
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget
from paumer.study.tuning import (
    NAMED,
    TuneSettings,
    decide,
    fast_enough,
    finalists,
    predict_speed,
    tune,
)

QUICK = SpeedSettings(rounds=2, warmup=1, threads=1)


@pytest.fixture(autouse=True)
def no_tables_yet(monkeypatch, tmp_path):
    """Cost tables are measured anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("budget", [Budget(speed_up=1.5), Budget(latency_ms=4500)])
def test_the_filter_keeps_what_is_just_fast_enough(plain_table, budget):
    table = plain_table()
    modes = fast_enough({None: table}, budget, 6, TuneSettings())
    found = [table.predict(mode) for mode in modes]
    assert len(found) == 60
    assert all(budget.meets(item, table.predict(Mode())) for item in found)
    assert min(item.speed_up for item in found) < 1.6
    assert 1.6 < max(item.speed_up for item in found) < 1.85


def test_the_filter_shows_the_fastest_when_nothing_is_fast_enough(plain_table):
    table = plain_table()
    found = fast_enough({None: table}, Budget(speed_up=100), 6, TuneSettings(most=3))
    assert len(found) == 3
    assert min(table.predict(mode).speed_up for mode in found) > 2.5


def test_words_are_for_all_modes_of_a_search(plain_table):
    tables = {None: plain_table(), 32: plain_table(25)}
    settings = TuneSettings(words="exit by=neighbours size=32", most=5)
    assert (settings.early_exit, settings.size) == (True, 32)
    found = fast_enough(tables, Budget(speed_up=1.01), 7, settings)
    assert len(found) == 5
    for mode in found:
        assert str(mode) == f"{mode.pause} exit by=neighbours size=32"
        # Over no pausing at the usual size.
        whole, seconds = tables[None].seconds(), tables[32].seconds(mode)
        assert predict_speed(tables, mode).speed_up == pytest.approx(whole / seconds)


@pytest.mark.parametrize(
    "budget", [Budget(speed_up=1.01), Budget(latency_ms=1e6), Budget(max_drop=20)]
)
@pytest.mark.parametrize("words", ["", "exit by=neighbours size=48"])
def test_a_choice_keeps_within_its_budget(predictor, images, tmp_path, budget, words):
    settings = TuneSettings(words=words, most=4, finalists=3, speed=QUICK)
    told = []
    result = tune(
        predictor,
        images(4),
        budget,
        tmp_path / "tune",
        settings,
        progress=lambda *what: told.append(what[0]),
    )
    (base,) = [item for item in result.evaluated if item.mode == Mode()]
    assert all(str(m.mode).endswith(words) for m in result.evaluated if m.mode.pause)
    assert set(result.points) == {"unpaused", *NAMED}
    assert result.points["unpaused"].mode == Mode()
    assert not result.choice.predicted
    assert result.choice.miou is not None
    assert result.choice.where
    if result.met and budget.max_drop is not None:
        assert base.miou - result.choice.miou <= budget.max_drop / 100
    if result.met and budget.latency_ms is not None:
        assert result.choice.latency_ms <= budget.latency_ms
    assert {"timing parts", "timing finalists"} <= set(told)


def test_named_points_are_searched_for_beyond_a_tight_budget(
    predictor, images, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(tuning, "search", lambda _, __, budget, *___: asked.append(budget) or [])
    settings = TuneSettings(finalists=1, speed=QUICK)
    tune(predictor, images(1), Budget(max_drop=0.3), tmp_path / "tune", settings)
    assert asked == [Budget(max_drop=0.3), Budget(max_drop=1.0), Budget(max_drop=3.0)]


@pytest.mark.parametrize("words", ["", "size=16"])
def test_a_search_starts_without_pausing_at_each_of_its_sizes(
    predictor, images, tmp_path, monkeypatch, words
):
    starts = []
    monkeypatch.setattr(
        tuning, "search", lambda *args: starts.append([str(m.mode) for m in args[5]]) or []
    )
    settings = TuneSettings(words=words, finalists=1, speed=QUICK)
    result = tune(predictor, images(1), Budget(max_drop=3.0), tmp_path / "tune", settings)
    assert starts[0] == (["none", "none size=16"] if words else ["none"])
    assert result.points["unpaused"].mode == Mode()


def test_an_impossible_budget_is_not_met(predictor, images, tmp_path):
    settings = TuneSettings(most=2, finalists=1, speed=QUICK)
    result = tune(predictor, images(2), Budget(speed_up=1000), tmp_path / "tune", settings)
    assert not result.met
    assert result.choice.images_per_second == max(
        point.images_per_second for point in [result.choice, *result.points.values()]
    )


def test_settings_are_checked():
    with pytest.raises(ValueError, match="finalists is 0"):
        TuneSettings(finalists=0)
    with pytest.raises(ValueError, match="timed_batch is 0"):
        TuneSettings(timed_batch=0)
    with pytest.raises(ValueError, match='cannot read "exti"'):
        TuneSettings(words="exti")


@pytest.mark.parametrize(
    ("words", "message"),
    [("by=random", "for evaluate and sweep alone"), ("protect=tree", 'no class "tree"')],
)
def test_what_cannot_be_run_is_not_searched(predictor, images, tmp_path, words, message):
    settings = TuneSettings(words=words, speed=QUICK)
    with pytest.raises(ValueError, match=message):
        tune(predictor, images(1), Budget(speed_up=2), tmp_path / "tune", settings)
    assert not (tmp_path / "tune").exists()


def item(text, speed, miou):
    latency = 1000 / speed
    return Measurement(
        mode=Mode.parse(text),
        images_per_second=speed,
        speed_up=speed / 10,
        latency_ms=latency,
        miou=miou,
    )


EVALUATED = [
    item("none", 10, 0.70),
    item("2:0.5", 15.2, 0.695),
    item("3:0.5", 15.1, 0.698),
    item("2:0.7", 16.5, 0.69),
    item("2:0.9", 22, 0.6),
]


def timed(factor):
    """The same configurations, but pausing gains less than was predicted."""
    return [EVALUATED[0]] + [
        replace(m, images_per_second=m.images_per_second * factor, speed_up=m.speed_up * factor)
        for m in EVALUATED[1:]
    ]


@pytest.mark.parametrize(
    ("budget", "factor", "chosen", "met"),
    [
        (Budget(speed_up=1.5), 1.0, "3:0.5", True),
        (Budget(speed_up=1.5), 0.95, "2:0.7", True),
        (Budget(speed_up=1.5), 0.6, "2:0.9", False),
        (Budget(max_drop=0.6), 1.0, "2:0.5", True),
        (Budget(max_drop=20), 1.0, "2:0.9", True),
        (Budget(latency_ms=66), 1.0, "2:0.5", True),
    ],
)
def test_the_decision_follows_real_times(budget, factor, chosen, met):
    result = decide(EVALUATED, timed(factor), budget)
    assert (str(result.choice.mode), result.met) == (chosen, met)
    assert str(result.points["accurate"].mode) == ("3:0.5" if factor > 0.9 else "none")


def test_finalists_have_slack():
    found = {str(m.mode) for m in finalists(EVALUATED, Budget(speed_up=1.5), 1)}
    assert {"3:0.5", "2:0.7", "2:0.9"} <= found
