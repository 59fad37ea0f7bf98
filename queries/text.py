"""Making values from a trace readable, and harmless to print."""

from __future__ import annotations

import math
from typing import Any

from kvtrace.escape import inert

__all__ = ["LONGEST_CELL", "cell", "duration", "first_line", "inert", "quoted", "rounded", "size"]

LONGEST_CELL = 80


def cell(value: Any, longest: int = LONGEST_CELL) -> str:
    """A value in a table: six significant digits of a fraction, `-` for NULL, long text cut off and marked so."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return _number(value)
    text = inert(str(value))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def first_line(error: object) -> str:
    """The first line of what another library says."""
    return inert(str(error).strip().splitlines()[0])


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def rounded(value: float | None, sign: str = "") -> str:
    """A number for comparing: four significant digits, whole numbers whole, `-` for none.

    Args:
        value: The number.
        sign: "+" to show a plus before positive ones.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return f"{value:g}"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:{sign if value else ''},.0f}"
    return f"{value:{sign}.4g}" if abs(value) < 1e4 else f"{value:{sign},.0f}"


def duration(ms: float) -> str:
    """A duration for people: three digits and a unit."""
    size_ms = abs(ms)
    if size_ms >= 60_000:
        return f"{ms / 60_000:.1f} min"
    if size_ms >= 999.5:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if size_ms >= 0.9995 or not ms else f"{ms * 1000:.3g} us"


def size(count: float) -> str:
    """A number of bytes for people: in the binary unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _number(value: float) -> str:
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e15:
        return f"{value:.6g}"
    decimals = max(0, 5 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
