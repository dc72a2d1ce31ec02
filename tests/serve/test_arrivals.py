import math
import random

import pytest

from paumer.serve.arrivals import Arrivals, Load, waiting


def exact_waiting(busy):
    """The 99th percentile of the wait of M/D/1, by the exact decay of its tail."""
    decay = 2 * (1 - busy)
    for _ in range(100):  # Newton on busy (e^x - 1) = x, beside its root 0
        value = busy * (math.exp(decay) - 1) - decay
        decay -= value / (busy * math.exp(decay) - 1)
    return math.log(100 * (1 - busy) / (busy * math.exp(decay) - 1)) / decay


@pytest.mark.parametrize("busy", [0.3, 0.5, 0.65, 0.8, 0.9, 0.95])
def test_the_wait_is_that_of_one_server(busy):
    assert waiting(busy) == pytest.approx(exact_waiting(busy), rel=0.03)


def test_the_wait_without_end():
    assert waiting(1.0) == math.inf
    assert waiting(0.0) == waiting(1e-9) == 0


def test_latency_of_a_load():
    load = Load(10.0, 100, (5.0, 2.5))
    assert load.latency(0, 1.0) == pytest.approx(0.05 * (1 + waiting(0.5)))
    assert load.latency(0, 1.0, doubt=-1) == pytest.approx(0.05 * (1 + waiting(0.45)))
    assert load.latency(1, 2.0) == load.latency(0, 1.0)
    assert Load(10.0, 0, ()).latency(0, 1.0) == 0


def poisson(rate, begin, end, rng):
    now = begin + rng.expovariate(rate)
    while now < end:
        yield now
        now += rng.expovariate(rate)


@pytest.mark.parametrize("seed", range(5))
def test_steady_load_is_averaged_long_and_a_change_forgets_the_past(seed):
    rng = random.Random(seed)
    arrivals = Arrivals()
    for now in poisson(16, 0, 40, rng):
        arrivals.add(now, (0.05, 0.03))
    load = arrivals.load(40.0)
    assert load.seconds > 30
    assert load.work[0] / load.seconds == pytest.approx(0.8, rel=0.15)
    for now in poisson(4, 40, 45, rng):
        arrivals.add(now, (0.05, 0.03))
        arrivals.load(now)
    load = arrivals.load(45.0)
    assert load.seconds < 8
    assert load.work[1] / load.seconds == pytest.approx(0.12, rel=0.6)


def test_what_is_long_ago_is_forgotten():
    arrivals = Arrivals()
    arrivals.add(0.0, (1.0,))
    assert arrivals.load(1.0).requests == 1
    assert arrivals.load(101.0).requests == 0
    assert arrivals.load(1e6).requests == 0
