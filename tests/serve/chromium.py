"""A real browser for tests: the system's Chromium, driven by Playwright, offline but for the server under test."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]

INVISIBLE = """() => {
  // Visible texts whose contrast with what is behind them is too small, as WCAG 2 asks: 4.5, or 3 where text is large.
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], back) => [r, g, b].map((value, i) => value * a + back[i] * (1 - a));
  const behind = element => {
    if (!element) return [255, 255, 255];
    return over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const bright = color => {
    const linear = color.map(value => value / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), back = behind(element);
    const [a, b] = [bright(over(rgba(style.color), back)), bright(back)].sort((one, other) => one - other);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const contrast = (b + 0.05) / (a + 0.05);
    if (contrast < (large ? 3 : 4.5)) poor.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${contrast}`);
  }
  return poor;
}"""

NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, [tabindex='0']")]
  .filter(one => one.checkVisibility())
  .filter(one => !one.labels?.length && !one.textContent.trim() && !one.ariaLabel)
  .map(one => one.outerHTML)"""


@contextmanager
def browser() -> Iterator:
    """A started Chromium; skips the test, with a warning that everybody sees, where there is none to be had."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed (the extra `browser`)")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing("there is no Chromium on this system")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


def missing(what: str) -> None:
    warnings.warn(f"THE LIVE PAGE WAS NOT TESTED IN A BROWSER: {what}", stacklevel=2)
    pytest.skip(what)
