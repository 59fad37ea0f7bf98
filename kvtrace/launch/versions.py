"""The vLLM versions that docs/compatibility.md tells of, and what the summary says of any other."""

from __future__ import annotations

import re

CHECKED = ("0.20.2", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Oldest first."""


def remark(version: str) -> str | None:
    """A sentence about a version beyond the checked ones, or of which no number can be read; None for any other."""
    number = parts(version)
    oldest, newest = CHECKED[0], CHECKED[-1]
    if not number:
        why = f"vLLM's version is {version!r}, so it is not known whether kvtrace was checked with it"
    elif number > parts(newest):
        why = f"vLLM {version} is newer than {newest}, the newest that kvtrace was checked with"
    elif number < parts(oldest):
        why = f"vLLM {version} is older than {oldest}, the oldest that kvtrace was checked with"
    else:
        return None
    return f"{why}: recorded with the hooks that were found"


def parts(version: str) -> tuple[int, ...]:
    """Major, minor and patch number; empty without a number."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()
