"""Model shapes: a folder with a `config.json` each, to run with dummy weights. The shape counts, not the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError

_HERE = Path(__file__).parent


def shapes() -> list[str]:
    """The names of the shapes there are."""
    return sorted(path.parent.name for path in _HERE.glob("*/config.json"))


def shape_path(name: str) -> Path:
    """The folder of a shape: one of the lab's by name, or any by its path.

    Raises:
        KvtraceError: There is none.
    """
    own = _HERE / name
    path = own if name in shapes() else Path(name)
    if not (path / "config.json").is_file():
        raise KvtraceError(f"no model shape {name!r}: name {', '.join(shapes())}, or a folder with a config.json")
    return path


def shape_config(name: str) -> dict[str, Any]:
    """The content of a shape's `config.json`."""
    config: dict[str, Any] = json.loads((shape_path(name) / "config.json").read_text())
    return config
