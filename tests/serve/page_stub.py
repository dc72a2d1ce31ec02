"""A service that answers at once, for the page in a real browser."""

import base64
import contextlib
import io
import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
from PIL import Image

import paumer
from paumer import Mode
from paumer.classes import CAMVID, paint
from paumer.serve.openapi import SEGMENT

PAGE = Path(paumer.__file__).parent / "serve" / "page"
TIMES = "\N{MULTIPLICATION SIGN}"
POLICY = "default-src 'self'; img-src 'self' data: blob:; media-src blob:"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
FAST = "3:0.4,5:0.4 by=neighbours"
POINTS = [
    {"name": name, "mode": mode, "miou": miou, "data": "streets val", "images": 101}
    | {
        "speed_up": speed,
        "where": "two cores",
        "work": 0.9 / speed + 0.1,
        "latency_ms": 200 / speed,
    }
    for name, mode, miou, speed in (
        ("accurate", "none", 0.645, 1.0),
        ("light", "3:0.2", 0.646, 1.2),
        ("balanced", "3:0.4", 0.644, 1.4),
        ("fast", FAST, 0.636, 1.7),
    )
]

MODEL = {
    "name": "street-test",
    "classes": [
        {"name": name, "colour": colour}
        for name, colour in zip(CAMVID.names, CAMVID.colours, strict=True)
    ],
    "points": POINTS,
    "curve": [*POINTS, POINTS[1] | {"name": None, "mode": "5:0.2", "miou": 0.64}],
    "blocks": 12,
    "latency_ms": 200,
    "patch": [16, 16],
    "side": 360,
}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def scene(number=0, width=96, height=72):
    return png(np.full((height, width, 3), 90 + 20 * number, np.uint8))


def labels_of(width, height, mode):
    """Sky over road; with pausing a tenth of the columns become pavement."""
    labels = np.zeros((height, width), np.uint8)
    labels[height // 2 :] = 3
    if mode != "none":
        labels[:, : width // 10] = 4
    return labels


class Stub:
    """Answers as the service does; the queries are kept, and its next answers can be set.

    A mode in ``held`` is answered when its event is set.
    """

    prefix = "/street/"
    model = MODEL

    def __init__(self):
        self.queries = []
        self.bodies = []
        self.held = {}
        self.refusals = deque()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}{self.prefix}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def asked(self):
        """The modes that the user asked for, without the runs that only measure."""
        return [query["mode"] for query in self.queries if "priority" not in query]

    def measured(self, mode):
        """Whether the page has run a mode, and no pausing, as often as it wants."""
        return all(self.modes().count(one) >= 5 for one in (mode, "none"))

    def modes(self):
        return [query["mode"] for query in self.queries]

    def scenes(self):
        return {"morning": scene(0), "evening": scene(1)}

    def sent(self):
        """The bodies that are not scenes: what the user chose."""
        return [body for body in self.bodies if body not in self.scenes().values()]

    def mode_of(self, query):
        """As the service spells it; by itself it chooses a faster one where there is no time."""
        hurry = float(query.get("deadline_ms", 1000)) < 600
        chosen = FAST if hurry else "3:0.4"
        return str(Mode.parse(chosen if query["mode"] == "auto" else query["mode"]))

    def segment(self, query, body):
        mode = self.mode_of(query)
        with Image.open(io.BytesIO(body)) as image:
            width, height = image.size
        labels = labels_of(width, height, mode)
        painted = png(paint(labels, CAMVID))
        if query["output"] != "all":
            return painted
        grid = np.zeros((-(-height // 16), -(-width // 16), 4), np.uint8)
        grid[0, 0] = (0, 158, 115, 153)
        images = dict.fromkeys(("paused", "merged", "entropy"), png(grid)) | {"labels": painted}
        counts = np.bincount(labels.ravel(), minlength=len(CAMVID)) / labels.size
        # The first run of a mode is slow, and each after it is faster.
        compute = (40.0 if mode == "none" else 20.0) + 90 / len(self.queries)
        spans = {"decode": 1.3, "queue": 0.4, "compute": compute, "encode": 4.4}
        return {
            "mode": mode,
            "point": next((p["name"] for p in POINTS if p["mode"] == mode), None),
            "width": width,
            "height": height,
            "patch": [16.0, 16.0],
            "milliseconds": spans | {"total": sum(spans.values())},
            "work": 1.0 if mode == "none" else 0.7,
            "shares": dict(zip(CAMVID.names, counts.tolist(), strict=True)),
            "blocks": {"0": 1.0} if mode == "none" else {"0": 0.6, "3": 0.4},
            "merged": 0.25 * ("~" in mode),
            "images": {
                name: "data:image/png;base64," + base64.b64encode(data).decode()
                for name, data in images.items()
            },
        }

    def status(self):
        history = [
            {"t": 1000.0 + i, "requests": 4 + i % 5, "refused": 4 * (i == 119), "queue": 0}
            | {"point": POINTS[i // 31]["name"], "p99": None if i < 9 else 90.0 + i}
            for i in range(120)
        ]
        return {
            "queue": 2,
            "running": 1,
            "point": "fast",
            "mode": FAST,
            "requests_per_second": 4.2,
            "latency_ms_p50": 60.0,
            "latency_ms_p99": 209.0,
            "accepted": 1234,
            "refused": 20,
            "changes": 3,
            "history": history,
        }


def handler_of(stub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_):
            pass

        def answer(self, body, kind="application/json", status=200, headers=()):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            # A client that hung up is what some of the tests are about.
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Security-Policy", POLICY)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        def do_GET(self):
            path = urlsplit(self.path).path.removeprefix(stub.prefix)
            names = {"v1/model": stub.model, "v1/status": stub.status()}
            names["openapi.json"] = OPENAPI
            scenes = stub.scenes()
            file = PAGE / {"": "index.html", "docs": "docs.html"}.get(path, path)
            if path in names:
                self.answer(names[path])
            elif path == "v1/scenes":
                urls = {name: f"v1/scenes/{name}.png" for name in scenes}
                self.answer(
                    [{"name": n, "url": u, "thumbnail": f"{u}?width=9"} for n, u in urls.items()]
                )
            elif path.startswith("v1/scenes/"):
                self.answer(scenes[Path(path).stem], "image/png")
            elif file.is_file():
                self.answer(file.read_bytes(), KINDS[file.suffix])
            else:
                self.answer({"error": f"no {path} here"}, status=404)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            query = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
            stub.queries.append(query)
            stub.bodies.append(body)
            if stub.refusals:
                status, headers, error = stub.refusals.popleft()
                self.answer(error, status=status, headers=headers)
                return
            if query["mode"] in stub.held:
                stub.held[query["mode"]].wait(30)
            try:
                result = stub.segment(query, body)
            except ValueError as error:
                self.answer({"error": str(error)}, status=400)
                return
            kind = "image/png" if isinstance(result, bytes) else "application/json"
            self.answer(result, kind, headers=[("X-Paumer-Mode", stub.mode_of(query))])

    return Handler


OPENAPI = {
    "info": {"version": "0", "description": "Segmentation."},
    "paths": {
        "/v1/segment": {"post": {"description": "Segment an image.", **SEGMENT}},
        "/v1/model": {"get": {"description": "The model.", "responses": {}}},
    },
}


def says(page, selector, text):
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_contain_text(text)


def settles(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def pixel(page, canvas, x, y):
    return page.evaluate(
        "([id, x, y]) => [...document.getElementById(id).getContext('2d')"
        ".getImageData(x, y, 1, 1).data].slice(0, 3)",
        [canvas, x, y],
    )
