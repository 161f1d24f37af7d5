"""The page in a real browser: sizes, colours, keyboard, and silence on the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsebit.report import save_report
from tests.report.browser import CHROMIUM, Browser
from tests.report.samples import sample

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")

PICTURES = os.environ.get("SPARSEBIT_SCREENSHOTS")  # a folder, to look at what the tests look at

CONTRAST = """
(() => {
  const light = (text) => {
    const c = text.match(/[\\d.]+/g).map(Number).slice(0, 3).map((v) => v / 255);
    const [r, g, b] = c.map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!words || node.closest("svg, script, style, .skip")) continue;
    const a = light(getComputedStyle(node).color), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)}`);
  }
  return bad;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_report(tmp_path_factory.mktemp("page") / "report.html", sample())


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (360, False), (360, True)])
def test_it_fits_reads_well_and_asks_for_nothing(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark, touch=width < 500)
    assert browser.errors == []
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js(CONTRAST) == []
    assert browser.js("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    if width < 500:  # fingers are not points
        assert (
            browser.js(
                "Math.min(...[...document.querySelectorAll('.tools button')].map(b => b.offsetHeight))"
            )
            >= 32
        )
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(PICTURES) / f"{width}-{'dark' if dark else 'light'}.png")


def test_the_graph_is_used_from_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    active = "document.activeElement.getAttribute('class') || ''"
    for _ in range(20):
        browser.press("Tab")
        if browser.js(active) == "graph":
            break
    assert browser.js(active) == "graph", "Tab does not reach the graph"
    view = "document.querySelector('.graph').getAttribute('viewBox')"
    before = browser.js(view)
    browser.press("+")
    closer = browser.js(view)
    assert float(closer.split()[2]) < float(before.split()[2])
    browser.press("0")
    assert browser.js(view) != closer
    current = "document.querySelector('.node.current')?.getAttribute('aria-label')"
    browser.press("ArrowDown")
    assert browser.js(current).startswith("images")
    browser.press("ArrowDown")
    assert browser.js(current).startswith("stem, conv2d, W")
    assert browser.js("document.getElementById('selected').textContent").startswith("stem, conv2d")
    assert browser.js("document.querySelector('.graph').getAttribute('aria-activedescendant')") == "node-1"
    browser.press("ArrowDown")
    browser.press("ArrowUp")
    browser.press("Enter")
    assert browser.js("document.activeElement.tagName") == "SUMMARY"
    assert browser.js("document.activeElement.parentElement.open")
    assert browser.errors == []


def test_every_control_shows_where_the_focus_is(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = set()
    for _ in range(12):
        browser.press("Tab")
        seen.add(browser.js("document.activeElement.tagName"))
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"A", "BUTTON"} <= seen


def test_buttons_do_what_they_say(browser: Browser, page: Path) -> None:
    browser.open(page, dark=False)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(colour)
    browser.js("document.getElementById('theme').click()")
    assert browser.js(colour) != light
    browser.js("document.getElementById('theme').click()")
    assert browser.js(colour) == light
    first = "document.querySelector('#layers tbody tr').dataset.name"
    order = (
        "[...document.querySelectorAll('#layers tbody tr')].map(r => parseFloat(r.cells[5].dataset.value))"
    )
    began = browser.js(first)
    browser.js("document.querySelector('[data-sort=\"5\"]').click()")
    values = browser.js(order)
    assert values == sorted(values)
    assert browser.js("document.querySelectorAll('#layers th[aria-sort=ascending]').length") == 1
    browser.js("document.querySelector('[data-sort=\"5\"]').click()")
    assert browser.js(first) == began
    for name, smaller in (("in", True), ("out", False)):
        width = "document.querySelector('.graph').viewBox.baseVal.width"
        before = browser.js(width)
        browser.js(f"document.querySelector('[data-zoom={name}]').click()")
        assert (browser.js(width) < before) == smaller
    assert browser.errors == []


def test_dragging_moves_and_clicking_chooses(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.js("document.querySelector('.stage').scrollIntoView()")
    x, y = browser.js(
        "[document.getElementById('node-1').getBoundingClientRect()].map((box) => [box.x + 30, box.y + 20])[0]"
    )
    mouse = {"button": "left", "clickCount": 1}
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **mouse)
    assert browser.js("document.querySelector('.node.current').id") == "node-1"
    view = "document.querySelector('.graph').viewBox.baseVal.y"
    before = browser.js(view)
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
    for step in (10, 30, 60):
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y + step, **mouse, buttons=1)
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y + 60, **mouse)
    assert browser.js(view) < before
    assert browser.errors == []


def test_a_link_to_a_layer_opens_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    last = browser.js("document.querySelectorAll('#layers details').length - 1")
    browser.js(f"document.querySelector('#layers a[href=\"#layer-{last}\"]').click()")
    assert browser.js(
        f"new Promise(r => setTimeout(() => r(document.getElementById('layer-{last}').open), 100))"
    )
