"""Pictures of the page for the docs: the real service in a real, headless Chromium.

    python experiments/page_pictures.py [--model street-tiny]

Writes page.png (a desktop of 1400x900), page-phone.png (390x844), page-video.png and
page-walk.webp, a short walk along the dial and the layers. Needs a chromium on the path.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

DESKTOP, PHONE = (1400, 900), (390, 844)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WALK = (900, 1200)
"""Width of the animated walk, and milliseconds of each of its images."""
SCENE = "street 5"


@contextmanager
def service(model: str) -> Iterator[str]:
    """The address of a service of that model on a port that is free."""
    command = [sys.executable, "-m", "paumer", "serve", "--model", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address, "the service printed no address"
        try:
            yield address[0]
        finally:
            process.terminate()


def open_page(browser: Browser, address: str, size: tuple[int, int], scale: float = 1) -> Page:
    """The page in a window of that size, once its first image is compared with no pausing."""
    viewport = {"width": size[0], "height": size[1]}
    page = browser.new_page(viewport=viewport, device_scale_factor=scale)  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    page.goto(address)
    show_scene(page)
    return page


def show_scene(page: Page) -> None:
    """Choose a built-in scene and wait until its speed-up is known."""
    page.get_by_role("button", name=SCENE).click()
    expect(page.locator("#message")).to_contain_text(SCENE)
    compared(page)


def compared(page: Page) -> None:
    """Wait until the speed-up is that of all runs."""
    expect(page.locator("#speed-facts")).to_contain_text("the fastest of 5 runs")


def walk(page: Page, file: Path) -> None:
    """Write an animated image: along the dial, then through the layers."""
    seen: list[Image.Image] = []

    def look() -> None:
        image = Image.open(BytesIO(page.screenshot())).convert("RGB")
        height = round(image.height * WALK[0] / image.width)
        seen.append(image.resize((WALK[0], height), Image.Resampling.LANCZOS))

    stops = page.locator("#ticks > *").count()
    page.locator("#dial").focus()
    page.keyboard.press("Home")
    for stop in range(stops):
        if stop:
            page.keyboard.press("ArrowRight")
        mode = page.locator("#mode").input_value()
        expect(page.locator("#with-name")).to_have_text("no pausing" if mode == "none" else mode)
        compared(page)
        look()
    for layer in ("Paused", "Entropy", "Changed", "Overlay"):
        page.get_by_text(layer, exact=True).click()
        look()
    seen[0].save(file, save_all=True, append_images=seen[1:], duration=WALK[1], loop=0, quality=60)


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="street-tiny")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium on the path: install it first")
    expect.set_options(timeout=120_000)
    with service(arguments.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = open_page(browser, address, DESKTOP)
        page.screenshot(path=arguments.out / "page.png")
        walk(page, arguments.out / "page-walk.webp")
        page.get_by_role("button", name="drive").click()
        page.locator("#governor .chosen").nth(9).wait_for(state="attached")
        page.screenshot(path=arguments.out / "page-video.png")
        page.close()
        phone = open_page(browser, address, PHONE, 2)
        phone.screenshot(path=arguments.out / "page-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
