"""A model at work for others: its operating points, the batcher and the governor, without HTTP."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from paumer.classes import Pixels
from paumer.data.images import TooLargeError
from paumer.inference.engines import TorchEngine
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation
from paumer.inference.tiles import Inference
from paumer.measurement import Measurement, pareto_front
from paumer.mode import UNPAUSED, Mode
from paumer.pause_config import PauseConfig, Threshold
from paumer.serve.answers import OUTPUTS, PRIORITIES
from paumer.serve.batcher import Batcher, Done, Job
from paumer.serve.watch import Watch
from paumer.serve.workers import LocalWorker, Make, ProcessWorker, Worker, shared

_USUAL = {"balanced": "3:0.4", "fast": "3:0.4,5:0.4", "fastest": "3:0.4,5:0.4,7:0.4"}
"""Points of a model that has none of its own: configurations of the paper."""

_PATIENCE = 8.0
"""The target, in images without pausing, where none is given."""

OPTIONS = ("mode", "floor", "output", "deadline_ms", "priority")
"""The parameters of a request."""

_LONGEST = 3_600_000
"""The longest deadline, in milliseconds."""

_REMOVED = ("pause", "early_exit", "criterion")
"""Those of 0.1 that are part of the mode now."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parameters:
    """What a client wants: a mode (None: the governor's), the fastest rung allowed, the output.

    ``seconds`` is the time it gives, None for the service's target.
    """

    mode: Mode | None
    limit: int
    output: str
    seconds: float | None = None
    priority: int = PRIORITIES.index("normal")


class Service:
    """Answers requests with the most accurate operating point that keeps the latency target.

    ``target`` is in seconds; without it, it is eight times what an image takes without pausing.
    ``point`` keeps the service at one operating point. Several ``workers`` compute in processes of
    their own: they share the network's weights, or ``make`` a predictor each for another engine.
    """

    def __init__(
        self,
        predictor: Predictor,
        target: float | None = None,
        point: str | None = None,
        queue: int = 64,
        batch: int = 1,
        workers: int = 1,
        make: Make | None = None,
    ) -> None:
        self.predictor = predictor
        self.known = known_points(predictor)
        if point is not None and point not in self.known:
            raise ValueError(f'no operating point "{point}": choose from {", ".join(self.known)}')
        self.points = {point: self.known[point]} if point else ladder_points(self.known)
        self.names = tuple(self.points)
        self.modes = tuple(point.mode for point in self.points.values())
        self.watch = Watch(self.names)
        self.ready = self.draining = False
        self.failure: Exception | None = None
        """What kept the service from starting or continuing."""
        self.target = target or 0.0
        self.seconds: tuple[float, ...] = ()
        """What an image of the model's size takes at each point, on this machine."""
        self.batcher: Batcher
        """The queue; there is one once the service is ready."""
        self.workers: list[Worker] = []
        self._queue, self._batch, self._inference = queue, batch, Inference(batch=batch)
        self._count, self._make = workers, make
        self._macs = lru_cache(4096)(partial(_sure_macs, predictor, self._inference))

    def start(self) -> None:
        """Time the operating points on this machine, then begin to work."""
        from paumer.study.speed import time_interleaved

        size = self.predictor.config.image_size
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        runs = [partial(self.predictor.predict_batch, [image], mode) for mode in self.modes]
        seconds = time_interleaved(runs, self.predictor.device, rounds=5, warmup=1).min(0)
        # A faster point is not slower: where it seems so, the network is too small to tell.
        self.seconds = tuple(np.minimum.accumulate(seconds).tolist())
        self.target = self.target or _PATIENCE * self._expected(size, UNPAUSED)
        self._start_workers()
        workers = [worker.run for worker in self.workers]
        self.batcher = batcher = Batcher(workers, self.modes, self._queue, self._batch)
        batcher.on_batch = self.watch.batch
        self.watch.follow(
            point=lambda: batcher.governor.rung,
            point_changes=lambda: batcher.governor.changes,
            queue=lambda: len(batcher.waiting),
            queue_filled=lambda: batcher.filled(self.target),
        )
        self.ready = True

    def _start_workers(self) -> None:
        if self._count == 1:
            self.workers = [LocalWorker(self.predictor, self._inference)]
            return
        own = isinstance(self.predictor.engine, TorchEngine)
        make, threads = shared(self.predictor) if own else self._make, torch.get_num_threads()
        assert make is not None
        started = [ProcessWorker(make, self._inference, threads) for _ in range(self._count)]
        self.workers = [*started]
        try:
            for worker in started:
                worker.wait()
        except EOFError:
            raise RuntimeError("the process of a worker ended before it could compute") from None

    def stop(self) -> None:
        """Finish what waits."""
        self.draining = True
        if self.ready:
            self.batcher.stop()
        for worker in self.workers:
            worker.stop()

    def read(self, values: Mapping[str, str]) -> Parameters:
        """The parameters of a request; raises ValueError unless they can be met."""
        for name in values:
            if name not in OPTIONS:
                hint = " (a mode says it all, such as mode=3:0.4 exit)" if name in _REMOVED else ""
                raise ValueError(f'no option "{name}"{hint}: choose from {", ".join(OPTIONS)}')
        mode, floor = values.get("mode", "auto"), values.get("floor")
        output = values.get("output", "mask")
        if output not in OUTPUTS:
            raise ValueError(f'output "{output}" is not known: choose from {", ".join(OUTPUTS)}')
        if floor is not None and mode != "auto":
            raise ValueError(f'floor goes with mode "auto", and mode is "{mode}"')
        if floor is not None and floor not in self.names:
            choices = ", ".join(self.names)
            raise ValueError(f'no operating point "{floor}" to stop at: choose from {choices}')
        limit = len(self.names) - 1 if floor is None else self.names.index(floor)
        seconds = _deadline(values["deadline_ms"]) if "deadline_ms" in values else None
        priority = values.get("priority", "normal")
        if priority not in PRIORITIES:
            choices = ", ".join(PRIORITIES)
            raise ValueError(f'priority "{priority}" is not known: choose from {choices}')
        return Parameters(self._mode(mode), limit, output, seconds, PRIORITIES.index(priority))

    def _mode(self, text: str) -> Mode | None:
        """The mode that a client names, None if the governor decides."""
        if text == "auto":
            return None
        if text in self.known:
            return self.known[text].mode
        if ":" not in text and not text.startswith("none"):
            raise ValueError(
                f'mode "{text}" is not one such as 3:0.4,9:0.9 exit: choose from auto, '
                f"none, {', '.join(self.known)}"
            )
        return self.predictor.mode(text)

    def check_pixels(self, image: Pixels, parameters: Parameters, limit: int) -> None:
        """Raise if the network would run more than ``limit`` pixels, in any mode that may run."""
        height, width = image.shape[:2]
        for mode in self._allowed(parameters):
            rows, columns = self.predictor.scaled((height, width), mode)
            if rows * columns > limit:
                raise TooLargeError(
                    f'mode "{mode}" scales {width}x{height} to {columns}x{rows}, which is '
                    f"{rows * columns:,} pixels, and at most {limit:,} are taken"
                )

    def submit(
        self, image: Pixels, parameters: Parameters, arrived: float | None = None
    ) -> "Future[Done]":
        """Put an image into the queue, or raise `BusyError`. Cancel the future to end it.

        Its time runs from when it ``arrived``, by ``perf_counter``.
        """
        size, first = (image.shape[0], image.shape[1]), self._allowed(parameters)[0]
        expected = self._expected(size, first)
        work = (expected,) * len(self.modes)
        if parameters.mode is None:
            images = expected / self.seconds[0]  # So many of the model's size take as long.
            least = self.seconds[parameters.limit]
            work = tuple(images * max(seconds, least) for seconds in self.seconds)
        seconds, now = parameters.seconds, perf_counter()
        if seconds is not None and self.batcher.governor.factor * work[-1] > seconds:
            raise ValueError(
                f"deadline_ms is {1000 * seconds:g}, and such an image takes about "
                f"{1000 * self.batcher.governor.factor * work[-1]:.0f} ms: give more time"
            )
        job = Job(
            image,
            self.predictor.geometry(size, first).window,
            work,
            parameters.limit,
            now if arrived is None else arrived,
            seconds or self.target,
            parameters.mode,
            parameters.priority,
        )
        return self.batcher.submit(job)

    def point_name(self, mode: Mode) -> str | None:
        """The name of the operating point that is this mode."""
        return next((name for name, point in self.known.items() if point.mode == mode), None)

    def work_ratio(self, result: Segmentation) -> float:
        """The MACs of a result over those without pausing."""
        size = (result.labels.shape[0], result.labels.shape[1])
        active, stages = result.paused_after.size, []
        for block, amount in result.mode.pause.stages:
            paused = int((result.paused_after == block).sum())
            stages.append((block, paused / active if isinstance(amount, Threshold) else amount))
            active -= paused
        by_ratio = replace(result.mode, pause=PauseConfig(tuple(stages)))
        return self._macs(size, by_ratio) / self._macs(size, UNPAUSED)

    def describe(self) -> dict[str, object]:
        """The model: its classes, operating points and the target."""
        classes, size = self.predictor.classes, self.predictor.config.image_size
        seconds = dict(zip(self.names, self.seconds, strict=True)) if self.ready else {}

        def described(points: Mapping[str, Measurement]) -> list[dict[str, object]]:
            return [
                {
                    "name": name,
                    "mode": str(point.mode),
                    "miou": point.miou,
                    "data": point.data,
                    "images": point.images,
                    "speed_up": point.speed_up,
                    "where": point.where,
                    "work": self._macs(size, point.mode) / self._macs(size, UNPAUSED),
                    "latency_ms": 1000 * seconds[name] if name in seconds else point.latency_ms,
                }
                for name, point in points.items()
            ]

        return {
            "name": Path(self.predictor.source or "model").name,
            "classes": [
                {"name": name, "colour": list(colour)}
                for name, colour in zip(classes.names, classes.colours, strict=True)
            ],
            "points": described(self.points),
            "curve": described(self.known),
            "blocks": self.predictor.network.backbone.depth,
            "patch": list(self.predictor.network.backbone.patch),
            "side": self.predictor.config.trained_side,
            "latency_ms": 1000 * self.target if self.ready else None,
        }

    def status(self) -> dict[str, object]:
        """What the service does now, and the last two minutes second by second."""
        governor, (middle, high) = self.batcher.governor, self.watch.percentiles()
        return {
            "queue": len(self.batcher.waiting),
            "running": len(self.batcher.running),
            "point": self.names[governor.rung],
            "mode": str(self.modes[governor.rung]),
            "requests_per_second": self.watch.rate(),
            "latency_ms_p50": middle,
            "latency_ms_p99": high,
            "accepted": self.watch.accepted,
            "refused": self.watch.refused,
            "changes": governor.changes,
            "history": list(self.watch.history),
        }

    def tick(self) -> None:
        """Once a second: look at the queue, also when nothing arrives."""
        self.watch.tick(self.names[self.batcher.choose()], len(self.batcher.waiting))

    def _allowed(self, parameters: Parameters) -> tuple[Mode, ...]:
        """The modes in which a request may run."""
        return (parameters.mode,) if parameters.mode else self.modes[: parameters.limit + 1]

    def _expected(self, size: tuple[int, int], mode: Mode) -> float:
        """The seconds that an image should take, by its MACs and the timing of the first point."""
        timed = self._macs(self.predictor.config.image_size, self.modes[0])
        return self.seconds[0] / timed * self._macs(size, mode)


def _deadline(text: str) -> float:
    """Seconds from a deadline in milliseconds."""
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds <= _LONGEST:
        raise ValueError(f'deadline_ms is "{text[:20]}": give milliseconds, such as 200')
    return milliseconds / 1000


def _sure_macs(
    predictor: Predictor, inference: Inference, size: tuple[int, int], mode: Mode
) -> int:
    """The MACs of an image; by threshold nothing is sure to pause."""
    stages = tuple(s for s in mode.pause.stages if not isinstance(s[1], Threshold))
    return predictor.macs(size, replace(mode, pause=PauseConfig(stages)), inference)


def known_points(predictor: Predictor) -> dict[str, Measurement]:
    """The operating points of a model that can run, from slow to fast; no pausing is always one.

    A model that has none of its own gets configurations of the paper. Where a speed-up is not
    known, it is the ratio of MACs.
    """
    points = {}
    for name, point in predictor.points.items():
        try:
            predictor.mode(point.mode)
            points[name] = point
        except ValueError as error:
            _log.warning('operating point "%s" is left out: %s', name, error)
    if not points:
        usual = {name: Mode.parse(text) for name, text in _USUAL.items()}
        depth = predictor.network.backbone.depth
        points = {n: Measurement(mode=m) for n, m in usual.items() if m.pause.blocks[-1] < depth}
    if UNPAUSED not in (point.mode for point in points.values()):
        points["unpaused"] = Measurement(mode=UNPAUSED, speed_up=1.0)
    macs = partial(_sure_macs, predictor, Inference(), predictor.config.image_size)
    for name, point in points.items():
        if point.speed_up is None:
            points[name] = replace(point, speed_up=macs(UNPAUSED) / macs(point.mode))
    return dict(sorted(points.items(), key=lambda item: item[1].speed_up or 1.0))


def ladder_points(points: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """The points that no other beats in both speed and mIoU; where no mIoU is known, all stay.

    Of several names for the same, the first.
    """
    measured = [p for p in points.values() if p.miou is not None and p.speed_up is not None]
    front = pareto_front([replace(p, images_per_second=p.speed_up) for p in measured])
    kept = {point.mode for point in front}
    ladder: dict[Mode, str] = {}
    for name, point in points.items():
        if point.miou is None or point.mode in kept:
            ladder.setdefault(point.mode, name)
    return {name: points[name] for name in ladder.values()}
