"""A model at work for others: its operating points, the batcher and the governor, without HTTP."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from paumer.engines import TorchEngine
from paumer.media import Picture
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Walk
from paumer.pause_config import PauseConfig, Threshold
from paumer.predict import Inference, Predictor
from paumer.segmentation import Segmentation
from paumer.serve.batcher import Batcher, Done, Job
from paumer.serve.governor import QueueGovernor
from paumer.serve.watch import Watch
from paumer.study.tradeoff import Measurement, skyline

_USUAL = {"balanced": "3:0.4", "fast": "3:0.4,5:0.4", "fastest": "3:0.4,5:0.4,7:0.4"}
"""Points of a model that has none of its own: configurations of the paper."""

_PATIENCE = 8.0
"""The target, in pictures without pausing, where none is given."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for: a configuration, a point or auto, and the fastest point allowed."""

    pause: str = "auto"
    floor: str | None = None
    early_exit: bool | None = None
    criterion: str | None = None


class Service:
    """Answers requests with the most accurate operating point that keeps the latency target.

    ``target`` is in seconds; without it, it is eight times what a picture takes without pausing.
    ``point`` keeps the service at one operating point.
    """

    def __init__(
        self,
        predictor: Predictor,
        name: str = "model",
        target: float | None = None,
        point: str | None = None,
        queue: int = 64,
        batch: int = 1,
    ) -> None:
        self.predictor, self.name = predictor, name
        self.known = known_points(predictor)
        ladder = ladder_points(self.known)
        if point is not None:
            ladder = {point: self._known(point)}
        self.points = ladder
        self.names = tuple(ladder)
        self.ways = tuple(Inference(batch=batch).at(point) for point in ladder.values())
        self.watch = Watch(self.names)
        self.ready = self.draining = False
        self.failure: Exception | None = None
        """What kept the service from starting or going on."""
        self.target = target or 0.0
        self.seconds: tuple[float, ...] = ()
        """What a picture of the model's size takes at each point, on this machine."""
        self._unit = 0.0
        self._queue, self._batch = queue, batch
        self._batcher: Batcher | None = None
        self._multiply_adds = lru_cache(4096)(self._count_multiply_adds)

    def start(self) -> None:
        """Time the operating points on this machine, then begin to work."""
        size = self.predictor.config.image_size
        self.seconds = time_ways(self.predictor, self.ways, size)
        self._unit = self.seconds[0] / self._multiply_adds(size, self.ways[0])
        unpaused = self._unit * self._multiply_adds(size, Inference())
        self.target = self.target or _PATIENCE * unpaused
        governor = QueueGovernor(len(self.ways), self.target)
        worker = stoppable(self.predictor, lambda: self.batcher.check_wanted())
        self._batcher = Batcher(worker.predict_batch, self.ways, governor, self._queue, self._batch)
        self._batcher.on_batch = self.watch.batch
        self._batcher.start()
        self.ready = True

    def stop(self) -> None:
        """Finish what waits."""
        self.draining = True
        if self._batcher:
            self._batcher.stop()

    @property
    def batcher(self) -> Batcher:
        """The queue; there is one once the service is ready."""
        assert self._batcher is not None, "start the service first"
        return self._batcher

    def check_room(self) -> None:
        """Raise `BusyError` if a usual picture has no chance, before anything is read of it."""
        self.batcher.check(self.seconds)

    def check(self, asked: Asked) -> None:
        """Raise unless what is asked for can be done."""
        self.way(asked)
        self.limit(asked.floor)

    def way(self, asked: Asked) -> Inference | None:
        """How to run what is asked for, None if the governor decides."""
        for name in ("early_exit", "criterion"):
            if getattr(asked, name) is not None and asked.pause in ("auto", *self.known):
                raise ValueError(
                    f'{name} goes with a configuration such as 3:0.4, not with "{asked.pause}"'
                )
        if asked.pause == "auto":
            return None
        if asked.floor is not None:
            raise ValueError(f'floor goes with pause "auto", and pause is "{asked.pause}"')
        point = self.known.get(asked.pause)
        if point is not None:
            return Inference(batch=self._batch).at(point)
        if ":" not in asked.pause and asked.pause != "none":
            raise ValueError(
                f'pause "{asked.pause}" is no configuration such as 3:0.4,5:0.4: choose of auto, '
                f"none, {', '.join(self.known)}"
            )
        pause, exits = PauseConfig.parse(asked.pause), bool(asked.early_exit)
        self.predictor.network.check(pause, exits)
        asks = Measurement(pause=pause, early_exit=exits, criterion=asked.criterion or "entropy")
        return Inference(batch=self._batch).at(asks)

    def limit(self, floor: str | None) -> int:
        """The place of the fastest rung that a client accepts."""
        if floor is None:
            return len(self.names) - 1
        if floor not in self.names:
            raise ValueError(
                f'no operating point "{floor}" to stop at: choose of {", ".join(self.names)}'
            )
        return self.names.index(floor)

    def submit(self, picture: Picture, asked: Asked) -> "Future[Done]":
        """Put a picture into the queue, or raise `BusyError`. Cancel the future to end it."""
        way, limit = self.way(asked), self.limit(asked.floor)
        size = (picture.shape[0], picture.shape[1])
        if way is None:
            unit = self._multiply_adds(size, self.ways[0]) / self._multiply_adds(
                self.predictor.config.image_size, self.ways[0]
            )
            work = tuple(unit * self.seconds[min(i, limit)] for i in range(len(self.ways)))
        else:
            work = (self._unit * self._multiply_adds(size, way),) * len(self.ways)
        seen = self.predictor.input_size(size, way or self.ways[0])
        return self.batcher.submit(Job(picture, seen, work, limit, way))

    def point_name(self, way: Inference) -> str | None:
        """The name of the operating point that runs like this."""
        for name, point in self.known.items():
            if way.at(point) == way:
                return name
        return None

    def work_ratio(self, result: Segmentation, way: Inference) -> float:
        """The multiply-adds of a result over those without pausing."""
        size = (result.labels.shape[0], result.labels.shape[1])
        as_shares = replace(way, pause=_shares_paused(result))
        return self._multiply_adds(size, as_shares) / self._multiply_adds(size, Inference())

    def describe(self) -> dict[str, Any]:
        """The model: its classes, operating points and the target."""
        classes = self.predictor.classes
        seconds = dict(zip(self.names, self.seconds, strict=True)) if self.ready else {}
        return {
            "name": self.name,
            "classes": [
                {"name": name, "colour": list(colour)}
                for name, colour in zip(classes.names, classes.colours, strict=True)
            ],
            "points": [_told(name, p, seconds.get(name)) for name, p in self.points.items()],
            "curve": [_told(name, p, seconds.get(name)) for name, p in self.known.items()],
            "blocks": self.predictor.network.backbone.depth,
            "patch": list(self.predictor.network.backbone.patch),
            "latency_ms": 1000 * self.target if self.ready else None,
        }

    def status(self) -> dict[str, Any]:
        """What goes on, and the last two minutes second by second."""
        governor, (middle, high) = self.batcher.governor, self.watch.percentiles()
        return {
            "queue": self.batcher.waiting,
            "running": self.batcher.running,
            "point": self.names[governor.place],
            "pause": str(self.ways[governor.place].pause),
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
        self.watch.tick(self.names[self.batcher.choose()], self.batcher.waiting)

    def metrics(self) -> bytes:
        """Everything that is counted, in the format of Prometheus."""
        if not self.ready:
            return self.watch.text(0, 0, 0, 0.0)
        batcher, governor = self.batcher, self.batcher.governor
        return self.watch.text(governor.place, governor.changes, batcher.waiting, batcher.filled())

    def _known(self, name: str) -> Measurement:
        if name not in self.known:
            raise ValueError(f'no operating point "{name}": choose of {", ".join(self.known)}')
        return self.known[name]

    def _count_multiply_adds(self, size: tuple[int, int], way: Inference) -> float:
        """The multiply-adds of a picture; by threshold nothing is sure to pause."""
        shares = tuple(s for s in way.pause.stages if not isinstance(s[1], Threshold))
        seen = self.predictor.input_size(size, way)
        windows = self.predictor.windows(size, way)
        network = self.predictor.network
        return windows * network.multiply_adds(seen, PauseConfig(shares), way.early_exit)


class _Stoppable(PausingSegmenter):
    """A network of the same parts that calls ``ask`` before every block, which may raise."""

    def __init__(self, network: PausingSegmenter, ask: Callable[[], None]) -> None:
        super().__init__(network.backbone, network.decoder, network.aux_head, network.config)
        self.ask = ask

    def advance(self, walk: Walk, done: int, until: int) -> Walk:
        """The walk after block ``until``, when block ``done`` was the last one run."""
        for number in range(done + 1, until + 1):
            self.ask()
            walk = super().advance(walk, number - 1, number)
        return walk


def stoppable(predictor: Predictor, ask: Callable[[], None]) -> Predictor:
    """The predictor, which ends early if ``ask``, called before every block, raises.

    Networks that do not run in torch block by block are not asked.
    """
    if type(predictor.engine) is not TorchEngine:
        return predictor
    return Predictor(_Stoppable(predictor.network, ask), predictor.points)


def known_points(predictor: Predictor) -> dict[str, Measurement]:
    """All operating points of a model by name, from slow to fast; no pausing is always one.

    A model that has none of its own gets configurations of the paper, and the speed-up that
    their multiply-adds promise.
    """
    points = dict(predictor.points)
    if not points:
        deep = {n: PauseConfig.parse(t) for n, t in _USUAL.items()}
        depth = predictor.network.pausing_depth
        points = {n: Measurement(pause=p) for n, p in deep.items() if p.blocks[-1] < depth}
    if all(point.pause for point in points.values()):
        points["unpaused"] = Measurement(pause=PauseConfig(), speed_up=1.0)
    size = predictor.config.image_size
    whole = predictor.network.multiply_adds(size)

    def promised(point: Measurement) -> Measurement:
        if point.speed_up is not None:
            return point
        shares = tuple(s for s in point.pause.stages if not isinstance(s[1], Threshold))
        cost = predictor.network.multiply_adds(size, PauseConfig(shares), point.early_exit)
        return replace(point, speed_up=whole / cost)

    complete = {name: promised(point) for name, point in points.items()}
    return dict(sorted(complete.items(), key=lambda item: item[1].speed_up or 1.0))


def ladder_points(points: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """The points that no other beats in both speed and mIoU; where no mIoU is known, all stay.

    Of several names for the same, the first.
    """
    judged = [p for p in points.values() if p.miou is not None and p.speed_up is not None]
    best = skyline([replace(p, images_per_second=p.speed_up) for p in judged])
    kept = {Inference().at(p) for p in best}
    ladder: dict[Inference, str] = {}
    for name, point in points.items():
        way = Inference().at(point)
        if point.miou is None or way in kept:
            ladder.setdefault(way, name)
    return {name: points[name] for name in ladder.values()}


def time_ways(
    predictor: Predictor,
    ways: tuple[Inference, ...],
    size: tuple[int, int],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """The least seconds that one picture of that (height, width) takes in each way."""
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    best = [float("inf")] * len(ways)
    for number in range(rounds + 1):
        for place, way in enumerate(ways):
            begin = clock()
            predictor.predict_batch([picture], way)
            if number:  # The first round warms up.
                best[place] = min(best[place], clock() - begin)
    # A faster point is not slower: where it seems so, the network is too small to tell.
    return tuple(accumulate(best, min))


def _shares_paused(result: Segmentation) -> PauseConfig:
    """The configuration by shares that pauses what paused in this picture."""
    active, stages = result.paused_after.size, []
    for block, amount in result.pause.stages:
        paused = int((result.paused_after == block).sum())
        stages.append((block, paused / active if isinstance(amount, Threshold) else amount))
        active -= paused
    return PauseConfig(tuple(stages))


def _told(name: str, point: Measurement, seconds: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "pause": str(point.pause),
        "early_exit": point.early_exit,
        "criterion": point.criterion,
        "miou": point.miou,
        "speed_up": point.speed_up,
        "latency_ms": point.latency_ms if seconds is None else 1000 * seconds,
    }
