"""Several processes at one job, as torchrun starts them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from torch import distributed

T = TypeVar("T")


def process_number() -> tuple[int, int]:
    """The number of this process and how many torchrun started."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def together(world: int) -> Iterator[Callable[[T], list[T]]]:
    """A function that waits for all of so many processes and gives what each of them brings."""
    if world == 1:
        yield lambda brought: [brought]
        return
    # One process may be hours behind another.
    distributed.init_process_group("gloo", timeout=timedelta(days=7))

    def gather(brought: T) -> list[T]:
        parts: list[T] = [brought] * world
        distributed.all_gather_object(parts, brought)
        return parts

    try:
        yield gather
    finally:
        distributed.destroy_process_group()
