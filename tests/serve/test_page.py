"""The page in a real browser: pictures, layers, refusals, the curve and the strip."""

import io
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from page_stub import FAST, MODEL, PAGE, POINTS, TIMES, labels_of, pixel, png, says, scene, settles
from PIL import Image

from paumer.classes import CAMVID, paint
from paumer.inference.result import _BLOCK_COLOURS

pytestmark = pytest.mark.slow

# The files, without a browser.


def test_the_page_names_nothing_outside():
    for file in PAGE.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", text) == [], file.name
        assert "@import" not in text


def test_the_page_has_no_script_or_style_in_its_text():
    for file in PAGE.glob("*.html"):
        text = file.read_text("utf-8")
        assert re.findall(r"\sstyle=|\son\w+=|<style", text) == []
        assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []


def test_every_id_that_the_scripts_name_is_there():
    texts = [(PAGE / name).read_text("utf-8") for name in ("index.html", "docs.html")]
    ids = set(re.findall(r'\sid="([\w-]+)"', "".join(texts)))
    scripts = "".join(file.read_text("utf-8") for file in PAGE.glob("*.js"))
    named = set(re.findall(r'(?:byId|inputOf|selectOf|fill)\("([\w-]+)"', scripts))
    assert len(named) > 30
    assert named <= ids


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


def test_a_built_in_scene_is_segmented_at_once(open_page, stub):
    page = open_page()
    says(page, "#model", f"street-test: 12 blocks, patches of 16 {TIMES} 16 pixels, 11 classes")
    says(page, "#message", f"morning, 96 {TIMES} 72. Mode 3:0.4.")
    says(page, "#saved", "30 %")
    says(page, "#same", "91 %")
    says(page, "#blocks", "paused after block 3")
    says(page, "#classes li:first-child", "sky")
    labels = [page.locator(side).get_attribute("aria-label") for side in ("#with", "#without")]
    assert labels == ["morning, overlay, mode 3:0.4", "morning, overlay, no pausing"]
    low = {"output": "all", "priority": "low"}
    asked = [{"mode": "3:0.4", "output": "all"}, {"mode": "none"} | low]
    assert stub.queries[:2] == asked
    page.get_by_role("button", name="evening").click()
    says(page, "#message", "evening")
    assert scene(1) in stub.bodies


def test_one_time_whose_parts_sum_up_and_the_speed_up_of_the_fastest_runs(open_page, stub):
    page = open_page()
    settles(lambda: stub.measured("3:0.4"))
    says(page, "#speed-facts", "the fastest of 5 runs")
    # Run by turns: the last of the ten requests was the mode's, the ninth that without pausing.
    assert stub.modes() == ["3:0.4", "none"] + 4 * ["none", "3:0.4"]
    mode, none = 20 + 90 / 10, 40 + 90 / 9
    says(page, "#speed-facts", f"network {mode:.0f} ms, without pausing {none:.0f} ms")
    says(page, "#speed", f"{none / mode:.2f}")
    parts = page.locator("#time-parts").inner_text()
    assert parts == f"decode 1 + wait 0 + network {mode:.0f} + encode 5"
    assert page.locator("#time").inner_text() == f"{1.3 + 0.4 + mode + 4.4:.0f} ms"


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
    settles(lambda: stub.measured("3:0.4"))
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"})
    says(page, "#trouble", '"a.txt" is not an image that this browser can read')
    assert len(stub.queries) == 10


def test_a_refusal_is_told_in_words(open_page, stub):
    page = open_page()
    settles(lambda: stub.measured("3:0.4"))
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
        says(page, "#message", "Mode none.")
        assert page.locator("#trouble").text_content() == ""
    assert page.locator("#trouble").get_attribute("role") == "alert"


def test_a_full_service_is_asked_again_when_it_says(open_page, stub):
    page = open_page()
    settles(lambda: stub.measured("3:0.4"))
    stub.refusals.append((429, [("Retry-After", "1")], {"error": "the queue is full"}))
    page.locator("#dial").focus()
    page.keyboard.press("End")
    says(page, "#trouble", "takes no more just now. The queue is full. Trying again in 1 s.")
    says(page, "#message", f"Mode {FAST}.")
    assert page.locator("#trouble").text_content() == ""
    assert stub.asked()[1:] == [FAST] * 2


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
    says(page, "#message", f"Mode {FAST}.")
    assert page.locator("#trouble").text_content() == ""


def test_layers_and_the_two_sides(open_page):
    page = open_page()
    sky, pavement, grey = CAMVID.colours[0], CAMVID.colours[4], 90

    def over(colour):
        return [round((part + grey) / 2) for part in colour]

    def near(canvas, x, y, colour):
        return np.abs(np.subtract(pixel(page, canvas, x, y), colour)).max() <= 1

    settles(lambda: near("without", 2, 2, over(sky)))
    assert near("with", 2, 2, over(pavement))
    page.get_by_role("radio", name="Overlay").focus()
    for layer, sentence in (
        ("labels", "The classes alone"),
        ("paused", "Tinted patches paused, because their class was clear"),
        ("merged", "Nothing merged: in this mode every patch stays itself"),
        ("entropy", "Dark where the network is sure"),
        ("changed", "Orange where this mode gives another label than no pausing"),
    ):
        page.keyboard.press("ArrowRight")
        says(page, "#about", sentence)
        if layer == "labels":
            settles(lambda: pixel(page, "with", 2, 2) == list(pavement))
        if layer == "paused":  # The first patch paused, in green; the others are as they were.
            settles(lambda: near("with", 2, 2, [0.4 * 90, 0.4 * 90 + 0.6 * 158, 0.4 * 90 + 69]))
            assert pixel(page, "with", 20, 20) == [90, 90, 90]
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
    says(page, "#under", "pavement; without pausing sky")


def test_a_point_of_the_curve_sets_the_dial(open_page, stub):
    page = open_page()
    says(page, "#curve-about", "mIoU on streets val (101 images); speed-up on two cores")
    rows = page.locator("#changes tbody tr")
    says(page, "#changes tr.here", "balanced")
    change = f"+0.1 mIoU, {1 / 1.4:.2f}\xa0{TIMES}"
    assert rows.nth(0).inner_text().split("\t")[1:] == ["64.5", f"1.00\xa0{TIMES}", change]
    says(page, "#changes", "Another point beats it.")
    beaten = page.locator("#curve .dot:not(.best)").evaluate_all(
        "all => all.map(e => e.dataset.mode)"
    )
    assert beaten == ["none", "5:0.2"]
    page.locator('#curve .dot[data-mode="5:0.2"]').click()
    says(page, "#message", "Mode 5:0.2.")
    current = page.locator("#changes [aria-current]")
    assert current.inner_text() == "5:0.2"
    assert page.locator("#curve .dot.current").get_attribute("data-mode") == "5:0.2"
    page.get_by_role("button", name="fast", exact=True).focus()
    page.keyboard.press("Enter")
    says(page, "#message", f"Mode {FAST}.")
    says(page, "#point", "fast")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "fast", "the keyboard stays where it was"


def test_a_mode_without_a_measurement_stands_on_the_curve_by_its_speed(open_page):
    page = open_page()
    assert page.locator("#curve .unmeasured").count() == 0
    page.locator("#size").select_option("full")
    says(page, "#message", "Mode 3:0.4 size=full.")
    says(page, "#curve", "this mode")
    assert page.locator("#curve .unmeasured").count() == 1
    assert page.locator("#curve .current:not(text)").count() == 0


@pytest.mark.parametrize("width", [360, 1280])
def test_names_on_the_curve_cover_nothing(open_page, stub, monkeypatch, width):
    # A long name of the slowest point, as high as a number on the axis, and points side by side.
    names = ("unpaused", "accurate", "balanced", "faster than fast")
    mious, speeds = (0.675, 0.672, 0.671, 0.646), (1.0, 1.3, 1.32, 1.7)
    points = [
        point | {"name": name, "miou": miou, "speed_up": speed}
        for point, name, miou, speed in zip(POINTS, names, mious, speeds, strict=True)
    ]
    monkeypatch.setattr(stub, "model", MODEL | {"points": points, "curve": points})
    page = open_page(viewport={"width": width, "height": 740})
    says(page, "#curve", "unpaused")
    boxes = {
        kind: page.locator(f"#curve .{kind}").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().toJSON())"
        )
        for kind in ("name", "tick", "axis", "core")
    }
    assert len(boxes["name"]) >= 3
    for number, name in enumerate(boxes["name"]):
        others = boxes["tick"] + boxes["axis"] + boxes["core"] + boxes["name"][number + 1 :]
        for other in others:
            beside = name["left"] >= other["right"] or other["left"] >= name["right"]
            assert beside or name["top"] >= other["bottom"] or other["top"] >= name["bottom"]


def test_the_strip_follows_the_service(open_page):
    page = open_page()
    says(page, "#strip", "4.2 requests/s")
    says(page, "#strip", "209 ms, target 200 ms")
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
