"""Finds the importers: each module or folder of this package with a declaration `IMPORTER`.

    python -m kvtrace.ingest.importers.registry docs/importers.md    # writes the page's table anew

The command line reads the declarations each time it starts, so modules of this package import nothing heavy.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.ingest import importers
from kvtrace.ingest.importers.importer import Importer
from kvtrace.ingest.importers.lines import read_head

_SECTION = re.compile(r"(?<=<!-- importers -->\n).*?(?=<!-- end -->)", re.DOTALL)


@cache
def all_importers() -> dict[str, Importer]:
    """Every importer by its kind."""
    names = [module.name for module in pkgutil.iter_modules(importers.__path__)]
    modules = [importlib.import_module(f"{importers.__name__}.{name}") for name in sorted(names) if name != "registry"]
    found = [module.IMPORTER for module in modules if hasattr(module, "IMPORTER")]
    return {importer.kind: importer for importer in found}


def recognise(path: Path) -> Importer:
    """The importer of a file, by its content.

    Raises:
        KvtraceError: It cannot be read, or not exactly one importer takes it.
    """
    head = read_head(path)
    found = [importer for importer in all_importers().values() if importer.recognises(path, head)]
    if not found and head[8:12] == b"DUCK":  # DuckDB's magic
        raise KvtraceError(
            f"{path} is a DuckDB file, such as a trace that is made already; ingest makes them of recordings"
        )
    if len(found) != 1:
        options = ", ".join(each.option for each in found or all_importers().values())
        what = "could be several kinds of file" if found else "is a file, not a run directory, and of no known kind"
        raise KvtraceError(f"{path} {what}; if one of these options is of its kind, give it: {options}")
    return found[0]


def table() -> str:
    """The table of docs/importers.md."""
    rows = [f"| `{each.option}` | {each.help} | {each.says} | {each.lacks} |" for each in all_importers().values()]
    return "\n".join(["", "| option | takes | tells | cannot tell |", "|---|---|---|---|", *rows, "", ""])


def with_table(page: str) -> str:
    """A page with its table of importers written anew."""
    return _SECTION.sub(lambda _: table(), page)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_table(page.read_text()))
