"""Many images: read, segmented and written all at once, one broken one not stopping the rest."""

import errno
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

from paumer.classes import Pixels
from paumer.data.images import PIXEL_LIMIT, SIDE_LIMIT, read_image
from paumer.data.isolated import Decoder, DecodingLimits
from paumer.disk import remove_leftovers
from paumer.inference.ahead import map_ahead
from paumer.inference.finished import join_parts, lines_file, read_lines
from paumer.inference.governor import Pace
from paumer.inference.predictor import Predictor
from paumer.inference.result import Segmentation, check_kinds
from paumer.inference.sources import Source
from paumer.inference.tiles import Inference
from paumer.inference.video import VideoReader, VideoWriter
from paumer.mode import Mode
from paumer.progress import Progress

STRANGERS = DecodingLimits(bytes=2**30, pixels=PIXEL_LIMIT, longest=SIDE_LIMIT)
"""What decoding an isolated image may take."""

_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors that the next image would meet too."""


@dataclass
class Outcome:
    """What became of the images: how many were written, skipped, and broken and why.

    ``failed`` counts the broken ones by what could not be done with them, ``seen`` the others by
    the (width, height) at which they ran.
    """

    written: int = 0
    skipped: int = 0
    late: int = 0
    broken: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    seconds: float = 0.0

    def __add__(self, other: "Outcome") -> "Outcome":
        """The outcome of two processes that worked at the same time."""
        return Outcome(
            self.written + other.written,
            self.skipped + other.skipped,
            self.late + other.late,
            self.broken + other.broken,
            self.failed + other.failed,
            self.seen + other.seen,
            max(self.seconds, other.seconds),
        )

    def fail(self, what: str, message: str) -> None:
        """Note an image with which ``what`` could not be done."""
        self.broken.append(message)
        self.failed[what] += 1


@dataclass(frozen=True)
class Job:
    """Images to be segmented into a folder, with what to write of each.

    ``pace`` moves the operating point from image to image; then images run one by one.
    Finished images are listed in ``predictions.jsonl`` and skipped the next time; of several
    processes in one folder each keeps the list of its ``part``, until `join_parts`. With
    ``isolate`` each image is decoded in a process of its own, with limits of time and memory.
    """

    predictor: Predictor
    mode: Mode
    out: Path
    inference: Inference = field(default_factory=Inference)
    kinds: Sequence[str] = ("mask", "overlay", "paused")
    pace: Pace | None = None
    isolate: bool = False
    part: int | None = None

    def __post_init__(self) -> None:
        check_kinds(self.kinds)
        for mode in self._modes:  # What no image can run with is not the fault of one.
            self.predictor.geometry((1, 1), self.predictor.mode(mode), self.inference)

    @property
    def _modes(self) -> list[Mode]:
        return [rung.mode for rung in self.pace.rungs] if self.pace else [self.mode]

    def run(
        self,
        sources: Sequence[Source],
        progress: Progress = lambda *_: None,
        outcome: Outcome | None = None,
    ) -> Outcome:
        """Segment the images. Reading and writing happen in threads beside the network.

        ``outcome`` is filled meanwhile: it tells what is finished when an interrupt ends the work.
        """
        lines, start = self._lines(), time.perf_counter()
        todo = [source for source in sources if not self._finished(source, lines)]
        outcome = Outcome() if outcome is None else outcome
        outcome.skipped = len(sources) - len(todo)
        size = 1 if self.pace else self.inference.batch
        decoder, stops = Decoder(), list[KeyboardInterrupt]()

        def segmented() -> Iterator[tuple[Source, Segmentation]]:
            try:
                yield from groups()
            except KeyboardInterrupt as stop:  # What is segmented is written before it ends.
                stops.append(stop)

        def groups() -> Iterator[tuple[Source, Segmentation]]:
            read = partial(_read, decoder=decoder if self.isolate else None)
            images = map_ahead(read, todo, threads=2, ahead=size)
            for begin in range(0, len(todo), size):
                group = list(zip(todo[begin : begin + size], images, strict=False))
                for _, image in group:
                    if isinstance(image, Exception):
                        outcome.fail("read", str(image))
                yield from self._segment_each(
                    [(s, image) for s, image in group if not isinstance(image, Exception)], outcome
                )
                progress(outcome.skipped + begin + len(group), len(sources))

        with closing(decoder):
            for line in map_ahead(self._write, segmented(), threads=2, ahead=2):
                if isinstance(line, str):
                    outcome.fail("written", line)
                    continue
                self._add_line(line)
                outcome.written += 1
                outcome.seen[tuple(line["seen"])] += 1
        if stops:
            raise stops[0]
        outcome.seconds = time.perf_counter() - start
        return outcome

    def _lines(self) -> dict[str, dict[str, Any]]:
        """What earlier runs finished, by name."""
        self.out.mkdir(parents=True, exist_ok=True)
        if self.part is None:
            join_parts(self.out)
        if not self.part:
            remove_leftovers(self.out)
        lines_file(self.out, self.part)
        return read_lines(self.out)

    def _add_line(self, line: dict[str, Any]) -> None:
        # One write for each line, so that those of two processes never mix.
        with lines_file(self.out, self.part).open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def run_video(self, source: Source, progress: Progress = lambda *_: None) -> Outcome:
        """Segment a video or camera into an annotated video of the same rate, sound kept.

        With a pace every frame has its turn, and is late if it is not done within two periods
        of it. An interrupt ends a camera's video, which is complete then.
        """
        outcome, begin = Outcome(), time.perf_counter()
        self._check_inside(source)
        if not source.stream and self._finished(source, self._lines()):
            return Outcome(skipped=1)
        out = self.out / video_name(source)
        totals: Counter[str] = Counter()
        modes: Counter[str] = Counter()

        def write(result: Segmentation) -> Segmentation:
            writer.write(result.blended())
            totals.update(result.class_ratios())
            return result

        with (
            VideoReader(source.stream or source.path) as reader,
            VideoWriter(out, reader.rate, self._sound(source, reader)) as writer,
        ):
            frames = self._segmented_frames(reader, outcome)
            try:
                for result in map_ahead(write, frames, ahead=4):
                    outcome.written += 1
                    modes[str(result.mode)] += 1
                    outcome.seen[self._seen(result)] += 1
                    progress(outcome.written, max(outcome.written, reader.frames))
            except KeyboardInterrupt:
                if not source.stream or not outcome.written:
                    raise
        outcome.seconds = time.perf_counter() - begin
        shares = {k: round(v / outcome.written, 6) for k, v in totals.items() if v}
        how = {"frames": outcome.written, "modes": dict(modes), "shares": shares}
        self._add_line(self._line(source, outcome.seconds, [out], how))
        return outcome

    def _sound(self, source: Source, reader: VideoReader) -> Path | None:
        return source.path if reader.has_sound and not source.stream else None

    def _segmented_frames(self, reader: VideoReader, outcome: Outcome) -> Iterator[Segmentation]:
        frames = ((frame, time.perf_counter()) for frame in reader)
        ahead = map_ahead(lambda each: next(each, None), repeat(frames))
        for number, (frame, arrived) in enumerate(iter(ahead.__next__, None)):
            lag = None
            if self.pace:
                if number == 0:  # Engines export or compile what they first meet.
                    for mode in self._modes:
                        self.predictor.predict_batch([frame], mode, self.inference)
                    arrived = time.perf_counter()
                lag = self.pace.lag(arrived, time.perf_counter())
            yield from self._segment([frame], outcome, lag)

    def _segment_each(
        self, images: list[tuple[Source, Pixels]], outcome: Outcome
    ) -> list[tuple[Source, Segmentation]]:
        """The segmentations of images; one that cannot be segmented counts as broken."""
        if not images:
            return []
        try:
            results = self._segment([image for _, image in images], outcome)
        except ValueError as error:
            if len(images) > 1:
                return [pair for one in images for pair in self._segment_each([one], outcome)]
            outcome.fail("segmented", f'cannot segment "{images[0][0].path}": {error}')
            return []
        return [(source, result) for (source, _), result in zip(images, results, strict=True)]

    def _segment(
        self, images: list[Pixels], outcome: Outcome, lag: float | None = None
    ) -> list[Segmentation]:
        if not self.pace:
            return self.predictor.predict_batch(images, self.mode, self.inference)
        begin, allowed = time.perf_counter(), 1 if lag is None else 2
        mode = self.pace.choose(begin, lag).mode
        results = self.predictor.predict_batch(images, mode, self.inference)
        seconds = time.perf_counter() - begin
        self.pace.note(seconds)
        outcome.late += (lag or 0.0) + seconds > allowed * self.pace.target
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
        size, seen = list(result.labels.shape[::-1]), list(self._seen(result))
        shares = {k: round(v, 6) for k, v in result.class_ratios().items() if v}
        how = {"mode": str(result.mode), "size": size, "seen": seen, "shares": shares}
        return self._line(source, result.seconds, paths, how)

    def _line(
        self, source: Source, seconds: float, paths: Sequence[Path], how: dict[str, Any]
    ) -> dict[str, Any]:
        """The line of an image or a video in the list of finished ones."""
        return {
            "video" if source.is_video else "image": str(source.path),
            "name": source.name,
            "seconds": round(seconds, 6),
            **how,
            "files": [str(path.relative_to(self.out)) for path in paths],
            "key": self._cache_key(source),
        }

    def _seen(self, result: Segmentation) -> tuple[int, int]:
        """The (width, height) at which an image ran."""
        height, width = result.labels.shape
        rows, columns = self.predictor.scaled((height, width), result.mode, self.inference)
        return columns, rows

    def _finished(self, source: Source, lines: dict[str, dict[str, Any]]) -> bool:
        line = lines.get(source.name, {})
        is_same = line.get("key") == self._cache_key(source)
        return is_same and all((self.out / name).is_file() for name in line.get("files", ["?"]))

    def _cache_key(self, source: Source) -> str:
        """A text that changes with whatever changes the results of an image."""
        modes = ", ".join(map(str, self._modes))
        if self.pace:
            modes = f"{self.pace.target}: {modes}"
        version = str(source.path)
        with suppress(OSError):  # If it is gone, its reader reports it.
            file = source.path.stat()
            version = f"{source.path.resolve()} {file.st_size} {file.st_mtime_ns}"
        parts = (modes, self.inference, self.kinds, self._model, version)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @cached_property
    def _model(self) -> str:
        predictor = self.predictor
        weights = predictor.fingerprint()
        engine = f"{type(predictor.engine).__name__} {predictor.engine.name}"
        return f"{predictor.config} {engine} {weights}"


def video_name(source: Source) -> str:
    """The path of a video's result below the output folder."""
    return f"{source.name}_overlay.mp4"


def _read(source: Source, decoder: Decoder | None = None) -> Pixels | Exception:
    """An image, or the error why it cannot be read."""
    try:
        return read_image(source.path) if decoder is None else decoder.read(source.path, STRANGERS)
    except (ValueError, OSError) as error:
        return error
