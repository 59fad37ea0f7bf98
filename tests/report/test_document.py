"""The writers of pages and Markdown: any text comes out as text, whatever part of a document it is in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvtrace.queries.text import inert
from kvtrace.reports.document import (
    Card,
    Cards,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Items,
    Listing,
    Panel,
    Paragraph,
    Section,
    Table,
    Words,
    text_table,
)
from kvtrace.reports.html import page
from kvtrace.reports.markdown import markdown
from tests.elements import Page

from .conftest import HOSTILE

TEXTS = st.lists(
    st.sampled_from([*"<>&\"'`|*_[]()#\\~$@!:/ \n\x1b\u202eab", "http://", "```", "</", "<!--"]), min_size=1
)


def everywhere(text: str) -> Document:
    """A document with a text in every place."""
    table = Table([Column(text, unit=text, meaning=text), Column("words")], [(text, Words(text)), (Code(text), [text])])
    blocks = [
        Paragraph([text, Words(text)], "hint"),
        Items([text, Words(text)], "warning"),
        Facts([(text, text), (text, Code(text))]),
        Cards([Card(text, text, text)]),
        Panel([table]),
        Details(text, [Paragraph([text])]),
    ]
    return Document(text, text, [*blocks, Section(text, "one", [Section(Words(text), "two", blocks, "two")])], text)


def leaves(text: str) -> list[Token]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [leaf for token in tokens for leaf in [token, *(token.children or [])]]


@settings(max_examples=60)
@given(TEXTS.map("".join))
def test_text_adds_no_element_to_a_page(text: str) -> None:
    found, plain = Page(page(everywhere(text))), Page(page(everywhere("a_`b`")))
    assert found.names <= plain.names
    assert "\x1b" not in "".join(found.text)


@settings(max_examples=60)
@given(TEXTS.map("".join))
def test_text_adds_no_link_or_element_to_markdown(text: str) -> None:
    found = leaves(markdown(everywhere(text)))
    links = {leaf.attrs["href"] for leaf in found if leaf.type in ("link_open", "image")}
    assert links == {"#two"}
    html = [leaf.content for leaf in found if leaf.type in ("html_block", "html_inline")]
    assert all(each.startswith(("<details><summary>", "</details>")) for each in html)


def test_recorded_text_is_shown_as_it_is() -> None:
    """Backticks are code in kvtrace's own words only."""
    document = Document("t", "", [Paragraph([HOSTILE]), Paragraph([Words("run `a|b`")])], "")
    assert inert(HOSTILE) in Page(page(document)).text
    assert [leaf.content for leaf in leaves(markdown(document)) if leaf.type == "code_inline"] == ["a|b"]


@pytest.mark.parametrize("text", ["a|b", "`", "``a`", "|`|", "a\\|b"])
def test_a_recorded_value_is_one_cell_of_a_markdown_table(text: str) -> None:
    found = leaves(markdown(Document("t", "", [text_table(["one", "two"], [(text, 1)])], "")))
    assert [leaf.type for leaf in found].count("td_open") == 2


def test_numbers_stand_to_the_right_and_the_best_is_bold() -> None:
    table = text_table(["name", "n"], [("a", Cell(1, "best")), ("b", None)])
    document = Document("t", "", [table, Listing("SELECT '<b>'")], "")
    assert "|---|---:|\n| `a` | **1** |\n| `b` | - |" in markdown(document)
    assert '<td class="s">a</td><td class="n best">1</td>' in page(document)
    assert "<pre>SELECT '&lt;b&gt;'</pre>" in page(document)
