"""The process of a service: it listens, drains on a signal, and drops silent clients."""

import math
import os
import socket
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from paumer.memory import give_back_memory
from paumer.serve.service import Service

CONNECTIONS = 1000
"""Those that are open at a time."""

_GRACE = 5  # Seconds in which everything ends that should.
_FILES = 64  # Open files that a service may need beside its connections.
_IDLE_TICKS = 50  # Of a tenth of a second: long enough not to happen between two requests.


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 is any free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}: give one from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(f"cannot serve at {host}:{port}: {error.strerror or error}") from error


def run(app: ASGIApp, service: Service, at: socket.socket, seconds: float, drain: float) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted.

    Requests have so many ``seconds`` to arrive, accepted ones ``drain`` to be answered at the end.
    """
    config = uvicorn.Config(
        app,
        http=patient(seconds, _possible(CONNECTIONS)),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(seconds),
        timeout_graceful_shutdown=_GRACE - 2,
    )
    server = _Server(config, service, drain)
    try:
        server.run(sockets=[at])
    finally:
        server.deadline.cancel()
    if service.failure:
        raise service.failure


class _Server(uvicorn.Server):
    """Finishes accepted requests on the first signal, ends at once on the second.

    Whatever still runs some seconds after it should have ended, the process ends.
    """

    def __init__(self, config: uvicorn.Config, service: Service, drain: float) -> None:
        super().__init__(config)
        self.service, self.drain = service, drain
        self.until = math.inf
        self.done, self.idle_ticks = 0, 0
        self.deadline = Timer(0, os._exit, (1,))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = self.service.draining
        self.service.draining = True
        self.until = min(self.until, monotonic() + self.drain)
        self.deadline.cancel()
        self.deadline = Timer(_GRACE + (0 if self.should_exit else self.drain), os._exit, (1,))
        self.deadline.daemon = True
        self.deadline.start()

    async def on_tick(self, counter: int) -> bool:
        watch = self.service.watch
        drained = self.service.draining and watch.in_flight == 0
        if drained or monotonic() > self.until or self.service.failure:
            self.should_exit = True
        before, self.done = self.done, watch.accepted + watch.refused
        idle = watch.in_flight == 0 and self.done == before
        self.idle_ticks = self.idle_ticks + 1 if idle else 0
        if self.idle_ticks == _IDLE_TICKS:
            give_back_memory()
        return await super().on_tick(counter)


def _possible(connections: int) -> int:
    """So many connections, or those for which the system has files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files < 0 else max(1, min(connections, files - _FILES))


def patient(seconds: float, most: int) -> type[H11Protocol]:
    """HTTP that closes connections which do not finish sending a request's head in time.

    Where there are more than ``most``, the one closes that has been waited for longest. Who breaks
    the rules in the midst of a body gets 400 if no answer has begun, and no other.
    """
    sending: dict[H11Protocol, None] = {}  # Those whose next request is not whole, oldest first.

    class Patient(H11Protocol):
        def connection_made(self, transport: Any) -> None:  # Loops have their own kinds.
            super().connection_made(transport)
            self.timer = self.loop.call_later(seconds, self.look, (None, True), 1)
            sending[self] = None
            if len(self.connections) > most:
                oldest = next(iter(sending))
                del sending[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            sending.pop(self, None)
            self.timer.cancel()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.DONE:
                sending.pop(self, None)

        def on_response_complete(self) -> None:
            sending.pop(self, None)
            sending[self] = None
            super().on_response_complete()

        def look(self, before: tuple[object, bool], times: int) -> None:
            """Close if no request came since the last look, or one has lasted six looks."""
            if self.transport.is_closing():
                return
            idle = self.cycle is None or self.cycle.response_complete
            seen = (self.cycle, idle)
            times = times + 1 if seen == before else 1
            if times > (1 if idle else 6):
                self.transport.abort()
            else:
                self.timer = self.loop.call_later(seconds, self.look, seen, times)

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True  # Its own answer would be one too many.
                self.cycle.message_event.set()
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:  # An answer has begun, or that to HEAD has no content.
                self.transport.close()

    return Patient
