"""Files that are either the old or the new, and directories with one process at work in them."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Put the content where the path says, as a whole; a failure leaves what was there before."""
    # The random part keeps two writers of one file apart.
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OSError(
            error.errno, f"{error.strerror or error}; what was saved before is intact", str(path)
        ) from error
    sync(path.parent)


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


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; raise if another living process holds it.

    Children do not hold it, so that it is free however the process ends. Where a file system knows
    no locks, nothing is held.
    """
    with open(directory / ".lock", "w") as file:
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise BlockingIOError(
                    f'another process is at work in "{directory}": wait for it, or stop it first'
                ) from error
        yield


@contextmanager
def new_beside(path: Path) -> Iterator[Path]:
    """A new directory beside ``path``, to fill and to move there; what is left of it is removed."""
    path = path.resolve()
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    new.mkdir(parents=True)
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def cache_directory() -> Path:
    """Where what can be made again is kept: cost tables, exported networks."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paumer"
