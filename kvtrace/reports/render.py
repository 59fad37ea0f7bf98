"""Turns what is known into HTML and Markdown. All text goes through here, and comes out inert."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from kvtrace.queries.text import cell, inert

TEMPLATES = Path(__file__).parent / "templates"
MARKS = {"recorded": "●", "derived": "◐", "inferred": "○"}
"""Mark of a column's source in a table's head."""

LONGEST = 300
"""Characters of a cell."""

_TICKS = re.compile(r"`([^`]+)`")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$#&@]|:(?=//))")


def render(template: str, **values: Any) -> str:
    """A template of this room, filled. In `.html` everything is escaped, in `.md` what its filters are put to."""
    return _environment().get_template(template).render(marks=MARKS, **values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": lambda value: cell(value, LONGEST),
        "code": code,
        "inert": lambda value: inert(str(value)),
        "joints": joints,
        "marked": marked,
        "number": is_number,
        "prose": prose,
        "prose_paragraphs": lambda text: "\n\n".join(map(prose, text.split("\n\n"))),
    }
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    environment.globals |= {"style": Markup(style), "policy": _policy(style)}
    return environment


def _policy(style: str) -> str:
    """Only this style and pictures that are in the page: no script, no request of any kind."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def is_number(value: Any) -> bool:
    """The value is set to the right of its column."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def joints(name: str) -> Markup:
    """A column's name that may be broken after an underscore."""
    return Markup("_<wbr>").join(inert(name).split("_"))


def marked(text: str) -> Markup:
    """A query's own prose for HTML: what stands between backticks becomes code."""
    return Markup(_TICKS.sub(r"<code>\1</code>", str(escape(inert(text)))))


def prose(text: str) -> str:
    """Text for Markdown that is to look as it is: nothing in it starts a link, a tag or emphasis."""
    return _MARKDOWN.sub(r"\\\1", inert(text))


def code(value: Any) -> str:
    """A value of a trace in a cell of a Markdown table. Text becomes code: there only its fence and `|` are active."""
    text = cell(value, LONGEST)
    if not isinstance(value, str) or not text:
        return text
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text.replace('|', chr(92) + '|')}{room}{fence}"
