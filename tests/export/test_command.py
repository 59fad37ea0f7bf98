"""`kvtrace export` as users type it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import STEPS


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace", "export", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_says_what_it_wrote(trace: Path, tmp_path: Path) -> None:
    done = run(trace, "--perfetto", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "000.perfetto-trace" in done.stdout
    assert f"gpu_kernel{5 * STEPS:>23,}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "exactly one"),
        (("--csv", "a", "--otlp", "b"), "exactly one"),
        (("--otlp", "b", "--views"), "--views"),
        (("--csv", "a", "--run-id", "b"), "--run-id"),
    ],
)
def test_what_does_not_go_together_is_refused(trace: Path, arguments: tuple[str, ...], complaint: str) -> None:
    done = run(trace, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_parquet_is_not_mixed_with_an_export_of_another_kind(trace: Path, tmp_path: Path) -> None:
    assert run(trace, "--csv", tmp_path / "out").returncode == 0
    before = sorted(tmp_path.rglob("*"))
    done = run(trace, "--parquet", tmp_path / "out", "--force")
    assert done.returncode == 1
    assert "holds an export of another kind" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_without_perfettos_schema_it_says_what_to_install(trace: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['perfetto'] = None; from kvtrace.cli.main import main; "
        f"sys.argv = ['kvtrace', 'export', {str(trace)!r}, '--perfetto', {str(tmp_path / 'out')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "kvtrace[export]" in done.stderr
    assert not (tmp_path / "out").exists()
