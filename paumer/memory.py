"""What the C library does with freed memory: keep it for the next step, or give it back (glibc)."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of mallopt, from malloc.h.
_MOST, _MOST_BEFORE = 2**31 - 1, 2**25  # The C libraries before 2.35 take no more.


def keep_memory() -> None:
    """Keep freed memory in this process from now on.

    Else every large tensor is fresh memory that the system has to hand out page by page.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _MOST)
        library.mallopt(_MMAP_THRESHOLD, _MOST) or library.mallopt(_MMAP_THRESHOLD, _MOST_BEFORE)


def give_back_memory() -> None:
    """Let the system have what was freed and kept."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
