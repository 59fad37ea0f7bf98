"""A small document, written as Markdown and as one HTML page. All text from runs is made harmless in both."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrace.queries.text import inert

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; font-size: 13px; margin: .8rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { position: sticky; top: 0; background: #fff; } td.text, th.text { text-align: left; }
td.best { font-weight: 700; background: #e3f4ec; } td.wide { white-space: normal; } img { max-width: 100%; }
li.warning { color: #8a4b00; }
"""


@dataclass(frozen=True)
class Cell:
    """A table's cell; `best` marks it."""

    value: Any
    best: bool = False


@dataclass
class Document:
    """Parts in order. `lines` are of the kinds heading, text, list, table and picture."""

    title: str
    parts: list[tuple[str, Any]] = field(default_factory=list)

    def heading(self, text: str, level: int = 2) -> None:
        """A heading, 2 to 4."""
        self.parts.append(("heading", (level, text)))

    def text(self, text: str) -> None:
        """A paragraph."""
        self.parts.append(("text", text))

    def items(self, texts: Sequence[str]) -> None:
        """A list."""
        self.parts.append(("list", list(texts)))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table of values or `Cell`s; numbers to the right."""
        cells = [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
        self.parts.append(("table", (list(head), cells)))

    def picture(self, file: str, text: str) -> None:
        """A picture beside the document."""
        self.parts.append(("picture", (file, text)))

    def markdown(self) -> str:
        """The whole as Markdown."""
        blocks = [f"# {_marked(self.title)}"]
        for kind, content in self.parts:
            if kind == "heading":
                blocks.append(f"{'#' * content[0]} {_marked(content[1])}")
            elif kind == "text":
                blocks.append(_marked(content))
            elif kind == "list":
                blocks.append("\n".join(f"- {_marked(text)}" for text in content))
            elif kind == "picture":
                blocks.append(f"![{_marked(content[1])}]({content[0]})")
            else:
                head, rows = content
                lines = ["| " + " | ".join(map(_marked, head)) + " |", "|" + "---|" * len(head)]
                lines += ["| " + " | ".join(_bold(cell) for cell in row) + " |" for row in rows]
                blocks.append("\n".join(lines))
        return "\n\n".join(blocks) + "\n"

    def page(self) -> str:
        """The whole as HTML; pictures are files beside it."""
        body = "\n".join(_html(kind, content) for kind, content in self.parts)
        title = _escaped(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )


def _html(kind: str, content: Any) -> str:
    if kind == "heading":
        return f"<h{content[0]}>{_escaped(content[1])}</h{content[0]}>"
    if kind == "text":
        return f"<p>{_escaped(content)}</p>"
    if kind == "list":
        return "<ul>" + "".join(f'<li class="warning">{_escaped(text)}</li>' for text in content) + "</ul>"
    if kind == "picture":
        return f'<p><img src="{_escaped(content[0])}" alt="{_escaped(content[1])}"></p>'
    head, rows = content
    is_text = [any(isinstance(row[column].value, str) for row in rows) for column in range(len(head))]
    titles = "".join(
        f"<th{' class=text' if text else ''}>{_escaped(name)}</th>" for name, text in zip(head, is_text, strict=True)
    )
    lines = [f"<thead><tr>{titles}</tr></thead><tbody>"]
    for row in rows:
        cells = (_html_cell(cell, text) for cell, text in zip(row, is_text, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "<table>" + "\n".join(lines) + "</tbody></table>"


def _html_cell(cell: Cell, text: bool) -> str:
    names = [*(["text"] if text else []), *(["best"] if cell.best else [])]
    names += ["wide"] if isinstance(cell.value, str) and len(cell.value) > 60 else []
    return f'<td class="{" ".join(names)}">{_escaped(shown(cell.value))}</td>'


def shown(value: Any) -> str:
    """A value as tables show it: four significant digits of a fraction, `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if not math.isfinite(value) or value == 0:
            return f"{value:g}"
        if abs(value) >= 1000:
            return f"{value:.0f}"
        text = f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return inert(str(value))


def _bold(cell: Cell) -> str:
    text = _marked(shown(cell.value))
    return f"**{text}**" if cell.best else text


def _marked(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|<>`*\[\]])", r"\\\1", inert(text).replace("\n", " "))


def _escaped(text: str) -> str:
    return html.escape(inert(text))
