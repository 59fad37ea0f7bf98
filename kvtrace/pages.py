"""The mark of the pages that kvtrace makes, so that a page is only ever written over one of them."""

from __future__ import annotations

from pathlib import Path

GENERATOR = "kvtrace"
"""The content of a page's `<meta name="generator">` begins with it."""

_MARK = f'<meta name="generator" content="{GENERATOR}'.encode()
_HEAD_BYTES = 4096


def is_page(path: Path) -> bool:
    """Return whether a file is a page that kvtrace made, and so can be made again."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_HEAD_BYTES)
    except OSError:
        return False
