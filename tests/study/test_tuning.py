from dataclasses import replace

import pytest
import torch

from paumer import PauseConfig
from paumer.study import tuning
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget, Measurement
from paumer.study.tuning import NAMED, TuneSettings, decide, fast_enough, finalists, tune

QUICK = SpeedSettings(rounds=2, warmup=1, threads=1)


@pytest.fixture
def images(predictor, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return torch.randn(1, 3, 32, 48)


@pytest.mark.parametrize("budget", [Budget(speed_up=1.5), Budget(latency_ms=4500)])
def test_the_filter_keeps_what_is_just_fast_enough(plain_table, budget):
    table = plain_table()
    found = [table.predict(pause) for pause in fast_enough(table, budget, 6, TuneSettings())]
    assert len(found) == 60
    assert all(budget.meets(item, table.predict(PauseConfig())) for item in found)
    assert min(item.speed_up for item in found) < 1.6
    assert 1.6 < max(item.speed_up for item in found) < 1.85


def test_the_filter_shows_the_fastest_when_nothing_is_fast_enough(plain_table):
    table = plain_table()
    found = fast_enough(table, Budget(speed_up=100), 6, TuneSettings(most=3))
    assert len(found) == 3
    assert min(table.predict(pause).speed_up for pause in found) > 2.5


@pytest.mark.parametrize(
    "budget", [Budget(speed_up=1.01), Budget(latency_ms=1e6), Budget(max_drop=20)]
)
def test_a_choice_keeps_within_its_budget(predictor, pictures, images, tmp_path, budget):
    settings = TuneSettings(most=4, finalists=3, speed=QUICK)
    told = []
    result = tune(
        predictor,
        pictures(4),
        budget,
        tmp_path / "tune",
        images,
        settings,
        say=lambda *what: told.append(what[0]),
    )
    (base,) = [item for item in result.evaluated if not item.pause]
    assert set(result.points) == {"unpaused", *NAMED}
    assert not result.points["unpaused"].pause
    assert not result.choice.predicted
    assert result.choice.miou is not None
    assert result.choice.where
    if result.met and budget.max_drop is not None:
        assert base.miou - result.choice.miou <= budget.max_drop / 100
    if result.met and budget.latency_ms is not None:
        assert result.choice.latency_ms <= budget.latency_ms
    assert {"timing parts", "timing finalists"} <= set(told)


def test_named_points_are_searched_for_beyond_a_tight_budget(
    predictor, pictures, images, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(tuning, "search", lambda _, budget, *__: asked.append(budget) or [])
    settings = TuneSettings(finalists=1, speed=QUICK)
    tune(predictor, pictures(1), Budget(max_drop=0.3), tmp_path / "tune", images, settings)
    assert asked == [Budget(max_drop=0.3), Budget(max_drop=1.0), Budget(max_drop=3.0)]


def test_an_impossible_budget_is_not_met(predictor, pictures, images, tmp_path):
    settings = TuneSettings(most=2, finalists=1, speed=QUICK)
    result = tune(
        predictor, pictures(2), Budget(speed_up=1000), tmp_path / "tune", images, settings
    )
    assert not result.met
    assert result.choice.images_per_second == max(
        point.images_per_second for point in [result.choice, *result.points.values()]
    )


def test_settings_are_checked():
    with pytest.raises(ValueError, match="finalists is 0"):
        TuneSettings(finalists=0)


def item(text, speed, miou):
    latency = 1000 / speed
    return Measurement(
        pause=PauseConfig.parse(text),
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
    assert (str(result.choice.pause), result.met) == (chosen, met)
    assert str(result.points["accurate"].pause) == ("3:0.5" if factor > 0.9 else "none")


def test_finalists_have_slack():
    found = {str(m.pause) for m in finalists(EVALUATED, Budget(speed_up=1.5), 1)}
    assert {"3:0.5", "2:0.7", "2:0.9"} <= found
