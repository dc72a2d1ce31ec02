"""The service behind real HTTP on loopback."""

import asyncio
import gc
import io
import re
import signal
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Measurement, Mode, Predictor, build_model
from paumer.data.isolated import DecodingLimits
from paumer.serve.http import Limits, RefusedError


def mask_of(response):
    assert response.status_code == 200, response.text
    return np.array(Image.open(io.BytesIO(response.content)))


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this takes too long"
        time.sleep(0.01)


def test_an_image_as_body_or_form(usual, predictor, png):
    running = usual
    alone = predictor.predict(np.array(Image.open(io.BytesIO(png()))), "2:0.4").labels
    response = running.segment(png(), mode="2:0.4")
    assert np.array_equal(mask_of(response), alone)
    assert response.headers["x-paumer-mode"] == "2:0.4"
    assert response.headers["x-paumer-point"] == "middle"
    assert re.fullmatch(
        r"decode;dur=[\d.]+, queue;dur=[\d.]+, compute;dur=[\d.]+, encode;dur=[\d.]+",
        response.headers["server-timing"],
    )
    form = {"files": {"image": ("x.png", png())}, "data": {"mode": "middle"}}
    assert np.array_equal(mask_of(running.client.post("/v1/segment", **form)), alone)
    response = running.segment(png(), floor="whole")
    assert response.headers["x-paumer-point"] == "whole"


def test_every_output(usual, png):
    running = usual
    labels = mask_of(running.segment(png(), mode="2:0.4"))
    assert mask_of(running.segment(png(), output="overlay")).shape == (64, 64, 3)
    runs = running.segment(png(), mode="2:0.4", output="rle").json()
    assert np.array_equal(np.repeat(*zip(*runs["runs"], strict=True)), labels.ravel())
    answer = running.segment(png(), mode="2:0.4", output="all").json()
    assert answer["mode"] == "2:0.4"
    assert answer["point"] == "middle"
    assert (answer["width"], answer["height"]) == (64, 64)
    spans = answer["milliseconds"]
    assert list(spans) == ["decode", "queue", "compute", "encode", "total"]
    assert min(spans.values()) >= 0
    assert sum(spans.values()) == pytest.approx(2 * spans["total"])
    assert 0 < answer["work"] < 1
    assert sum(answer["shares"].values()) == pytest.approx(1)
    assert answer["blocks"].keys() == {"0", "2"}
    assert answer["images"].keys() == {"labels", "paused", "merged", "entropy"}


def test_a_mode_with_every_word(serving, predictor, png):
    running = serving()
    text = "2:0.5,4:0.3 exit by=neighbours protect=thing%203+thing%205 size=96"
    image = np.array(Image.open(io.BytesIO(png())))
    alone = predictor.predict(image, text)
    words = "2:0.5,4:0.3 size=96 protect=thing%205+thing%203 by=neighbours exit"
    response = running.segment(png(), mode=words)
    assert np.array_equal(mask_of(response), alone.labels)
    assert response.headers["x-paumer-mode"] == text
    assert response.headers["x-paumer-point"] == ""
    answer = running.segment(png(), mode=text, output="all").json()
    assert (answer["mode"], answer["point"]) == (text, None)
    assert (answer["width"], answer["height"]) == (64, 64)
    assert answer["blocks"]["2"] == (alone.paused_after == 2).mean()
    others = ("2:0.5,4:0.3 exit by=neighbours size=96", text.removesuffix(" size=96"))
    for other in others:
        result = predictor.predict(image, other)
        assert not np.array_equal(result.paused_after, alone.paused_after), other
    assert 'paumer_answered_total{point="other"} 2.0' in running.client.get("/metrics").text


def test_a_mode_that_merges_and_lets_all_leave(usual, predictor, png):
    running, text = usual, "1-2:~0.2,4:1 exit"
    image = np.array(Image.open(io.BytesIO(png())))
    alone = predictor.predict(image, text)
    response = running.segment(png(), mode=text)
    assert np.array_equal(mask_of(response), alone.labels)
    assert response.headers["x-paumer-mode"] == text
    answer = running.segment(png(), mode=text, output="all").json()
    assert answer["merged"] == (alone.merged_after > 0).mean() > 0
    assert answer["blocks"] == {"0": 0.0, "4": 1.0}
    assert 0 < answer["work"] < 1


def bomb(width, height):
    """A small PNG file whose header promises a huge image."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def endless():
    """A plain-text image full of comments: ten seconds of decoding in 1 MB."""
    return b"P3\n400 400\n255\n" + b"#\n" * 500_000


@pytest.mark.slow
def test_an_image_that_takes_long_to_decode_is_refused_and_holds_up_nobody(serving, png):
    running = serving(limits=Limits(decoding=DecodingLimits(seconds=0.6, clock=2.4)))
    with ThreadPoolExecutor(6) as clients:
        attacks = [clients.submit(running.segment, endless()) for _ in range(6)]
        while not all(attack.done() for attack in attacks):
            assert running.segment(png()).status_code == 200
            assert running.client.get("/readyz").status_code == 200
        for attack in attacks:
            response = attack.result()
            assert response.status_code == 422
            assert "decoding it takes more than 0.6 s" in response.json()["error"]
    assert running.service.watch.in_flight == 0


def test_hostile_bodies_get_a_sentence(serving, png):
    running = serving(limits=Limits(body_bytes=100_000, decoding=DecodingLimits(pixels=10_000)))
    cases = [
        (b"", {}, 400, "the file is empty"),
        (b"GET / HTTP/1.1", {}, 415, "not an image of a known kind"),
        (b"%PDF-1.7", {}, 415, "not an image of a known kind"),
        (png()[:200], {}, 400, "damaged or cut short"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, {}, 400, "header is damaged"),
        (bomb(60_000, 60_000), {}, 413, "60000x60000 is 3,600,000,000 pixels"),
        (bomb(20_000, 1), {}, 413, "20000x1 counts as 320,000 pixels"),
        (bytes(200_000), {}, 413, "larger than 0.0953674 MB"),
        (bytes(5_000_000), {}, 413, "larger than"),
        (png(), {"mode": "2:x"}, 400, 'cannot read "2:x"'),
        (png(), {"mode": "nowhere"}, 400, 'mode "nowhere" is not one such as 3:0.4,9:0.9 exit'),
        (png(), {"output": "video"}, 400, 'output "video" is not known'),
        (png(), {"mode": "2:0.4 maybe"}, 400, 'cannot read "maybe" in mode "2:0.4 maybe"'),
        (png(), {"mode": "2:0.4 by=luck"}, 400, 'no criterion "luck"'),
        (png(), {"mode": "2:0.4 by=oracle"}, 400, "by=oracle is for evaluate and sweep alone"),
        (png(), {"mode": "2:0.4 protect=nobody"}, 400, "nobody"),
        (png(), {"mode": "2:0.4 size=0"}, 400, "size is 0: give a side from 1"),
        (png(), {"mode": "none size=200"}, 413, "64x64 to 200x200, which is 40,000 pixels"),
        (png(), {"mode": "2:0.4 size=65536"}, 413, "and at most 10,000 are taken"),
        (png(), {"pause": "2:0.4"}, 400, 'no option "pause" (a mode says it all'),
        (png(), {"early_exit": "true"}, 400, 'no option "early_exit" (a mode says it all'),
        (png(), {"criterion": "entropy"}, 400, 'no option "criterion" (a mode says it all'),
        (png(), {"url": "http://x"}, 400, 'no option "url"'),
    ]
    for body, options, status, words in cases:
        try:
            response = running.segment(body, **options)
        except httpx.TransportError:  # Closed while it was still being sent.
            assert len(body) == 5_000_000
            continue
        assert response.status_code == status, (body[:20], response.text)
        assert words in response.json()["error"]
        assert response.json().keys() == {"error"}
    for files, words in (
        ({"other": b"x"}, 'no file field "image"'),
        ({"image": b"x"}, "not an image"),
    ):
        assert words in running.client.post("/v1/segment", files=files).json()["error"]
    broken = {"content-type": "multipart/form-data"}
    response = running.client.post("/v1/segment", content=b"x", headers=broken)
    assert response.status_code == 400
    assert mask_of(running.segment(png())).shape == (64, 64)
    assert running.service.watch.in_flight == 0
    assert running.client.get("/v1/nothing").json() == {"error": "not found"}
    assert running.client.get("/v1/segment").status_code == 405
    for name in ("99", "0", "x", "9" * 5000):
        response = running.client.get(f"/v1/scenes/{name}.png")
        assert response.status_code == 404
        assert response.json() == {"error": f"no scene {name}: there are 1 to 6"}
    response = running.client.get("/v1/scenes/1.png?width=5000")
    assert response.json() == {"error": "no scene 5000 pixels wide: ask for 216 or 960"}


@pytest.mark.parametrize("points", [{}, {"large": Measurement(mode=Mode(size=128), speed_up=1.0)}])
def test_the_pixel_limit_holds_for_what_arrives_and_for_what_the_network_runs(
    serving, lively, png, points
):
    torch.manual_seed(0)
    network = lively(build_model("test_vit", "mask", ("a", "b"), image_size=64))
    network.config = replace(network.config, short_side=64)
    limits = Limits(decoding=DecodingLimits(pixels=20_000))
    running = serving(limits=limits, model=Predictor(network, points))
    narrow = png(size=(160, 8))
    for mode in ("auto", "none", "2:0.4"):
        response = running.segment(narrow, mode=mode)
        side = 128 if points and mode == "auto" else 64
        scaled = f"160x8 to {20 * side}x{side}, which is {20 * side**2:,} pixels"
        assert (response.status_code, scaled in response.text) == (413, True), response.text
    assert mask_of(running.segment(narrow, mode="none size=16")).shape == (8, 160)
    assert running.segment(png(size=(64, 64)), mode="none").status_code == 200
    large = running.segment(png(size=(160, 160)), mode="none size=16")
    assert large.status_code == 413
    assert "160x160 is 25,600 pixels" in large.json()["error"]


def test_bodies_without_a_length_end_at_the_limit_and_are_freed_at_once(serving):
    running = serving(limits=Limits(body_bytes=100_000))
    sent = []

    def endless():
        for _ in range(4000):  # 40 MB: sent in full only if somebody reads them.
            sent.append(1)
            yield bytes(10_000)

    gc.collect()
    gc.disable()
    try:
        for body in (endless(), (bytes(1000) for _ in range(101))):
            with suppress(httpx.TransportError):  # Closed while it was still being sent.
                assert running.segment(body).status_code == 413
        until(lambda: running.service.watch.in_flight == 0)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, RefusedError)]
    finally:
        gc.enable()
    assert len(sent) < 4000
    assert 'reason="large"} 2.0' in running.client.get("/metrics").text


@pytest.mark.parametrize("count", [8])
def test_many_clients_with_mixed_modes_get_what_they_would_get_alone(
    serving, predictor, png, count
):
    running = serving(batch=4)
    modes = ["none", "2:0.4", "2:0.6 by=neighbours", "3:0.2,4:0.5 size=48", "auto", "quick"]
    sizes = [(64, 64), (48, 64)]
    requests = [(n, modes[n % 6], sizes[n // 6 % 2]) for n in range(6 * count)]

    async def all_of_them():
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            slots = asyncio.Semaphore(count)

            async def one(number, mode, size):
                async with slots:
                    body = png(number % 7, size)
                    return await client.post("/v1/segment", content=body, params={"mode": mode})

            return await asyncio.gather(*(one(*item) for item in requests))

    different = total = 0
    known = {name: str(mode) for name, mode in predictor.modes.items()}
    for (number, text, size), response in zip(requests, asyncio.run(all_of_them()), strict=True):
        image = np.array(Image.open(io.BytesIO(png(number % 7, size))))
        mode = response.headers["x-paumer-mode"]
        assert text == "auto" or mode == known.get(text, text)
        alone = predictor.predict(image, mode)
        different += (mask_of(response) != alone.labels).sum()
        total += alone.labels.size
    assert different <= total / 10_000


def test_over_capacity_is_refused_at_once_and_under_it_is_not(serving, png):
    running = serving(delay=0.05, target=0.2)

    async def flood():
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            calls = [client.post("/v1/segment", content=png()) for _ in range(40)]
            return await asyncio.gather(*calls)

    for _ in range(5):
        running.segment(png())  # Learns how slow it is.
    responses = asyncio.run(flood())
    assert {r.status_code for r in responses} == {200, 429}
    refused = [r for r in responses if r.status_code == 429]
    answered = [r for r in responses if r.status_code == 200]
    assert len(refused) > 20
    assert sorted(r.elapsed for r in refused)[20] < max(r.elapsed for r in answered)
    assert all(int(r.headers["retry-after"]) >= 1 for r in refused)
    assert "at capacity" in refused[0].json()["error"]
    assert running.segment(png()).status_code == 200
    assert running.client.get("/v1/status").json()["refused"] == len(refused)


def test_clients_that_hang_up_leave_the_queue(serving, png):
    running = serving(delay=0.3)
    batcher, watch = running.service.batcher, running.service.watch
    length = f"Content-Length: {len(png())}"
    head = f"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(20)]
    for each in sockets:
        each.sendall(head + png())
    until(lambda: len(batcher.waiting) >= 18)
    for each in sockets:
        each.close()
    until(lambda: len(batcher.waiting) == 0)
    until(lambda: watch.in_flight == 0)
    assert watch.accepted <= 2
    assert running.segment(png()).status_code == 200


def test_slow_clients_are_dropped_and_hold_nobody_up(serving, png):
    running = serving(limits=Limits(seconds=1))
    sockets = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(10)]
    for each in sockets:
        each.sendall(
            b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc"
        )
    until(lambda: running.service.watch.in_flight == 10)
    assert running.segment(png()).status_code == 200
    assert running.service.watch.in_flight == 10  # All of them are still there.
    assert b"408" in sockets[0].recv(1000)
    until(lambda: running.service.watch.in_flight == 0)
    for each in sockets:
        each.close()


def test_a_head_that_does_not_end_is_cut_off(usual, png):
    running = usual
    with socket.create_connection(("127.0.0.1", running.port)) as endless:
        endless.settimeout(10)
        endless.sendall(b"POST /v1/segment HTTP/1.1\r\n")

        def send():
            for number in range(1000):
                endless.sendall(f"X-{number}: {'x' * 2000}\r\n".encode())
                time.sleep(0.001)

        with pytest.raises(ConnectionError):
            send()
    assert running.segment(png()).status_code == 200


def test_bodies_of_all_clients_together_are_bounded(serving, png):
    running = serving(limits=Limits(held_bytes=len(png()) + 1000))
    head = b"POST /v1/segment HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as other:
        other.sendall(head + bytes(1001))
        until(lambda: running.service.watch.in_flight == 1)
        time.sleep(0.1)
        response = running.segment(png())
    assert response.status_code == 429
    assert "too many large bodies" in response.json()["error"]
    until(lambda: running.service.watch.in_flight == 0)
    assert running.segment(png()).status_code == 200


def test_a_failure_inside_is_reported_and_does_not_last(usual, png, caplog):
    running = usual
    runs = running.service.batcher.runs

    def fail(*_):
        running.service.batcher.runs = runs
        raise RuntimeError("out of memory")

    running.service.batcher.runs = [fail]
    response = running.segment(png())
    assert response.status_code == 500
    assert response.json() == {"error": "segmenting failed: out of memory"}
    assert running.segment(png()).status_code == 200


def test_the_service_describes_itself(serving, png):
    running = serving()
    get = running.client.get
    assert get("/healthz").json() == {"status": "alive"}
    assert running.client.head("/healthz").status_code == 200
    assert get("/readyz").status_code == 200
    assert [p["name"] for p in get("/v1/model").json()["points"]] == ["whole", "middle", "quick"]
    running.segment(png())
    status = get("/v1/status").json()
    assert status["accepted"] == 1
    assert status["point"] == "whole"
    assert status.keys() == {
        *("queue", "running", "point", "mode", "requests_per_second", "latency_ms_p50"),
        *("latency_ms_p99", "accepted", "refused", "changes", "history"),
    }
    assert 'paumer_answered_total{point="whole"} 1.0' in get("/metrics").text
    first = get("/v1/scenes").json()[0]
    assert Image.open(io.BytesIO(get(first["thumbnail"]).content)).size == (216, 162)
    running.service.draining = True
    assert get("/readyz").status_code == 503
    assert running.segment(png()).status_code == 503
    assert "another replica" in running.segment(png()).json()["error"]


def test_nothing_is_loaded_from_outside(usual):
    running = usual
    for path in ("/", "/docs", "/openapi.json", "/v1/model"):
        response = running.client.get(path)
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert not re.search(r'(?:src|href)="(?:https?:)?//', response.text)
    described = running.client.get("/openapi.json").json()["paths"]
    assert {"/v1/segment", "/v1/model", "/healthz", "/metrics"} <= described.keys()
    names = [item["name"] for item in described["/v1/segment"]["post"]["parameters"]]
    assert names == ["mode", "floor", "deadline_ms", "priority", "output"]


@pytest.mark.slow
def test_the_command_serves_drains_and_ends_well(replica, png):
    process, port = replica()
    url = f"http://127.0.0.1:{port}"

    async def some():
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            calls = [
                asyncio.create_task(client.post("/v1/segment", content=png(n))) for n in range(8)
            ]
            # One answer is there, so the others have been taken in and are under way.
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(some())
    statuses = [a if isinstance(a, Exception) else a.status_code for a in answers]
    assert all(t in (200, 429, 503) or isinstance(t, httpx.ConnectError) for t in statuses), (
        statuses
    )
    assert process.wait(20) == 0
    assert "drained" in process.stdout.read()
