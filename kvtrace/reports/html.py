"""Writes a document as one HTML page that loads nothing and runs nothing. `tag` escapes all text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from kvtrace.pages import GENERATOR
from kvtrace.queries.text import cell, inert
from kvtrace.reports import document as doc

_STYLE = Path(__file__).parent / "page.css"
_TICKS = re.compile(r"`([^`]+)`")
_LONG_TEXT = 24
"""Characters from which on a cell's text may be broken into lines."""

_MANY_COLUMNS = 16
"""Tables with more columns are printed in smaller type."""

_LEVELS = {"": "", "warning": "notes", "info": "notes mild"}
_SECTION_LEVEL = 2


class Html(str):
    """Markup: it goes into a page as it is."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """An element. Children that are no `Html` and all attributes are escaped.

    Args:
        name: The element's name.
        children: Its content.
        attributes: Its attributes; a trailing underscore is left out of the name (`class_`), and None or "" out of all.
    """
    given = "".join(f' {key.rstrip("_")}="{escape(inert(value))}"' for key, value in attributes.items() if value)
    inside = "".join(child if isinstance(child, Html) else _text(child) for child in children)
    return Html(f"<{name}{given}>{inside}</{name}>")


def page(document: doc.Document) -> str:
    """The whole page."""
    style, policy = _style()
    title = tag("title", "kvtrace: ", document.window_title or document.title)
    header = tag("header", tag("h1", _inline(document.title)), tag("p", _inline(document.lead)), id="top")
    main = tag(
        "main",
        header,
        *_blocks(document.blocks, 1),
        tag("footer", _inline(document.footer), " The page loads nothing and runs nothing."),
    )
    nav = tag("nav", *_contents(document), **{"aria-label": "Contents"})
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="{GENERATOR}">\n<meta name="referrer" content="no-referrer">\n'
        f"{title}\n<style>{style}</style>\n</head>\n"
        f"<body>\n{tag('div', nav, main, class_='page')}\n</body>\n</html>\n"
    )


@cache
def _style() -> tuple[str, str]:
    """The style, and the policy that allows it and pictures in the page: no script, no request of any kind."""
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = f"style-src 'sha256-{digest}'; img-src data:"
    return style, f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _contents(document: doc.Document) -> Iterator[Html]:
    """Links to the sections: a list for those without subsections, a heading and a list for each of the others."""
    alone = [tag("li", tag("a", "Overview", href="#top"))]
    for section in document.sections:
        if below := doc.subsections(section):
            yield from [tag("ul", *alone)] if alone else []
            alone = []
            yield tag("section", tag("h2", _inline(section.title)), tag("ul", *map(_link, below)))
        else:
            alone.append(_link(section))
    yield from [tag("ul", *alone)] if alone else []


def _link(section: doc.Section) -> Html:
    title = section.title if section.name else None
    return tag("li", tag("a", section.name or _inline(section.title), href=f"#{section.anchor}", title=title))


def _blocks(blocks: Iterable[doc.Block], level: int) -> Iterator[Html]:
    for block in blocks:
        yield _block(block, level)
        yield Html("\n")


def _block(block: doc.Block, level: int) -> Html:
    match block:
        case doc.Paragraph(parts, kind):
            return tag("p", *map(_inline, parts), class_=kind)
        case doc.Items(texts, kind):
            return tag("ul", *(tag("li", _inline(text)) for text in texts), class_=_LEVELS[kind])
        case doc.Facts(pairs):
            return tag("dl", *(element for pair in pairs for element in _fact(*pair)), class_="facts")
        case doc.Cards():
            return _cards(block)
        case doc.Table():
            return _table(block)
        case doc.Figure(picture, _, text):
            image = Html(f'<img src="{picture.uri}" alt="{escape(inert(text))}">')
            return tag("figure", image)
        case doc.Listing(text):
            return tag("pre", Html("\n".join(_text(line) for line in text.split("\n"))))
        case doc.Details(summary, blocks):
            return tag("details", tag("summary", _inline(summary)), *_blocks(blocks, level))
        case doc.Panel(blocks):
            return tag("div", *_blocks(blocks, level), class_="panel")
        case doc.Section():
            return _section(block, level + 1)


def _section(section: doc.Section, level: int) -> Html:
    name = [Html(" "), tag("code", section.name)] if section.name else []
    heading = tag(f"h{level}", _inline(section.title), *name)
    if level == _SECTION_LEVEL:
        return tag("section", heading, *_blocks(section.blocks, level), id=section.anchor)
    return tag("article", heading, *_blocks(section.blocks, level), class_="panel", id=section.anchor)


def _fact(name: str, value: Any) -> tuple[Html, Html]:
    wide = "wide" if isinstance(value, doc.Code) else None
    return tag("dt", _inline(name)), tag("dd", _inline(value if isinstance(value, str) else str(value)), class_=wide)


def _cards(block: doc.Cards) -> Html:
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("b", cell(card.value, doc.LONGEST)),
                tag("span", _joints(card.name)),
                class_="card",
                title=card.meaning,
            )
            for card in block.cards
        ),
        class_="cards",
    )


def _table(table: doc.Table) -> Html:
    head = tag("thead", tag("tr", *map(_head, table.columns)))
    rows = (
        tag("tr", *(_cell(value, column) for value, column in zip(row, table.columns, strict=True)))
        for row in table.rows
    )
    body = tag("tbody", *(part for row in rows for part in (row, Html("\n"))))
    wide = "wide" if len(table.columns) > _MANY_COLUMNS else None
    return tag("div", tag("table", head, body, class_=wide), class_="scroll", tabindex="0")


def _head(column: doc.Column) -> Html:
    below = " ".join(filter(None, (column.sign, column.unit)))
    small = [tag("small", below)] if below else []
    return tag("th", _joints(column.name), *small, class_="n" if column.number else None, title=column.meaning)


def _cell(value: Any, column: doc.Column) -> Html:
    mark = ""
    if isinstance(value, doc.Cell):
        value, mark = value.value, value.mark
    if value is None:
        return tag("td", "-", class_="n null")
    if doc.is_number(value) or column.number:
        kind, text = "n", _inline(value) if isinstance(value, str) else cell(value, doc.LONGEST)
    elif isinstance(value, doc.Words | doc.Code | doc.File):
        kind, text = "", _inline(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        kind, text = "", Html("".join(map(_inline, value)))
    else:
        text = cell(value, doc.LONGEST)
        kind = "t" if len(text) > _LONG_TEXT else "s"
    return tag("td", text, class_=" ".join(filter(None, (kind, mark))))


def _inline(text: str) -> Html:
    """A text as markup."""
    if isinstance(text, Html):
        return text
    if isinstance(text, doc.Words):
        return Html(_TICKS.sub(r"<code>\1</code>", _text(text)))
    if isinstance(text, doc.Code):
        return tag("code", text)
    if isinstance(text, doc.File):
        return tag("a", text, href=text)
    return _text(text)


def _text(text: str) -> Html:
    return Html(escape(inert(text), quote=False))


def _joints(name: str) -> Html:
    """A name that may be broken after an underscore."""
    return Html("_<wbr>".join(map(_text, name.split("_"))))
