"""The queue of a service: bounded in time, worked off in batches by one thread."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from paumer.drawing import Picture
from paumer.inference.result import Segmentation
from paumer.mode import Mode
from paumer.serve.governor import QueueGovernor

Run = Callable[[Sequence[Picture], Mode], Sequence[Segmentation]]


class BusyError(Exception):
    """A request that could not be answered in time: come back in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the service is at capacity: try again in {math.ceil(seconds)} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Done:
    """A segmentation, and the seconds it waited and took."""

    result: Segmentation
    queued: float
    compute: float


@dataclass(eq=False)
class Job:
    """An image in the queue.

    ``work`` is the seconds that it should take at each rung, ``limit`` the place of the fastest
    rung that will do; ``mode`` fixes how it runs, whatever the governor says. Images of one
    ``size`` (as they come in) and mode may run together.
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

    ``modes`` are those of the governor's rungs. A job is taken if, with the fastest rung from now
    on, it would be done within ``headroom`` of the governor's target, which leaves the rest for
    reading, decoding, answering and stalls of the machine; an idle batcher takes any.
    """

    def __init__(
        self,
        run: Run,
        modes: Sequence[Mode],
        governor: QueueGovernor,
        most: int = 64,
        batch: int = 1,
        headroom: float = 0.62,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.run, self.modes, self.governor = run, tuple(modes), governor
        self.most, self.batch, self.headroom, self.clock = most, batch, headroom, clock
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self._waiting: deque[Job] = deque()
        self._running: tuple[Sequence[Job], float, float] | None = None
        """The batch at hand, the seconds that it should take, and when it began."""
        self._stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    @property
    def running(self) -> bool:
        """Whether a batch is being computed."""
        return self._running is not None

    def check_wanted(self) -> None:
        """Raise `AbandonedError` if nobody waits for the running batch any more.

        For what runs it, between its steps.
        """
        if self._running and all(job.done.cancelled() for job in self._running[0]):
            raise AbandonedError

    def check(self, work: Sequence[float]) -> None:
        """Raise `BusyError` if there is no room for such work, which then counts as refused."""
        with self._wake:
            now = self.clock()
            if wait := self._too_long(now, work):
                self.governor.arrived(now, work)
                raise BusyError(wait)

    def submit(self, job: Job) -> "Future[Done]":
        """Put a job into the queue, or raise `BusyError`. Cancel the future to end it."""
        with self._wake:
            now = job.arrived = self.clock()
            self.governor.arrived(now, job.work)
            if wait := self._too_long(now, job.work):
                raise BusyError(wait)
            self._waiting.append(job)
            self._wake.notify()
        job.done.add_done_callback(lambda future: self._leave(job) if future.cancelled() else None)
        return job.done

    def filled(self) -> float:
        """The time that all that is there takes at the fastest rung, over the target."""
        with self._wake:
            backlog = self._backlog(self.clock())[-1]
        return self.governor.factor * backlog / self.governor.target

    def choose(self) -> int:
        """Let the governor look at the queue; the place of its rung."""
        with self._wake:
            now = self.clock()
            return self.governor.choose(now, self._backlog(now))

    def _leave(self, job: Job) -> None:
        with self._wake:
            if job in self._waiting:
                self._waiting.remove(job)

    def _backlog(self, now: float) -> list[float]:
        """The seconds that all that waits and runs should still take at each rung."""
        rest = 0.0
        if self._running:
            _, expected, begin = self._running
            rest = max(0.0, expected - (now - begin) / self.governor.factor)
        works = [job.work for job in self._waiting]
        return [rest + sum(work[i] for work in works) for i in range(len(self.modes))]

    def _too_long(self, now: float, work: Sequence[float]) -> float:
        """How many seconds too late such work would be done, 0 if it is in time."""
        if not self._waiting and not self._running:
            return 0.0
        limit = self.headroom * self.governor.target
        late = self.governor.factor * (self._backlog(now)[-1] + work[-1]) - limit
        if len(self._waiting) >= self.most:
            late = max(late, self.governor.factor * work[-1])
        return max(0.0, late)

    def _work(self) -> None:
        while jobs := self._take():
            self._run_batch(jobs)

    def _run_batch(self, jobs: Sequence[Job]) -> None:
        begin, mode = self.clock(), jobs[0].mode
        assert mode is not None
        results: Sequence[Segmentation] = ()
        try:
            results = self.run([job.image for job in jobs], mode)
        except AbandonedError:
            pass
        except Exception as error:  # Whatever it is, it is these requests', not the service's.
            for job in jobs:
                if job.done.set_running_or_notify_cancel():
                    job.done.set_exception(error)
        seconds = self.clock() - begin
        with self._wake:
            if results and self._running:
                self.governor.note(self._running[1], seconds)
            self._running = None
        self.on_batch(len(jobs), seconds)
        for job, result in zip(jobs, results, strict=False):
            if job.done.set_running_or_notify_cancel():
                job.done.set_result(Done(result, begin - job.arrived, seconds))

    def _take(self) -> list[Job]:
        """The next jobs that run together, none when it is time to end."""
        with self._wake:
            while not self._waiting:
                if self._stopping:
                    return []
                self._wake.wait()
            now = self.clock()
            place = self.governor.choose(now, self._backlog(now))
            first = self._waiting[0]
            alike = [
                job
                for job in self._waiting
                if job.size == first.size and self._mode(job, place) == self._mode(first, place)
            ]
            jobs = alike[: self.batch]
            for job in jobs:
                self._waiting.remove(job)
                job.mode = self._mode(job, place)
            expected = sum(job.work[place] for job in jobs)
            self._running = (jobs, expected, now)
            return jobs

    def _mode(self, job: Job, place: int) -> Mode:
        return self.modes[min(place, job.limit)] if job.mode is None else job.mode
