"""Decoding in lanes: what takes long holds up nobody, and only so much of it is taken."""

import asyncio

import numpy as np
import pytest

from paumer.data.isolated import DecodingLimitError, DecodingLimits
from paumer.serve.lanes import CrowdedError, Lanes

IMAGE = np.zeros((2, 2, 3), np.uint8)


class FakeDecoder:
    """Decodes what is as many seconds as its bytes say, of which none pass."""

    def __init__(self):
        self.calls = []

    def read(self, content, limits):
        self.calls.append((float(content), limits.seconds, limits.niceness))
        if float(content) > limits.seconds:
            raise DecodingLimitError("too long")
        return IMAGE


@pytest.fixture
def lanes():
    lanes = Lanes(DecodingLimits(seconds=5))
    lanes.decoder = FakeDecoder()
    yield lanes
    lanes.threads.shutdown()


async def nobody_left():
    pass


@pytest.mark.parametrize(("seconds", "priorities"), [(0.02, [5]), (0.2, [5, 10]), (4, [5, 10, 19])])
def test_what_takes_longer_moves_on_and_gets_what_others_leave(lanes, seconds, priorities):
    image = asyncio.run(lanes.read(str(seconds).encode(), nobody_left))
    assert image is IMAGE
    assert [call[2] for call in lanes.decoder.calls] == priorities
    assert [lane.inside for lane in lanes.lanes] == [0, 0, 0]


def test_what_takes_longer_than_is_allowed_is_refused(lanes):
    with pytest.raises(DecodingLimitError):
        asyncio.run(lanes.read(b"9", nobody_left))
    assert [call[1] for call in lanes.decoder.calls] == pytest.approx([0.03, 0.3, 5], abs=1e-6)


def test_only_so_many_wait_and_others_are_not_held_up(lanes):
    lanes.lanes[-1].turn = asyncio.Semaphore(0)

    async def crowd():
        slow = [asyncio.create_task(lanes.read(b"4", nobody_left)) for _ in range(8)]
        while lanes.lanes[-1].inside < 8:
            await asyncio.sleep(0.001)
        with pytest.raises(CrowdedError, match="try again in 5 s"):
            await lanes.read(b"4", nobody_left)
        quick = await asyncio.wait_for(lanes.read(b"0.01", nobody_left), 10)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return quick

    assert asyncio.run(crowd()) is IMAGE
    assert [lane.inside for lane in lanes.lanes] == [0, 0, 0]


def test_nothing_is_decoded_for_who_has_gone(lanes):
    async def gone():
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        asyncio.run(lanes.read(b"0.01", gone))
    assert lanes.decoder.calls == []
    assert lanes.lanes[0].inside == 0
