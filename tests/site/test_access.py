"""Access: axe-core finds nothing serious in the site, a page, a report and the index of recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.viewer.axe import AXE, MISSING, violations
from tests.viewer.chromium import Chromium

from .conftest import show

pytestmark = pytest.mark.skipif(not AXE.exists(), reason=MISSING)
SITE = ("index.html", "python.html", "recordings.html", "404.html", "tutorials/memory.html")
POINTER = {"scrollable-region-focusable": {"enabled": False}}
"""The theme lets the keyboard scroll wide code, but only where there is a pointer, which a headless browser lacks."""


@pytest.fixture(params=["light", "dark"])
def browser(chromium: Chromium, request: pytest.FixtureRequest) -> Chromium:
    """Show pages as to a reader who prefers that scheme."""
    features = [{"name": "prefers-color-scheme", "value": request.param}]
    chromium.call("Emulation.setEmulatedMedia", features=features)
    return chromium


def serious(browser: Chromium, page: Path, **options: object) -> list[str]:
    show(browser, page)
    return [each for each in violations(browser, **options) if each.startswith(("serious", "critical"))]


def test_the_site(site: Path, browser: Chromium) -> None:
    assert {name: found for name in SITE if (found := serious(browser, site / name, rules=POINTER))} == {}


def test_a_report_and_the_index_of_recordings(explored: Path, browser: Chromium) -> None:
    pages = ("index.html", "agents-clock/report/report.html", "agents-clock/page.html")
    assert {name: found for name in pages if (found := serious(browser, explored / name))} == {}
