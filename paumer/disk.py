"""Files that are either the old or the new, and directories with one process at work in them."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""Opens no link, and waits for no pipe."""
_NEW_FILE = re.compile(r"\..+\.[0-9a-f]{8}\.new")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Put the content where the path says, as a whole; a failure leaves what was there before."""
    # The random part keeps two writers of one file apart.
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with _making(new, Path.touch):
            with open(new, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise _intact(error, path) from error
    finally:
        with suppress(OSError):
            new.unlink()
    sync(path.parent)


def publish(new: Path, path: Path) -> None:
    """Give a finished file its name; raise if that is taken, be it by a link to nothing."""
    try:
        os.link(new, path)  # Unlike a rename it never replaces anything.
    except OSError:  # It is taken, or the file system knows no such links.
        if os.path.lexists(path):
            raise ValueError(f'"{path}" exists: name another --out') from None
        new.rename(path)
    else:
        new.unlink()


def sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no directories.
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; raise if another living process holds it.

    Children do not hold it, so that it is free however the process ends. Where a file system knows
    no locks, nothing is held. Files that a killed process left half-written in it are removed.
    """
    path = directory / ".lock"
    problem = f'"{path}" is a link, a pipe or a folder, and must be a file of its own: remove it'
    try:
        # Whoever prepared the directory: what is there is neither followed nor emptied.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _AT_ONCE, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise ValueError(problem) from error
        raise
    with open(handle, "rb+", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(problem)
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise BlockingIOError(
                    f'another process is at work in "{directory}": wait for it, or stop it first'
                ) from error
        remove_leftovers(directory)
        yield


def remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left half-written below a directory."""
    for folder, _, names in os.walk(directory):
        for name in filter(_NEW_FILE.fullmatch, names):
            _remove_leftover(Path(folder, name))


@contextmanager
def new_beside(path: Path) -> Iterator[Path]:
    """A new directory beside ``path``, to fill and to move there; what is left of it is removed.

    So is what a killed process left of an earlier one. A disk that fails is an OSError that names
    the file as it would have been called in ``path``.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = re.compile(re.escape(f".{path.name}-") + "[0-9a-f]{8}")
    with suppress(PermissionError):  # A folder that may be written, not listed.
        for old in path.parent.iterdir():
            if ours.fullmatch(old.name):
                _remove_leftover(old)
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with _making(new, Path.mkdir):
            yield new
    except OSError as error:
        file = Path(str(error.filename))
        inside = file.is_relative_to(new)
        raise _intact(error, path / file.relative_to(new) if inside else path) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _intact(error: OSError, path: Path) -> OSError:
    """The error with the path that people know, and with what they have not lost."""
    if error.errno is None:  # A sentence already.
        return error
    end = "; what was saved before is intact"
    what = (error.strerror or str(error)).removesuffix(end) + end
    return OSError(error.errno, what, str(path))


@contextmanager
def _making(new: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """Make a file or directory that nobody takes for a leftover while the context lasts."""
    while True:
        make(new)
        handle = _lock(new, wait=True)
        if new.exists():  # Else it was taken for one before it was locked.
            break
        if handle is not None:
            os.close(handle)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _remove_leftover(path: Path) -> None:
    """Remove a file or directory that no living process is making."""
    handle = _lock(path, wait=False)
    if handle is None:
        return
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(kind):
            with suppress(OSError):
                path.unlink()
    finally:
        os.close(handle)


def _lock(path: Path, wait: bool) -> int | None:
    """A handle that locks a file or directory until it is closed; None where that cannot be."""
    if fcntl is None:
        return None
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | _AT_ONCE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return handle
        except OSError:
            os.close(handle)
    return None


def cache_directory() -> Path:
    """Where what can be made again is kept: cost tables, exported networks."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paumer"
