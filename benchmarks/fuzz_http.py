"""Hostile exchanges with a service: heads, lengths, chunks, names, forms, queries, hang-ups."""

import io
import json
import logging
import random
import socket
import threading
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from fuzz_bytes import damage, odd_number
from fuzz_images import FORMATS
from PIL import Image

from paumer import Predictor, build_model
from paumer.data.isolated import DecodingLimits
from paumer.serve import process
from paumer.serve.http import Limits, create_app
from paumer.serve.service import Service

_BODY = 2**20  # Most bytes of a body.
_WAIT = 15.0  # Seconds without an answer or an end of the connection.
_PATHS = (
    "/v1/segment", "/v1/segment", "/v1/segment", "/v1/model", "/v1/status", "/v1/scenes",
    "/v1/scenes/1.png", "/v1/scenes/-1.png", "/v1/scenes/%00.png", "/v1/scenes/99999999999.png",
    "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/", "/../etc/passwd", "//x",
    "/%2e%2e/%2e%2e/etc/passwd", "/%ff", "*", "http://localhost/healthz", "/index.html", "",
)  # fmt: skip
_VALUES = (
    "none", "3:0.4", "2:0.5 exit", "2:0.5 by=neighbours", "2:>0.5", "size=99999999", "size=16",
    "2:0.4 size=1", "2:0.4 protect=class 1", "2:nan", "2:1e999", "9" * 5000, "1:0.5," * 2000, "",
    "fast", "accurate", "mask", "overlay", "all", "entropy", "json", "\0", "é🙂", "%", "[", "{0}",
    "2:0.4 size=" + "9" * 300, "-1:0.5", "2:-0.5", "auto", "paper", "2:0.1 2:0.2", "none exit",
    "low", "high", "nan", "inf", "-1", "1e-320", "5000", "1:~0.1,2:1 exit",
)  # fmt: skip
_HEADERS = (
    "Host: evil.example", "Host: ", "Host: localhost:99999999", "Host: [::1", "Host: [::1]:80",
    "Origin: http://evil.example", "Origin: null", "Origin: http://localhost", "Origin: //[",
    "Content-Length: -1", "Content-Length: 9" + "9" * 30, "Content-Length: 5, 5",
    "Content-Length: +5", "Content-Length: ٣", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked", "Connection: close",
    "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x", "Upgrade: h2c",
    "Expect: 100-continue", "Content-Type: multipart/form-data", "Content-Encoding: gzip",
    "Content-Type: multipart/form-data; boundary=", "Range: bytes=0-1,5-,-3", "Range: bytes=9-1",
    "Content-Type: multipart/form-data; boundary=" + "x" * 300, "If-None-Match: *", "Accept: x",
    "If-Modified-Since: Mon, 99 Foo 0000", "X: " + "y" * 40_000, "X-Forwarded-For: 1" * 50, ": x",
    "No colon", " folded", "A\0B: c", "Content-Type: é", "Cookie: " + "a=b; " * 500, "Range: x",
    "Content-Type: application/x-www-form-urlencoded", "X-Forwarded-Proto: x", "Te: trailers",
)  # fmt: skip


class Http:
    """Sends raw requests to a service in this process; then an honest one must be answered."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        predictor = Predictor(build_model("test_vit", "linear", 5, image_size=64))
        decoding = DecodingLimits(pixels=2**18)
        limits = Limits(body_bytes=_BODY, seconds=0.5, decoding=decoding, held_bytes=4 * _BODY)
        at = process.listen("127.0.0.1", 0)
        self.address = at.getsockname()[:2]
        service = Service(predictor, target=10.0)  # Nobody is refused for being late.
        words = (create_app(service, limits), service, at, limits.seconds, limits.drain)
        threading.Thread(target=process.run, args=words, daemon=True).start()
        while not service.ready:
            time.sleep(0.05)
        out = io.BytesIO()
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(out, "PNG")
        self.image = out.getvalue()
        self.tracebacks: list[str] = []
        handler = logging.Handler()
        handler.emit = self._note  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        for name in ("uvicorn", "uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(handler)

    def _note(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(logging.Formatter().format(record)[-1500:])

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """What is sent, and where it is cut and how it ends."""
        content = b"".join(self._request(rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
        if rng.random() < 0.15:
            content = damage(rng, content, self._request(rng))
        cuts = sorted(rng.randrange(len(content) + 1) for _ in range(rng.choice((0, 0, 1, 5))))
        plan = {"cuts": cuts, "end": rng.choice(("wait", "wait", "shut", "abort"))}
        return {"request.bin": content, "plan.json": json.dumps(plan).encode()}

    def _request(self, rng: random.Random) -> bytes:
        """One request."""
        path, body = rng.choice(_PATHS), self._body(rng)
        if rng.random() < 0.5:
            names = ("mode", "floor", "output", "deadline_ms", "priority", "pause", "x", "mode", "")
            pairs = [(rng.choice(names), rng.choice(_VALUES)) for _ in range(rng.choice((1, 2, 9)))]
            clean = rng.random() < 0.8
            path += "?" + "&".join(f"{n}={quote(v, '' if clean else ' ')}" for n, v in pairs)
        method = "POST" if path.startswith("/v1/segment") else "GET"
        if rng.random() < 0.1:
            method = rng.choice(
                ("PUT", "HEAD", "OPTIONS", "CONNECT", "TRACE", "x" * 300, "", "P\0")
            )
        lines = [f"{method} {path} HTTP/{rng.choice(('1.1',) * 9 + ('1.0', '0.9', '2', '9.9'))}"]
        lines += ["Host: localhost"] if rng.random() < 0.9 else []
        if rng.random() < 0.25:
            boundary = rng.choice(("b", "b", "bb", "x" * 70))
            lines.append(f"Content-Type: multipart/form-data; boundary={boundary}")
            body = _form(rng, boundary.encode(), body)
        if rng.random() < 0.2:
            lines.append("Transfer-Encoding: chunked")
            body = _chunked(rng, body)
        elif method == "POST" or rng.random() < 0.1:
            lie = (0, 1, len(body) - 1, len(body) + 1, 3 * _BODY, odd_number(rng, 40))
            lines.append(f"Content-Length: {rng.choice(lie) if rng.random() < 0.15 else len(body)}")
        else:
            body = b""
        for _ in range(rng.choice((0, 0, 0, 1, 1, 3, 120))):
            lines.insert(rng.randint(1, len(lines)), rng.choice(_HEADERS))
        end = rng.choice(("\r\n",) * 9 + ("\n",))
        return (end.join(lines) + end + end).encode("utf-8", "surrogatepass") + body

    def _body(self, rng: random.Random) -> bytes:
        choice = rng.randrange(8)
        if choice == 0:
            return b""
        if choice == 1:
            return bytes(rng.choice((1, 100, _BODY, _BODY + 1, 2 * _BODY)))
        if choice < 5:
            return self.image
        return FORMATS[rng.choice(list(FORMATS))](rng)[: _BODY + 1000]

    def run(self, case: Path, number: int) -> bool:
        """Send it; whether the first answer is a success."""
        self.tracebacks.clear()
        plan = json.loads((case / "plan.json").read_bytes())
        answer = self._exchange((case / "request.bin").read_bytes(), plan["cuts"], plan["end"])
        honest = b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        honest += b"Content-Length: %d\r\n\r\n%b" % (len(self.image), self.image)
        begin = time.monotonic()
        after = self._exchange(honest, [], "wait")
        assert after.startswith(b"HTTP/1.1 200 "), f"the honest request got {after[:200]!r}"
        assert time.monotonic() - begin < 10, "the honest request took more than 10 s"
        status = answer[9:12]
        assert not status.startswith(b"5") or status == b"503", f"status {answer[:300]!r}"
        assert not self.tracebacks, f"the service logged: {self.tracebacks[0]}"
        return status == b"200"

    def _exchange(self, content: bytes, cuts: list[int], end: str) -> bytes:
        """The first bytes of what comes back, or nothing."""
        answer = b""
        with socket.create_connection(self.address, timeout=_WAIT) as line:
            try:
                for begin, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
                    line.sendall(content[begin:stop])
                    if cuts:
                        time.sleep(0.01)
                if end == "abort":
                    return answer
                if end == "shut":
                    line.shutdown(socket.SHUT_WR)
                while b"\r\n\r\n" not in answer and (piece := line.recv(2**16)):
                    answer += piece
            except TimeoutError:
                raise AssertionError(f"no answer, and no end, for {_WAIT:g} s") from None
            except OSError:  # Closed by the service.
                pass
        return answer

    def bounded(self, number: int) -> bool:
        """Always."""
        return True


def _form(rng: random.Random, boundary: bytes, image: bytes) -> bytes:
    """The body of a form with an image and other fields, some of them not well formed."""
    parts = []
    for _ in range(rng.choice((1, 1, 2, 3, 20))):
        name = rng.choice((b"image", b"image", b"mode", b"output", b"", b"x" * 2000, b"\xff"))
        file = rng.choice(
            (b'; filename="a.png"', b'; filename="a.png"', b"", b"; filename*=utf-8''%ff")
        )
        head = b'Content-Disposition: form-data; name="%b"%b\r\n' % (name, file)
        more = (
            b"",
            b"",
            b"Content-Type: image/png\r\n",
            b"X: " + b"y" * 20_000 + b"\r\n",
            b"bad\r\n",
        )
        body = image if file else rng.choice(_VALUES).encode()
        head = head if rng.random() < 0.95 else b""
        parts.append(b"--%b\r\n%b%b\r\n%b\r\n" % (boundary, head, rng.choice(more), body))
    return b"".join(parts) + rng.choice(
        (b"--%b--\r\n" % boundary,) * 5 + (b"", b"--b", b"\r\n" * 999)
    )


def _chunked(rng: random.Random, body: bytes) -> bytes:
    """A body in chunks, some of which lie."""
    step = rng.choice((1, 1000, 2**16)) if len(body) < 3000 else 2**16
    chunks = []
    for i in range(0, len(body), step):
        piece = body[i : i + step]
        size = b"%x" % len(piece)
        if rng.random() < 0.02:
            size = rng.choice(
                (b"-1", b"f" * 30, b"0x5", b"", b"%x" % odd_number(rng), b"5;" + b"x" * 9000)
            )
        chunks.append(size + b"\r\n" + piece + b"\r\n")
    ends = (
        b"0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"",
        b"0\r\n" + b"a: b\r\n" * 5000,
        b"0\n\n",
    )
    return b"".join(chunks) + rng.choice(ends)
