"""Making text from a trace harmless to print."""

from __future__ import annotations

import unicodedata

_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or turn text around instead of showing it."""


def inert(text: str) -> str:
    r"""Escape control and formatting characters (`\x1b`, `\n`, `\u202e`): ids come from clients, and may hold any."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _ACTIVE else char for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
