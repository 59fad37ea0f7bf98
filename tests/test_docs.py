"""Documentation holds together: the index has every page, links and named files exist, docstrings name the thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from kvtrace.cli.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ROOMS = ("kvtrace", "probes", "ingest", "queries", "viewer", "lab", "tests", "bench", "examples")
QUESTION = re.compile(r"(What|Whether|Who|Whose)\b(?!-)")
ENDINGS = r"\.(?:py|sql|c|h|ts|toml)\b"
CODE_FILE = re.compile(
    rf"`((?:[\w.-]+/)+[\w.-]+{ENDINGS})`"  # any path in backticks
    rf"|(?<![\w/.-])((?:{'|'.join(ROOMS)})/[\w./-]+{ENDINGS})"  # a room's, in commands too
)
PLACEHOLDER = re.compile(r"\b[A-Z]{4}")
CODE_ROOTS = (ROOT, DOCS, ROOT / "kvtrace")
"""Pages name files from the repository's root, as they are installed in `kvtrace`, or beside themselves."""


def tracked(pattern: str) -> list[Path]:
    """Return the files of a pattern that git has or would add, symlinks left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = (ROOT / name for name in names if name)
    return [path for path in paths if path.exists() and not path.is_symlink()]


FRONT = {ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md")}
PAGES = [path for path in tracked("*.md") if path in FRONT or path.is_relative_to(DOCS)]


def prose(page: Path) -> str:
    """Return a page without fenced and indented code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^ {4,}(?![-*] ).*$", "", text, flags=re.MULTILINE)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to files, and to headings."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def headings(page: Path) -> set[str]:
    """Return a page's anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of a file's docstrings, those behind assignments included."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_code_files_of_a_page_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(link)
    code = {quoted or plain for quoted, plain in CODE_FILE.findall(page.read_text())}
    makes = page.name.startswith("add-")  # these name files that their reader writes; tests follow them
    named = (name for name in code if not makes and not PLACEHOLDER.search(name))
    missing = sorted(name for name in named if not any((root / name).exists() for root in CODE_ROOTS))
    assert (broken, missing) == ([], [])


def test_the_index_has_every_page() -> None:
    index = DOCS / "README.md"
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}
    assert set(PAGES) - listed - {index} == {ROOT / "RELEASING.md"}  # for maintainers, by way of CONTRIBUTING.md
    assert index in {(ROOT / link).resolve() for link in links(ROOT / "README.md")}


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "release/site/reference.py", tmp_path], cwd=ROOT, check=True)
    stale = [page.name for page in tmp_path.iterdir() if page.read_text() != (DOCS / page.name).read_text()]
    assert stale == [], "run `make docs`"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for room in ROOMS
        for path in tracked(f"{room}/*.py")
        for line, text in docstrings(path)
        if QUESTION.match(text)
    ]
    assert found == []


def test_help_fits_a_terminal_of_80_columns() -> None:
    def check(command: typer.core.TyperGroup, context: typer.Context) -> None:
        text = command.get_help(context)
        assert max(map(len, text.splitlines())) <= 80, context.command_path
        assert "..." not in text.partition("Commands:")[2], f"{context.command_path}: a first sentence is cut off"
        for name, child in getattr(command, "commands", {}).items():
            check(child, typer.Context(child, parent=context, info_name=name, terminal_width=80))

    root = typer.main.get_command(app)
    check(root, typer.Context(root, info_name="kvtrace", terminal_width=80))
