import copy
import json
from dataclasses import replace

import pytest
import torch

from paumer import PauseConfig, build_model
from paumer.pausing import going_on
from paumer.study.cost import CostTable, between, cached_cost, ladder, measure_cost
from paumer.study.speed import SpeedSettings

QUICK = SpeedSettings(rounds=2, warmup=1, threads=1)


@pytest.fixture(scope="module")
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
        decoder=((10, 1.0), (100, 5.0)),
        pausing=((10, 0.1), (100, 1.0)),
        assembling=((10, 0.0), (100, 0.9)),
    )


def test_a_configuration_costs_the_sum_of_its_parts(table):
    assert table.seconds(PauseConfig()) == pytest.approx(1 + 2 + 4 * 10 + 5)
    one = PauseConfig.parse("2:0.4")
    assert going_on(100, 0.4) == 60
    expected = 1 + 2 + 2 * 10 + 2 * 6 + 1.0 + 0.5 + 5
    assert table.seconds(one) == pytest.approx(expected)
    early = table.seconds(one, early_exit=True)
    assert early == pytest.approx(expected - 5 + (1 + 4 * 50 / 90))


def test_blocks_after_patches_came_back_cost_as_without_pausing(plain_table):
    table = plain_table(depth=4, rejoin=4)
    assert table.seconds(PauseConfig.parse("1:0.5")) == pytest.approx(1 + 0.5 + 0.5 + 1 + 1)
    with pytest.raises(ValueError, match="spares nothing"):
        table.seconds(PauseConfig.parse("3:0.5"))


def test_means_that_go_on_cost_as_patches_do(plain_table):
    table = plain_table(patches=99, prefix=1, depth=3, context=True)
    kept = going_on(99, 0.5)
    expected = 1 + (kept + 2) / 100 + (kept + 2) / 100
    assert table.seconds(PauseConfig.parse("1:0.5,2:0")) == pytest.approx(expected + 1)


def test_a_prediction_says_that_it_is_one(table):
    item = table.predict(PauseConfig.parse("1:0.5"), miou=0.5)
    assert item.predicted
    assert item.when == "today"
    assert "a machine, 1 thread" in item.where
    assert item.miou == 0.5
    assert item.images_per_second == pytest.approx(2 / table.seconds(item.pause))
    assert item.speed_up == pytest.approx(48 / table.seconds(item.pause))


def test_thresholds_and_late_pauses_are_refused(table):
    with pytest.raises(ValueError, match="depends on the picture"):
        table.seconds(PauseConfig.parse("2:<0.5"))
    with pytest.raises(ValueError, match="block 4"):
        table.seconds(PauseConfig.parse("4:0.5"))


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
    for steps in (found.block, found.decoder, found.pausing, found.assembling):
        assert all(seconds > 0 for _, seconds in steps)
    assert found.upsampling > 0
    again = CostTable.from_json(json.loads(json.dumps(found.to_json())))
    assert again.seconds(PauseConfig.parse("2:0.5")) == found.seconds(PauseConfig.parse("2:0.5"))


def test_a_table_is_measured_once(model, tmp_path, monkeypatch):
    images = torch.randn(1, 3, 64, 64)
    first = cached_cost(model, images, QUICK, tmp_path)
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr("paumer.study.cost.measure_cost", lambda *_: pytest.fail("measured again"))
    assert cached_cost(model, images, QUICK, tmp_path).block == first.block
    other = copy.copy(model)
    other.config = replace(model.config, rejoin=4)  # The same parts, put together otherwise.
    assert cached_cost(other, images, QUICK, tmp_path) == replace(first, rejoin=4)
    other.config = replace(model.config, context=True)
    with pytest.raises(pytest.fail.Exception):  # Pausing takes longer.
        cached_cost(other, images, QUICK, tmp_path)
    with pytest.raises(pytest.fail.Exception):  # Another batch is another table.
        cached_cost(model, images.repeat(2, 1, 1, 1), QUICK, tmp_path)
    file.write_text('{"block": 3')
    with pytest.raises(pytest.fail.Exception):  # A broken one is measured again.
        cached_cost(model, images, QUICK, tmp_path)
