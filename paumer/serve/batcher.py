"""The queue of a service: bounded in time, worked off in batches by one thread."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from paumer.drawing import Picture
from paumer.inference.result import Segmentation
from paumer.mode import Mode
from paumer.serve.governor import QueueGovernor

HEADROOM = 0.62
"""The share of the target within which a request has to be done to be taken."""

Run = Callable[[Sequence[Picture], Mode], Sequence[Segmentation]]


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
    """An image in the queue.

    ``work`` is the seconds that it should take at each rung, ``limit`` the fastest rung allowed;
    a ``mode`` is kept, whatever the governor chooses. Images of one ``size`` (as the network sees
    them) and mode may run together.
    """

    image: Picture
    size: tuple[int, int]
    work: tuple[float, ...]
    limit: int
    mode: Mode | None = None
    arrived: float = 0.0
    done: "Future[Done]" = field(default_factory=Future)


class AbandonedError(Exception):
    """Work that nobody waits for any more was left undone."""


class Batcher:
    """Takes jobs as long as they can be done in time, and runs them in batches in its thread.

    ``modes`` are those of the governor's rungs. A job is taken if fewer than ``queue`` wait and,
    with the fastest rung from now on, it would be done within `HEADROOM` of the governor's target,
    which leaves the rest for reading, decoding, answering and stalls of the machine; an idle
    batcher takes any.
    """

    def __init__(
        self, run: Run, modes: Sequence[Mode], governor: QueueGovernor, queue: int, batch: int
    ) -> None:
        self.run, self.modes, self.governor = run, tuple(modes), governor
        self.queue, self.batch = queue, batch
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self.waiting: deque[Job] = deque()
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

    def check(self, work: Sequence[float]) -> None:
        """Raise `BusyError` if there is no room for such work, which then counts as refused."""
        with self._wake:
            now = perf_counter()
            if wait := self._too_long(now, work):
                self.governor.arrived(now, work)
                raise BusyError(wait)

    def submit(self, job: Job) -> "Future[Done]":
        """Put a job into the queue, or raise `BusyError`. Cancel the future to end it."""
        with self._wake:
            now = job.arrived = perf_counter()
            self.governor.arrived(now, job.work)
            if wait := self._too_long(now, job.work):
                raise BusyError(wait)
            self.waiting.append(job)
            self._wake.notify()
        job.done.add_done_callback(lambda future: self._leave(job) if future.cancelled() else None)
        return job.done

    def filled(self) -> float:
        """The time that all that waits and runs takes at the fastest rung, over the target."""
        with self._wake:
            backlog = self._backlog(perf_counter())[-1]
        return self.governor.factor * backlog / self.governor.target

    def choose(self) -> int:
        """Let the governor look at the queue; the rung that it chooses."""
        with self._wake:
            now = perf_counter()
            return self.governor.choose(now, self._backlog(now))

    def _leave(self, job: Job) -> None:
        with self._wake, suppress(ValueError):
            self.waiting.remove(job)

    def _backlog(self, now: float) -> list[float]:
        """The seconds that all that waits and runs should still take at each rung."""
        rest = 0.0
        if self.running:
            _, expected, begin = self.running
            rest = max(0.0, expected - (now - begin) / self.governor.factor)
        works = [job.work for job in self.waiting]
        return [rest + sum(work[i] for work in works) for i in range(len(self.modes))]

    def _too_long(self, now: float, work: Sequence[float]) -> float:
        """How many seconds too late such work would be done, 0 if it is in time."""
        if not self.waiting and not self.running:
            return 0.0
        limit = HEADROOM * self.governor.target
        late = self.governor.factor * (self._backlog(now)[-1] + work[-1]) - limit
        if len(self.waiting) >= self.queue:
            late = max(late, self.governor.factor * work[-1])
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
