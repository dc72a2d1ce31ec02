import asyncio
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import uvicorn

from paumer.cli.main import main
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--latency-ms", "nan"), "latency-ms is nan"),
        (("--latency-ms", "0"), "latency-ms is 0"),
        (("--max-mb", "0"), "max-mb is 0"),
        (("--body-seconds", "nan"), "body-seconds is nan"),
        (("--port", "99999"), "port is 99999: give one from 0 to 65535"),
    ],
)
def test_impossible_limits_are_named(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["paumer", "serve", *words])
    monkeypatch.setattr(process, "run", Mock(side_effect=AssertionError("it runs")))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
