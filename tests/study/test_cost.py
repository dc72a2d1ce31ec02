import copy
import json
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from paumer import Mode, Predictor, build_model, criteria
from paumer.pausing import keep_count
from paumer.study import cost
from paumer.study.cost import (
    CostTable,
    between,
    cached_cost,
    cost_tables,
    ladder,
    measure_cost,
    predict_speed,
    scoring,
)
from paumer.study.speed import SpeedSettings

QUICK = SpeedSettings(rounds=2, warmup=1, threads=1)


parse = Mode.parse


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("test_vit", "mask", 3, image_size=64).eval()


@pytest.fixture
def table(plain_table):
    """A machine on which everything takes a round number of seconds."""
    return plain_table(
        prefix=1,
        depth=4,
        batch=2,
        embed=1.0,
        upsampling=2.0,
        block=((1, 0.0), (101, 10.0)),
        weighted=((1, 0.0), (101, 20.0)),
        merging=((10, 0.2), (100, 2.0)),
        decoder=((10, 1.0), (100, 5.0)),
        pausing={
            "entropy": ((10, 0.1), (100, 1.0)),
            "neighbours": ((10, 0.2), (100, 3.0)),
            "entropy, protecting": ((10, 0.3), (100, 5.0)),
            "neighbours, protecting": ((10, 0.4), (100, 7.0)),
        },
        assembling=((10, 0.0), (100, 0.9)),
    )


def test_a_mode_costs_the_sum_of_its_parts(table):
    assert table.seconds() == table.seconds(Mode()) == pytest.approx(1 + 2 + 4 * 10 + 5)
    assert keep_count(100, 0.4) == 60
    expected = 1 + 2 + 2 * 10 + 2 * 6 + 1.0 + 0.5 + 5
    assert table.seconds(parse("2:0.4")) == pytest.approx(expected)
    early = table.seconds(parse("2:0.4 exit"))
    assert early == pytest.approx(expected - 5 + (1 + 4 * 50 / 90))


@pytest.mark.parametrize(
    ("words", "name", "seconds"),
    [
        ("", "entropy", 1.0),
        ("by=neighbours", "neighbours", 3.0),
        ("protect=a", "entropy, protecting", 5.0),
        ("by=neighbours protect=a+b", "neighbours, protecting", 7.0),
        ("by=random", "entropy", 1.0),
        ("by=oracle protect=a", "entropy, protecting", 5.0),
    ],
)
def test_pausing_costs_what_its_criterion_costs(table, words, name, seconds):
    mode = parse(f"2:0.4 {words}")
    assert scoring(mode) == name
    without = table.seconds(parse("2:0.4")) - 1.0
    assert table.seconds(mode) == pytest.approx(without + seconds)


def test_means_that_continue_cost_as_patches_do(plain_table):
    table = plain_table(patches=99, prefix=1, depth=3, context=True)
    kept = keep_count(99, 0.5)
    expected = 1 + (kept + 2) / 100 + (kept + 2) / 100
    assert table.seconds(parse("1:0.5,2:0")) == pytest.approx(expected + 1)


def test_merging_costs_itself_and_what_blocks_of_merged_patches_cost(table):
    expected = 1 + 2 + 10 + 2.0 + 3 * 16 + (1 + 4 * 70 / 90)
    assert table.seconds(parse("1:~0.2")) == pytest.approx(expected)
    paused = 1 + 2 + 10 + 2.0 + 16 + 0.8 + 0.3 + 2 * 8 + (1 + 4 * 70 / 90)
    assert table.seconds(parse("1:~0.2,2:0.5")) == pytest.approx(paused)
    assert table.seconds(parse("1:~0")) == table.seconds()


def test_where_all_leave_nothing_more_is_run(table):
    assert table.seconds(parse("2:1 exit")) == pytest.approx(1 + 2 + 2 * 10 + 1.0)


def test_a_prediction_says_that_it_is_one(table):
    item = predict_speed({None: table}, parse("1:0.5 exit"))
    assert item.mode == parse("1:0.5 exit")
    assert item.predicted
    assert item.when == "today"
    assert "a machine, 1 thread" in item.where
    assert item.images_per_second == pytest.approx(2 / table.seconds(item.mode))
    assert item.latency_ms == pytest.approx(1000 * table.seconds(item.mode))
    assert item.speed_up == pytest.approx(48 / table.seconds(item.mode))


def test_a_speed_up_is_over_no_pausing_at_the_usual_size(table, plain_table):
    small = replace(plain_table(25, depth=4, batch=2), windows=2)
    usual = replace(table, windows=4)
    item = predict_speed({None: usual, 32: small}, parse("1:0.5 size=32"))
    seconds = 2 * small.seconds(item.mode)
    assert item.speed_up == pytest.approx(4 * 48 / seconds)
    assert item.images_per_second == pytest.approx(2 / seconds)
    assert item.latency_ms == pytest.approx(1000 * seconds)


def test_thresholds_and_late_pauses_are_refused(table):
    with pytest.raises(ValueError, match="depends on the image"):
        table.seconds(parse("2:<0.5"))
    with pytest.raises(ValueError, match="block 4"):
        table.seconds(parse("4:0.5"))


def test_times_lie_on_straight_lines_between_steps():
    steps = ((10, 1.0), (20, 2.0), (40, 10.0))
    assert [between(steps, n) for n in (5, 10, 15, 20, 30, 40, 50)] == [1, 1, 1.5, 2, 6, 10, 10]
    assert between(((7, 3.0),), 100) == 3


@pytest.mark.parametrize("patches", [1, 2, 16, 432, 1024])
def test_the_ladder_reaches_from_few_to_all(patches):
    steps = ladder(patches)
    assert steps == sorted(set(steps))
    assert steps[-1] == patches
    assert steps[0] >= 1


@pytest.mark.parametrize("batch", [1, 2])
def test_measuring_fills_the_table(model, batch):
    found = measure_cost(model, torch.randn(batch, 3, 64, 64), QUICK)
    assert (found.patches, found.depth, found.batch) == (16, 6, batch)
    for steps in (found.block, found.decoder, *found.pausing.values(), found.assembling):
        assert all(seconds > 0 for _, seconds in steps)
    assert found.upsampling > 0
    again = CostTable(**json.loads(json.dumps(asdict(found))))
    assert again == found
    for words in ("", " exit", " by=neighbours", " exit by=neighbours protect=a"):
        mode = parse(f"2:0.5{words}")
        assert again.seconds(mode) == found.seconds(mode)


@pytest.mark.slow
def test_pausing_by_each_criterion_is_timed(model, monkeypatch):
    """Each at every step of the ladder, on the grid of the images, where it alone takes long."""
    named, protecting, grids = criteria.named, criteria.protecting, set()

    def slow(criterion, seconds):
        def score(logits, patch_index):
            time.sleep(seconds)
            return criterion(logits, patch_index)

        return score

    def slow_named(name, grid):
        grids.add(grid)
        return slow(named(name, grid), {"entropy": 0.0, "neighbours": 0.02}[name])

    monkeypatch.setattr(criteria, "named", slow_named)
    monkeypatch.setattr(criteria, "protecting", lambda *args: slow(protecting(*args), 0.04))
    found = measure_cost(model, torch.randn(1, 3, 32, 64), QUICK)
    assert (2, 4) in grids
    least = {
        "entropy": 0,
        "neighbours": 0.02,
        "entropy, protecting": 0.04,
        "neighbours, protecting": 0.06,
    }
    assert found.pausing.keys() == least.keys()
    for name, seconds in least.items():
        assert [count for count, _ in found.pausing[name]] == ladder(8)
        times = [taken for _, taken in found.pausing[name]]
        assert min(times) >= seconds
        assert min(times) < seconds + 0.02
    texts = ("2:0.5,4:0.5", "2:0.5,4:0.5 by=neighbours protect=a")
    plain, slowest = (found.seconds(parse(text)) for text in texts)
    assert slowest - plain > 0.08


def test_a_table_is_measured_once(model, tmp_path, monkeypatch):
    images = torch.randn(1, 3, 64, 64)
    first = cached_cost(model, images, QUICK, tmp_path)
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr("paumer.study.cost.measure_cost", lambda *_: pytest.fail("measured again"))
    assert cached_cost(model, images, QUICK, tmp_path).block == first.block
    other = copy.copy(model)
    other.config = replace(model.config, context=True)
    with pytest.raises(pytest.fail.Exception):  # With a context pausing takes longer.
        cached_cost(other, images, QUICK, tmp_path)
    with pytest.raises(pytest.fail.Exception):  # Another batch is another table.
        cached_cost(model, images.repeat(2, 1, 1, 1), QUICK, tmp_path)
    values = asdict(first)
    lacking = {name: steps for name, steps in first.pausing.items() if name != "neighbours"}
    for text in (
        '{"block": 3',
        json.dumps({**values, "block": 3}),
        json.dumps({**values, "luck": 3}),
        "[]",
        json.dumps({**values, "pausing": first.pausing["entropy"]}),  # As 0.1 had it.
        json.dumps({**values, "pausing": lacking}),
    ):
        file.write_text(text)
        with pytest.raises(pytest.fail.Exception):  # A broken one is measured again.
            cached_cost(model, images, QUICK, tmp_path)


@pytest.mark.parametrize("window", [None, 32])
def test_there_is_a_table_for_every_size(model, window, plain_table, monkeypatch):
    model.config = replace(model.config, window=window, stride=window)
    seen = []

    def measured(network, images, settings, progress=None):
        seen.append(tuple(images.shape))
        return plain_table(upsampling=len(seen))

    monkeypatch.setattr(cost, "cached_cost", measured)
    image = np.zeros((64, 96, 3), np.uint8)
    tables = cost_tables(Predictor(model), image, [32, None, 32, 128], QUICK, batch=2)
    assert list(tables) == [None, 32, 128]
    assert [table.windows for table in tables.values()] == ([6, 2, 24] if window else [1, 1, 1])
    # Logits are enlarged to the image, whatever its size in the network.
    assert {table.upsampling for table in tables.values()} == {1}
    if window:
        assert set(seen) == {(2, 3, 32, 32)}
    else:
        assert seen == [(2, 3, 64, 96), (2, 3, 32, 48), (2, 3, 128, 192)]
