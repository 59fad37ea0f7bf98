"""Permissions of results: `tempfile` makes private files; a result is to be as open as its user's other files."""

from __future__ import annotations

import os
from pathlib import Path


def make_usual(path: Path) -> None:
    """Give a file or directory the permissions that a new one of its kind gets."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
