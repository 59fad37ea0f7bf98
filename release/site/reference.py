"""Writes the generated pages of queries, command line and Python: python release/site/reference.py [FOLDER].

FOLDER is docs unless given. Tables and columns are written by `kvtrace.ingest.reference`; `make docs` runs both.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import click
import typer

import kvtrace
from kvtrace import errors
from kvtrace.cli.main import app
from kvtrace.queries import Query, Trace, catalogue, grouped, plotting

PAGE = re.compile(r"docs/([\w-]+\.md)")
SECTIONS = ("Args", "Raises", "Returns", "Yields")

QUERIES = """\
# Queries

Generated from the headers of `queries/*.sql` by `make docs`; a test compares the two.

`kvtrace query NAME TRACE` answers one and `kvtrace query WORD WORD` finds one; in Python, `Trace.query(NAME)` does.
A column is *recorded* (copied from the trace), *derived* (computed from recorded values) or *inferred* (guessed by a
rule). Queries marked with ▨ have a plot (`--plot FILE`). [Add a query](add-a-query.md) says how to add one.

| query | question |
|---|---|"""

COMMANDS = """\
# Command line

Generated from the commands by `make docs`; a test compares the two. `kvtrace COMMAND --help` prints the same.

Errors are one line on stderr. Exit codes are 0, 1 for an error, 2 for a wrong command line or for what cannot be
replayed, and those of [gates](report.md#gates). `kvtrace record` ends with the exit code of its command.

| command | does |
|---|---|"""

PYTHON = """\
# Python

Generated from docstrings by `make docs`; a test compares the two. Other modules may change between versions.

```python
import kvtrace

with kvtrace.open("run/trace.duckdb") as trace:
    latency = trace.query("request-latency")  # pandas
    reuse = trace.query("reuse", format="polars")
    steps = trace.sql("SELECT step, scheduled_tokens, duration_ns FROM step", format="arrow")
    blocks = trace.sql("SELECT * FROM kv_access WHERE step = 200")  # which layer read which block, when
    trace.plot("step-timeline", last_step=200).savefig("steps.pdf")
```

`pip install 'kvtrace[analysis]'` brings what this needs, `kvtrace[polars]` polars. [Queries](queries.md) has names,
parameters and columns; [events and tables](events.md) has what SQL can ask.
"""


def queries_page() -> str:
    """All canned queries by group, with their parameters and columns."""
    groups = grouped(catalogue().values())
    return "\n".join(
        [
            QUERIES,
            *(
                f"| [`{query.name}`](#{query.name}){mark(query)} | {cell(query.title)} |"
                for members in groups.values()
                for query in members
            ),
            "",
            *(line for group, members in groups.items() for line in (f"## {group}\n", *map(one_query, members))),
        ]
    )


def mark(query: Query) -> str:
    """Return the mark of a query that has a plot."""
    return " ▨" if query.name in plotting.plotted() else ""


def one_query(query: Query) -> str:
    """Return a query's section."""
    lines = [f"### {query.name}\n", f"**{query.title}**\n", PAGE.sub(r"[\1](\1)", f"{query.description}\n")]
    if query.needs:
        lines.append(f"Needs: {', '.join(f'[`{name}`](events.md#{name})' for name in query.needs)}.\n")
    if query.figures:
        lines.append(f"Redraws: {'; '.join(query.figures)}.\n")
    if query.params:
        lines += ["| parameter | type | default | meaning |", "|---|---|---|---|"]
        for each in query.params:
            default = "must be given" if each.required else each.default or "NULL"
            lines.append(f"| `{each.name}` | {each.type} | {cell(default)} | {cell(each.meaning)} |")
        lines.append("")
    lines += ["| column | unit | source | meaning |", "|---|---|---|---|"]
    lines += [f"| {each.name} | {each.unit or ''} | {each.source} | {cell(each.meaning)} |" for each in query.columns]
    return "\n".join([*lines, ""])


def cell(text: str) -> str:
    """Return text as it can stand in a table's cell."""
    return text.replace("|", "\\|")


def command_page() -> str:
    """Every subcommand with its arguments and options."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="kvtrace")
    return "\n".join(
        [
            COMMANDS,
            *(
                f"| [`{each.command_path}`](#{anchor(each.command_path)}) | {cell(short(each.command))} |"
                for each in leaves(root, context)
            ),
            "",
            *map(one_command, leaves(root, context)),
        ]
    )


def leaves(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of all commands that do something."""
    children = getattr(command, "commands", None)
    if children is None:
        yield context
        return
    for name, child in children.items():
        yield from leaves(child, typer.Context(child, parent=context, info_name=name))


def anchor(title: str) -> str:
    """Return a heading's anchor."""
    return title.replace(" ", "-")


def short(command: click.Command) -> str:
    """Return a command's first sentence."""
    return (command.help or "").partition("\n")[0]


def one_command(context: click.Context) -> str:
    """Return a command's section."""
    command = context.command
    lines = [f"## {context.command_path}\n", f"{inspect.cleandoc(command.help or '')}\n"]
    usage = " ".join(command.collect_usage_pieces(context))
    lines.append(f"    {context.command_path} {usage}\n")
    rows = [row for each in command.get_params(context) if (row := parameter(each, context))]
    return "\n".join([*lines, *([("| parameter | meaning |\n|---|---|"), *rows] if rows else []), ""])


def parameter(each: click.Parameter, context: click.Context) -> str:
    """Return a parameter's row; nothing for `--help`."""
    if "--help" in each.opts:
        return ""
    record = each.get_help_record(context)
    if record is None:
        return ""
    name, meaning = record
    name = re.sub(r"\s+<.*>$", "", name)
    return f"| `{cell(name)}` | {cell(' '.join(meaning.split()))} |"


def python_page() -> str:
    """The public Python interface."""
    members = [member for name, member in vars(Trace).items() if not name.startswith("_") and documented(member)]
    return "\n".join(
        [
            PYTHON,
            *function("kvtrace.open", kvtrace.open),
            "## kvtrace.Trace\n",
            *described(Trace),
            *(line for member in members for line in function(f"Trace.{name_of(member)}", member, level=3)),
            "## kvtrace.errors.KvtraceError\n",
            *described(errors.KvtraceError),
            *module_functions(plotting, ("plotted", "save")),
        ]
    )


def documented(member: object) -> bool:
    """Return whether a member of a class is for users."""
    return bool(inspect.getdoc(member)) and (callable(member) or hasattr(member, "func"))


def name_of(member: object) -> str:
    """Return the name of a function or cached property."""
    return str(getattr(member, "__name__", None) or member.func.__name__)  # type: ignore[attr-defined]


def module_functions(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    """Yield the sections of a module's functions."""
    for name in names:
        yield from function(f"{module.__name__}.{name}", getattr(module, name))


def function(name: str, found: object, level: int = 2) -> Iterator[str]:
    """Yield a function's section: its signature and docstring."""
    yield f"{'#' * level} {name}\n"
    if callable(found):
        signature = re.sub(r"\(self(?:, /)?(?:, )?", "(", str(inspect.signature(found)))
        yield f"    {name}{signature.replace(chr(39), '')}\n"
    yield from described(found)


def described(found: object) -> Iterator[str]:
    """Yield a docstring as Markdown; its sections become lists."""
    listing = False
    for line in (inspect.getdoc(found) or "").splitlines():
        if line.removesuffix(":") in SECTIONS and line.endswith(":"):
            yield f"{line}\n"
            listing = True
        elif listing and re.match(r"    \S", line):
            head, _, rest = line.strip().partition(": ")
            yield f"- `{head}`: {rest}"
        else:
            yield line.strip() if listing and line else line
    yield ""


PAGES = {"queries.md": queries_page, "command-line.md": command_page, "python.md": python_page}


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    for name, page in PAGES.items():
        text = re.sub(r"\n{3,}", "\n\n", page()).rstrip() + "\n"
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
