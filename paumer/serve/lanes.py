"""Where a service decodes images: those that take long get only the time that others leave."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from paumer.classes import Pixels
from paumer.data.isolated import Decoder, DecodingLimitError, DecodingLimits

_PER_BYTE = 3e-8
"""CPU seconds that decoding may take for each byte of a file beside those of a lane."""


class CrowdedError(Exception):
    """Too many images wait to be decoded: come back in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many images wait to be decoded: try again in {seconds:g} s")
        self.seconds = seconds


@dataclass
class _Lane:
    """Decodes ``at_once`` images at a time, for so many seconds each; ``most`` may be in it."""

    seconds: float
    niceness: int
    at_once: int
    most: int
    inside: int = 0

    def __post_init__(self) -> None:
        self.turn = asyncio.Semaphore(self.at_once)


class Lanes:
    """Decodes images in processes of their own.

    Almost all need a few milliseconds. One that needs longer than its lane allows is ended and
    starts again in the next one, whose processes have a lower priority.
    """

    def __init__(self, limits: DecodingLimits) -> None:
        self.decoder, self.limits = Decoder(), limits
        self.lanes = [_Lane(0.03, 5, 4, 64), _Lane(0.3, 10, 1, 16), _Lane(limits.seconds, 19, 1, 8)]
        self.threads = ThreadPoolExecutor(sum(lane.at_once for lane in self.lanes), "decode")

    async def read(self, content: bytes, check: Callable[[], Awaitable[None]]) -> Pixels:
        """The image in a file's content. ``check`` raises if nobody waits for it any more."""
        for lane in self.lanes:
            seconds = min(lane.seconds + _PER_BYTE * len(content), self.limits.seconds)
            limits = replace(self.limits, seconds=seconds, niceness=lane.niceness)
            if lane.inside == lane.most:
                raise CrowdedError(5)
            lane.inside += 1
            try:
                async with lane.turn:
                    await check()
                    return await asyncio.get_running_loop().run_in_executor(
                        self.threads, self.decoder.read, content, limits
                    )
            except DecodingLimitError:
                if seconds == self.limits.seconds:
                    raise
            finally:
                lane.inside -= 1
        raise AssertionError("the last lane allows all that is allowed")

    def close(self) -> None:
        """End what decodes, without waiting for it."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.decoder.close()
