"""Puts the page together: template, style, script and data in one file that opens from disk."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.viewer.encode import Document, encode

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("format", "data", "view", "lanes", "gantt", "inspector", "summary", "input", "main")
_GENERATOR = b'<meta name="generator" content="kvtrace">'
_HEAD_BYTES = 4096


def render(document: Document) -> str:
    """The whole page. Nothing of the document is in it but as base64."""
    style = _asset("page.css")
    modules = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{modules}\n}})();\n'
    page = _asset("page.html")
    for mark, text in {
        "CSP": _policy(style, script),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": encode(document),
    }.items():
        page = page.replace(f"@{mark}@", text, 1)
    return page


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Only this very style and script; no request of any kind."""
    return (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write(page: str, path: Path, *, force: bool = False) -> int:
    """Write a page beside its name and rename it into place; returns its size in bytes.

    Raises:
        KvtraceError: the file exists and is not a page of kvtrace's (`force` replaces it), or cannot be written.
    """
    if path.exists() and not force and not is_page(path):
        raise KvtraceError(
            f"{path}: exists and is not a kvtrace page; choose another name or use --force to replace it"
        )
    data = page.encode()
    try:
        _replace(path, data)
    except OSError as error:
        raise KvtraceError(
            f"{path}: cannot be written: {error.strerror or error}; choose another place with -o"
        ) from error
    return len(data)


def is_page(path: Path) -> bool:
    """Whether a file is a page that kvtrace made, and so can be made again."""
    try:
        with path.open("rb") as file:
            return _GENERATOR in file.read(_HEAD_BYTES)
    except OSError:
        return False


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
