import pytest
import torch

from paumer import PauseConfig
from paumer.pause_config import Threshold
from paumer.study import adaptive
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget
from paumer.study.tuning import TuneSettings

QUICK = TuneSettings(speed=SpeedSettings(rounds=1, warmup=0, threads=1), finalists=2)


@pytest.fixture
def table(plain_table, predictor):
    """A machine for pictures of 48x32, of which the small network cuts six patches."""
    backbone = predictor.network.backbone
    return plain_table(6, backbone.prefix, backbone.depth)


@pytest.fixture
def windows(predictor, pictures):
    return adaptive.whole_windows(predictor, pictures(5), range(5))


def patches_going_on(network, windows, pause):
    """How many patches of a picture go on after the last pause, by running it."""
    with torch.inference_mode():
        return int((network(windows, pause).paused_after() == 0).sum())


def test_shares_are_the_smallest_that_are_fast_enough(plain_table):
    table = plain_table()
    pause = adaptive.by_share(table, (2, 4), 5.0)
    (_, share), (_, other) = pause.stages
    assert share == other
    assert table.seconds(pause) <= 5.0
    smaller = PauseConfig(((2, share - 0.01), (4, share - 0.01)))
    assert table.seconds(smaller) > 5.0


def test_no_share_makes_it_faster_than_its_first_blocks(plain_table):
    assert adaptive.by_share(plain_table(), (5,), 4.0) is None


@pytest.mark.parametrize("blocks", [(1,), (1, 2), (2, 3)])
@pytest.mark.parametrize("speed_up", [1.1, 1.3])
def test_a_threshold_meets_the_average(predictor, windows, table, blocks, speed_up):
    network = predictor.network
    seconds = table.seconds(PauseConfig()) / speed_up
    walks = adaptive.walk_to(network, windows, blocks[0])
    pause, mean = adaptive.by_threshold(network, walks, table, blocks, seconds)
    assert mean <= seconds
    assert pause.blocks == blocks
    assert len({amount for _, amount in pause.stages}) == 1
    # Pausing one patch fewer somewhere would be too slow: the threshold is no larger than need be.
    below = pause.stages[0][1].below
    less = PauseConfig(tuple((block, Threshold(below * 0.999)) for block in blocks))
    counts = [patches_going_on(network, one, pause) for one in windows]
    assert sum(patches_going_on(network, one, less) for one in windows) >= sum(counts)
    if len(blocks) == 1:
        again = [table.seconds_of({blocks[0]: count}) for count in counts]
        assert mean == pytest.approx(sum(again) / len(again))


def test_a_speed_out_of_reach_has_no_threshold(predictor, windows, table):
    walks = adaptive.walk_to(predictor.network, windows, 3)
    assert adaptive.by_threshold(predictor.network, walks, table, (3,), 1.0) is None


def test_windows_of_a_picture_count_each(predictor, windows, table):
    network = predictor.network
    apart = adaptive.walk_to(network, windows, 1)
    together = adaptive.walk_to(network, [torch.cat(windows)], 1)
    seconds = table.seconds(PauseConfig()) / 1.2
    one = adaptive.by_threshold(network, apart, table, (1,), seconds)
    other = adaptive.by_threshold(network, together, table, (1,), seconds)
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1])


@pytest.mark.parametrize("budget", [Budget(speed_up=1.2), Budget(max_drop=30)])
def test_tuning_compares_thresholds_with_shares(
    predictor, pictures, table, tmp_path, monkeypatch, budget
):
    monkeypatch.setattr(adaptive, "cached_cost", lambda *_, **__: table)
    monkeypatch.setattr(adaptive, "BLOCKS", ((1,), (1, 2)))
    monkeypatch.setattr(adaptive, "SPEED_UPS", (1.1, 1.3))
    found = adaptive.tune_adaptive(predictor, pictures(4), budget, tmp_path, QUICK)
    assert not found.tuned.choice.predicted
    assert found.pairs
    for pair in found.pairs:
        assert isinstance(pair.adaptive.pause.stages[0][1], Threshold)
        assert pair.adaptive.pause.blocks == pair.fixed.pause.blocks
        assert pair.adaptive.predicted
        assert pair.adaptive.miou is not None
        assert pair.fixed.speed_up == pytest.approx(pair.adaptive.speed_up, rel=0.35)
    gains = [pair.adaptive.miou - pair.fixed.miou for pair in found.pairs]
    assert found.gain == pytest.approx(sum(gains) / len(gains))
