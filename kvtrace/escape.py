"""Text from outside as text: nothing in it steers a terminal, or turns the words around it about."""

from __future__ import annotations

import unicodedata

_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or turn text around instead of showing it."""


def inert(text: str) -> str:
    r"""Escape control and formatting characters (`\x1b`, `\n`, `\u202e`): ids come from clients, and may hold any."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _ACTIVE else char for char in text)


def inert_lines(text: str) -> str:
    """The same of a message, whose line breaks are its own."""
    return "\n".join(map(inert, text.split("\n")))


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
