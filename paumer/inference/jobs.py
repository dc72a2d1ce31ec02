"""Many images: read, segmented and written all at once, one broken one not stopping the rest."""

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from paumer.data.images import read_image
from paumer.disk import replace_file
from paumer.drawing import Picture
from paumer.inference.ahead import map_ahead
from paumer.inference.governor import Governor
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation, check_kinds
from paumer.inference.sources import Source
from paumer.inference.tiles import Inference
from paumer.inference.video import VideoReader, VideoWriter
from paumer.mode import Mode
from paumer.model.directory import fingerprint
from paumer.progress import Progress

LINES_FILE = "predictions.jsonl"

_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors that the next image would meet too."""


@dataclass
class Outcome:
    """What became of the images: how many were written, skipped, and broken and why."""

    written: int = 0
    skipped: int = 0
    late: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """Images to be segmented into a folder, with what to write of each.

    ``governor`` moves the operating point from image to image; then images run one by one.
    Finished images are listed in ``predictions.jsonl`` and skipped the next time.
    """

    predictor: Predictor
    mode: Mode
    out: Path
    inference: Inference = field(default_factory=Inference)
    kinds: Sequence[str] = ("mask", "overlay", "paused")
    governor: Governor | None = None

    def __post_init__(self) -> None:
        check_kinds(self.kinds)
        for mode in self._modes:  # What no image can run with is not the fault of one.
            self.predictor.geometry((1, 1), self.predictor.mode(mode), self.inference)

    @property
    def _modes(self) -> list[Mode]:
        return [rung.mode for rung in self.governor.rungs] if self.governor else [self.mode]

    def run(self, sources: Sequence[Source], progress: Progress = lambda *_: None) -> Outcome:
        """Segment the images. Reading and writing happen in threads beside the network."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / LINES_FILE
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ValueError(
                f'"{path}" is a link, a pipe or a folder, and must be a file of its own: remove it'
            )
        lines = _read_lines(path)
        todo = [source for source in sources if not self._finished(source, lines)]
        outcome = Outcome(skipped=len(sources) - len(todo))
        size = 1 if self.governor else self.inference.batch

        def segmented() -> Iterator[tuple[Source, Segmentation]]:
            images = map_ahead(_read, todo, threads=2, ahead=2 * size)
            for begin in range(0, len(todo), size):
                group = list(zip(todo[begin : begin + size], images, strict=False))
                outcome.broken += [str(image) for _, image in group if isinstance(image, Exception)]
                yield from self._segment_each(
                    [(s, image) for s, image in group if not isinstance(image, Exception)], outcome
                )
                progress(outcome.skipped + begin + len(group), len(sources))

        with path.open("a", encoding="utf-8") as file:
            for line in map_ahead(self._write, segmented(), threads=2, ahead=2 * size + 2):
                if isinstance(line, str):
                    outcome.broken.append(line)
                    continue
                file.write(json.dumps(line) + "\n")
                file.flush()
                outcome.written += 1
        return outcome

    def run_video(self, source: Source, progress: Progress = lambda *_: None) -> Outcome:
        """Segment a video or camera into an annotated video of the same rate, sound kept.

        With a governor every frame has its turn, and is late if it is not done within two periods
        of it.
        """
        outcome, begin = Outcome(), time.perf_counter()
        self._check_inside(source)
        out = self.out / f"{source.name}_overlay.mp4"
        with (
            VideoReader(source.path) as reader,
            VideoWriter(out, reader.rate, source.path if reader.has_sound else None) as writer,
        ):
            frames = self._segmented_frames(reader, outcome)
            for _ in map_ahead(lambda result: writer.write(result.blended()), frames, ahead=4):
                outcome.written += 1
                progress(outcome.written, max(outcome.written, reader.frames))
        outcome.seconds = time.perf_counter() - begin
        return outcome

    def _segmented_frames(self, reader: VideoReader, outcome: Outcome) -> Iterator[Segmentation]:
        frames = ((frame, time.perf_counter()) for frame in reader)
        ahead = map_ahead(lambda each: next(each, None), repeat(frames))
        for number, (frame, arrived) in enumerate(iter(ahead.__next__, None)):
            lag = None
            if self.governor:
                if number == 0:  # Engines export or compile what they first meet.
                    for mode in self._modes:
                        self.predictor.predict_batch([frame], mode, self.inference)
                    arrived = time.perf_counter()
                lag = self.governor.lag(arrived, time.perf_counter())
            yield from self._segment([frame], outcome, lag)

    def _segment_each(
        self, images: list[tuple[Source, Picture]], outcome: Outcome
    ) -> list[tuple[Source, Segmentation]]:
        """The segmentations of images; one that cannot be segmented counts as broken."""
        if not images:
            return []
        try:
            results = self._segment([image for _, image in images], outcome)
        except ValueError as error:
            if len(images) > 1:
                return [pair for one in images for pair in self._segment_each([one], outcome)]
            outcome.broken.append(f'cannot segment "{images[0][0].path}": {error}')
            return []
        return [(source, result) for (source, _), result in zip(images, results, strict=True)]

    def _segment(
        self, images: list[Picture], outcome: Outcome, lag: float | None = None
    ) -> list[Segmentation]:
        if not self.governor:
            return self.predictor.predict_batch(images, self.mode, self.inference)
        begin, allowed = time.perf_counter(), 1 if lag is None else 2
        mode = self.governor.choose(begin, lag or 0.0).mode
        results = self.predictor.predict_batch(images, mode, self.inference)
        seconds = time.perf_counter() - begin
        self.governor.note(seconds)
        outcome.late += (lag or 0.0) + seconds > allowed * self.governor.target
        return results

    def _check_inside(self, source: Source) -> None:
        """Raise if the results would lie outside the output folder, also behind links in it."""
        folder = Path(os.path.realpath((self.out / f"{source.name}_").parent))
        if not folder.is_relative_to(os.path.realpath(self.out)):
            raise ValueError(f'its results would be written to "{folder}", outside "{self.out}"')

    def _write(self, segmented: tuple[Source, Segmentation]) -> dict[str, Any] | str:
        """Write what is wanted of one image; its line in the list of finished ones.

        A sentence instead if it cannot be written; a disk that fails is an OSError.
        """
        source, result = segmented
        try:
            self._check_inside(source)
            paths = result.save(self.out, source.name, self.kinds)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _DISK_FAILS:
                raise
            reason = getattr(error, "strerror", None) or error
            return f'cannot write the results of "{source.path}": {reason}'
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
        line = lines.get(source.name, {})
        is_same = line.get("key") == self._cache_key(source)
        return is_same and all((self.out / name).is_file() for name in line.get("files", ["?"]))

    def _cache_key(self, source: Source) -> str:
        """A text that changes with whatever changes the results of an image."""
        modes = ", ".join(map(str, self._modes))
        if self.governor:
            modes = f"{self.governor.target}: {modes}"
        version = str(source.path)
        with suppress(OSError):  # If it is gone, its reader reports it.
            file = source.path.stat()
            version = f"{source.path.resolve()} {file.st_size} {file.st_mtime_ns}"
        parts = (modes, self.inference, self.kinds, self._model, version)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @cached_property
    def _model(self) -> str:
        predictor = self.predictor
        weights = fingerprint(predictor.network.state_dict())
        engine = f"{type(predictor.engine).__name__} {getattr(predictor.engine, 'runtime', '')}"
        return f"{predictor.config} {engine} {weights}"


def _read(source: Source) -> Picture | Exception:
    """An image, or the error why it cannot be read."""
    try:
        return read_image(source.path)
    except (ValueError, OSError) as error:
        return error


def _read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier runs finished, by name; a last line that a kill cut off is taken out."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        replace_file(path, whole)
    lines = {}
    for text in whole.decode("utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            line = json.loads(text)
            lines[line["name"]] = line
    return lines
