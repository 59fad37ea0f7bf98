"""Runs the notebooks: python -m tests.site.notebooks writes their outputs anew."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from .console import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder that has the recordings beside it; returns it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    (folder / "notebooks").mkdir(parents=True)
    (folder / "recordings").symlink_to(ROOT / "examples" / "recordings")
    place = {"metadata": {"path": str(folder / "notebooks")}}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the cells show as text."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.data["text/plain"] if "data" in output else output.get("text", "") for output in shown]


if __name__ == "__main__":
    for each in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(each, Path(folder) / "examples"), each)
        print(each.name)
