import asyncio
import logging
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import Mock, call

import httpx
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


@pytest.mark.slow
@pytest.mark.parametrize(("drain", "signals"), [("1", 1), ("60", 2)])
def test_a_request_that_does_not_end_keeps_no_service_alive(replica, drain, signals):
    running, port = replica("--drain-seconds", drain, "--body-seconds", "60")
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        while "paumer_in_flight 1" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text:
            time.sleep(0.02)
        for _ in range(signals):
            assert running.poll() is None
            running.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert running.wait(8) == 0


def test_what_hangs_after_a_signal_is_cut_off(monkeypatch):
    timer = Mock()
    monkeypatch.setattr(process, "Timer", timer)
    service = Mock(spec=Service, draining=False)
    server = process._Server(uvicorn.Config("none"), service, drain=30)
    timer.reset_mock()
    for seconds in (35, 5):
        server.handle_exit(signal.SIGTERM, None)
        assert timer.mock_calls[1:] == [call(seconds, os._exit, (1,)), call().start()]
        timer.reset_mock()
    assert server.should_exit


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


_HEAD = b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (_HEAD, b"nonsense\r\n"),
        (_HEAD.replace(b"POST", b"HEAD"), b"nonsense\r\n"),
        (_HEAD.replace(b"localhost", b"else"), b"nonsense\r\n"),  # Answered before it ends.
    ],
)
def test_a_body_that_breaks_the_rules_ends_its_connection_alone(usual, png, caplog, head, body):
    running, log = usual, logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    try:
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as line:
            line.sendall(head + b"\r\n3\r\nabc\r\n" + body)
            got = b"".join(iter(lambda: line.recv(1000), b""))
        assert got.count(b"HTTP/1.1 4") == 1
        assert running.segment(png()).status_code == 200
        assert running.service.watch.in_flight == 0
    finally:
        log.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("part", [b"", b"POST /v1/seg", _HEAD + b"\r\n3\r\nabc\r\n"])
def test_clients_that_say_nothing_take_no_connection_from_those_who_do(serving, png, part):
    running = serving(delay=0.5, connections=8)
    with ThreadPoolExecutor() as threads, ExitStack() as lines:
        answer = threads.submit(running.segment, png())
        while not running.service.batcher.running:
            time.sleep(0.001)
        for _ in range(12):
            line = socket.create_connection(("127.0.0.1", running.port))
            lines.enter_context(line).sendall(part)
            time.sleep(0.01)
            assert len(running.server.server_state.connections) <= 8
        assert httpx.get(running.url + "/healthz").status_code == 200
        assert answer.result().status_code == 200


def test_connections_leave_files_for_the_rest():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
        assert (process._possible(100), process._possible(1000)) == (100, 436)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
