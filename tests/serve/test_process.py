import asyncio
import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import uvicorn

from paumer.serve import process
from paumer.serve.service import Service


def test_memory_is_given_back_once_in_every_long_pause(monkeypatch):
    calls = []
    monkeypatch.setattr(process, "give_back_memory", lambda: calls.append(1))
    service, watch = Mock(spec=Service), SimpleNamespace(in_flight=0, accepted=0, refused=0)
    service.draining, service.failure, service.watch = False, None, watch
    server = process._Server(uvicorn.Config("none"), service, drain=1)

    def ticks(count):
        for _ in range(count):
            asyncio.run(server.on_tick(1))

    ticks(49)
    assert not calls
    ticks(100)
    assert len(calls) == 1
    watch.in_flight = 1
    ticks(100)
    assert len(calls) == 1
    watch.in_flight = 0
    ticks(49)
    assert len(calls) == 1
    watch.accepted += 1  # One that came and went between two ticks.
    ticks(50)
    assert len(calls) == 1
    ticks(1)
    assert len(calls) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_was_freed_between_live_things_goes_back():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this malloc has no malloc_trim")

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    blocks = [bytes(2**16) for _ in range(1600)]  # 100 MB.
    blocks = [bytearray(block) for block in blocks]
    kept = blocks[::16]
    del blocks
    full = resident()
    process.give_back_memory()
    assert full - resident() > 50 * 2**20
    assert len(kept) == 100
