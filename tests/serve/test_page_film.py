"""Videos in the page, in a real browser."""

import re

import numpy as np
import pytest
from page_stub import FAST, says, settles

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Twelve seconds of grey, brighter from frame to frame."""
    av = pytest.importorskip("av")
    path = tmp_path_factory.mktemp("video") / "street.webm"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(120):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 + number, np.uint8))
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def test_a_video_plays_through_with_the_governor_in_sight(open_page, stub, video):
    page = open_page()
    page.set_input_files("#file", video)
    says(page, "#message", "street.webm, 64 \N{MULTIPLICATION SIGN} 48, 12 s.")
    page.locator("#governor .chosen").nth(3).wait_for(state="attached")
    assert page.get_by_label("Auto").is_checked()
    says(page, "#point", "auto: balanced")
    sent = [query for query in stub.queries if "deadline_ms" in query]
    assert sent[0] == {"mode": "auto", "output": "mask", "deadline_ms": "1000"}
    assert page.locator("#with").get_attribute("aria-label") == "street.webm, overlay, mode 3:0.4"
    assert not page.locator("#layers").is_visible()
    # More frames a second leave less time for each, and the governor pauses more.
    page.get_by_label("Frames per second").focus()
    page.keyboard.press("End")
    says(page, "#point", "auto: fast")
    says(page, "#governor .current", "fast")
    rows = page.locator("#governor .chosen").evaluate_all(
        "all => all.map(e => +e.getAttribute('y'))"
    )
    assert len(set(rows)) == 2
    assert sorted(rows) == rows, "accurate points are above"
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Play again").wait_for()
    assert stub.asked()[-1] == "auto"


def test_a_dial_that_is_turned_holds_for_the_next_frames(open_page, stub):
    page = open_page()
    page.get_by_role("button", name="drive").click()
    says(page, "#message", "a drive into evening")
    page.locator("#governor .chosen").nth(1).wait_for(state="attached")
    page.locator("#dial").focus()
    page.keyboard.press("Home")
    settles(lambda: stub.asked()[-1] == "none")
    says(page, "#point", "accurate")
    page.get_by_role("button", name="morning").click()
    says(page, "#message", "Mode none.")
    assert not page.locator("#film").is_visible()
    assert page.locator("#layers").is_visible()


def test_a_service_that_is_too_slow_for_the_rate_is_asked_for_less(open_page, stub):
    page = open_page()
    settles(lambda: stub.measured("3:0.4"))
    error = "deadline_ms is 400, and such an image takes about 900 ms: give more time"
    stub.refusals += [(400, (), {"error": error}), (429, (), {"error": "at capacity"})]
    page.get_by_role("button", name="drive").click()
    says(page, "#film-facts", "1 refused. 2 frames a second are too many for this machine.")
    assert page.locator("#rate").input_value() == "1"
    stub.refusals.append((500, (), {"error": "segmenting failed"}))
    says(page, "#trouble", "Segmenting failed.")
    assert page.get_by_role("button", name="Play").is_visible()


def test_a_file_that_is_no_video_is_told(open_page):
    page = open_page()
    page.set_input_files("#file", {"name": "x.mp4", "mimeType": "video/mp4", "buffer": b"no video"})
    says(page, "#trouble", '"x.mp4" is not a video that this browser can play')
    assert re.search("Mode", page.locator("#with-name").inner_text()) is None
    assert FAST not in page.locator("#with-name").inner_text()
