"""A service from Python: an image in, the same `Segmentation` out as from a predictor here."""

import json
import math
import time
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from safetensors import SafetensorError

from paumer.arguments import checked
from paumer.classes import Pixels
from paumer.drawing import encode
from paumer.inference.predictor import ImageLike, as_pixels
from paumer.inference.result import Segmentation
from paumer.mode import Mode
from paumer.serve.answers import unpack

_AGAIN = (429, 503)
"""Answers after which a request may be sent again: at capacity, starting or shutting down."""


class ServiceError(Exception):
    """What a service answered instead of a result; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Sends images to a service and waits where it asks for that.

    A request that finds the service at capacity is sent up to ``retries`` times again, each time
    after the seconds that the service names. ``timeout`` is in seconds.
    """

    @checked
    def __init__(self, url: str, retries: int = 3, timeout: float = 60.0) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f'"{url}" is not an address: write it as http://127.0.0.1:8000')
        if retries < 0 or not 0 < timeout < math.inf:
            raise ValueError(
                f"retries are {retries} and timeout is {timeout}: give at least 0 retries, and "
                f"seconds above 0"
            )
        self.url, self.retries, self.timeout = url.rstrip("/"), retries, timeout

    def __repr__(self) -> str:
        return f'Client("{self.url}")'

    @checked
    def predict(
        self,
        image: ImageLike,
        mode: Mode | str = "auto",
        *,
        floor: str | None = None,
        deadline_ms: float | None = None,
        priority: Literal["low", "normal", "high"] = "normal",
    ) -> Segmentation:
        """Segment an image: a path, a file's content, a PIL image or an RGB array, uint8 (h, w, 3).

        ``mode`` is a mode, an operating point's name, or auto: the most accurate point that keeps
        the deadline, down to ``floor``. Without ``deadline_ms`` the service's target counts.
        """
        content, pixels = _read(image)
        options = {"mode": str(mode), "priority": priority, "output": "arrays"}
        options |= {} if floor is None else {"floor": floor}
        options |= {} if deadline_ms is None else {"deadline_ms": f"{deadline_ms:g}"}
        answer = self._send(f"/v1/segment?{urlencode(options)}", content)
        try:
            return unpack(answer, pixels)
        except (ValueError, LookupError, TypeError, SafetensorError) as error:
            raise ServiceError(200, f"{self.url} answered with something else: {error}") from error

    def model(self) -> Mapping[str, object]:
        """The service's model: its classes, operating points and target."""
        described: Mapping[str, object] = json.loads(self._send("/v1/model"))
        return described

    def _send(self, path: str, content: bytes | None = None) -> bytes:
        for attempt in range(self.retries + 1):
            try:
                with urlopen(Request(self.url + path, content), timeout=self.timeout) as answer:
                    body: bytes = answer.read()
                    return body
            except HTTPError as error:
                wait = error.headers.get("retry-after", "")
                if error.code in _AGAIN and wait.isdigit() and attempt < self.retries:
                    time.sleep(int(wait))
                    continue
                raise ServiceError(error.code, _reason(error.read())) from None
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", None) or error
                raise ConnectionError(f"no answer from {self.url}: {reason}") from error
        raise AssertionError("the last attempt returns or raises")


def _reason(body: bytes) -> str:
    """What an answer says is wrong."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body.decode(errors="replace")[:200]


def _read(image: ImageLike) -> tuple[bytes, Pixels]:
    """An image as a file's content, and its pixels."""
    pixels = as_pixels(image)
    if isinstance(image, bytes):
        return image, pixels
    if isinstance(image, str | Path):
        return Path(image).read_bytes(), pixels
    return encode(pixels, compress_level=1), pixels
