"""axe-core's findings about the page that a browser shows."""

from __future__ import annotations

import json
from pathlib import Path

import kvtrace.viewer

from .chromium import Chromium

AXE = Path(kvtrace.viewer.__file__).resolve().parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
MISSING = "no axe-core in viewer/web/node_modules: make page brings it"


def violations(browser: Chromium, **options: object) -> list[str]:
    """Return the rules that the page breaks, each with its impact and the elements that break it.

    Args:
        browser: It shows the page.
        options: Of `axe.run`.
    """
    browser.evaluate(AXE.read_text() + ";0")
    found: list[str] = browser.evaluate(
        f"axe.run(document, {json.dumps({'resultTypes': ['violations'], **options})}).then((result) => "
        "result.violations.map((each) => each.impact + ' ' + each.id + ': ' + "
        "each.nodes.map((node) => node.target.join(' ')).slice(0, 8).join(', ')))"
    )
    return found
