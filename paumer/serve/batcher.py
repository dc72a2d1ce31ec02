"""The queue of a service: in order of deadlines, worked off in batches by one thread."""

import math
import threading
from bisect import bisect, insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

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

Run = Callable[[Sequence[Pixels], Mode], Sequence[Segmentation]]


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


class Batcher:
    """Takes jobs as long as they can be done in time, and runs them in batches in its thread.

    ``modes`` are those of the governor's rungs. A job is taken if fewer than ``queue`` wait and,
    with the fastest rung from now on, it and those behind it would be done within `ADMIT` of their
    time; an idle batcher takes any.
    """

    def __init__(self, run: Run, modes: Sequence[Mode], queue: int, batch: int) -> None:
        self.run, self.modes, self.governor = run, tuple(modes), Governor(len(modes))
        self.queue, self.batch = queue, batch
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self.waiting: list[Job] = []
        """In order of their deadlines."""
        self.running: tuple[Sequence[Job], float, float] | None = None
        """The running batch, the seconds that it should take, and when it began."""
        self._stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def check_wanted(self) -> None:
        """Raise `AbandonedError` if nobody waits for the running batch; called within it."""
        if self.running and all(job.done.cancelled() for job in self.running[0]):
            raise AbandonedError

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
            rest = self._free_at() - perf_counter() + self.governor.factor * work
        return max(0.0, rest) / target

    def choose(self) -> int:
        """Let the governor look at the queue; the rung that it chooses."""
        with self._wake:
            waiting = [job.due(AIM) for job in self.waiting]
            return self.governor.choose(self._free_at(), waiting)

    def _leave(self, job: Job) -> None:
        with self._wake, suppress(ValueError):
            self.waiting.remove(job)

    def _free_at(self) -> float:
        """When what runs should be done."""
        now = perf_counter()
        if not self.running:
            return now
        _, expected, begin = self.running
        return max(now, begin + self.governor.factor * expected)

    def _too_late(self, job: Job, waiting: Sequence[Job]) -> float:
        """By how many seconds a job, or one behind it, would be late; 0 if there is room for it."""
        if not waiting and not self.running:
            return 0.0
        place, factor = bisect(waiting, _by_deadline(job), key=_by_deadline), self.governor.factor
        free = self._free_at() + factor * sum(one.work[-1] for one in waiting[:place])
        due = [one.due(ADMIT) for one in (job, *waiting[place:])]
        late = self.governor.late(free, due, rung=-1)
        if len(waiting) >= self.queue:
            late = max(late, factor * job.work[-1])
        return max(0.0, late)

    def _work(self) -> None:
        while jobs := self._take():
            self._run_batch(jobs)

    def _run_batch(self, jobs: Sequence[Job]) -> None:
        begin, mode = perf_counter(), jobs[0].mode
        assert mode is not None
        results: Sequence[Segmentation] = ()
        try:
            results = self.run([job.image for job in jobs], mode)
        except Exception as error:  # Whatever it is, it is these requests', not the service's.
            for job in jobs:
                if job.done.set_running_or_notify_cancel():
                    job.done.set_exception(error)
        seconds = perf_counter() - begin
        with self._wake:
            if results and self.running:
                self.governor.note(self.running[1], seconds)
            self.running = None
        self.on_batch(len(jobs), seconds)
        for job, result in zip(jobs, results, strict=False):
            if job.done.set_running_or_notify_cancel():
                job.done.set_result(Done(result, begin - job.arrived, seconds))

    def _take(self) -> list[Job]:
        """The next jobs that run together, none when it is time to end."""
        with self._wake:
            self._wake.wait_for(lambda: self.waiting or self._stopping)
            if not self.waiting:
                return []
            rung = self.choose()
            modes = [job.mode or self.modes[min(rung, job.limit)] for job in self.waiting]
            kinds = [(job.size, mode) for job, mode in zip(self.waiting, modes, strict=True)]
            alike = [job for job, kind in zip(self.waiting, kinds, strict=True) if kind == kinds[0]]
            jobs = alike[: self.batch]
            for job in jobs:
                self.waiting.remove(job)
                job.mode = kinds[0][1]
            self.running = (jobs, sum(job.work[rung] for job in jobs), perf_counter())
            return jobs
