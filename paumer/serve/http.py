"""HTTP: takes images from clients, hands them to the service, and gives its answers."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as PathParameter
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse

from paumer import __version__
from paumer.data.images import TooLargeError, UnknownKindError
from paumer.data.isolated import DecodingLimitError, DecodingLimits
from paumer.inference.result import Segmentation
from paumer.scenes.scene import scene, scene_seeds
from paumer.serve import answers
from paumer.serve.batcher import BusyError, Done
from paumer.serve.guard import LOOPBACK, Guard
from paumer.serve.lanes import CrowdedError, Lanes
from paumer.serve.openapi import SEGMENT
from paumer.serve.service import Service

PAGE = Path(__file__).parent / "page"
SCENES = 6
_WIDTHS = (216, 960)
"""Of a scene as a thumbnail, sharp on any screen, and as an image."""

_CLOSE = {"connection": "close"}
_REFUSALS: dict[type[Exception], tuple[int, str]] = {
    BusyError: (429, "busy"),
    CrowdedError: (429, "decoding"),
    UnknownKindError: (415, "kind"),
    TooLargeError: (413, "large"),
    DecodingLimitError: (422, "decoding"),
    ValueError: (400, "wrong"),
}
"""Statuses and reasons, the first that applies."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What clients may send: bytes of a body, seconds to send it in, and what decoding may take.

    ``held_bytes`` bounds the bodies of all clients together, ``drain`` the seconds that accepted
    requests have when the service ends. ``hosts`` are the names that it answers for.
    """

    body_bytes: int = 20 * 2**20
    seconds: float = 10.0
    decoding: DecodingLimits = DecodingLimits()  # noqa: RUF009  # Frozen.
    held_bytes: int = 256 * 2**20
    drain: float = 30.0
    hosts: tuple[str, ...] = LOOPBACK


class RefusedError(HTTPException):
    """A request that gets no result, and the reason to count it under."""

    def __init__(
        self, status: int, reason: str, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, text, headers)
        self.reason = reason


def create_app(service: Service, limits: Limits) -> FastAPI:
    """The application around a service, which it starts and stops."""
    endpoints = Endpoints(service, limits)
    app = FastAPI(
        title="paumer",
        version=__version__,
        description="Segmentation that pauses more under load instead of queueing longer.",
        docs_url=None,
        redoc_url=None,
        lifespan=endpoints.lifespan,
    )
    app.add_middleware(Guard, hosts=limits.hosts)
    app.add_exception_handler(HTTPException, _answer_error)
    app.post("/v1/segment", openapi_extra=SEGMENT, response_class=Response)(endpoints.segment)
    gets: dict[str, Callable[..., Awaitable[Response]]] = {
        "/v1/model": endpoints.model,
        "/v1/status": endpoints.status,
        "/v1/scenes": endpoints.scenes,
        "/v1/scenes/{number}.png": endpoints.scene,
        "/healthz": endpoints.healthy,
        "/readyz": endpoints.ready,
        "/metrics": endpoints.metrics,
    }
    for path, endpoint in gets.items():
        app.get(path, response_model=None)(endpoint)
    for path in ("/healthz", "/readyz"):  # Some balancers want the head alone.
        app.head(path, include_in_schema=False)(gets[path])
    files = {"/": PAGE / "index.html", "/docs": PAGE / "docs.html"}
    files |= {f"/{file.name}": file for file in PAGE.iterdir()}
    for path, file in files.items():
        app.add_route(path, partial(_send_file, file), include_in_schema=False)
    return app


async def _send_file(file: Path, _: Request) -> Response:
    return FileResponse(file)


class Endpoints:
    """What answers at each path; results are encoded in two threads."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits = service, limits
        self.held = 0  # Bytes of all bodies.
        self.lanes = Lanes(limits.decoding)
        service.watch.follow(decoding_seconds=lambda: self.lanes.decoder.seconds)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the service in the background; at the end stop it."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2, "images"))
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()
        await asyncio.to_thread(self.service.stop)
        self.lanes.close()

    async def _tick(self) -> None:
        """Start the service, then let it look at its queue every second."""
        try:
            await asyncio.to_thread(self.lanes.decoder.start)
            await asyncio.to_thread(self.service.start)
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
            return await self._segment(request, body)
        except RefusedError as error:
            watch.refuse(error.reason)
            raise
        except (BusyError, CrowdedError, ValueError) as error:
            status, reason = next(_REFUSALS[kind] for kind in _REFUSALS if isinstance(error, kind))
            watch.refuse(reason)
            wait = None if isinstance(error, ValueError) else max(1, math.ceil(error.seconds))
            headers = {"retry-after": str(wait)} if wait else None
            raise RefusedError(status, reason, str(error), headers) from error
        except ClientDisconnect:
            watch.refuse("gone")
            return Response(status_code=499)
        finally:
            watch.in_flight -= 1
            self.held -= len(body)

    async def _segment(self, request: Request, body: bytearray) -> Response:
        self._check_open()
        if not {"deadline_ms", "priority"} & request.query_params.keys():
            # Before anything is read of it.
            self.service.batcher.check(self.service.seconds, self.service.target)
        await self._receive(request, body)
        begin = perf_counter()
        image_file, values = await _read_form(request, bytes(body))
        parameters = self.service.read(values)
        image = await self.lanes.read(image_file, partial(_check_there, request))
        self.service.check_pixels(image, parameters, self.limits.decoding.pixels)
        decode = perf_counter() - begin
        done = await _unless_gone(request, self.service.submit(image, parameters, begin))
        point = self.service.point_name(done.result.mode)
        times = partial(_milliseconds, begin, decode, done)
        answer = await asyncio.to_thread(self._answer, done.result, point, parameters.output, times)
        self.service.watch.answered(point, perf_counter() - begin)
        return answer

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Fill the body with what the client sends.

        One that is declared somewhat too large is read to its end and not kept, because a client
        that is cut off in the middle of sending seldom reads why.
        """
        limit, declared = self.limits.body_bytes, request.headers.get("content-length", "")
        text = f"the body is larger than {limit / 2**20:g} MB: send a smaller image"
        # Made where it is raised: an error that its own frame holds would keep the body in memory.
        too_large = partial(RefusedError, 413, "large", text, _CLOSE)
        length = int(declared) if declared.isdigit() else 0
        if length > 2 * limit:
            raise too_large()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if length > limit:
                        continue
                    if len(body) + len(chunk) > limit:
                        raise too_large()
                    if self.held + len(chunk) > self.limits.held_bytes:
                        text = "too many large bodies arrive at once: try again in 1 s"
                        raise RefusedError(429, "memory", text, {"retry-after": "1", **_CLOSE})
                    self.held += len(chunk)
                    body += chunk
        except TimeoutError:
            text = f"the body did not arrive within {self.limits.seconds:g} s"
            raise RefusedError(408, "slow", text, _CLOSE) from None
        if length > limit:
            raise too_large()

    def _answer(
        self,
        result: Segmentation,
        point: str | None,
        output: str,
        times: Callable[[], dict[str, float]],
    ) -> Response:
        headers = {"x-paumer-mode": str(result.mode), "x-paumer-point": quote(point or "")}
        if output == "all":
            work = self.service.work_ratio(result)
            values: dict[str, object] = {"mode": str(result.mode), "point": point, "work": work}
            values |= answers.everything(result) | {"milliseconds": times()}
            content, kind = json.dumps(values).encode(), answers.JSON
        else:
            content, kind = answers.encode(result, output)
        spans = [f"{name};dur={span:.2f}" for name, span in times().items() if name != "total"]
        headers["server-timing"] = ", ".join(spans)
        return Response(content, media_type=kind, headers=headers)

    def _check_open(self) -> None:
        if self.service.draining:
            raise RefusedError(503, "draining", "the service is shutting down: ask another replica")
        self._check_started()

    def _check_started(self) -> None:
        if not self.service.ready:
            text = "the service is starting: try again in a few seconds"
            raise RefusedError(503, "loading", text)

    async def model(self) -> Response:
        """The model: classes with colours, operating points from accurate to fast, the target."""
        return JSONResponse(self.service.describe())

    async def status(self) -> Response:
        """What the service does now: queue, operating point, latencies, the last two minutes."""
        self._check_started()
        return JSONResponse(self.service.status())

    async def scenes(self) -> Response:
        """Synthetic streets to try the service on."""
        files = {f"street {n}": f"v1/scenes/{n}.png" for n in range(1, SCENES + 1)}
        return JSONResponse(
            [
                {"name": name, "url": url, "thumbnail": f"{url}?width={_WIDTHS[0]}"}
                for name, url in files.items()
            ]
        )

    async def scene(
        self,
        number: Annotated[str, PathParameter(examples=["1"])],
        width: Annotated[str, Query(examples=[str(_WIDTHS[0])])] = str(_WIDTHS[-1]),
    ) -> Response:
        """A synthetic street as PNG, large or small."""
        if number not in map(str, range(1, SCENES + 1)):
            raise RefusedError(404, "wrong", f"no scene {number}: there are 1 to {SCENES}")
        if width not in map(str, _WIDTHS):
            choices = " or ".join(map(str, _WIDTHS))
            raise RefusedError(
                404, "wrong", f"no scene {width[:20]} pixels wide: ask for {choices}"
            )
        content = await asyncio.to_thread(_scene_file, int(number), int(width))
        return Response(content, media_type=answers.PNG)

    async def healthy(self) -> Response:
        """Whether the process lives."""
        return JSONResponse({"status": "alive"})

    async def ready(self) -> Response:
        """Whether requests are taken."""
        self._check_open()
        return JSONResponse({"status": "ready"})

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self.service.watch.metrics(), media_type="text/plain; version=0.0.4")


def _milliseconds(begin: float, decode: float, done: Done) -> dict[str, float]:
    """What was done since a request had arrived in full, and its sum."""
    total = perf_counter() - begin
    spans = {"decode": decode, "queue": done.queued - decode, "compute": done.compute}
    spans |= {"encode": total - sum(spans.values()), "total": total}
    return {name: 1000 * span for name, span in spans.items()}


async def _read_form(request: Request, body: bytes) -> tuple[bytes, dict[str, str]]:
    """The image's file and the parameters: the body and the query, or the fields of a form."""
    values = dict(request.query_params)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return body, values

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
        values |= {name: value for name, value in form.items() if isinstance(value, str)}
        return await image.read(), values
    finally:
        await form.close()


async def _check_there(request: Request) -> None:
    if await request.is_disconnected():
        raise ClientDisconnect


async def _unless_gone(request: Request, job: "Future[Done]") -> Done:
    """The job's result; if the client hangs up first, the job leaves the queue."""
    future = asyncio.wrap_future(job)
    gone = asyncio.ensure_future(request.receive())
    both: set[asyncio.Future[Any]] = {future, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientDisconnect
        if error := future.exception():
            _log.error("segmenting failed", exc_info=error)
            raise RefusedError(500, "failed", f"segmenting failed: {error}") from error
        return future.result()
    finally:
        future.cancel()
        gone.cancel()


@lru_cache(SCENES * len(_WIDTHS))
def _scene_file(number: int, width: int) -> bytes:
    image, _ = scene(scene_seeds("test", SCENES)[number - 1], (width, width * 3 // 4))
    return answers.png(image)


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if isinstance(error, RefusedError) else error.detail.lower()
    return JSONResponse({"error": text}, error.status_code, headers=error.headers)
