"""Work in threads ahead of what uses it: files are read and written beside the network."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = 1, ahead: int = 1
) -> Iterator[Result]:
    """What a function gives for each item, in their order, from threads.

    At most ``ahead`` more are begun than are taken, so that memory stays small.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
