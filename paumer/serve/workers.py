"""What computes for a service: its own process, or others that share one model.

A worker is used by one thread. One whose process ends is started again, and what it computed is
computed once more: nobody's request is lost with it.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np
import torch
from torch import multiprocessing

from paumer.classes import Pixels
from paumer.inference.engines import TorchEngine
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation
from paumer.inference.tiles import Inference
from paumer.mode import Mode
from paumer.serve.batcher import AbandonedError, Wanted

Make = Callable[[], Predictor]
"""What a process makes its predictor with."""

_LOOK = 0.02  # Seconds between two looks at whether a result is still wanted.
_NO_IMAGE = np.zeros((0, 0, 3), np.uint8)
_TRIES = 2


class Worker(Protocol):
    """Segments images for one thread."""

    def run(self, images: Sequence[Pixels], mode: Mode, wanted: Wanted) -> list[Segmentation]:
        """The segmentation of each image, or an `AbandonedError` where nobody wants it."""

    def stop(self) -> None:
        """End what it has started."""


class LocalWorker:
    """Computes in the thread that asks."""

    def __init__(self, predictor: Predictor, inference: Inference) -> None:
        self._wanted: Wanted = lambda: True
        engine = predictor.engine
        if isinstance(engine, TorchEngine):  # Others cannot end early.
            engine = TorchEngine(predictor.network, self._check)
        self._predictor = Predictor(predictor.network, predictor.points, engine)
        self._inference = inference

    def run(self, images: Sequence[Pixels], mode: Mode, wanted: Wanted) -> list[Segmentation]:
        """The segmentation of each image."""
        self._wanted = wanted
        return self._predictor.predict_batch(images, mode, self._inference)

    def stop(self) -> None:
        """Nothing was started."""

    def _check(self) -> None:
        if not self._wanted():
            raise AbandonedError


class ProcessWorker:
    """Computes in a process of its own, with so many threads."""

    def __init__(self, make: Make, inference: Inference, threads: int) -> None:
        self._arguments = (make, inference, threads)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, *self._arguments)
        self.process = context.Process(target=_compute, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self._ready = False

    def wait(self) -> None:
        """Wait until it can compute."""
        if not self._ready:
            self._receive()
            self._ready = True

    def run(self, images: Sequence[Pixels], mode: Mode, wanted: Wanted) -> list[Segmentation]:
        """The segmentation of each image, as the process gives them."""
        for _ in range(_TRIES):
            try:
                self.wait()
                self._connection.send((images, mode))
                while not self._connection.poll(_LOOK):
                    if not wanted():
                        self._connection.send(None)
                        break
                results = self._receive()
                pairs = zip(results, images, strict=True)
                return [replace(result, image=image) for result, image in pairs]
            except (EOFError, ConnectionError):
                self.stop()
                self._start()
        raise RuntimeError(f"the process that computes ended {_TRIES} times")

    def _receive(self) -> list[Segmentation]:
        answer: list[Segmentation] | Exception = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self.process.kill()
        self.process.join()


def shared(predictor: Predictor) -> Make:
    """What makes the predictor in another process, with the same weights in shared memory."""
    if predictor.device.type != "cpu":
        raise ValueError(f"workers are for CPUs, not for {predictor.device}: use --batch there")
    predictor.network.share_memory()
    return partial(Predictor, predictor.network, predictor.points)


def _compute(connection: Connection, make: Make, inference: Inference, threads: int) -> None:
    """The process: answers until the other end is closed, whoever closes it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Meant for the service, which closes it.
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    try:
        worker = LocalWorker(make(), inference)
        connection.send([])
        while True:
            message = connection.recv()
            if message is not None:  # Else what is not wanted was done already.
                connection.send(_answer(worker, connection, *message))
    except (EOFError, ConnectionError):
        return


def _answer(
    worker: LocalWorker, connection: Connection, images: Sequence[Pixels], mode: Mode
) -> list[Segmentation] | Exception:
    try:
        results = worker.run(images, mode, lambda: not connection.poll())
        return [replace(result, image=_NO_IMAGE, answers=()) for result in results]
    except AbandonedError:
        return AbandonedError()
    except Exception as error:  # Of any class: its text is what can be sent for certain.
        return RuntimeError(str(error))
