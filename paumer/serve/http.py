"""HTTP: takes images from clients, hands them to the service, and gives its answers."""

import asyncio
import html
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paumer import __version__
from paumer.data.images import TooManyPixelsError, UnknownKindError, read_image
from paumer.scenes.scene import scene, scene_seeds
from paumer.serve import answers
from paumer.serve.batcher import BusyError, Done
from paumer.serve.openapi import SEGMENT
from paumer.serve.service import Asked, Service

PAGE = Path(__file__).parent / "page"
SCENES = 6

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
}
_REMOVED = ("pause", "early_exit", "criterion")
_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may send: bytes of a body, pixels of an image, seconds to send it in.

    ``held_bytes`` bounds the bodies of all clients together, ``drain`` the seconds that accepted
    requests have when the service ends.
    """

    body_bytes: int = 20 * 2**20
    pixels: int = 4 * 2**20
    seconds: float = 10.0
    held_bytes: int = 256 * 2**20
    drain: float = 30.0


class RefusedError(Exception):
    """A request that gets no result: its status, what to count it as, and a sentence."""

    def __init__(
        self, status: int, reason: str, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.reason, self.headers = status, reason, headers


def create_app(service: Service, limits: Limits | None = None) -> FastAPI:
    """The application around a service, which it starts and stops."""
    door = _Door(service, limits or Limits())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        time = asyncio.create_task(door.keep_time())
        yield
        time.cancel()
        await door.beside(service.stop)
        door.threads.shutdown()

    app = FastAPI(
        title="paumer",
        version=__version__,
        description="Segmentation that pauses more under load instead of queueing longer.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.add_middleware(_SafeHeaders)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_path)
    app.post("/v1/segment", openapi_extra=SEGMENT, response_class=Response)(door.segment)
    endpoints: dict[str, Callable[..., Awaitable[Response]]] = {
        "/v1/model": door.model,
        "/v1/status": door.status,
        "/v1/scenes": door.scenes,
        "/v1/scenes/{number}.png": door.scene,
        "/healthz": door.healthy,
        "/readyz": door.ready,
        "/metrics": door.metrics,
    }
    for path, endpoint in endpoints.items():
        app.get(path, response_model=None)(endpoint)
    for path in ("/healthz", "/readyz"):  # Some balancers ask for the head alone.
        app.head(path, include_in_schema=False)(endpoints[path])

    async def docs() -> Response:
        return HTMLResponse(_listing(app.openapi()))

    app.get("/docs", include_in_schema=False)(docs)
    for path, file in {"": PAGE / "index.html", **{f.name: f for f in PAGE.iterdir()}}.items():
        app.get(f"/{path}", include_in_schema=False)(_sender(file))
    return app


def _sender(file: Path) -> Callable[[], Awaitable[Response]]:
    """An endpoint that gives a file of the page."""

    async def send() -> Response:
        return FileResponse(file)

    return send


@dataclass
class _Door:
    """The endpoints, and what they share: threads to decode and encode in, bytes held."""

    service: Service
    limits: Limits
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "images"))
    held: int = 0

    async def beside(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """What a call gives, made in a thread beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *arguments)

    async def keep_time(self) -> None:
        """Start the service, then let it look at its queue every second."""
        try:
            await self.beside(self.service.start)
            while True:
                await asyncio.sleep(1)
                self.service.tick()
        except Exception as error:
            self.service.failure = error

    async def segment(self, request: Request) -> Response:
        """Segment an image: the body, or the file field "image" of a form."""
        watch, body = self.service.watch, bytearray()
        watch.in_flight += 1
        try:
            with _refusals():
                return await self._segment(request, body)
        except RefusedError as refusal:
            watch.refuse(refusal.reason)
            return _error(refusal.status, str(refusal), refusal.headers)
        except ClientDisconnect:
            watch.refuse("gone")
            return Response(status_code=499)
        finally:
            watch.in_flight -= 1
            self.held -= len(body)

    async def _segment(self, request: Request, body: bytearray) -> Response:
        self._check_open()
        self.service.check_room()
        await self._receive(request, body)
        begin = perf_counter()
        image_file, values = bytes(body), dict(request.query_params)
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            image_file, fields = await _read_form(request, image_file)
            values |= fields
        asked, output = _read_options(values)
        self.service.check(asked)
        image = await self.beside(read_image, image_file, self.limits.pixels)
        self.service.check_pixels(image, asked, self.limits.pixels)
        done = await _unless_gone(request, self.service.submit(image, asked))
        content, kind, times = await self.beside(self._encode, done, output, begin)
        mode = done.result.mode
        point = self.service.point_name(mode)
        self.service.watch.answered(point, times["total"] / 1000)
        spans = (f"{name};dur={times[name]:.2f}" for name in ("queue", "compute", "encode"))
        return Response(
            content,
            media_type=kind,
            headers={
                "x-paumer-mode": str(mode),
                "x-paumer-point": quote(point or ""),
                "server-timing": ", ".join(spans),
            },
        )

    def _check_open(self) -> None:
        if self.service.draining:
            raise RefusedError(503, "draining", "the service is shutting down: ask another replica")
        if not self.service.ready:
            raise RefusedError(
                503, "loading", "the service is starting: try again in a few seconds"
            )

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Fill the body with what the client sends.

        Of one that is said to be somewhat too large all is read and nothing kept, because a client
        that is cut off in the middle of sending seldom reads why.
        """
        most, declared = self.limits.body_bytes, request.headers.get("content-length", "")
        length = int(declared) if declared.isdigit() else 0
        if length > 2 * most:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if length > most:
                        continue
                    if len(body) + len(chunk) > most:
                        raise self._too_large()
                    self._hold(len(chunk))
                    body += chunk
        except TimeoutError:
            text = f"the body did not arrive within {self.limits.seconds:g} s"
            raise RefusedError(408, "slow", text, {"connection": "close"}) from None
        if length > most:
            raise self._too_large()

    def _too_large(self) -> RefusedError:
        # Made where it is raised: an error that its own frame holds would keep the body in memory.
        most = self.limits.body_bytes / 2**20
        text = f"the body is larger than {most:g} MB: send a smaller image"
        return RefusedError(413, "large", text, {"connection": "close"})

    def _hold(self, number: int) -> None:
        if self.held + number > self.limits.held_bytes:
            text = "too many large bodies arrive at once: try again in 1 s"
            raise RefusedError(429, "memory", text, {"retry-after": "1", "connection": "close"})
        self.held += number

    def _encode(self, done: Done, output: str, begin: float) -> tuple[bytes, str, dict[str, float]]:
        """The answer, its media type, and where the milliseconds went since ``begin``."""
        start = perf_counter()

        def times() -> dict[str, float]:
            now = perf_counter()
            spans = (done.queued, done.compute, now - start, now - begin)
            names = ("queue", "compute", "encode", "total")
            return {name: 1000 * span for name, span in zip(names, spans, strict=True)}

        if output in answers.OUTPUTS:
            content, kind = answers.OUTPUTS[output](done.result)
            return content, kind, times()
        images = answers.images(done.result)
        values = {
            "mode": str(done.result.mode),
            "point": self.service.point_name(done.result.mode),
            "work": self.service.work_ratio(done.result),
            **answers.details(done.result),
            "milliseconds": times(),
            "images": images,
        }
        return json.dumps(values).encode(), answers.JSON, times()

    async def model(self) -> Response:
        """The model: classes with colours, operating points from accurate to fast, the target."""
        return JSONResponse(self.service.describe())

    async def status(self) -> Response:
        """What continues: queue, operating point, latencies, the last two minutes."""
        if not self.service.ready:
            return _error(503, "the service is starting: try again in a few seconds")
        return JSONResponse(self.service.status())

    async def scenes(self) -> Response:
        """Drawn streets to try the service on."""
        return JSONResponse(
            [{"name": f"street {n}", "url": f"v1/scenes/{n}.png"} for n in range(1, SCENES + 1)]
        )

    async def scene(self, number: int) -> Response:
        """A drawn street as PNG."""
        if not 1 <= number <= SCENES:
            return _error(404, f"no scene {number}: there are 1 to {SCENES}")
        return Response(await self.beside(_drawn_scene, number), media_type=answers.PNG)

    async def healthy(self) -> Response:
        """Whether the process lives."""
        return JSONResponse({"status": "alive"})

    async def ready(self) -> Response:
        """Whether requests are taken."""
        try:
            self._check_open()
        except RefusedError as refusal:
            return _error(refusal.status, str(refusal))
        return JSONResponse({"status": "ready"})

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self.service.metrics(), media_type="text/plain; version=0.0.4")


@contextmanager
def _refusals() -> Iterator[None]:
    """What went wrong inside, as what the client is told."""
    try:
        yield
    except BusyError as error:
        wait = {"retry-after": str(max(1, math.ceil(error.seconds)))}
        raise RefusedError(429, "busy", str(error), wait) from error
    except UnknownKindError as error:
        raise RefusedError(415, "kind", str(error)) from error
    except TooManyPixelsError as error:
        raise RefusedError(413, "large", str(error)) from error
    except ValueError as error:
        raise RefusedError(400, "wrong", str(error)) from error


async def _read_form(request: Request, body: bytes) -> tuple[bytes, dict[str, str]]:
    """The file field "image" of a form, and its other fields."""

    async def once() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        parser = MultiPartParser(request.headers, once(), max_files=1, max_fields=8)
        parser.spool_max_size = len(body) + 1  # Nothing of a client's goes to disk.
        form = await parser.parse()
    except MultiPartException as error:
        raise ValueError(f"cannot read the form: {error.message}") from error
    try:
        image = form.get("image")
        if not isinstance(image, UploadFile):
            raise ValueError('the form has no file field "image": send the image in it')
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        return await image.read(), fields
    finally:
        await form.close()


def _read_options(values: Mapping[str, str]) -> tuple[Asked, str]:
    """What is asked for, and as what it is wanted."""
    known = ("mode", "floor", "output")
    if unknown := [name for name in values if name not in known]:
        hint = " (a mode says it all, such as mode=3:0.4 exit)" if unknown[0] in _REMOVED else ""
        raise ValueError(f'no option "{unknown[0]}"{hint}: choose from {", ".join(known)}')
    output = values.get("output", "mask")
    if output not in (*answers.OUTPUTS, "all"):
        choices = ", ".join([*answers.OUTPUTS, "all"])
        raise ValueError(f'output "{output}" is not known: choose from {choices}')
    return Asked(mode=values.get("mode", "auto"), floor=values.get("floor")), output


async def _unless_gone(request: Request, job: "Future[Done]") -> Done:
    """The job's result; if the client hangs up first, the job leaves the queue."""
    future = asyncio.wrap_future(job)
    gone = asyncio.ensure_future(request.receive())
    both: set[asyncio.Future[Any]] = {future, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientDisconnect
        return future.result()
    except (ClientDisconnect, asyncio.CancelledError):
        raise
    except Exception as error:
        _log.exception("segmenting failed")
        raise RefusedError(500, "failed", f"segmenting failed: {error}") from error
    finally:
        future.cancel()
        gone.cancel()


@lru_cache(SCENES)
def _drawn_scene(number: int) -> bytes:
    image, _ = scene(scene_seeds("test", SCENES)[number - 1])
    return answers.png(image)


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers=headers)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail.lower(), error.headers)


async def _wrong_path(request: Request, _: Exception) -> Response:
    return _error(404, f"nothing at {request.url.path}")


def _listing(described: Mapping[str, Any]) -> str:
    """The endpoints as a plain page that needs nothing else."""
    rows = [
        f"<dt><code>{method.upper()} {html.escape(path)}</code></dt>"
        f"<dd>{html.escape(item.get('description', ''))}</dd>"
        for path, methods in described["paths"].items()
        for method, item in methods.items()
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>paumer</title>'
        f"<h1>paumer {__version__}</h1><dl>{''.join(rows)}</dl>"
        '<p>In full: <a href="/openapi.json">openapi.json</a></p></html>'
    )


class _SafeHeaders:
    """Adds what tells browsers to load nothing from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        await self.app(scope, receive, safe)
