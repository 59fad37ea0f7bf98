"""Puts an export in its place: whole or not at all, and over nothing that is not an export."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.permissions import make_usual

MANIFEST = "manifest.json"


@contextlib.contextmanager
def whole_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end; if anything goes wrong, nothing is left of it.

    Args:
        path: The name.
        force: Replace an earlier export.

    Raises:
        KvtraceError: there is something of that name, and with `force` something else than an export; or writing fails.
    """
    _check_folder(path, force=force)
    with failing_clearly(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part"))
        try:
            yield temporary
            make_usual(temporary)
            _swap(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def whole_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write, which gets its name at the end; if anything goes wrong, nothing is left of it.

    Raises:
        KvtraceError: there is something of that name, and with `force` something else than a file; or writing fails.
    """
    if path.is_dir():
        raise KvtraceError(f"{path} is a directory; expected the name of a file")
    if path.exists() and not force:
        raise KvtraceError(f"{path} exists; choose another name, or use --force to replace it")
    with failing_clearly(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            make_usual(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_manifest(path: Path, kind: str, facts: dict[str, Any]) -> None:
    """Write what an export holds: the last file of it."""
    text = json.dumps({"kvtrace_export": kind, "kvtrace_version": __version__, **facts}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def is_export(manifest: Path) -> bool:
    """A file is the manifest of an export."""
    try:
        return "kvtrace_export" in json.loads(manifest.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _check_folder(path: Path, *, force: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir() or path.is_symlink():
        raise KvtraceError(f"{path} exists and is no directory; choose another name")
    if not any(path.iterdir()):
        return
    if not force:
        raise KvtraceError(f"{path} exists; choose another name, or use --force to replace an earlier export")
    if not is_export(path / MANIFEST):
        raise KvtraceError(f"{path} holds other things than an export of kvtrace's; --force does not replace it")


def _swap(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which is set aside first and removed last."""
    if not path.exists():
        new.rename(path)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".old"))
    try:
        old = path.rename(aside / path.name)
        try:
            new.rename(path)
        except BaseException:
            old.rename(path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def failing_clearly(path: Path) -> Iterator[None]:
    """Say what could not be written."""
    try:
        yield
    except OSError as error:
        raise KvtraceError(f"cannot write {path}: {error.strerror or error}") from error
