"""The process of a service: it listens, drains when it is told to end, and drops silent clients."""

import math
import socket
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paumer.serve.server import Limits, create_app
from paumer.serve.service import Service


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(f"cannot serve at {host}:{port}: {error.strerror or error}") from error


def run(service: Service, at: socket.socket, limits: Limits | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted."""
    limits = limits or Limits()
    config = uvicorn.Config(
        create_app(service, limits),
        http=patient(limits.seconds),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.seconds),
        timeout_graceful_shutdown=5,
    )
    _Server(config, service, limits.drain).run(sockets=[at])
    if service.failure:
        raise service.failure


class _Server(uvicorn.Server):
    """Finishes accepted requests on the first signal, ends at once on the second."""

    def __init__(self, config: uvicorn.Config, service: Service, drain: float) -> None:
        super().__init__(config)
        self.service, self.drain = service, drain
        self.until = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = self.service.draining
        self.service.draining = True
        self.until = min(self.until, monotonic() + self.drain)

    async def on_tick(self, counter: int) -> bool:
        drained = self.service.draining and self.service.watch.in_flight == 0
        if drained or monotonic() > self.until or self.service.failure:
            self.should_exit = True
        return await super().on_tick(counter)


_HEAD_BYTES = 64 * 2**10
"""What a client may send before its request begins: the request line and the headers."""


def patient(seconds: float) -> type[HttpToolsProtocol]:
    """HTTP that closes connections whose request's head does not end in time, or is too long."""

    class Patient(HttpToolsProtocol):
        head_bytes = 0

        def connection_made(self, transport: Any) -> None:  # Loops have their own kinds.
            super().connection_made(transport)
            self.loop.call_later(seconds, self.look, (None, True), 1)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.head_bytes = self.head_bytes + len(data) if self.idle else 0
            if self.head_bytes > _HEAD_BYTES:
                self.transport.abort()

        @property
        def idle(self) -> bool:
            """Whether no request is under way."""
            return self.cycle is None or self.cycle.response_complete

        def look(self, before: tuple[object, bool], times: int) -> None:
            """Close if no request came since the last look, or one has lasted six looks."""
            if self.transport.is_closing():
                return
            seen = (self.cycle, self.idle)
            times = times + 1 if seen == before else 1
            if times > (1 if self.idle else 6):
                self.transport.abort()
            else:
                self.loop.call_later(seconds, self.look, seen, times)

    return Patient
