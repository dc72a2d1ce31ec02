import gc
import threading
import time
import weakref

import numpy as np
import pytest

from paumer import Mode, Segmentation
from paumer.classes import ClassSet
from paumer.serve.batcher import AbandonedError, Batcher, BusyError, Job

MODES = tuple(Mode.parse(text) for text in ("none", "3:0.4", "3:0.8 exit"))
SECONDS = (0.1, 0.06, 0.04)


class Gate:
    """A predictor that waits until it may continue, and keeps what it was given."""

    def __init__(self):
        self.open, self.entered, self.batches = threading.Semaphore(0), threading.Event(), []

    def __call__(self, images, mode, wanted):
        self.wanted = wanted
        self.batches.append(([int(p[0, 0, 0]) for p in images], mode))
        self.entered.set()
        assert self.open.acquire(timeout=10)
        return [segmented(image, mode) for image in images]


def segmented(image, mode):
    empty = np.zeros((1, 1), np.uint8)
    classes = ClassSet(("a",), ((0, 0, 0),))
    found = np.zeros(image.shape[:2], np.uint8)
    return Segmentation(
        image, found, empty.astype(np.float32), empty, empty, (8.0, 8.0), mode, 0.0, classes
    )


def job(number=0, size=(8, 8), limit=2, mode=None, work=SECONDS, seconds=10.0, priority=1):
    image = np.full((*size, 3), number, np.uint8)
    return Job(image, size, work, limit, time.perf_counter(), seconds, mode, priority)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def start(gate):
    started = []

    def give(queue=64, batch=1, runs=1):
        batcher = Batcher([gate] * runs, MODES, queue, batch)
        started.append(batcher)
        return batcher

    yield give
    for _ in range(50):
        gate.open.release()
    for batcher in started:
        batcher.stop()


def first_in(batcher, gate, **options):
    """A job that runs, so that others have to wait."""
    future = batcher.submit(job(**options))
    assert gate.entered.wait(10)
    return future


def test_alike_run_together_in_order_and_others_apart(start, gate):
    batcher = start(batch=3)
    first_in(batcher, gate)
    fixed = Mode.parse("5:0.2 by=neighbours")
    jobs = [job(1), job(2, size=(8, 16)), job(3, mode=fixed), *(job(n) for n in (4, 5, 6))]
    futures = [batcher.submit(item) for item in jobs]
    for _ in range(6):
        gate.open.release()
    done = [future.result(10) for future in futures]
    assert [numbers for numbers, _ in gate.batches] == [[0], [1, 4, 5], [2], [3], [6]]
    assert [int(d.result.image[0, 0, 0]) for d in done] == [1, 2, 3, 4, 5, 6]
    assert done[2].result.mode is fixed
    assert all(d.queued > 0 for d in done)


def test_modes_that_differ_in_one_word_run_apart_and_equal_ones_together(start, gate):
    batcher = start(batch=3)
    first_in(batcher, gate)
    texts = ("5:0.2 exit", "5:0.2", "5:0.2 exit protect=a", "5:0.2 exit size=8", "5:0.2 exit")
    futures = [batcher.submit(job(n, mode=Mode.parse(t))) for n, t in enumerate(texts, 1)]
    for _ in range(5):
        gate.open.release()
    assert [str(future.result(10).result.mode) for future in futures] == list(texts)
    assert [numbers for numbers, _ in gate.batches] == [[0], [1, 5], [2], [3], [4]]


def test_a_floor_is_kept_when_the_governor_hurries(start, gate):
    batcher = start()
    first_in(batcher, gate, work=(0.01, 0.01, 0.01))
    floor = [batcher.submit(job(1, limit=1, work=(0.1, 0.06, 0.06), seconds=0.9))]
    others = [batcher.submit(job(2, seconds=0.9)) for _ in range(10)]
    for _ in range(12):
        gate.open.release()
    modes = [future.result(10).result.mode for future in floor + others]
    assert modes[0] == MODES[1]
    assert modes[1] == MODES[2]


def test_more_than_can_be_done_in_time_is_refused_at_once(start, gate):
    batcher = start()  # Room for 0.26 s: what runs, and 4 at the fastest.
    first_in(batcher, gate, seconds=0.42)
    while len(batcher.waiting) < 4:
        batcher.submit(job(seconds=0.42))
    with pytest.raises(BusyError, match="at capacity: try again in 1 s"):
        [batcher.submit(job(seconds=0.42)) for _ in range(4)]
    with pytest.raises(BusyError):
        batcher.check(SECONDS, 0.42)
    batcher.check(SECONDS, 10.0)
    assert batcher.filled(0.42) > 0.4


def test_the_nearest_deadline_is_first(start, gate):
    batcher = start()
    first_in(batcher, gate)
    futures = [batcher.submit(job(n, seconds=s)) for n, s in ((1, 9.0), (2, 5.0), (3, 7.0))]
    for _ in range(4):
        gate.open.release()
    for future in futures:
        future.result(10)
    assert [numbers for numbers, _ in gate.batches] == [[0], [2], [3], [1]]


def test_a_sooner_deadline_makes_nobody_late_who_was_taken(start, gate):
    batcher = start()
    first_in(batcher, gate, work=(0.1, 0.1, 0.1))
    long = (1.0, 1.0, 1.0)
    batcher.submit(job(1, work=long, seconds=2.0))  # Needs 1.1 of its 1.24 s.
    with pytest.raises(BusyError):
        batcher.submit(job(2, work=long, seconds=1.9))
    batcher.submit(job(3, seconds=1.9))
    assert [int(one.image[0, 0, 0]) for one in batcher.waiting] == [3, 1]


def test_a_higher_priority_takes_the_room_of_lower_ones(start, gate):
    batcher = start(queue=3)
    first_in(batcher, gate)
    low = [batcher.submit(job(n, priority=0)) for n in (1, 2)]
    usual = batcher.submit(job(3))
    with pytest.raises(BusyError):
        batcher.submit(job(4, priority=0))
    high = [batcher.submit(job(n, priority=2)) for n in (5, 6)]
    for future in low:
        with pytest.raises(BusyError, match="at capacity"):
            future.result(10)
    batcher.submit(job(7, priority=2))
    with pytest.raises(BusyError):
        usual.result(10)
    with pytest.raises(BusyError):
        batcher.submit(job(8, priority=2))
    for _ in range(4):
        gate.open.release()
    assert [future.result(10).result.image[0, 0, 0] for future in high] == [5, 6]


def test_the_queue_has_an_end(start, gate):
    batcher = start(queue=2)
    first_in(batcher, gate)
    batcher.submit(job())
    batcher.submit(job())
    with pytest.raises(BusyError):
        batcher.submit(job())


def test_an_idle_batcher_takes_any(start, gate):
    batcher = start()
    batcher.check((5.0, 5.0, 5.0), 0.01)
    gate.open.release()
    batcher.submit(job(work=(5.0, 5.0, 5.0), seconds=0.01)).result(10)


def test_cancelled_jobs_leave(start, gate):
    batcher = start()
    first = first_in(batcher, gate)
    futures = [batcher.submit(job(n)) for n in range(1, 5)]
    assert futures[0].cancel()
    assert futures[2].cancel()
    assert len(batcher.waiting) == 2
    for _ in range(3):
        gate.open.release()
    futures[3].result(10)
    assert first.done()
    assert [numbers for numbers, _ in gate.batches] == [[0], [2], [4]]


def test_a_batch_continues_until_nobody_wants_it(start, gate):
    batcher = start(batch=2)
    first = first_in(batcher, gate)
    futures = [batcher.submit(job(n)) for n in (1, 2)]
    assert gate.wanted()
    assert first.cancel()
    assert not gate.wanted()
    gate.open.release()
    while len(gate.batches) < 2:
        time.sleep(0.001)
    assert futures[0].cancel()
    assert gate.wanted()  # The other one still does.
    gate.open.release()
    assert futures[1].result(10).result.image[0, 0, 0] == 2


def test_what_nobody_wants_is_freed_at_once(gate):
    class Large:
        pass

    made = []

    def run(images, mode, wanted):
        large = Large()
        made.append(weakref.ref(large))
        gate.entered.set()
        assert gate.open.acquire(timeout=10)
        assert not wanted()
        raise AbandonedError

    batcher = Batcher([run], MODES, queue=64, batch=1)
    gc.disable()
    try:
        assert first_in(batcher, gate).cancel()
        gate.open.release()
        batcher.stop()
        assert made[0]() is None
    finally:
        gc.enable()


def test_a_failure_is_its_own_only(start):
    def run(images, mode, wanted):
        if images[0][0, 0, 0] == 1:
            raise RuntimeError("no memory")
        return [segmented(image, mode) for image in images]

    batcher = Batcher([run], MODES, queue=64, batch=1)
    wrong = batcher.submit(job(1))
    with pytest.raises(RuntimeError, match="no memory"):
        wrong.result(10)
    assert batcher.submit(job(2)).result(10).result.mode == MODES[0]
    batcher.stop()
    assert not batcher.running


def test_stopping_finishes_what_waits(start, gate):
    batcher = start()
    futures = [first_in(batcher, gate), *(batcher.submit(job(n)) for n in range(3))]
    for _ in range(4):
        gate.open.release()
    batcher.stop()
    assert all(future.done() for future in futures)


def test_the_rest_of_a_running_batch_counts(gate, start):
    batcher = start()
    first_in(batcher, gate, work=(1.0, 1.0, 1.0))
    filled = batcher.filled(10.0)
    assert 0 < filled <= 0.1
    time.sleep(0.05)
    assert batcher.filled(10.0) < filled


def test_those_that_are_free_work_side_by_side(start, gate):
    batcher = start(runs=2)
    futures = [first_in(batcher, gate), *(batcher.submit(job(n)) for n in (1, 2))]
    while len(gate.batches) < 2:
        time.sleep(0.001)
    assert len(batcher.waiting) == 1
    assert batcher.running.keys() == {0, 1}
    for _ in range(3):
        gate.open.release()
    assert [future.result(10).result.image[0, 0, 0] for future in futures] == [0, 1, 2]


def test_two_take_twice_as_much_as_one(start, gate):
    def taken(runs):
        batcher = start(runs=runs)
        for count in range(50):
            try:
                batcher.submit(job(work=(1.0,) * 3))
            except BusyError:
                return count
        return None

    # Of ten seconds 6.2 are for the work: one does six, two do twelve.
    assert (taken(1), taken(2)) == (6, 12)
