"""Writes a document as Markdown. Nothing in a recorded text starts a link, a tag or emphasis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kvtrace.queries.text import cell, inert
from kvtrace.reports import document as doc

_TICKS = re.compile(r"`([^`]+)`")
_ACTIVE = re.compile(r"([\\`*\[\]<>|~$#&@]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_LEVELS = {"": "", "warning": "**Warning:** ", "info": "Note: "}


def markdown(document: doc.Document) -> str:
    """The whole document."""
    head = [f"# {_inline(document.title)}", *([_inline(document.lead)] if document.lead else [])]
    top = [block for block in document.blocks if not isinstance(block, doc.Section)]
    blocks = [*head, *_blocks(top, 1), *_contents(document), *_blocks(document.sections, 1), _inline(document.footer)]
    return "\n\n".join(blocks) + "\n"


def _contents(document: doc.Document) -> Iterator[str]:
    """Links to the sections that have names; a heading's own text is its address."""
    groups = [(section, [each for each in doc.subsections(section) if each.name]) for section in document.sections]
    if not any(named for _, named in groups):
        return
    yield "## Contents"
    for section, named in groups:
        if named:
            yield f"**{_inline(section.title)}**"
            yield "\n".join(f"- [{each.name}](#{each.name}): {_inline(each.title)}" for each in named)


def _blocks(blocks: Iterable[doc.Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, level)


def _block(block: doc.Block, level: int) -> Iterator[str]:
    match block:
        case doc.Paragraph(parts):
            yield "".join(map(_inline, parts))
        case doc.Items(texts, kind):
            yield "\n".join(f"- {_LEVELS[kind]}{_inline(text)}" for text in texts)
        case doc.Facts(pairs):
            yield _table(
                doc.Table(
                    [doc.Column("fact"), doc.Column("value")], [(doc.Words(name), value) for name, value in pairs]
                )
            )
        case doc.Cards(cards):
            rows = [(doc.Words(card.name), card.value) for card in cards]
            yield _table(doc.Table([doc.Column("number"), doc.Column("value", number=True)], rows))
        case doc.Table():
            yield _table(block)
        case doc.Figure(picture, path, text):
            yield f"![{_escaped(text)}]({path}.{picture.shown})"
        case doc.Listing(text):
            yield f"```sql\n{text.rstrip()}\n```"
        case doc.Details(summary, blocks):
            yield from [f"<details><summary>{_inline(summary)}</summary>", *_blocks(blocks, level), "</details>"]
        case doc.Panel(blocks):
            yield from _blocks(blocks, level)
        case doc.Section(title, _, blocks, name):
            yield f"{'#' * (level + 1)} {name or _inline(title)}"
            yield from [f"**{_inline(title)}**"] if name else []
            yield from _blocks(blocks, level + 1)


def _table(table: doc.Table) -> str:
    rule = "|".join("---:" if column.number else "---" for column in table.columns)
    lines = [_row(map(_head, table.columns)), f"|{rule}|", *(_row(map(_cell, row)) for row in table.rows)]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(column: doc.Column) -> str:
    unit = f"\\[{_escaped(column.unit)}\\]" if column.unit else ""
    return " ".join(filter(None, (_escaped(column.name), unit, column.sign)))


def _cell(value: Any) -> str:
    if isinstance(value, doc.Cell):
        text = _cell(value.value)
        return f"**{text}**" if value.mark == "best" else text
    if value is None:
        return "-"
    if isinstance(value, doc.Words | doc.Code | doc.File):
        return _inline(value, table=True)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_inline(part, table=True) for part in value)
    text = cell(value, doc.LONGEST)
    return text if doc.is_number(value) or not text else _code(text, table=True)


def _inline(text: str, *, table: bool = False) -> str:
    if isinstance(text, doc.Words):
        parts = _TICKS.split(inert(text))
        return "".join(_code(part, table=table) if place % 2 else _escaped(part) for place, part in enumerate(parts))
    if isinstance(text, doc.Code):
        return _code(inert(text), table=table)
    if isinstance(text, doc.File):
        return f"[{text}]({text})"
    return _escaped(text)


def _escaped(text: str) -> str:
    """Text that is shown as it is."""
    return _ACTIVE.sub(r"\\\1", inert(text))


def _code(text: str, *, table: bool) -> str:
    """Text as code: only its fence is active in it, and in a table `|`."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text.replace('|', chr(92) + '|') if table else text}{room}{fence}"
