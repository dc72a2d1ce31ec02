"""A small model at work, without HTTP and behind it."""

import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from page_stub import Stub, says
from PIL import Image

from paumer import Measurement, Mode, Predictor, build_model
from paumer.serve.http import Limits, create_app
from paumer.serve.process import patient
from paumer.serve.service import Service

NAMES = tuple(f"thing {i}" for i in range(6))


def measured(text, speed_up, miou):
    return Measurement(mode=Mode.parse(text), speed_up=speed_up, miou=miou)


POINTS = {
    "quick": measured("2:0.6 exit", 2.0, 0.6),
    "whole": measured("none", 1.0, 0.7),
    "beaten": measured("2:0.1", 1.1, 0.5),
    "middle": measured("2:0.4", 1.4, 0.68),
}


@pytest.fixture(scope="session")
def predictor(lively):
    torch.manual_seed(0)
    network = lively(build_model("test_vit", "mask", NAMES, image_size=64))
    return Predictor(network, POINTS)


@pytest.fixture(scope="session")
def png():
    """A function that gives an image's file; blocks of colour, so that labels are clear."""

    def give(seed=0, size=(64, 64), kind="PNG"):
        rng = np.random.default_rng(seed)
        small = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
        memory = io.BytesIO()
        Image.fromarray(small.repeat(8, 0).repeat(8, 1)).save(memory, kind)
        return memory.getvalue()

    return give


class Running:
    """A service behind real HTTP on loopback, with a predictor that can be slowed down."""

    def __init__(self, service, limits, connections=1000):
        self.service = service
        http = patient(limits.seconds, connections)
        config = uvicorn.Config(create_app(service, limits), http=http, port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not (self.server.started and service.ready):
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def segment(self, content, **options):
        return self.client.post("/v1/segment", content=content, params=options)

    def stop(self):
        self.client.close()
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="session")
def usual(predictor):
    """A service behind HTTP as it usually is, of all tests that do not mind each other."""
    running = Running(Service(predictor, target=60.0), Limits())
    yield running
    running.stop()


@pytest.fixture
def serving(predictor):
    """A function that starts a service behind HTTP; ``delay`` seconds are added to each batch.

    Its target is a minute: the usual one is some milliseconds for so small a network, and a busy
    machine would miss it.
    """
    started = []

    def give(delay=0.0, limits=None, model=predictor, target=60.0, connections=1000, **options):
        service = Service(model, target, **options)
        running = Running(service, limits or Limits(), connections)
        started.append(running)
        if delay:
            (run,) = service.batcher.runs

            def slowly(*batch):
                time.sleep(delay)
                return run(*batch)

            service.batcher.runs = [slowly]
        return running

    yield give
    for running in started:
        running.stop()


@pytest.fixture
def replica(predictor, tmp_path):
    """A function that starts a process which serves the model: the process and its port."""
    model = tmp_path / "model"
    predictor.network.save_pretrained(model)
    started = []

    def give(*options):
        words = ["serve", "--model", str(model), "--port", "0", "--threads", "1"]
        process = subprocess.Popen(
            [sys.executable, "-m", "paumer", *words, "--latency-ms", "2000", *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        url = f"http://127.0.0.1:{port}/readyz"
        while httpx.get(url).status_code != 200:
            time.sleep(0.02)
        return process, port

    yield give
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture
def stub():
    """One for each test: what a page that is closing still asks never reaches the next test."""
    stub = Stub()
    yield stub
    for event in stub.held.values():
        event.set()
    stub.close()


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: install Debian's chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        api.expect.set_options(timeout=30_000)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, stub):
    """A function that opens the page; what the browser asked for and complained of is checked."""
    pages, urls, complaints = [], [], []

    def give(script=None, wait="Mode 3:0.4.", address=stub.address, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        page = context.new_page()
        pages.append(page)
        page.on("request", lambda request: urls.append(request.url))
        page.on("console", lambda message: complaints.append((message.type, message.text)))
        page.on("pageerror", lambda error: complaints.append(("error", str(error))))
        if script:
            page.add_init_script(script)
        page.goto(address)
        if wait:
            says(page, "#message", wait)
        return page

    yield give
    for page in pages:
        page.context.close()
    own = ("data:", "http://127.0.0.1:", "blob:http://127.0.0.1:")
    assert [url for url in urls if not url.startswith(own)] == []
    # The browser itself notes each refusal and each server that is gone.
    noted = [text for kind, text in complaints if kind in ("error", "warning")]
    assert [text for text in noted if not text.startswith("Failed to load resource")] == []
