"""Many images: read, segmented and written all at once, one broken one not stopping the rest."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paumer.data.images import read_image
from paumer.disk import replace_file
from paumer.drawing import Picture, write_image, write_mask
from paumer.inference.governor import Governor
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation
from paumer.inference.sources import Source
from paumer.inference.tiles import Inference
from paumer.inference.video import VideoReader, VideoWriter
from paumer.mode import Mode
from paumer.model.directory import fingerprint
from paumer.progress import Progress

KINDS = ("mask", "colour", "overlay", "paused", "entropy")
LINES_FILE = "predictions.jsonl"


@dataclass
class Outcome:
    """What became of the images: how many were written, passed over, and broken and why."""

    written: int = 0
    passed: int = 0
    late: int = 0
    broken: list[str] = field(default_factory=list)
    changes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """Images to be segmented into a folder, with what to write of each.

    ``governor`` moves the operating point from image to image; then images run one by one.
    Finished images are listed in ``predictions.jsonl`` and passed over the next time.
    """

    predictor: Predictor
    mode: Mode
    out: Path
    inference: Inference = field(default_factory=Inference)
    kinds: Sequence[str] = ("mask", "overlay", "paused")
    governor: Governor | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f'cannot write "{unknown[0]}": choose from {", ".join(KINDS)}')

    def run(self, sources: Sequence[Source], progress: Progress | None = None) -> Outcome:
        """Segment the images. Reading and writing happen in threads beside the network."""
        outcome = Outcome()
        lines = _read_lines(self.out / LINES_FILE)
        todo = [source for source in sources if not self._finished(source, lines)]
        outcome.passed = len(sources) - len(todo)
        self.out.mkdir(parents=True, exist_ok=True)
        size = 1 if self.governor else self.inference.batch
        groups = [todo[begin : begin + size] for begin in range(0, len(todo), size)]
        path = self.out / LINES_FILE
        _drop_broken_end(path)
        with ThreadPoolExecutor(2) as writers, path.open("a", encoding="utf-8") as file:
            waiting: list[Future[dict[str, Any]]] = []
            for done, pictures in self._read(groups, outcome):
                for source, result in self._segment(pictures, outcome):
                    waiting.append(writers.submit(self._write, source, result))
                # Few enough wait that memory stays small, and the disk's speed counts at last.
                while len(waiting) > 2 * size + 2:
                    outcome.written += _append(file, waiting.pop(0).result())
                if progress:
                    progress(outcome.passed + done, len(sources))
            for future in waiting:
                outcome.written += _append(file, future.result())
        outcome.changes = self.governor.changes if self.governor else 0
        return outcome

    def run_video(self, source: Source, progress: Progress | None = None) -> Outcome:
        """Segment a video or camera into an annotated video of the same rate, sound kept.

        With a governor every frame has its turn, and is late if it is not done within two periods
        of it.
        """
        outcome, begin = Outcome(), time.perf_counter()
        out = self.out / f"{source.name}_overlay.mp4"
        with (
            VideoReader(source.path) as reader,
            VideoWriter(out, reader.rate, source.path if reader.has_sound else None) as writer,
            ThreadPoolExecutor(1) as reading,
            ThreadPoolExecutor(1) as writing,
        ):
            frames, waiting = iter(reader), deque[Future[None]]()
            coming = reading.submit(_next_frame, frames)
            lag = None
            while (arrival := coming.result()) is not None:
                coming = reading.submit(_next_frame, frames)
                frame, arrived = arrival
                if self.governor:
                    if outcome.written == 0:
                        self._warm_up(frame, self.governor)
                        arrived = time.perf_counter()
                    lag = self.governor.lag(arrived, time.perf_counter())
                ((_, result),) = self._segment([(source, frame)], outcome, lag)
                waiting.append(writing.submit(_write_frame, writer, result))
                if len(waiting) > 4:  # Memory stays small, and a slow disk counts at last.
                    waiting.popleft().result()
                outcome.written += 1
                if progress:
                    progress(outcome.written, max(outcome.written, reader.frames))
            for future in waiting:
                future.result()
        outcome.seconds = time.perf_counter() - begin
        outcome.changes = self.governor.changes if self.governor else 0
        return outcome

    def _warm_up(self, frame: Picture, governor: Governor) -> None:
        """Run every rung once: engines export or compile what they first meet."""
        for rung in governor.rungs:
            self.predictor.predict_batch([frame], rung.point.mode, self.inference)

    def _read(
        self, groups: Sequence[Sequence[Source]], outcome: Outcome
    ) -> Iterator[tuple[int, list[tuple[Source, Picture]]]]:
        """The images of each group that can be read, the next ones read meanwhile."""
        done = 0
        with ThreadPoolExecutor(2) as readers:
            coming = [[readers.submit(read_image, s.path) for s in g] for g in groups[:2]]
            for number, group in enumerate(groups):
                ready = []
                for source, future in zip(group, coming.pop(0), strict=True):
                    try:
                        ready.append((source, future.result()))
                    except (ValueError, OSError) as error:
                        outcome.broken.append(str(error))
                if number + 2 < len(groups):
                    following = groups[number + 2]
                    coming.append([readers.submit(read_image, s.path) for s in following])
                done += len(group)
                yield done, ready

    def _segment(
        self,
        pictures: list[tuple[Source, Picture]],
        outcome: Outcome,
        lag: float | None = None,
    ) -> list[tuple[Source, Segmentation]]:
        if not pictures:
            return []
        begin = time.perf_counter()
        rung = self.governor.choose(begin, lag or 0.0) if self.governor else None
        mode = rung.point.mode if rung else self.mode
        images = [image for _, image in pictures]
        results = self.predictor.predict_batch(images, mode, self.inference)
        if self.governor and rung:
            seconds = time.perf_counter() - begin
            self.governor.note(rung, seconds)
            allowed = 1 if lag is None else 2
            outcome.late += (lag or 0.0) + seconds > allowed * self.governor.target
        return [(source, r) for (source, _), r in zip(pictures, results, strict=True)]

    def _write(self, source: Source, result: Segmentation) -> dict[str, Any]:
        paths = write_results(result, self.out / source.name, self.kinds)
        return {
            "image": str(source.path),
            "name": source.name,
            "mode": str(result.mode),
            "seconds": round(result.seconds, 6),
            "size": [result.labels.shape[1], result.labels.shape[0]],
            "shares": {k: round(v, 6) for k, v in result.class_shares().items() if v},
            "files": [str(path.relative_to(self.out)) for path in paths],
            "key": self._cache_key(source),
        }

    def _finished(self, source: Source, lines: dict[str, dict[str, Any]]) -> bool:
        line = lines.get(source.name)
        if line is None or line.get("key") != self._cache_key(source):
            return False
        return all((self.out / name).is_file() for name in line.get("files", ["?"]))

    def _cache_key(self, source: Source) -> str:
        """A text that changes with whatever changes the results of an image."""
        modes = str(self.mode)
        if self.governor:
            modes = ", ".join(str(rung.point.mode) for rung in self.governor.rungs)
            modes = f"{self.governor.target}: {modes}"
        parts = (modes, self.inference, self.kinds, self._model, _version(source.path))
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @cached_property
    def _model(self) -> str:
        predictor = self.predictor
        weights = fingerprint(predictor.network.state_dict())
        engine = f"{type(predictor.engine).__name__} {getattr(predictor.engine, 'runtime', '')}"
        return f"{predictor.config} {engine} {weights}"


def _version(path: Path) -> str:
    """Which image lies there: when it was written, and its size."""
    try:
        file = path.stat()
    except OSError:  # It is gone, which only its reader needs to say.
        return str(path)
    return f"{path.resolve()} {file.st_size} {file.st_mtime_ns}"


def _next_frame(frames: Iterator[Picture]) -> tuple[Picture, float] | None:
    """The next frame and when it was there, None after the last."""
    frame = next(frames, None)
    return None if frame is None else (frame, time.perf_counter())


def _write_frame(writer: VideoWriter, result: Segmentation) -> None:
    writer.write(result.blended())


def write_results(result: Segmentation, stem: Path, kinds: Sequence[str]) -> list[Path]:
    """Write what is asked for of one segmentation; the paths written."""
    paths = []
    for kind in kinds:
        path = stem.with_name(f"{stem.name}_{kind}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "mask":
            write_mask(path, result.labels, result.classes)
        else:
            write_image(path, _DRAW[kind](result))
        paths.append(path)
    return paths


_DRAW: dict[str, Callable[[Segmentation], Any]] = {
    "colour": Segmentation.painted,
    "overlay": Segmentation.overlay,
    "paused": Segmentation.pause_map,
    "entropy": Segmentation.entropy_map,
}


def _append(file: Any, line: dict[str, Any]) -> int:
    file.write(json.dumps(line) + "\n")
    file.flush()
    return 1


def _read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier runs finished, by name; a line that was cut off counts for nothing."""
    found = {}
    if path.is_file():
        for text in path.read_text("utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
                found[line["name"]] = line
            except (ValueError, TypeError, KeyError):
                continue
    return found


def _drop_broken_end(path: Path) -> None:
    """Cut off a last line that a kill left unfinished, so that the next one starts afresh."""
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            replace_file(path, whole)
