"""The notebooks run, and show what they are saved with."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from .notebooks import NOTEBOOKS, execute, texts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_is_saved_with(path: Path, tmp_path: Path) -> None:
    saved = nbformat.read(path, as_version=4)
    assert texts(execute(path, tmp_path / "examples")) == texts(saved), "`make tutorials` writes it anew"
