"""Who is answered: requests for this service's own names, and pages that it sent itself."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
WILDCARDS = ("0.0.0.0", "::", "")
"""Addresses to listen at which stand for all of a machine's."""

_FOR_ANYBODY = ("/healthz", "/readyz")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}


def allowed_hosts(listening: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The names that requests may ask for: loopback, where it listens, and ``more``.

    At an address that stands for all of a machine's, any name is right unless some are given.
    """
    if listening in WILDCARDS and not more:
        return ("*",)
    return tuple(name.lower() for name in (*LOOPBACK, listening, *more))


class Guard:
    """An application that answers only to its own names, and not to the pages of others.

    A page from elsewhere may reach a service on its reader's machine: under a name of its own that
    leads there, or by a plain form. Both are refused. Answers forbid browsers to load anything from
    elsewhere. Health checks are answered whatever they ask for.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, hosts
        self.headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send_more)
        else:
            status, text = refusal
            answer = JSONResponse({"error": text}, status, headers={"connection": "close"})
            await answer(scope, receive, send_more)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason why a request is not answered, if there is one."""
        if scope["path"] in _FOR_ANYBODY:
            return None
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, port = _split(headers.get(b"host", ""))
        if not self._knows(host):
            text = f'this service does not answer for "{host[:100]}": start it with --allow-host'
            return 421, text
        origin = headers.get(b"origin")
        if origin is None:
            return None
        page, page_port = _split(origin.partition("//")[2])
        # A proxy may have taken the port off.
        own = page == host and (port is None or port == page_port)
        # What was named is trusted as a page too; "*" names nobody.
        named = [pattern for pattern in self.hosts if pattern not in ("*", *LOOPBACK)]
        if own or any(fnmatchcase(page, pattern) for pattern in named):
            return None
        return 403, f'pages of "{origin[:100]}" get no answer from this service'

    def _knows(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self.hosts)


def _split(netloc: str) -> tuple[str, int | None]:
    """The host, in lower case and without brackets, and the port of an address."""
    try:
        parts = urlsplit(f"//{netloc}")
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None
