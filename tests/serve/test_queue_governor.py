"""The governor of a service, in simulations with a clock of their own."""

import random
from collections import deque

import pytest

from paumer.serve.batcher import HEADROOM
from paumer.serve.governor import QueueGovernor

S0 = 0.06
LADDER = tuple(S0 / speed for speed in (1, 1.17, 1.4, 1.7, 1.85))
TARGET = 8 * S0


def simulate(rate, until, seed, ladder=LADDER, wavers=0.0):
    """Poisson arrivals of ``rate(t)`` in images of S0; latencies, refused, changes.

    The machine's speed ``wavers`` by so much, for one to four seconds each time.
    """
    rng, world = random.Random(seed), random.Random(-1 - seed)
    pace, paced_until = 1.0, 0.0
    governor = QueueGovernor(len(ladder), TARGET)
    queue, latencies, changes = deque(), [], []
    refused = 0
    running = None  # When it arrived, began and will end, and its rung.
    tick, now = 1.0, 0.0

    def next_after(time):
        # Drawn at three times capacity and thinned, so that a change of rate counts at once.
        while True:
            time += rng.expovariate(3 / S0)
            if rng.random() < rate(time) / 3:
                return time

    coming = next_after(0.0)

    def backlog():
        rest = max(0.0, ladder[running[3]] - (now - running[1])) if running else 0.0
        return [rest + len(queue) * seconds for seconds in ladder]

    def choose():
        before = governor.rung
        rung = governor.choose(now, backlog())
        if rung != before:
            changes.append((now, rung))
        return rung

    while now < until:
        now = min(coming, tick, running[2] if running else coming)
        if now == coming:
            governor.arrived(now, ladder)
            if not running or backlog()[-1] + ladder[-1] <= HEADROOM * TARGET:
                queue.append(now)
            else:
                refused += 1
            coming = next_after(now)
        elif now == tick:
            tick += 1
            choose()
        else:
            arrived, began, _, rung = running
            latencies.append(now - arrived)
            governor.note(ladder[rung], now - began)
            running = None
        if queue and not running:
            rung = choose()
            if now >= paced_until:
                pace, paced_until = world.lognormvariate(0, wavers), now + world.uniform(1, 4)
            seconds = ladder[rung] * pace * rng.uniform(0.95, 1.05)
            running = (queue.popleft(), now, now + seconds, rung)
    return sorted(latencies), refused, changes


@pytest.mark.parametrize("load", [0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
def test_the_target_holds_at_every_load(load):
    latencies, refused, _ = simulate(lambda _: load, 600 * S0 / load, seed=1)
    assert latencies[int(0.99 * len(latencies))] <= TARGET
    share = len(latencies) / (len(latencies) + refused)
    assert share >= 0.9 * min(1, 1.85 / load)


def test_little_is_refused_where_the_fastest_point_just_keeps_up():
    ladder = tuple(S0 / speed for speed in (1, 1.35, 1.5))
    shares = []
    for seed in range(4):
        latencies, refused, _ = simulate(lambda _: 1.5, 600 * S0 / 1.5, seed, ladder)
        shares.append(len(latencies) / (len(latencies) + refused))
        assert latencies[int(0.99 * len(latencies))] <= 0.8 * TARGET
    assert min(shares) >= 0.92, shares


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize("wavers", [0.0, 0.12])
def test_steady_load_does_not_flap(load, wavers):
    counts = [len(simulate(lambda _: load, 60.0, seed, wavers=wavers)[2]) for seed in range(6)]
    assert sum(count > 1 for count in counts) <= 1, counts


@pytest.mark.slow
@pytest.mark.parametrize(("high", "least"), [(2.0, 7), (3.0, 8)])
def test_it_hurries_when_load_rises_and_returns_when_it_falls(high, least):
    hurried, returned = [], []
    for seed in range(8):
        _, _, changes = simulate(lambda t: high if 10 < t < 20 else 0.3, 31.0, seed)
        hurried.append(next(now for now, rung in changes if rung > 0) - 10)
        returned.append(next(now for now, rung in changes if now > 20 and rung == 0) - 20)
    assert min(hurried) > 0
    # Chance decides how fast a queue grows.
    assert sum(seconds <= 15 * S0 for seconds in hurried) >= least, hurried
    assert max(returned) <= 10


def test_a_slower_machine_is_learned_and_a_stall_is_not():
    governor = QueueGovernor(2, 1.0)
    governor.note(0.1, 50.0)
    assert governor.factor < 1.3
    for _ in range(100):
        governor.note(0.1, 0.2)
    assert governor.factor == pytest.approx(2, rel=0.01)


def test_it_returns_without_any_request():
    governor = QueueGovernor(3, 1.0)
    assert governor.choose(0.0, (2.0, 1.0, 0.6)) == 2
    assert governor.choose(3.0, (0.0, 0.0, 0.0)) == 2
    assert governor.choose(5.0, (0.0, 0.0, 0.0)) == 0
    assert governor.changes == 2


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="target of 0 s"):
        QueueGovernor(1, 0.0)
