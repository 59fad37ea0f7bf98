"""Puts the page together: the built template and the data, in one file or in a folder, to be opened from disk.

The template, `assets/page.html`, is built from `viewer/web`; its Content-Security-Policy allows its own script and
style and nothing else. A folder's chunks are scripts beside the page, because a page from disk may not fetch its
neighbours.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.pages import is_page
from kvtrace.permissions import make_usual
from kvtrace.viewer.chunks import MemorySink, WriterSink
from kvtrace.viewer.export import Document, contents, export_run

TEMPLATE = Path(__file__).parent / "assets" / "page.html"
DATA = "data"
"""A split page's folder of chunks."""

_HEAD_BYTES = 32_000
"""Room for facts, notes and findings in the table of contents."""

_CONTENTS = "contents"
_MARK = "<!--kvtrace:data-->"
_FROM_BESIDE = "script-src 'self' file: "
_CHUNK = '<script type="application/octet-stream" id="{}">{}</script>\n'


def make_page(traces: Sequence[Path], path: Path, *, max_bytes: int, force: bool = False) -> int:
    """Write one file that shows the traces; returns its size in bytes.

    Args:
        traces: One trace, or several to compare.
        path: The file.
        max_bytes: What finds no room in a page of that size is left out, and the page says so.
        force: Replace a file that is not a page of kvtrace's.

    Raises:
        KvtraceError: a trace cannot be read, or the file cannot be written.
    """
    _refuse(path, force=force)
    sink = MemorySink(max_bytes - len(_template()) - _HEAD_BYTES)
    document = _document(traces, sink)
    return write(render(document, sink.chunks), path, force=force)


def make_folder(traces: Sequence[Path], path: Path, *, force: bool = False) -> int:
    """Write a folder with `index.html` and the chunks it loads as they are needed; returns the bytes written.

    Raises:
        KvtraceError: as `make_page`; and if the folder exists and is not such a folder.
    """
    if path.exists() and not force and not is_page(path / "index.html"):
        raise KvtraceError(f"{path}: exists and is not a folder of a kvtrace page; choose another or use --force")
    written = 0

    def keep(name: str, text: str) -> None:
        nonlocal written
        written += (temporary / DATA / f"{name}.js").write_text(f'kvtraceChunk("{name}","{text}")')

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part"))
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        (temporary / DATA).mkdir()
        page = render(_document(traces, WriterSink(keep)), {}, split=True)
        (temporary / "index.html").write_text(page, encoding="utf-8")
        make_usual(temporary)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written + len(page.encode())


def _document(traces: Sequence[Path], sink: MemorySink | WriterSink) -> Document:
    names = _names(traces)
    runs = [export_run(trace, sink, names[number], number) for number, trace in enumerate(traces)]
    return contents(runs, version=__version__)


def _names(traces: Sequence[Path]) -> list[str]:
    """The traces' own names if they differ, else those of their folders."""
    stems = [trace.stem for trace in traces]
    return stems if len(set(stems)) == len(stems) else [trace.resolve().parent.name for trace in traces]


def render(document: Document, chunks: Mapping[str, str], *, split: bool = False) -> str:
    """The whole page. Nothing of a trace is in it but as base64."""
    packed = gzip.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), 6, mtime=0)
    head, tail = _template().split(_MARK)
    if split:
        head = head.replace("script-src ", _FROM_BESIDE, 1)
    data = [_CHUNK.format(_CONTENTS, base64.b64encode(packed).decode())]
    data += [_CHUNK.format(name, text) for name, text in chunks.items()]
    return "".join([head, *data, tail])


def read_contents(page: str) -> Document:
    """The table of contents of a page."""
    text = page.split(f'id="{_CONTENTS}">', 1)[1].split("</script>", 1)[0]
    document: Any = json.loads(gzip.decompress(base64.b64decode(text)))
    return dict(document)


def _template() -> str:
    return TEMPLATE.read_text(encoding="utf-8")


def write(page: str, path: Path, *, force: bool = False) -> int:
    """Write a page beside its name and rename it into place; returns its size in bytes.

    Raises:
        KvtraceError: the file exists and is not a page of kvtrace's (`force` replaces it), or cannot be written.
    """
    _refuse(path, force=force)
    data = page.encode()
    try:
        _replace(path, data)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return len(data)


def _refuse(path: Path, *, force: bool) -> None:
    if path.exists() and not force and not is_page(path):
        raise KvtraceError(
            f"{path}: exists and is not a kvtrace page; choose another name or use --force to replace it"
        )


def _cannot_write(path: Path, error: OSError) -> KvtraceError:
    return KvtraceError(f"{path}: cannot be written: {error.strerror or error}; choose another place with -o")


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        make_usual(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
