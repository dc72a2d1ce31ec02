"""A model at work for others: its operating points, the batcher and the governor, without HTTP."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from paumer.data.images import TooManyPixelsError
from paumer.drawing import Picture
from paumer.inference.engines import TorchEngine
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation
from paumer.inference.tiles import Inference, scaled_size
from paumer.measurement import Measurement, pareto_front
from paumer.mode import UNPAUSED, Mode
from paumer.pause_config import PauseConfig, Threshold
from paumer.serve.batcher import Batcher, Done, Job
from paumer.serve.governor import QueueGovernor
from paumer.serve.watch import Watch

_USUAL = {"balanced": "3:0.4", "fast": "3:0.4,5:0.4", "fastest": "3:0.4,5:0.4,7:0.4"}
"""Points of a model that has none of its own: configurations of the paper."""

_PATIENCE = 8.0
"""The target, in images without pausing, where none is given."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for: a mode, a point or auto, and the fastest point allowed."""

    mode: str = "auto"
    floor: str | None = None


class Service:
    """Answers requests with the most accurate operating point that keeps the latency target.

    ``target`` is in seconds; without it, it is eight times what an image takes without pausing.
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
        self.modes = tuple(point.mode for point in ladder.values())
        self.inference = Inference(batch=batch)
        self.watch = Watch(self.names)
        self.ready = self.draining = False
        self.failure: Exception | None = None
        """What kept the service from starting or continuing."""
        self.target = target or 0.0
        self.seconds: tuple[float, ...] = ()
        """What an image of the model's size takes at each point, on this machine."""
        self._unit = 0.0
        self._queue, self._batch = queue, batch
        self._batcher: Batcher | None = None
        self._macs = lru_cache(4096)(self._count_macs)

    def start(self) -> None:
        """Time the operating points on this machine, then begin to work."""
        size = self.predictor.config.image_size
        self.seconds = time_modes(self.predictor, self.modes, size)
        self._unit = self.seconds[0] / self._macs(size, self.modes[0])
        unpaused = self._unit * self._macs(size, UNPAUSED)
        self.target = self.target or _PATIENCE * unpaused
        governor = QueueGovernor(len(self.modes), self.target)
        worker = stoppable(self.predictor, lambda: self.batcher.check_wanted())
        run = partial(worker.predict_batch, inference=self.inference)
        self._batcher = Batcher(run, self.modes, governor, self._queue, self._batch)
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
        """Raise `BusyError` if a usual image has no chance, before anything is read of it."""
        self.batcher.check(self.seconds)

    def check(self, asked: Asked) -> None:
        """Raise unless what is asked for can be done."""
        self.mode(asked)
        self.limit(asked.floor)

    def mode(self, asked: Asked) -> Mode | None:
        """The mode that is asked for, None if the governor decides."""
        if asked.mode == "auto":
            return None
        if asked.floor is not None:
            raise ValueError(f'floor goes with mode "auto", and mode is "{asked.mode}"')
        if asked.mode in self.known:
            return self.known[asked.mode].mode
        if ":" not in asked.mode and not asked.mode.startswith("none"):
            raise ValueError(
                f'mode "{asked.mode}" is not one such as 3:0.4,9:0.9 exit: choose from auto, '
                f"none, {', '.join(self.known)}"
            )
        return self.predictor.mode(asked.mode)

    def check_pixels(self, image: Picture, asked: Asked, most: int) -> None:
        """Raise if the size that is asked for makes more than ``most`` pixels of an image."""
        mode = self.mode(asked)
        if mode is None or mode.size is None:
            return
        old = (image.shape[0], image.shape[1])
        new = scaled_size(old, mode.size)
        if new[0] * new[1] > most:
            raise TooManyPixelsError(
                f'mode "{mode}" scales {old[1]}x{old[0]} to {new[1]}x{new[0]}, which is '
                f"{new[0] * new[1]:,} pixels, and at most {most:,} are taken"
            )

    def limit(self, floor: str | None) -> int:
        """The place of the fastest rung that a client accepts."""
        if floor is None:
            return len(self.names) - 1
        if floor not in self.names:
            raise ValueError(
                f'no operating point "{floor}" to stop at: choose of {", ".join(self.names)}'
            )
        return self.names.index(floor)

    def submit(self, image: Picture, asked: Asked) -> "Future[Done]":
        """Put an image into the queue, or raise `BusyError`. Cancel the future to end it."""
        mode, limit = self.mode(asked), self.limit(asked.floor)
        size = (image.shape[0], image.shape[1])
        if mode is None:
            unit = self._macs(size, self.modes[0]) / self._macs(
                self.predictor.config.image_size, self.modes[0]
            )
            work = tuple(unit * self.seconds[min(i, limit)] for i in range(len(self.modes)))
        else:
            work = (self._unit * self._macs(size, mode),) * len(self.modes)
        seen = self.predictor.input_size(size, self.modes[0] if mode is None else mode)
        return self.batcher.submit(Job(image, seen, work, limit, mode))

    def point_name(self, mode: Mode) -> str | None:
        """The name of the operating point that is this mode."""
        return next((name for name, point in self.known.items() if point.mode == mode), None)

    def work_ratio(self, result: Segmentation) -> float:
        """The MACs of a result over those without pausing."""
        size = (result.labels.shape[0], result.labels.shape[1])
        as_shares = replace(result.mode, pause=_shares_paused(result))
        return self._macs(size, as_shares) / self._macs(size, UNPAUSED)

    def describe(self) -> dict[str, object]:
        """The model: its classes, operating points and the target."""
        classes = self.predictor.classes
        seconds = dict(zip(self.names, self.seconds, strict=True)) if self.ready else {}
        return {
            "name": self.name,
            "classes": [
                {"name": name, "colour": list(colour)}
                for name, colour in zip(classes.names, classes.colours, strict=True)
            ],
            "points": [_describe(name, p, seconds.get(name)) for name, p in self.points.items()],
            "curve": [_describe(name, p, seconds.get(name)) for name, p in self.known.items()],
            "blocks": self.predictor.network.backbone.depth,
            "patch": list(self.predictor.network.backbone.patch),
            "latency_ms": 1000 * self.target if self.ready else None,
        }

    def status(self) -> dict[str, object]:
        """What continues, and the last two minutes second by second."""
        governor, (middle, high) = self.batcher.governor, self.watch.percentiles()
        return {
            "queue": self.batcher.waiting,
            "running": self.batcher.running,
            "point": self.names[governor.place],
            "mode": str(self.modes[governor.place]),
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

    def _count_macs(self, size: tuple[int, int], mode: Mode) -> int:
        """The MACs of an image; by threshold nothing is sure to pause."""
        return self.predictor.macs(size, _sure(mode), self.inference)


def stoppable(predictor: Predictor, ask: Callable[[], None]) -> Predictor:
    """The predictor, which ends early if ``ask``, called after every block, raises.

    Networks that do not run in torch block by block are not asked.
    """
    if not isinstance(predictor.engine, TorchEngine):
        return predictor
    return Predictor(predictor.network, predictor.points, TorchEngine(predictor.network, ask))


def _sure(mode: Mode) -> Mode:
    """The mode without its thresholds."""
    stages = tuple(s for s in mode.pause.stages if not isinstance(s[1], Threshold))
    return replace(mode, pause=PauseConfig(stages))


def known_points(predictor: Predictor) -> dict[str, Measurement]:
    """All operating points of a model by name, from slow to fast; no pausing is always one.

    A model that has none of its own gets configurations of the paper, and the speed-up that
    their MACs promise.
    """
    points = dict(predictor.points)
    if not points:
        usual = {name: Mode.parse(text) for name, text in _USUAL.items()}
        depth = predictor.network.backbone.depth
        points = {n: Measurement(mode=m) for n, m in usual.items() if m.pause.blocks[-1] < depth}
    if UNPAUSED not in (point.mode for point in points.values()):
        points["unpaused"] = Measurement(mode=UNPAUSED, speed_up=1.0)
    size = predictor.config.image_size
    whole = predictor.macs(size)

    def promised(point: Measurement) -> Measurement:
        if point.speed_up is not None:
            return point
        return replace(point, speed_up=whole / predictor.macs(size, _sure(point.mode)))

    complete = {name: promised(point) for name, point in points.items()}
    return dict(sorted(complete.items(), key=lambda item: item[1].speed_up or 1.0))


def ladder_points(points: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """The points that no other beats in both speed and mIoU; where no mIoU is known, all stay.

    Of several names for the same, the first.
    """
    judged = [p for p in points.values() if p.miou is not None and p.speed_up is not None]
    best = pareto_front([replace(p, images_per_second=p.speed_up) for p in judged])
    kept = {point.mode for point in best}
    ladder: dict[Mode, str] = {}
    for name, point in points.items():
        if point.miou is None or point.mode in kept:
            ladder.setdefault(point.mode, name)
    return {name: points[name] for name in ladder.values()}


def time_modes(
    predictor: Predictor,
    modes: tuple[Mode, ...],
    size: tuple[int, int],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """The least seconds that one image of that (height, width) takes in each mode."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    best = [float("inf")] * len(modes)
    for number in range(rounds + 1):
        for place, mode in enumerate(modes):
            begin = clock()
            predictor.predict_batch([image], mode)
            if number:  # The first round warms up.
                best[place] = min(best[place], clock() - begin)
    # A faster point is not slower: where it seems so, the network is too small to tell.
    return tuple(accumulate(best, min))


def _shares_paused(result: Segmentation) -> PauseConfig:
    """The configuration by shares that pauses what paused in this image."""
    active, stages = result.paused_after.size, []
    for block, amount in result.mode.pause.stages:
        paused = int((result.paused_after == block).sum())
        stages.append((block, paused / active if isinstance(amount, Threshold) else amount))
        active -= paused
    return PauseConfig(tuple(stages))


def _describe(name: str, point: Measurement, seconds: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "mode": str(point.mode),
        "miou": point.miou,
        "speed_up": point.speed_up,
        "latency_ms": point.latency_ms if seconds is None else 1000 * seconds,
    }
