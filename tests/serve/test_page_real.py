"""The page and its documentation against the real service."""

import pytest
from page_stub import says

pytestmark = pytest.mark.slow


def test_the_page_and_the_service_understand_each_other(open_page, serving):
    running = serving()
    page = open_page(address=running.url, wait="Mode 2:0.4.")
    says(page, "#point", "middle")
    says(page, "#speed-facts", "the fastest of 5 runs")
    parts = page.locator("#time-parts").inner_text().replace("+", "").split()[1::2]
    total = int(page.locator("#time").inner_text().removesuffix(" ms").replace(",", ""))
    assert sum(map(int, parts)) == total > 0
    for layer in ("Labels", "Paused", "Merged", "Entropy", "Changed", "Image"):
        page.get_by_text(layer, exact=True).click()
    page.locator("#merge").select_option(index=2)
    says(page, "#blocks", "of all: merged into a similar patch")
    page.locator("#exit").select_option("exit")
    says(page, "#with-name", "exit")
    page.get_by_role("button", name="drive").click()
    page.locator("#governor .chosen").nth(2).wait_for(state="attached")
    assert page.locator("#trouble").inner_text() == ""


def test_every_endpoint_is_listed_and_can_be_tried(open_page, serving, png):
    running = serving()
    page = open_page(address=running.url + "/docs", wait=None)
    says(page, "#title", "HTTP API, version")
    names = page.locator(".endpoint h2").all_inner_texts()
    described = running.client.get("/openapi.json").json()["paths"]
    assert names == [f"{m.upper()} {path}" for path, ms in described.items() for m in ms]
    segment = page.locator(".endpoint").first
    for name, example in {
        "mode": "1-6:~0.1",
        "floor": "balanced",
        "deadline_ms": "200",
        "priority": "low",
        "output": "overlay",
    }.items():
        assert segment.get_by_label(name, exact=True).is_visible()
        assert segment.get_by_role("button", name=example).is_visible()
    send = segment.get_by_role("button", name="Send")
    send.click()
    segment.locator(".answer img").wait_for()
    says(page, ".answer >> nth=0", "x-paumer-point: ")
    segment.get_by_label("mode", exact=True).fill("2:0.4 size=96")
    segment.get_by_label("output").select_option("rle")
    file = {"name": "own.png", "mimeType": "image/png", "buffer": png()}
    segment.get_by_label("body").set_input_files(file)
    send.click()
    says(page, ".answer >> nth=0", "x-paumer-mode: 2:0.4 size=96")
    says(page, ".answer >> nth=0", "curl --data-binary @own.png 'http://127.0.0.1")
    says(page, ".answer >> nth=0", '"runs"')
    segment.get_by_label("mode", exact=True).fill("20:0.4")
    send.click()
    says(page, ".answer >> nth=0", "400")
    for number in range(1, len(names)):
        section = page.locator(".endpoint").nth(number)
        section.get_by_role("button", name="Send").focus()
        page.keyboard.press("Enter")
        says(page, f".answer >> nth={number}", "200")
