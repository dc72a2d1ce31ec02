"""The page in a real browser, against a stub that answers as the service does."""

import base64
import contextlib
import io
import json
import re
import threading
import time
import tomllib
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

import paumer
from paumer import Mode
from paumer.classes import CAMVID, paint
from paumer.inference.result import _BLOCK_COLOURS

pytestmark = pytest.mark.slow

PAGE = Path(paumer.__file__).parent / "serve" / "page"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMES = "\N{MULTIPLICATION SIGN}"
POLICY = "default-src 'self'; img-src 'self' data: blob:"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
FAST = "3:0.4,5:0.4 by=neighbours"
POINTS = [
    {"name": name, "mode": mode, "miou": miou, "speed_up": speed, "latency_ms": 40 / speed}
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
    """Answers as the service does; the queries are kept, and its next answers can be set."""

    prefix = "/street/"
    model = MODEL

    def __init__(self):
        self.queries = []
        self.bodies = []
        self.delays = {}
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

    def modes(self):
        return [query["mode"] for query in self.queries]

    def scenes(self):
        return {"morning": scene(0), "evening": scene(1)}

    def sent(self):
        """The bodies that are not scenes: what the user chose."""
        return [body for body in self.bodies if body not in self.scenes().values()]

    def segment(self, query, body):
        mode = str(Mode.parse("3:0.4" if query["mode"] == "auto" else query["mode"]))
        with Image.open(io.BytesIO(body)) as image:
            width, height = image.size
        labels = labels_of(width, height, mode)
        painted = png(paint(labels, CAMVID))
        if query["output"] != "all":
            return painted
        images = dict.fromkeys(("overlay", "labels", "paused", "entropy"), painted)
        counts = np.bincount(labels.ravel(), minlength=len(CAMVID)) / labels.size
        blocks = {"0": 1.0} if mode == "none" else {"0": 0.6, "3": 0.4}
        return {
            "mode": mode,
            "point": next((p["name"] for p in POINTS if p["mode"] == mode), None),
            "width": width,
            "height": height,
            "milliseconds": {"queue": 1.0, "compute": 30.0, "encode": 4.0, "total": 35.0},
            "work": 1.0 if mode == "none" else 0.7,
            "shares": dict(zip(CAMVID.names, counts.tolist(), strict=True)),
            "blocks": blocks,
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
            scenes = stub.scenes()
            file = PAGE / (path or "index.html")
            if path in names:
                self.answer(names[path])
            elif path == "v1/scenes":
                self.answer([{"name": name, "url": f"v1/scenes/{name}.png"} for name in scenes])
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
            time.sleep(stub.delays.get(query["mode"], 0))
            try:
                result = stub.segment(query, body)
            except ValueError as error:
                self.answer({"error": str(error)}, status=400)
                return
            self.answer(result, "image/png" if isinstance(result, bytes) else "application/json")

    return Handler


# The files, without a browser.


def test_the_page_names_nothing_outside():
    for file in PAGE.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", text) == [], file.name
        assert "@import" not in text


def test_the_page_has_no_script_or_style_in_its_text():
    text = (PAGE / "index.html").read_text("utf-8")
    assert re.findall(r"\sstyle=|\son\w+=|<style", text) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []


def test_every_id_that_the_scripts_name_is_there():
    ids = set(re.findall(r'\sid="([\w-]+)"', (PAGE / "index.html").read_text("utf-8")))
    scripts = "".join(file.read_text("utf-8") for file in PAGE.glob("*.js"))
    assert set(re.findall(r'(?:byId|inputOf|place)\("([\w-]+)"\)', scripts)) <= ids


def test_the_page_is_packed_with_the_package():
    project = tomllib.loads((PAGE.parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["paumer"]
    assert "serve/page/*" in patterns
    assert {file.name for file in PAGE.iterdir()} >= {"index.html", "page.css", "page.js"}


def test_pauses_have_the_colours_that_the_service_paints_them_in():
    found = re.search(r"BLOCK_COLOURS = \[(.*)\]", (PAGE / "result.js").read_text("utf-8"))
    assert found is not None
    assert re.findall(r"#\w+", found[1]) == [
        "#{:02x}{:02x}{:02x}".format(*c) for c in _BLOCK_COLOURS
    ]


# In the browser.


@pytest.fixture
def stub():
    """One for each test: what a page that is closing still asks never reaches the next test."""
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: install Debian's chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, stub):
    """A function that opens the page; what the browser asked for and complained of is checked."""
    pages, urls, complaints = [], [], []

    def give(script=None, wait="Mode 3:0.4:", **options):
        context = browser.new_context(**options)
        context.set_default_timeout(5000)
        page = context.new_page()
        pages.append(page)
        page.on("request", lambda request: urls.append(request.url))
        page.on("console", lambda message: complaints.append((message.type, message.text)))
        page.on("pageerror", lambda error: complaints.append(("error", str(error))))
        if script:
            page.add_init_script(script)
        page.goto(stub.address)
        if wait:
            says(page, "#message", wait)
        return page

    yield give
    for page in pages:
        page.context.close()
    outside = [
        url
        for url in urls
        if not url.startswith((stub.address, "data:", "blob:" + stub.address[:16]))
    ]
    assert outside == []
    # The browser itself notes each refusal and each server that is gone.
    own = [text for kind, text in complaints if kind in ("error", "warning")]
    assert [text for text in own if not text.startswith("Failed to load resource")] == []


def says(page, selector, text):
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_contain_text(text)


def settles(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_built_in_scene_is_segmented_at_once(open_page, stub):
    page = open_page()
    says(page, "#model", f"street-test: 12 blocks, patches of 16 {TIMES} 16 pixels, 11 classes")
    says(page, "#message", f"morning, 96 {TIMES} 72. Mode 3:0.4: 35 ms.")
    says(page, "#time", "35 ms")
    says(page, "#saved", "30 %")
    says(page, "#same", "91 %")
    says(page, "#blocks", "paused after block 3")
    says(page, "#classes li:first-child", "sky")
    labels = [page.locator(side).get_attribute("aria-label") for side in ("#with", "#without")]
    assert labels == ["morning, overlay, mode 3:0.4", "morning, overlay, no pausing"]
    assert stub.queries[:2] == [{"mode": mode, "output": "all"} for mode in ("3:0.4", "none")]
    page.get_by_role("button", name="evening").click()
    says(page, "#message", "evening")
    assert scene(1) in stub.bodies


def test_a_large_photograph_is_sent_upright_and_scaled_down(open_page, stub):
    page = open_page()
    photograph = Image.new("RGB", (1600, 1200), (200, 60, 20))
    photograph.paste((0, 0, 255), (0, 0, 1600, 100))
    notes = Image.Exif()
    notes[0x0112] = 6  # the camera was held upright: turn it to the right
    file = io.BytesIO()
    photograph.save(file, "JPEG", exif=notes)
    page.set_input_files(
        "#file", {"name": "p.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()}
    )
    says(
        page,
        "#message",
        f"p.jpg, 768 {TIMES} 1024, scaled down from 1200 {TIMES} 1600 before sending",
    )
    photograph = stub.sent()[0]
    with Image.open(io.BytesIO(photograph)) as sent:
        assert sent.size == (768, 1024)
        red, _, blue = np.asarray(sent)[512, 750]
        assert blue > 200 > red
    assert len(photograph) < 100_000


def test_a_small_image_is_sent_as_it_is(open_page, stub):
    page = open_page()
    page.set_input_files("#file", {"name": "s.png", "mimeType": "image/png", "buffer": scene(5)})
    says(page, "#message", f"s.png, 96 {TIMES} 72.")
    assert stub.sent()[0] == scene(5)


def test_images_are_pasted_and_dropped(open_page, stub):
    page = open_page()
    for number, event in enumerate(
        (
            "new ClipboardEvent('paste', {clipboardData: files, bubbles: true})",
            "new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true})",
        )
    ):
        page.evaluate(
            f"""bytes => {{
                const files = new DataTransfer();
                const bits = [new Uint8Array(bytes)];
                files.items.add(new File(bits, "given-{number}.png", {{type: "image/png"}}));
                document.body.dispatchEvent({event});
            }}""",
            list(scene(number + 5)),
        )
        says(page, "#message", f"given-{number}.png")
        assert scene(number + 5) in stub.bodies


def test_what_is_not_an_image_is_refused_without_asking(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"})
    says(page, "#trouble", '"a.txt" is not an image that this browser can read')
    assert len(stub.queries) == 2


def test_the_dial_turns_by_keyboard_and_asks_when_it_rests(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    page.locator("#dial").focus()
    page.keyboard.press("ArrowRight")
    says(page, "#message", f"Mode {FAST}:")
    says(page, "#point", "fast")
    text = page.locator("#dial").get_attribute("aria-valuetext")
    assert text == f"fast: {FAST}, mIoU 63.6, 1.70 {TIMES} as fast"
    page.evaluate(
        """async () => {
            const dial = document.getElementById("dial");
            for (const value of [2, 1, 0, 1]) {
                dial.value = value;
                dial.dispatchEvent(new Event("input"));
                await new Promise((resolve) => setTimeout(resolve, 20));
            }
        }"""
    )
    says(page, "#message", "Mode 3:0.2:")
    assert stub.modes() == ["3:0.4", "none", FAST, "3:0.2"]
    page.keyboard.press("End")
    says(page, "#message", f"Mode {FAST}:")
    assert len(stub.queries) == 4, "an answer that was there is not asked for again"


@pytest.mark.parametrize("deaf", [False, True], ids=["cancelled", "not cancelled"])
def test_an_old_answer_never_covers_a_newer_one(open_page, stub, deaf):
    # Where cancelling does nothing the old answer does arrive, and is not shown.
    page = open_page("AbortController.prototype.abort = () => {};" if deaf else None)
    failed, done = [], []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("requestfinished", lambda request: done.append(request.url))
    stub.delays["3:0.2"] = 0.5
    page.locator("#dial").focus()
    page.keyboard.press("ArrowLeft")
    settles(lambda: stub.modes()[-1] == "3:0.2")
    page.keyboard.press("End")
    says(page, "#message", f"Mode {FAST}:")
    page.wait_for_timeout(500)
    says(page, "#message", f"Mode {FAST}:")
    says(page, "#with-name", FAST)
    assert any("3%3A0.2" in url for url in (done if deaf else failed))


def test_a_typed_mode(open_page, stub):
    page = open_page()
    field = page.get_by_label("Mode", exact=True)
    field.fill("4:0.5, 8:<0.3")
    field.press("Enter")
    says(page, "#message", "Mode 4:0.5,8:<0.3:")
    says(page, "#point-facts", "4:0.5,8:<0.3, not measured")
    count = len(stub.queries)
    for text, problem in {
        "14:0.4": "There is no block 14: this model has blocks 1 to 12.",
        "3:1.4 exit": "The ratio 1.4 is too large",
        "1-6:~0.6": "The ratio 0.6 is too large: at most half",
        "1-13:~0.1": "There is no block 13",
        "1-6:0.1": "“1-6:0.1” is not a stage",
        "quick": "“quick” is not a stage",
    }.items():
        field.fill(text)
        field.press("Enter")
        says(page, "#trouble", problem)
        assert field.get_attribute("aria-invalid") == "true"
    assert len(stub.queries) == count
    field.fill("fast")
    field.press("Enter")
    says(page, "#message", f"Mode {FAST}:")
    assert page.locator("#trouble").text_content() == ""
    assert field.get_attribute("aria-invalid") == "false"
    assert field.input_value() == FAST


def test_a_typed_mode_that_merges_and_lets_all_leave(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    assert "merged" not in page.locator("#blocks").inner_text()
    field = page.get_by_label("Mode", exact=True)
    field.fill("1-6:~ 0.1, 9:1 exit")
    field.press("Enter")
    says(page, "#message", "Mode 1-6:~0.1,9:1 exit:")
    says(page, "#blocks", "of all: merged into a similar patch")
    shown = page.locator("#blocks").inner_text()
    assert "25 %" in shown
    assert "paused after block 9" in shown
    assert "block 1\n" not in shown
    assert stub.queries[-1]["mode"] == "1-6:~0.1,9:1 exit"


def test_a_typed_mode_of_many_words(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    field = page.get_by_label("Mode", exact=True)
    field.fill(" 4:0.5,8: 0.3  size=288 protect=sky+road exit ")
    field.press("Enter")
    mode = "4:0.5,8:0.3 exit protect=road+sky size=288"
    says(page, "#message", f"Mode {mode}:")
    says(page, "#with-name", mode)
    says(page, "#point", mode)
    says(page, "#blocks", "paused after block 8")
    assert stub.queries[-1]["mode"].split()[1:] == ["size=288", "protect=sky+road", "exit"]
    assert page.get_by_label("Early exit").is_checked()
    page.get_by_role("button", name="evening").click()
    says(page, "#message", f"evening, 96 {TIMES} 72. Mode {mode}:")
    assert mode in stub.modes(), "from then on it is asked for in the service's spelling"
    with page.expect_download():
        page.get_by_role("button", name="Download the mask").click()
    assert {"mode": mode, "output": "mask"} in stub.queries


def test_what_the_service_does_not_know_of_a_mode_is_told(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    field = page.get_by_label("Mode", exact=True)
    for text, problem in {
        "3:0.4 by=luck": "No criterion",
        "3:0.4 quickly": "Cannot read",
        "none size=0": "Size is 0",
    }.items():
        field.fill(text)
        field.press("Enter")
        says(page, "#trouble", problem)
        assert page.locator("#message").text_content() == ""
        assert stub.modes()[-1] == text
    field.fill("none size=288")
    field.press("Enter")
    says(page, "#message", "Mode none size=288:")
    assert page.locator("#trouble").text_content() == ""


def test_early_exit_is_a_word_of_the_mode(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    early, field = page.get_by_label("Early exit"), page.locator("#mode")
    assert not early.is_checked()
    early.check()
    says(page, "#message", "Mode 3:0.4 exit:")
    assert field.input_value() == "3:0.4 exit"
    says(page, "#point-facts", "3:0.4 exit, not measured")
    early.uncheck()
    says(page, "#message", "Mode 3:0.4:")
    says(page, "#point", "balanced")
    page.locator("#dial").focus()
    page.keyboard.press("End")
    says(page, "#message", f"Mode {FAST}:")
    assert not early.is_checked()
    early.check()
    says(page, "#message", "Mode 3:0.4,5:0.4 exit by=neighbours:")
    assert stub.modes()[2:] == ["3:0.4 exit", FAST, "3:0.4,5:0.4 exit by=neighbours"]
    page.get_by_label("Auto").check()
    says(page, "#point", "auto: balanced")
    assert not early.is_checked()
    early.check()
    says(page, "#message", "Mode 3:0.4 exit:")
    assert not page.get_by_label("Auto").is_checked()
    page.locator("#dial").focus()
    page.keyboard.press("Home")
    says(page, "#message", "Mode none:")
    early.click()  # Where nothing pauses, nothing exits.
    says(page, "#message", "Mode none:")
    assert not early.is_checked()
    assert field.input_value() == "none"


def test_auto_leaves_the_choice_to_the_service(open_page, stub):
    page = open_page()
    page.locator("#dial").focus()
    page.keyboard.press("End")
    says(page, "#message", f"Mode {FAST}:")
    page.get_by_label("Auto").check()
    says(page, "#point", "auto: balanced")
    assert stub.queries[-1] == {"mode": "auto", "output": "all"}
    assert page.locator("#dial").input_value() == "2"
    page.locator("#dial").focus()
    page.keyboard.press("ArrowLeft")
    says(page, "#point", "light")
    assert not page.get_by_label("Auto").is_checked()


def test_a_refusal_is_told_in_words(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    page.locator("#dial").focus()
    for status, text, shown in (
        (400, "cannot pause after block 12", "Cannot pause after block 12."),
        (413, "at most 20 MB", "This image is too large for the service. At most 20 MB."),
        (415, "", "The service cannot read this image."),
        (503, "", "The service is not ready"),
        (500, "", "The service answered 500."),
    ):
        stub.refusals.append((status, (), {"error": text}))
        page.keyboard.press("End")
        says(page, "#trouble", shown)
        assert page.get_by_role("button", name="Try again").is_visible() == (status == 503)
        page.keyboard.press("Home")
        says(page, "#message", "Mode none:")
        assert page.locator("#trouble").text_content() == ""
    assert page.locator("#trouble").get_attribute("role") == "alert"


def test_a_full_service_is_asked_again_when_it_says(open_page, stub):
    page = open_page()
    settles(lambda: len(stub.queries) == 2)
    stub.refusals.append((429, [("Retry-After", "1")], {"error": "the queue is full"}))
    page.locator("#dial").focus()
    page.keyboard.press("End")
    says(page, "#trouble", "takes no more just now. The queue is full. Trying again in 1 s.")
    says(page, "#message", f"Mode {FAST}:")
    assert page.locator("#trouble").text_content() == ""
    assert stub.modes()[2:] == [FAST] * 2


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by itself"])
def test_a_server_that_is_gone_is_reported_and_found_again(open_page, by_hand):
    page = open_page()
    gone = ["**/v1/segment*", "**/v1/status*"]
    for address in gone:
        page.route(address, lambda route: route.abort())
    page.locator("#dial").focus()
    page.keyboard.press("End")
    says(page, "#trouble", "The server does not answer. Is paumer serve still running?")
    page.unroute(gone[0])
    if by_hand:
        page.get_by_role("button", name="Try again").click()
    else:
        page.unroute(gone[1])
    says(page, "#message", f"Mode {FAST}:")
    assert page.locator("#trouble").text_content() == ""


def pixel(page, canvas, x, y):
    return page.evaluate(
        "([id, x, y]) => [...document.getElementById(id).getContext('2d')"
        ".getImageData(x, y, 1, 1).data].slice(0, 3)",
        [canvas, x, y],
    )


def test_layers_and_the_two_sides(open_page):
    page = open_page()
    sky, pavement = list(CAMVID.colours[0]), list(CAMVID.colours[4])
    settles(lambda: pixel(page, "without", 2, 2) == sky)
    assert pixel(page, "with", 2, 2) == pavement
    page.get_by_role("radio", name="Overlay").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    says(page, "#readout", "Orange where pausing changed the label")
    settles(lambda: pixel(page, "with", 2, 2) == [213, 94, 0])
    assert pixel(page, "with", 50, 2) != [213, 94, 0]
    page.keyboard.press("ArrowRight")
    settles(lambda: pixel(page, "with", 2, 2) == [90, 90, 90])
    page.get_by_role("button", name="pavement").click()
    settles(lambda: pixel(page, "with", 50, 2)[0] < 30)
    assert pixel(page, "with", 2, 2) == [90, 90, 90]
    page.get_by_text("Side by side").click()
    left, right = (page.locator(f"#{name}").bounding_box() for name in ("without", "with"))
    assert left["x"] + left["width"] <= right["x"]
    page.get_by_text("Swipe").click()
    page.locator("#divider").focus()
    page.keyboard.press("Home")
    assert page.locator("#view").evaluate("e => e.style.getPropertyValue('--cut')") == "0%"
    box = page.locator("#view").bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    says(page, "#readout", "pavement; without pausing sky")


def test_a_point_of_the_curve_sets_the_dial(open_page, stub):
    page = open_page()
    page.get_by_role("button", name="5:0.2, mIoU 64.0").click()
    says(page, "#message", "Mode 5:0.2:")
    current = page.locator("[aria-current]")
    assert current.get_attribute("data-key") == "5:0.2"
    current.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    says(page, "#message", f"Mode {FAST}:")
    says(page, "#point", "fast")


@pytest.mark.parametrize("width", [360, 1280])
def test_names_on_the_curve_do_not_cover_the_axis(open_page, stub, monkeypatch, width):
    # A long name of the slowest point, as high as a number on the axis.
    names, mious = ("unpaused", "accurate", "balanced", "fast"), (0.675, 0.672, 0.666, 0.646)
    news = ({"name": name, "miou": miou} for name, miou in zip(names, mious, strict=True))
    points = [point | new for point, new in zip(POINTS, news, strict=True)]
    monkeypatch.setattr(stub, "model", MODEL | {"points": points, "curve": points})
    page = open_page(viewport={"width": width, "height": 740})
    says(page, "#curve", "unpaused")
    boxes = {
        kind: page.locator(f"#curve .{kind}").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().toJSON())"
        )
        for kind in ("name", "tick")
    }
    assert len(boxes["name"]) == len(POINTS)
    for name in boxes["name"]:
        for tick in boxes["tick"]:
            beside = name["left"] >= tick["right"] or tick["left"] >= name["right"]
            assert beside or name["top"] >= tick["bottom"] or tick["top"] >= name["bottom"]


def test_the_strip_follows_the_service(open_page):
    page = open_page()
    says(page, "#strip", "4.2 requests/s")
    says(page, "#strip", "209 ms of 200 ms")
    says(page, "#totals", "1,234 accepted, 20 refused, 2 waiting, 3 changes")
    assert page.locator("#strip .value.over").count() == 1
    assert page.locator("#strip svg").count() == 3
    assert page.locator("#strip .target").count() == 1
    # Of the last second's eight requests four were refused: half of the bar, on top of the rest.
    taken, refused = (page.locator(f"#strip .{kind}").last for kind in ("load", "refused"))
    assert taken.get_attribute("height") == refused.get_attribute("height") == "22"


def test_downloads_are_of_what_is_shown(open_page, stub):
    page = open_page()
    for output in ("mask", "overlay"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Download the {output}").click()
        assert download.value.suggested_filename == f"morning_{output}.png"
        saved = Path(download.value.path()).read_bytes()
        assert saved == png(paint(labels_of(96, 72, "3:0.4"), CAMVID))
        assert {"mode": "3:0.4", "output": output} in stub.queries


def test_a_phone_shows_all_of_it_without_scrolling_sideways(open_page):
    page = open_page(
        viewport={"width": 360, "height": 740},
        is_mobile=True,
        has_touch=True,
        device_scale_factor=2,
    )
    assert page.get_by_text("Take a photo").is_visible()
    assert page.locator("#camera").get_attribute("capture") == "environment"
    says(page, "#strip", "requests/s")
    for view in ("Swipe", "Side by side"):
        page.get_by_text(view).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = "e => [...e.querySelectorAll('main *')].filter(x => x.checkVisibility() && "
    wide += "!x.closest('.scenes, svg, .unseen') && x.getBoundingClientRect().right > 360.5)"
    assert page.locator("body").evaluate(wide + ".map(x => x.className || x.tagName)") == []


def luminance(colour):
    parts = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    parts = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(parts @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(open_page, scheme):
    page = open_page(color_scheme=scheme, reduced_motion="reduce")

    def colour(selector, what):
        return luminance(page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}"))

    paper = colour("html", "backgroundColor")
    assert (paper > 0.5) == (scheme == "light")
    for selector in ("h1", ".quiet", "#trouble", ".share", ".value"):
        light, dark = sorted((paper, colour(selector, "color")), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
    page.locator("#view").evaluate("e => e.setAttribute('aria-busy', 'true')")
    assert (
        page.locator("#view").evaluate("e => getComputedStyle(e, '::after').animationName")
        == "none"
    )


def test_everything_has_a_name_and_a_place_in_the_tab_order(open_page):
    page = open_page()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "() => { const e = document.activeElement; return e === document.body ? '' :"
            " e.id || e.getAttribute('aria-label') || e.value || e.textContent.trim() }"
        )
        if not name or (seen and name == seen[0]):
            break
        seen.append(name)
    assert {"file", "divider", "dial", "mode", "early", "auto"} <= set(seen)
    assert any(name.startswith("balanced: ") for name in seen)
    unnamed = "() => [...document.querySelectorAll('input, button, [role=button], [role=img]')]"
    unnamed += ".filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent))"
    assert page.evaluate(unnamed + ".map(e => e.outerHTML)") == []
