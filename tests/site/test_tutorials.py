"""The tutorials: every command runs, in order, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .console import PAGES, declared, lacks, masked, prepare, run, steps


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorials_commands_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    page = path.read_text()
    if why := lacks(page):
        pytest.skip(why)
    shown, varying = steps(page), declared(page, "varies:")
    printed = run(page, prepare(tmp_path / "kvtrace"))
    for step, output in zip(shown, printed, strict=True):
        assert masked(output, varying) == masked(step.output, varying), (
            f"{step.command}\n{output}\n`make tutorials` writes it anew"
        )
