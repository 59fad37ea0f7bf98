from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path

import duckdb
import pytest

from kvtrace.cli.main import main
from kvtrace.viewer.page import read_contents

from .exported import Exported


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Runner:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["kvtrace", "view", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Outcome(code, *self.capsys.readouterr())


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


@pytest.fixture
def copy(trace: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(trace, tmp_path / "run.duckdb"))


def test_the_page_lies_beside_the_trace_and_holds_its_document(view: Runner, copy: Path) -> None:
    outcome = view(copy)
    page = copy.with_suffix(".html")
    assert outcome.code == 0
    assert outcome.out.split() == [str(page), f"{page.stat().st_size / 1e6:.2f}", "MB"]
    assert read_contents(page.read_text())["runs"] == [json.loads(json.dumps(Exported(copy).run))]
    assert list(copy.parent.glob(".*")) == []
    assert stat.S_IMODE(page.stat().st_mode) & 0o444 == 0o444


def test_a_page_is_made_again_over_an_old_one(view: Runner, copy: Path) -> None:
    assert (view(copy).code, view(copy).code) == (0, 0)


def test_a_foreign_file_is_replaced_only_by_force(view: Runner, copy: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.html"
    notes.write_text("mine")
    outcome = view(copy, "-o", notes)
    assert (outcome.code, notes.read_text()) == (1, "mine")
    assert "--force" in outcome.err
    assert view(copy, "-o", notes, "--force").code == 0


def test_the_trace_itself_is_never_overwritten(view: Runner, copy: Path) -> None:
    before = copy.read_bytes()
    assert view(copy, "-o", copy, "--force").code == 1
    assert copy.read_bytes() == before


def test_a_missing_trace_is_named(view: Runner, tmp_path: Path) -> None:
    outcome = view(tmp_path / "none.duckdb")
    assert outcome.code == 1
    assert "none.duckdb" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"not a database\n" * 1000])
def test_a_file_that_is_no_database_is_named(view: Runner, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.duckdb"
    path.write_bytes(content)
    outcome = view(path)
    assert outcome.code == 1
    assert "text.duckdb" in outcome.err
    assert path.read_bytes() == content


def test_a_database_that_is_no_trace_is_named(view: Runner, tmp_path: Path) -> None:
    path = tmp_path / "other.duckdb"
    duckdb.connect(str(path)).execute("CREATE TABLE t (a INT)").close()
    outcome = view(path)
    assert outcome.code == 1
    assert "not a kvtrace trace" in outcome.err


@pytest.mark.parametrize("place", ["missing/page.html", "file/page.html", "."])
def test_a_place_that_cannot_be_written_is_named(view: Runner, copy: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    outcome = view(copy, "-o", tmp_path / place, "--force")
    assert outcome.code == 1
    assert str(tmp_path / place) in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_split_page_is_a_folder_that_is_made_again_and_never_replaces_another(
    view: Runner, copy: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        assert view(copy, "--split").code == 0
    folder = copy.with_suffix("")
    document = read_contents((folder / "index.html").read_text())
    names = {path.stem for path in (folder / "data").iterdir()}
    assert names == set(Exported(copy).chunks)
    assert document["runs"][0]["name"] == "run"
    assert "<script type=" not in (folder / "data" / "r0e0-steps-0.js").read_text()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    outcome = view(copy, "--split", "-o", mine)
    assert (outcome.code, (mine / "notes").read_text()) == (1, "mine")
    assert "--force" in outcome.err


def test_two_traces_are_compared_under_their_own_names(view: Runner, copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "run.duckdb"
    other.parent.mkdir()
    shutil.copy(copy, other)
    page = tmp_path / "both.html"
    assert view(copy, other, "-o", page).code == 0
    assert [run["name"] for run in read_contents(page.read_text())["runs"]] == [copy.parent.name, "other"]
