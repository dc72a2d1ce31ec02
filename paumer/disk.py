"""Files that are either the old or the new, never half of one."""

import os
import secrets
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


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Have a directory to this process; raise if another one says so of it and lives.

    Its children do not count, so that the lock goes with the process however it ends.
    """
    with open(directory / ".lock", "w") as file:
        if fcntl is not None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise BlockingIOError(
                    f'another process is at work in "{directory}": wait for it, or stop it first'
                ) from error
        yield


def usual_mode() -> int:
    """The access rights that a new directory gets by default."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o777 & ~mask


def cache_directory() -> Path:
    """Where what can be made again is kept: cost tables, exported networks."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paumer"
