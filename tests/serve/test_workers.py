"""Several processes that compute for a service."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from paumer.inference.tiles import Inference
from paumer.mode import Mode
from paumer.serve.batcher import AbandonedError
from paumer.serve.service import Service
from paumer.serve.workers import LocalWorker, ProcessWorker, shared

MODE = Mode.parse("2:0.4")
in_processes = pytest.mark.slow  # Each starts torch anew.


def images(count):
    return [np.random.default_rng(n).integers(0, 256, (64, 64, 3), np.uint8) for n in range(count)]


@pytest.fixture(scope="module")
def worker(predictor):
    worker = ProcessWorker(shared(predictor), Inference(), threads=1)
    yield worker
    worker.stop()


def same(found, predictor, given):
    for result, image in zip(found, given, strict=True):
        alone = predictor.predict(image, result.mode)
        assert np.array_equal(result.labels, alone.labels)
        assert np.array_equal(result.paused_after, alone.paused_after)
        assert np.array_equal(result.image, image)


@in_processes
def test_another_process_gives_the_same(worker, predictor):
    given = images(2)
    same(worker.run(given, MODE, lambda: True), predictor, given)


@in_processes
def test_what_fails_there_is_told_here(worker, predictor):
    with pytest.raises(RuntimeError, match="block 9"):
        worker.run(images(1), Mode.parse("9:0.4"), lambda: True)
    same(worker.run(images(1), MODE, lambda: True), predictor, images(1))


@in_processes
def test_what_nobody_wants_is_left_undone(worker, predictor):
    large = [np.zeros((1024, 1024, 3), np.uint8)]
    with pytest.raises(AbandonedError):
        worker.run(large, MODE, lambda: False)
    same(worker.run(images(1), MODE, lambda: True), predictor, images(1))


@in_processes
def test_a_killed_process_is_replaced_and_its_work_done_again(worker, predictor):
    before, looks = worker.process.pid, []

    def wanted():
        if not looks:
            os.kill(before, signal.SIGKILL)
        looks.append(1)
        return True

    given = [np.zeros((1024, 1024, 3), np.uint8)]
    found = worker.run(given, MODE, wanted)
    assert looks
    assert worker.process.pid != before
    same(found, predictor, given)


@in_processes
def test_an_image_that_ends_the_process_each_time_is_refused(worker, predictor):
    def wanted():
        os.kill(worker.process.pid, signal.SIGKILL)
        return True

    with pytest.raises(RuntimeError, match="ended 2 times"):
        worker.run([np.zeros((1024, 1024, 3), np.uint8)], MODE, wanted)
    same(worker.run(images(1), MODE, lambda: True), predictor, images(1))


def test_a_worker_in_this_process_ends_early_too(predictor):
    local = LocalWorker(predictor, Inference())
    with pytest.raises(AbandonedError):
        local.run(images(1), MODE, lambda: False)
    same(local.run(images(1), MODE, lambda: True), predictor, images(1))


@in_processes
def test_no_process_outlives_the_service(predictor):
    service = Service(predictor, target=60.0, workers=2)
    service.start()
    pids = [worker.process.pid for worker in service.workers]
    given = images(6)
    futures = [service.submit(image, service.read({})) for image in given]
    same([future.result(60).result for future in futures], predictor, given)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    for pid in pids:
        end = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
