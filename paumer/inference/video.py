"""Video and cameras: frames in, frames out at the same rate, sound kept. The only user of PyAV."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from paumer.classes import Pixels
from paumer.inference.graphs import need

_PATIENCE = 15.0
"""Seconds in which a stream has to answer."""


class VideoReader(AbstractContextManager["VideoReader"]):
    """The frames, as RGB bytes, of a video file, a camera (``/dev/video0``) or an rtsp stream."""

    def __init__(self, path: str | Path) -> None:
        av = need("av", "video")
        text = str(path)
        camera, stream = text.startswith("/dev/"), "://" in text
        self.name = re.sub("://.*@", "://", text)  # Without the password.
        try:
            self._file = av.open(
                text,
                format="v4l2" if camera else None,
                options={"rtsp_transport": "tcp"} if stream else {},
                timeout=_PATIENCE if stream else None,
            )
        except (av.error.FFmpegError, OSError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error).replace(text, self.name)
            hint = ""
            if camera:
                hint = (
                    "; see that it is a camera, that nobody else uses it and that you may read it"
                )
            elif stream:
                hint = "; check the address and the network"
            raise ValueError(f'cannot read the video "{self.name}": {reason}{hint}') from error
        if not self._file.streams.video:
            self._file.close()
            raise ValueError(f'"{self.name}" holds no video')
        self._stream = self._file.streams.video[0]
        self._stream.thread_type = "AUTO"
        self.rate = Fraction(self._stream.average_rate or 25)
        self.frames: int = self._stream.frames
        """How many frames the file says it has; 0 where it does not say."""
        self.has_sound = bool(self._file.streams.audio)

    def __iter__(self) -> Iterator[Pixels]:
        av = need("av", "video")
        try:
            for frame in self._file.decode(self._stream):
                yield frame.to_ndarray(format="rgb24")
        except av.error.FFmpegError as error:
            raise ValueError(f'the video "{self.name}" is damaged: {error}') from error

    def __exit__(self, *error: object) -> None:
        self._file.close()


class VideoWriter(AbstractContextManager["VideoWriter"]):
    """An H.264 video of RGB images with another file's sound; it gets its name when complete."""

    def __init__(self, path: Path, rate: Fraction, sound_of: Path | None = None) -> None:
        av = need("av", "video")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rate = path, rate
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._file = av.open(str(self._partial), "w")
        self._stream = self._file.add_stream("libx264", rate=rate)
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"crf": "20", "preset": "veryfast"}
        self._count = 0
        self._sound_file = av.open(str(sound_of)) if sound_of else None
        self._packets: Iterator[Any] = iter(())
        if self._sound_file is not None:
            source = self._sound_file.streams.audio[0]
            self._sound = self._file.add_stream_from_template(source)
            self._packets = (p for p in self._sound_file.demux(source) if p.dts is not None)
        self._packet = next(self._packets, None)

    def write(self, image: Pixels) -> None:
        """Add one image; the first one decides the size."""
        av = need("av", "video")
        height, width = image.shape[:2]
        # H.264 halves the resolution of colours, so both sides have to be even.
        image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._count == 0:
            self._stream.height, self._stream.width = image.shape[:2]
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts, frame.time_base = self._count, 1 / self.rate
        self._count += 1
        self._file.mux(self._stream.encode(frame))
        self._copy_sound(float(self._count / self.rate))

    def _copy_sound(self, until: float) -> None:
        """Copy the sound up to a time, so that sound and images lie beside each other."""
        while (packet := self._packet) is not None and packet.dts * packet.time_base <= until:
            packet.stream = self._sound
            self._file.mux(packet)
            self._packet = next(self._packets, None)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self._count:
            self._file.mux(self._stream.encode())
            self._copy_sound(float("inf"))
        self._file.close()
        if self._sound_file is not None:
            self._sound_file.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)
