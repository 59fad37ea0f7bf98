"""Access: axe-core finds nothing serious in the site, a report and the index of recordings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.viewer.axe import AXE, MISSING, violations
from tests.viewer.chromium import Chromium

from .conftest import show

pytestmark = pytest.mark.skipif(not AXE.exists(), reason=MISSING)
FEWER = "document.querySelectorAll('article').forEach((each, number) => number < 8 || each.remove())"
"""Leaves eight of a report's answers, which are alike."""

SITE = ("index.html", "recordings.html", "404.html", "tutorials/memory.html", "tutorials/figure-6.html")
POINTER = {"scrollable-region-focusable": {"enabled": False}}
"""The theme lets the keyboard scroll wide code, but only where there is a pointer, which a headless browser lacks."""


def serious(browser: Chromium, page: Path, **options: object) -> list[str]:
    """Return what is wrong in light mode, and the contrasts that are too low in dark mode."""
    found = []
    for scheme, chosen in (("light", options), ("dark", {"runOnly": ["color-contrast"]})):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", features=features)
        show(browser, page)
        browser.evaluate(FEWER)
        found += [f"{scheme}: {each}" for each in violations(browser, **chosen)]
    browser.call("Emulation.setEmulatedMedia", features=[])  # other tests use this browser, too
    return [each for each in found if re.search(": (serious|critical) ", each)]


def test_the_site(site: Path, chromium: Chromium) -> None:
    assert {name: found for name in SITE if (found := serious(chromium, site / name, rules=POINTER))} == {}


def test_a_report_and_the_index_of_recordings(explored: Path, chromium: Chromium) -> None:
    pages = ("index.html", "agents-clock/report/report.html")
    assert {name: found for name in pages if (found := serious(chromium, explored / name))} == {}
