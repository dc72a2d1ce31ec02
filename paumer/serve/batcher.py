"""The queue of a service: in order of deadlines, worked off in batches."""

import math
import threading
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from paumer.classes import Pixels
from paumer.inference.governor import Due, Governor
from paumer.inference.result import Segmentation
from paumer.mode import Mode

ADMIT = 0.62
"""The part of its time within which a request has to be done, at the fastest rung, to be taken.

The rest is for reading, decoding, answering and stalls of the machine.
"""
AIM = 0.5
"""The part of its time within which a request should be done at the rung that is chosen."""

Wanted = Callable[[], bool]
Run = Callable[[Sequence[Pixels], Mode, Wanted], Sequence[Segmentation]]
"""Segments images; once they are not wanted any more it may raise `AbandonedError`."""


class BusyError(Exception):
    """A request that could not be answered in time: come back in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the service is at capacity: try again in {math.ceil(seconds)} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Done:
    """A segmentation, and the seconds that it waited and took."""

    result: Segmentation
    queued: float
    compute: float


@dataclass(eq=False)
class Job:
    """An image in the queue, to be done ``seconds`` after it ``arrived``.

    ``work`` is the seconds that it should take at each rung, ``limit`` the fastest rung allowed;
    a ``mode`` is kept, whatever the governor chooses. Images of one ``size`` (as the network sees
    them) and mode may run together. Where not all can be in time, those of a lower ``priority``
    are refused.
    """

    image: Pixels
    size: tuple[int, int]
    work: tuple[float, ...]
    limit: int
    arrived: float
    seconds: float
    mode: Mode | None = None
    priority: int = 0
    done: "Future[Done]" = field(default_factory=Future)

    def due(self, part: float) -> Due:
        """When a part of its time is over, and its work."""
        return Due(self.arrived + part * self.seconds, self.work)


def _by_deadline(job: Job) -> float:
    return job.arrived + job.seconds


class AbandonedError(Exception):
    """Work that nobody waits for any more was left undone."""


class Running(NamedTuple):
    """A batch at work: the seconds that it should take, and when it began."""

    jobs: Sequence[Job]
    expected: float
    begin: float

    def wanted(self) -> bool:
        """Whether anybody waits for it."""
        return not all(job.done.cancelled() for job in self.jobs)


class Batcher:
    """Takes jobs as long as they can be done in time, and runs them in batches.

    Each of ``runs`` has a thread of its own. ``modes`` are those of the governor's rungs. A job is
    taken if fewer than ``queue`` wait and, with the fastest rung from now on, it and those behind
    it would be done within `ADMIT` of their time; a batcher that is not busy takes any.
    """

    def __init__(self, runs: Sequence[Run], modes: Sequence[Mode], queue: int, batch: int) -> None:
        self.runs, self.modes, self.governor = list(runs), tuple(modes), Governor(len(modes))
        self.queue, self.batch = queue, batch
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self.waiting: list[Job] = []
        """In order of their deadlines."""
        self.running: dict[int, Running] = {}
        """What runs, by the number of what runs it."""
        self._stopping = False
        self._wake = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(n,), name=f"batcher {n}", daemon=True)
            for n in range(len(self.runs))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what waits, then end the threads."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def check(self, work: Sequence[float], seconds: float) -> None:
        """Raise `BusyError` if there is no room for such work within so many seconds."""
        job = Job(np.zeros((0, 0, 3), np.uint8), (0, 0), tuple(work), 0, perf_counter(), seconds)
        with self._wake:
            if wait := self._too_late(job, self.waiting):
                raise BusyError(wait)

    def submit(self, job: Job) -> "Future[Done]":
        """Put a job into the queue, or raise `BusyError`. Cancel the future to end it.

        Where it has no room, jobs of a lower priority make some: their futures get the error.
        """
        with self._wake:
            left, refused = list(self.waiting), list[tuple[Job, float]]()
            while wait := self._too_late(job, left):
                lowest = min(reversed(left), key=lambda one: one.priority, default=job)
                if lowest.priority >= job.priority:
                    raise BusyError(wait)
                left.remove(lowest)
                refused.append((lowest, wait))
            insort(left, job, key=_by_deadline)
            self.waiting = left
            self._wake.notify()
        for one, wait in refused:
            if one.done.set_running_or_notify_cancel():
                one.done.set_exception(BusyError(wait))
        job.done.add_done_callback(lambda future: self._leave(job) if future.cancelled() else None)
        return job.done

    def filled(self, target: float) -> float:
        """The time that all that waits and runs takes at the fastest rung, over a target."""
        with self._wake:
            work = sum(job.work[-1] for job in self.waiting)
            rest = sum(self._free()) / len(self.runs) - perf_counter()
            rest += self.governor.factor * work / len(self.runs)
        return max(0.0, rest) / target

    def choose(self) -> int:
        """Let the governor look at the queue; the rung that it chooses."""
        with self._wake:
            waiting = [job.due(AIM) for job in self.waiting]
            return self.governor.choose(self._free(), waiting)

    def _leave(self, job: Job) -> None:
        with self._wake, suppress(ValueError):
            self.waiting.remove(job)

    def _free(self) -> list[float]:
        """When each of those that run should be done with what it has."""
        now, free = perf_counter(), []
        for number in range(len(self.runs)):
            running = self.running.get(number)
            end = running.begin + self.governor.factor * running.expected if running else now
            free.append(max(now, end))
        return free

    def _too_late(self, job: Job, waiting: Sequence[Job]) -> float:
        """By how many seconds a job, or one behind it, would be late; 0 if there is room for it."""
        if not waiting and len(self.running) < len(self.runs):
            return 0.0
        ordered = sorted((*waiting, job), key=_by_deadline)
        due = [one.due(ADMIT) for one in ordered]
        late = max(self.governor.late(self._free(), due, rung=-1)[ordered.index(job) :])
        if len(waiting) >= self.queue:
            late = max(late, self.governor.factor * job.work[-1])
        return max(0.0, late)

    def _work(self, number: int) -> None:
        while running := self._take(number):
            self._run_batch(number, running)

    def _run_batch(self, number: int, running: Running) -> None:
        jobs, expected, begin = running
        results: Sequence[Segmentation] = ()
        try:
            mode = jobs[0].mode
            assert mode is not None
            results = self.runs[number]([job.image for job in jobs], mode, running.wanted)
        except Exception as error:  # Whatever it is, it is these requests', not the service's.
            for job in jobs:
                if job.done.set_running_or_notify_cancel():
                    job.done.set_exception(error)
        seconds = perf_counter() - begin
        with self._wake:
            if results:
                self.governor.note(expected, seconds)
            del self.running[number]
        self.on_batch(len(jobs), seconds)
        for job, result in zip(jobs, results, strict=False):
            if job.done.set_running_or_notify_cancel():
                job.done.set_result(Done(result, begin - job.arrived, seconds))

    def _take(self, number: int) -> Running | None:
        """The next jobs that run together, none when it is time to end."""
        with self._wake:
            self._wake.wait_for(lambda: self.waiting or self._stopping)
            if not self.waiting:
                return None
            rung = self.choose()
            modes = [job.mode or self.modes[min(rung, job.limit)] for job in self.waiting]
            kinds = [(job.size, mode) for job, mode in zip(self.waiting, modes, strict=True)]
            alike = [job for job, kind in zip(self.waiting, kinds, strict=True) if kind == kinds[0]]
            jobs = alike[: self.batch]
            for job in jobs:
                self.waiting.remove(job)
                job.mode = kinds[0][1]
            running = Running(jobs, sum(job.work[rung] for job in jobs), perf_counter())
            self.running[number] = running
            return running
