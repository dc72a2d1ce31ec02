"""The page for everybody: on a phone, by keyboard, with a screen reader, in the dark."""

import re

import numpy as np
import pytest
from page_stub import says

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, {"width": 1400, "height": 900}], ids=["phone", "desk"])
def test_axe_finds_nothing_serious(open_page, stub, scheme, size):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(viewport=size, color_scheme=scheme)
    says(page, "#speed-facts", "the fastest of 5 runs")
    says(page, "#strip", "requests/s")

    def serious():
        found = axe.run(page).response
        assert len(found["passes"]) > 10
        return [
            (item["id"], [node["html"] for node in item["nodes"]])
            for item in found["violations"]
            if item["impact"] in ("serious", "critical")
        ]

    assert serious() == []
    page.get_by_role("button", name="drive").click()
    says(page, "#film-facts", "frames/s shown")
    assert serious() == []
    page.goto(stub.address + "docs")
    says(page, "#endpoints", "/v1/segment")
    assert serious() == []


def test_a_phone_has_the_dial_on_its_first_screen(open_page):
    page = open_page(viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2)
    for selector in ("#view", "#dial", "#ticks", "#point-facts", "#auto"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= PHONE["height"], selector


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
    wide = "document.documentElement.scrollWidth"
    for view in ("Swipe", "Side by side"):
        page.get_by_text(view).click()
        assert page.evaluate(wide) <= 360
    page.get_by_text("Merged", exact=True).click()
    page.locator("#merge").select_option("1-6:~0.1")
    says(page, "#curve", "this mode")
    assert page.evaluate(wide) <= 360
    wide = "e => [...e.querySelectorAll('main *')].filter(x => x.checkVisibility() && "
    wide += "!x.closest('.scenes, .bar, .message, svg, .unseen') && "
    wide += "x.getBoundingClientRect().right > 360.5)"
    assert page.locator("body").evaluate(wide + ".map(x => x.className || x.tagName)") == []


def test_the_documentation_fits_a_phone(open_page, stub):
    page = open_page(address=stub.address + "docs", wait=None, viewport=PHONE, is_mobile=True)
    says(page, "#endpoints", "/v1/segment")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def luminance(colour):
    parts = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    parts = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(parts @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(open_page, scheme):
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    says(page, "#speed-facts", "the fastest of 5 runs")  # Each run writes the rows again.

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
            " e.id || e.getAttribute('aria-label') || e.textContent.trim() || e.value }"
        )
        if not name or (seen and name == seen[0]):
            break
        seen.append(name)
    controls = {"file", "divider", "dial", "size", "merge", "exit", "mode", "auto"}
    assert controls <= set(seen)
    assert {"HTTP API", "morning", "evening", "Set", "Download the mask"} <= set(seen)
    assert any(name.startswith("sky") for name in seen), "the classes"
    assert "balanced" in seen, "the points of the curve"
    unnamed = "() => [...document.querySelectorAll('input, select, button, [role=img]')]"
    unnamed += ".filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent))"
    assert page.evaluate(unnamed + ".map(e => e.outerHTML)") == []
