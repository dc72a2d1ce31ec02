from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paumer import Measurement, Mode
from paumer.data.datasets import open_dataset
from paumer.inference.predictor import Predictor
from paumer.study import tuning
from paumer.study.accuracy import evaluate
from paumer.study.conditions import SHIFTS, Shifted
from paumer.study.cost import predict_speed
from paumer.study.grids import one
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget, choose
from paumer.study.tuning import (
    NAMED,
    TuneSettings,
    decide,
    fast_enough,
    finalists,
    search,
    tune,
)

QUICK = SpeedSettings(rounds=2, warmup=1, threads=1)


@pytest.fixture(autouse=True)
def no_tables_yet(monkeypatch, tmp_path):
    """Cost tables are measured anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("budget", [Budget(speed_up=1.5), Budget(latency_ms=4500)])
def test_the_filter_keeps_what_is_just_fast_enough(plain_table, budget):
    tables = {None: plain_table()}
    modes = fast_enough(tables, budget, 6, TuneSettings())
    found = [predict_speed(tables, mode) for mode in modes]
    assert len(found) == 60
    assert all(budget.meets(item, predict_speed(tables, Mode())) for item in found)
    assert min(item.speed_up for item in found) < 1.6
    assert 1.6 < max(item.speed_up for item in found) < 1.85


def test_the_filter_shows_the_fastest_when_nothing_is_fast_enough(plain_table):
    tables = {None: plain_table()}
    found = fast_enough(tables, Budget(speed_up=100), 6, TuneSettings(most=3))
    assert len(found) == 3
    assert min(predict_speed(tables, mode).speed_up for mode in found) > 2.5


def test_the_template_is_for_all_modes_of_a_search(plain_table):
    tables = {None: plain_table(), 32: plain_table(25)}
    template = Mode.parse("1:0.5 exit by=neighbours size=32")
    found = fast_enough(tables, Budget(speed_up=1.01), 7, TuneSettings(template=template, most=5))
    assert len(found) == 5
    for mode in found:
        assert str(mode) == f"{mode.pause} exit by=neighbours size=32"
        # Over no pausing at the usual size.
        whole, seconds = tables[None].seconds(), tables[32].seconds(mode)
        assert predict_speed(tables, mode).speed_up == pytest.approx(whole / seconds)


@pytest.fixture
def plain_machine(plain_table, monkeypatch):
    """A machine on which work alone takes time, and predictions are exact."""
    tables = {None: plain_table(), 48: plain_table(60)}

    def cost_tables(predictor, image, sizes, settings, batch, progress):
        progress(1, 1)
        return tables

    def time_modes(predictor, image, modes, settings, batch, progress):
        progress(1, 1)
        found = [predict_speed(tables, mode) for mode in dict.fromkeys([Mode(), *modes])]
        return [replace(item, predicted=False) for item in found]

    monkeypatch.setattr(tuning, "spaced", lambda _: [0.3, 0.6])  # Ratios: a short search.
    monkeypatch.setattr(tuning, "cost_tables", cost_tables)
    monkeypatch.setattr(tuning, "time_modes", time_modes)


@pytest.mark.parametrize(
    "budget", [Budget(speed_up=1.5), Budget(latency_ms=4500), Budget(max_drop=20)]
)
@pytest.mark.parametrize("words", ["", "exit by=neighbours size=48"])
@pytest.mark.usefixtures("plain_machine")
def test_the_choice_is_the_best_within_its_budget(predictor, images, tmp_path, budget, words):
    template, steps = Mode.parse(f"1:0.5 {words}"), []
    result = tune(
        predictor,
        images(2),
        budget,
        tmp_path / "tune",
        TuneSettings(template=template, most=4, finalists=3, shifts=0),
        progress=lambda *step: steps.append(step[0]),
    )
    assert all(str(m.mode).endswith(words) for m in result.evaluated if m.mode.pause)
    assert set(result.points) == {"unpaused", *NAMED}
    assert result.points["unpaused"].mode == Mode()
    assert result.met
    assert budget.meets(result.choice, result.points["unpaused"])
    best, _ = choose(result.evaluated, budget)
    assert result.choice.miou == best.miou
    assert result.choice.images_per_second == best.images_per_second
    assert not result.choice.predicted
    assert result.choice.mode.pause
    assert result.choice.where
    assert {"timing parts", "timing finalists"} <= set(steps)


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
    template = Mode.parse(f"1:0.5 {words}")
    settings = TuneSettings(template=template, finalists=1, speed=QUICK)
    result = tune(predictor, images(1), Budget(max_drop=3.0), tmp_path / "tune", settings)
    assert starts[0] == (["none", "none size=16"] if words else ["none"])
    assert result.points["unpaused"].mode == Mode()


@pytest.mark.usefixtures("plain_machine")
@pytest.mark.parametrize("words", ["", "by=neighbours"])
def test_operating_points_that_a_model_has_are_evaluated(predictor, images, tmp_path, words):
    alike, others = {"2:0.4 by=neighbours"}, {"2:<0.5", "2:0.55 size=16"}
    own = {"2:0.35", "2:0.45 exit"} | alike
    texts = ["none", *own, *others]
    points = {f"p{n}": Measurement(mode=Mode.parse(text)) for n, text in enumerate(texts)}
    known = Predictor(predictor.network, points)
    settings = TuneSettings(most=2, finalists=1, template=Mode.parse(f"1:0.5 {words}"))
    result = tune(known, images(1), Budget(speed_up=1.01), tmp_path / "tune", settings)
    found = [str(item.mode) for item in result.evaluated]
    wanted = alike if words else own  # Where nothing else is asked for, all are worth a try.
    assert all(found.count(text) == 1 for text in wanted)
    assert ((own | others) - wanted).isdisjoint(found)


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
    with pytest.raises(ValueError, match='nothing pauses in the template "none size=32"'):
        TuneSettings(template=Mode.parse("none exit size=32"))


@pytest.mark.parametrize(
    ("words", "message"),
    [("by=random", "for evaluate and sweep alone"), ("protect=tree", 'no class "tree"')],
)
def test_what_cannot_be_run_is_not_searched(predictor, images, tmp_path, words, message):
    settings = TuneSettings(template=Mode.parse(f"1:0.5 {words}"), speed=QUICK)
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


def imagined(modes):
    """Each pause makes it faster and worse, early ones more so, and a third one much worse."""
    found = []
    for mode in modes:
        stages = mode.pause.stages
        work = sum(share * (12 - block) for block, share in stages)
        loss = sum(share * (12 - block) ** 2 for block, share in stages) / 5000
        loss += 0.2 * (len(stages) > 2)
        found.append(
            Measurement(
                mode=mode, images_per_second=1 + work / 6, speed_up=1 + work / 6, miou=0.7 - loss
            )
        )
    return found


def test_the_search_adds_blocks_while_it_helps():
    budget = Budget(max_drop=1.0)
    start = imagined([Mode()])
    template = Mode.parse("1:0.5 exit by=neighbours")
    found = search(imagined, template, budget, 12, [0.2, 0.4, 0.6], start)
    assert found[0] == start[0]
    assert all(str(item.mode).endswith(" exit by=neighbours") for item in found[1:])
    best, met = choose(found, budget)
    assert met
    assert len(best.mode.pause.stages) == 2
    assert 0.7 - best.miou <= 0.01
    single, _ = choose(imagined([Mode(pause=pause) for pause in one(12)]) + start, budget)
    assert best.speed_up > single.speed_up * 0.9


@given(st.integers(2, 14), st.integers(1, 4))
def test_the_search_ends_and_measures_only_what_can_run(depth, most):
    asked = []

    def measure(modes):
        asked.extend(modes)
        return imagined(modes)

    start = imagined([Mode()])
    template = Mode.parse("1:0.5")
    search(measure, template, Budget(max_drop=100), depth, [0.5], start, most)
    for mode in asked:
        mode.pause.check(depth)
    assert max(len(mode.pause.stages) for mode in asked) <= most
    assert len(set(asked)) == len(asked)


def test_a_built_in_model_is_tuned_as_a_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tuning.own_copy("street-tiny") == Path("street-tiny-tuned")
    assert (tmp_path / "street-tiny-tuned/operating_points.json").is_file()
    assert tuning.own_copy("street-tiny-tuned") == Path("street-tiny-tuned")
    with pytest.raises(ValueError, match=r"exists: tune that one \(--model \./street-tiny-tuned\)"):
        tuning.own_copy("street-tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["street-tiny-tuned"]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_machine")
def test_the_whole_dial_can_be_searched(predictor, images, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "smaller_sides", lambda side, patch: [48])
    settings = TuneSettings(procedure="dial", most=60, finalists=2, shifts=0)
    result = tune(predictor, images(3), Budget(speed_up=1.5), tmp_path / "tune", settings)
    kinds = {(bool(m.mode.merge), m.mode.size) for m in result.evaluated}
    assert len(kinds) >= 3
    assert result.met
    assert result.choice.speed_up >= 1.5
    assert set(result.points) == {"unpaused", *NAMED}


def measured(text, speed, miou):
    return Measurement(mode=Mode.parse(text), images_per_second=speed, speed_up=speed, miou=miou)


def test_the_choice_is_by_what_is_lost_at_worst():
    found = [
        measured("none", 1.0, 0.70),
        measured("3:0.4", 2.0, 0.70),
        measured("5:0.5", 2.1, 0.692),
    ]
    shaky, firm = found[1].mode, found[2].mode
    losses = {Mode(): {"dark": 0.0}, shaky: {"dark": 0.05, "noise": 0.01}, firm: {"dark": 0.005}}
    assert decide(found, found, Budget(speed_up=1.5)).choice.mode == shaky
    tuned = decide(found, found, Budget(speed_up=1.5), losses)
    assert tuned.choice.mode == firm
    assert tuned.choice.miou == 0.692
    assert tuned.choice.worst_drop == pytest.approx(0.008)
    assert tuned.points["balanced"].mode == firm
    assert tuned.points["accurate"].mode == Mode()
    by_accuracy = decide(found, found, Budget(max_drop=6), losses)
    assert by_accuracy.choice.mode == firm
    shaken = decide(found[:2], found[:2], Budget(max_drop=6), losses).choice
    assert (shaken.mode, shaken.worst_on) == (shaky, "dark")
    assert shaken.worst_drop == pytest.approx(0.05)


@pytest.mark.usefixtures("plain_machine")
def test_finalists_are_counted_in_groups_and_on_shifted_images(predictor, tmp_path):
    rng = np.random.default_rng(0)
    for number in range(4):
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
        image = rng.integers(0, 255, (64, 64, 3), np.uint8)
        Image.fromarray(image).save(tmp_path / f"images/drive{number % 2}-{number}.png")
        labels = image[..., 0] % len(predictor.classes)
        Image.fromarray(labels).save(tmp_path / f"masks/drive{number % 2}-{number}.png")
    names = list(predictor.classes.names)
    text = f"val: {{images: images, masks: masks}}\nclasses: {names}\n"
    (tmp_path / "data.yaml").write_text(text)
    dataset = open_dataset(str(tmp_path / "data.yaml"), "val")
    settings = TuneSettings(most=3, finalists=2, shifts=2, groups="drive.")
    result = tune(predictor, dataset, Budget(speed_up=1.2), tmp_path / "tune", settings)
    assert {*result.losses[result.choice.mode]} == {"drive0", "drive1", *SHIFTS}
    assert set(result.losses[Mode()].values()) == {0.0}
    base = result.points["unpaused"].miou
    worst = max(base - result.choice.miou, *result.losses[result.choice.mode].values())
    assert result.choice.worst_drop == worst
    alone = evaluate(predictor, dataset, [Mode(), result.choice.mode], indices=[0, 1])
    assert {dataset.files(n)[0].name[:6] for n in (0, 1)} == {"drive0"}
    lost = alone[0].miou - alone[1].miou
    assert result.losses[result.choice.mode]["drive0"] == pytest.approx(lost)


def test_shifts_change_images_and_not_labels(images):
    dataset, changed = images(2), []
    for shift in SHIFTS:
        shifted = Shifted(dataset, shift)
        assert len(shifted) == 2
        for index in range(2):
            before, after, again = dataset[index], shifted[index], shifted[index]
            assert after.image.shape == before.image.shape
            assert after.image.dtype == np.uint8
            assert np.array_equal(after.labels, before.labels)
            assert np.array_equal(after.image, again.image)
            assert not np.array_equal(after.image, before.image)
        changed.append(after.image)
    assert changed[0].mean() < 0.6 * dataset[1].image.mean()
    assert len({image.tobytes() for image in changed}) == len(SHIFTS)
