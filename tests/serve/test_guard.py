"""Who is answered: own names and own pages."""

import pytest
from starlette.testclient import TestClient

from paumer.serve.guard import allowed_hosts
from paumer.serve.http import Limits, create_app
from paumer.serve.service import Service


@pytest.mark.parametrize(
    ("listening", "more", "expected"),
    [
        ("127.0.0.1", (), ("localhost", "127.0.0.1", "::1", "127.0.0.1")),
        (
            "10.1.2.3",
            ("Seg.Example",),
            ("localhost", "127.0.0.1", "::1", "10.1.2.3", "seg.example"),
        ),
        ("0.0.0.0", (), ("*",)),
        ("::", (), ("*",)),
        ("0.0.0.0", ("a.b",), ("localhost", "127.0.0.1", "::1", "0.0.0.0", "a.b")),
    ],
)
def test_names_follow_from_where_it_listens(listening, more, expected):
    assert allowed_hosts(listening, more) == expected


@pytest.fixture
def ask(predictor):
    def give(hosts, **headers):
        app = create_app(Service(predictor), Limits(hosts=hosts))
        return TestClient(app).get("/v1/model", headers=headers)

    return give


LOCAL = allowed_hosts("127.0.0.1")


@pytest.mark.parametrize(
    ("hosts", "host", "status"),
    [
        (LOCAL, "127.0.0.1:8000", 200),
        (LOCAL, "LOCALHOST", 200),
        (LOCAL, "[::1]:80", 200),
        (LOCAL, "evil.example", 421),
        (LOCAL, "127.0.0.1.evil.example", 421),
        (LOCAL, "localhost@evil.example", 421),
        (LOCAL, "[::1", 421),
        (allowed_hosts("127.0.0.1", ["*.street.org"]), "a.street.org", 200),
        (allowed_hosts("127.0.0.1", ["*.street.org"]), "street.org.evil", 421),
        (allowed_hosts("0.0.0.0"), "any.example", 200),
    ],
)
def test_only_own_names_are_answered(ask, hosts, host, status):
    answer = ask(hosts, host=host)
    assert answer.status_code == status
    if status == 421:
        assert "does not answer for" in answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", "http://localhost:8000", 200),
        ("localhost", "https://localhost:8443", 200),  # A proxy took the port off.
        ("localhost:8000", "http://localhost:3000", 403),
        ("localhost:8000", "http://evil.example", 403),
        ("localhost:8000", "http://127.0.0.1:8000", 403),
        ("localhost:8000", "null", 403),
        ("localhost:8000", "file://", 403),
        ("localhost:8000", "http://[", 403),
        ("localhost:8000", "https://app.street.org", 200),
    ],
)
def test_only_own_pages_are_answered(ask, host, origin, status):
    answer = ask(allowed_hosts("127.0.0.1", ["app.street.org"]), host=host, origin=origin)
    assert answer.status_code == status


def test_any_name_does_not_mean_any_page(ask):
    assert ask(("*",), host="a.example", origin="http://b.example").status_code == 403
    assert ask(("*",), host="a.example", origin="http://a.example").status_code == 200


def test_health_is_told_to_anybody(usual):
    running = usual
    for path in ("/healthz", "/readyz"):
        answer = running.client.get(path, headers={"host": "10.0.0.7", "origin": "http://x"})
        assert answer.status_code == 200


def test_a_refused_page_runs_nothing(usual, png):
    running = usual
    before = running.service.watch.accepted
    form = {"image": ("a.png", png(), "image/png")}
    answer = running.client.post("/v1/segment", files=form, headers={"origin": "http://x"})
    assert answer.status_code == 403
    assert running.service.watch.accepted == before
