"""Untrusted images: each is decoded in a process of its own, with limits of time and memory.

A helper process that holds nothing but numpy and Pillow forks a child for each image. A file that
crashes its decoder, keeps it busy for hours or makes it eat memory costs that child, which the
operating system ends. Where there is no fork, images are decoded in this process.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Lock
from time import process_time
from typing import NoReturn

import numpy as np

from paumer.classes import Pixels
from paumer.data.images import TooLargeError, UnknownKindError, read_image, source_name

_TASK = struct.Struct("<ddqqqi")
_ANSWER = struct.Struct("<BIId")
_CONTENT, _PATH = b"c", b"p"
_ERRORS: tuple[type[Exception], ...]
_ERRORS = (ValueError, TooLargeError, UnknownKindError, FileNotFoundError)
_CHUNK = 2**20
_HAS_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")


class DecodingLimitError(ValueError):
    """Decoding took more time or memory than is allowed."""


@dataclass(frozen=True)
class DecodingLimits:
    """What decoding one image may take: CPU seconds, seconds by the clock, bytes.

    Images above ``pixels``, or with a side above ``longest``, are refused by their header.
    ``niceness`` is the child's, as in the command nice.
    """

    seconds: float = 5.0
    clock: float = 20.0
    bytes: int = 256 * 2**20
    pixels: int = 4 * 2**20
    longest: int = 2**14
    niceness: int = 0


class Decoder:
    """Decodes images in processes, from any number of threads at a time.

    ``seconds`` is the CPU time that all of them took; one that was ended counts as its limit.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the helper, so that the first image need not wait for it."""
        if _HAS_FORK:
            with self._lock:
                self._started()

    def read(self, source: Path | bytes, limits: DecodingLimits) -> Pixels:
        """The image in a file or its content, as `read_image` gives it, or why it is none."""
        if not _HAS_FORK:
            return read_image(source, limits.pixels, limits.longest)
        for _ in range(2):
            try:
                with self._connect(limits) as line:
                    return self._ask(line, source, limits)
            except (ConnectionError, TimeoutError):
                if self._lives():
                    self._count(limits.seconds)
                    seconds = min(limits.seconds, limits.clock)
                    raise DecodingLimitError(
                        f'cannot read "{source_name(source)}": decoding it takes more than '
                        f"{seconds:g} s or more than {limits.bytes / 2**20:g} MB: save it as an "
                        f"ordinary PNG or JPEG"
                    ) from None
        raise RuntimeError("the process that decodes images ends as soon as it starts")

    def _ask(self, line: socket.socket, source: Path | bytes, limits: DecodingLimits) -> Pixels:
        """What a child answers; a ConnectionError if it was ended before it could."""
        line.settimeout(limits.clock + 1)
        parts = (_CONTENT, source) if isinstance(source, bytes) else (_PATH, os.fsencode(source))
        for part in parts:
            line.sendall(part)
        line.shutdown(socket.SHUT_WR)
        kind, first, second, seconds = _ANSWER.unpack(_receive(line, _ANSWER.size))
        self._count(seconds)
        if kind:
            text = bytes(_receive(line, min(first, 2**16))).decode(errors="replace")
            raise _ERRORS[min(kind, len(_ERRORS)) - 1](text)
        if first * second > limits.pixels:
            raise ConnectionError
        pixels = np.frombuffer(_receive(line, 3 * first * second), np.uint8)
        return pixels.reshape(first, second, 3)

    def _count(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds

    def _connect(self, limits: DecodingLimits) -> socket.socket:
        """A line to a new child."""
        ours, theirs = socket.socketpair()
        task = _TASK.pack(*astuple(limits))
        try:
            with theirs, self._lock:
                socket.send_fds(self._started(), [task], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        return ours

    def _lives(self) -> bool:
        """Whether the helper, which somebody may have killed, is there; else it starts again."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._stop()
            return self._process is not None

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            places = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
            path = os.pathsep.join(filter(None, places))
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "paumer.data.isolated", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
                )
        return self._control

    def _stop(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def close(self) -> None:
        """End the helper; children end by their own limits."""
        with self._lock:
            self._stop()


def _receive(line: socket.socket, size: int) -> bytearray:
    """So many bytes; a ConnectionError if the other side ends before."""
    content = bytearray(size)
    view, filled = memoryview(content), 0
    while filled < size:
        count = line.recv_into(view[filled:])
        if not count:
            raise ConnectionError
        filled += count
    return content


def _serve(handle: int) -> None:
    """Fork a child for each task, until the parent closes its end."""
    # A signal to the whole group is the parent's affair: it may still finish what it accepted.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Children are not waited for.
    with socket.socket(fileno=handle) as control:
        while True:
            task, handles, _, _ = socket.recv_fds(control, _TASK.size, 1)
            if not task:
                return
            try:
                if os.fork() == 0:
                    control.close()
                    _decode(handles[0], DecodingLimits(*_TASK.unpack(task)))
            finally:
                os.close(handles[0])


def _decode(handle: int, limits: DecodingLimits) -> NoReturn:
    """Read a file's content or its path, answer with its image, and end."""
    try:
        with socket.socket(fileno=handle) as line:
            _limit(limits)
            kind, content = line.recv(1), b"".join(iter(lambda: line.recv(_CHUNK), b""))
            source = Path(os.fsdecode(content)) if kind == _PATH else content
            line.sendall(_answer(source, limits))
            line.shutdown(socket.SHUT_RDWR)
    finally:
        os._exit(0)


def _limit(limits: DecodingLimits) -> None:
    """Let the system end this process when it takes too much."""
    import resource

    os.nice(limits.niceness)
    for what, most in (
        (resource.RLIMIT_AS, _virtual_bytes() + limits.bytes),
        (resource.RLIMIT_CPU, int(limits.seconds) + 2),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # Their signals end the process, even in the midst of a decoder.
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.clock)


def _virtual_bytes() -> int:
    """The address space of this process; outside Linux what is ample for it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**30


def _answer(source: Path | bytes, limits: DecodingLimits) -> bytes:
    try:
        image = read_image(source, limits.pixels, limits.longest)
    except MemoryError:
        return b""
    except (ValueError, FileNotFoundError) as error:
        text = str(error).encode(errors="replace")[: 2**12]
        kind = _ERRORS.index(type(error)) if type(error) in _ERRORS else 0
        return _ANSWER.pack(kind + 1, len(text), 0, process_time()) + text
    return _ANSWER.pack(0, *image.shape[:2], process_time()) + image.tobytes()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
