"""A service from Python, over real HTTP on loopback."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from PIL import Image

from paumer import Client, Mode
from paumer.serve.client import ServiceError


@pytest.fixture(scope="module")
def image():
    small = np.random.default_rng(3).integers(0, 256, (7, 9, 3), np.uint8)
    return small.repeat(8, 0).repeat(8, 1)


def test_a_result_is_that_of_a_predictor_here(usual, predictor, image, tmp_path):
    client = Client(usual.url + "/")
    Image.fromarray(image).save(tmp_path / "street.png")
    for mode in ("2:0.5", Mode.parse("2:0.6 exit"), "quick"):
        expected = predictor.predict(image, mode)
        for given in (image, Image.fromarray(image), tmp_path / "street.png"):
            found = client.predict(given, mode, deadline_ms=60_000, priority="high")
            for name in ("image", "labels", "entropy", "paused_after", "merged_after"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            assert (found.mode, found.patch) == (expected.mode, expected.patch)
            assert found.classes == expected.classes
            assert found.seconds > 0
    assert found.overlay().size == expected.overlay().size


def test_the_governor_chooses_down_to_a_floor(usual, image):
    client = Client(usual.url)
    assert client.predict(image).mode == Mode()
    assert client.predict(image, floor="whole").mode == Mode()
    assert [point["name"] for point in client.model()["points"]] == ["whole", "middle", "quick"]


def test_what_the_service_refuses_is_said(usual, image):
    client = Client(usual.url)
    with pytest.raises(ServiceError, match='mode "slow" is not one such as') as caught:
        client.predict(image, "slow")
    assert caught.value.status == 400
    with pytest.raises(ServiceError, match=r"deadline_ms is 0\.001"):
        client.predict(image, deadline_ms=0.001)


@pytest.fixture
def busy():
    """A function that starts a service which is at capacity so many times, then answers."""
    servers = []

    def give(times, wait=0):
        class Handler(BaseHTTPRequestHandler):
            seen = 0

            def do_GET(self):
                cls = type(self)
                cls.seen += 1
                refused = cls.seen <= times
                body = b'{"error": "at capacity"}' if refused else b'{"name": "small"}'
                self.send_response(429 if refused else 200)
                self.send_header("Retry-After", str(wait))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", Handler

    yield give
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_busy_service_is_asked_again_so_many_times(busy):
    url, handler = busy(2)
    assert Client(url, retries=2).model() == {"name": "small"}
    assert handler.seen == 3
    url, handler = busy(9)
    with pytest.raises(ServiceError, match="at capacity") as caught:
        Client(url, retries=2).model()
    assert (caught.value.status, handler.seen) == (429, 3)


def test_the_seconds_that_it_names_are_waited(busy, monkeypatch):
    waited = []
    monkeypatch.setattr("paumer.serve.client.time.sleep", waited.append)
    Client(busy(1, wait=7)[0]).model()
    assert waited == [7]


def test_nobody_there_is_said():
    with pytest.raises(ConnectionError, match="no answer from http"):
        Client("http://127.0.0.1:9").model()
    with pytest.raises(ValueError, match="is not an address"):
        Client("127.0.0.1:8000")
