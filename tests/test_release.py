"""Checks before a release (`release/check.py`), and the issue forms."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = ("pyproject.toml", "kvtrace/__init__.py", "CITATION.cff", "CHANGELOG.md")


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "release" / "check.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout of version 9.8.7 that can be tagged."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edit(tmp_path / "pyproject.toml", 'version = "', 'version = "9.8.7"  # ')
    edit(tmp_path / "kvtrace/__init__.py", '__version__ = "', '__version__ = "9.8.7"\n# "')
    edit(tmp_path / "CITATION.cff", "\nversion: ", "\ndate-released: 2031-02-03\nversion: 9.8.7\n# ")
    edit(tmp_path / "CHANGELOG.md", "\n## ", "\n## 9.8.7, 2031-02-03\n\n## ")
    (tmp_path / ".gitignore").write_text("/dist/\n")
    (tmp_path / "dist").mkdir()
    for ending in (".tar.gz", "-cp311-abi3-manylinux_2_17_x86_64.whl", "-cp311-abi3-manylinux_2_17_aarch64.whl"):
        (tmp_path / "dist" / f"kvtrace-9.8.7{ending}").write_text("")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "x")


def test_a_checkout_that_is_ready(ready: Path) -> None:
    done = check(ready)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["ready to be tagged; RELEASING.md says how to go on"])


@pytest.mark.parametrize("name", FILES[1:])
def test_a_file_of_another_version_is_named(ready: Path, name: str) -> None:
    edit(ready / name, "9.8.7", "9.8.6")
    commit(ready)
    done = check(ready)
    assert done.returncode == 1
    assert f"{name} has version 9.8.6, pyproject.toml has 9.8.7" in done.stdout


def test_what_is_not_committed_dated_or_built_and_a_version_that_has_a_tag(ready: Path) -> None:
    git(ready, "tag", "v9.8.7")
    edit(ready / "CHANGELOG.md", "2031-02-03", "unreleased")
    shutil.rmtree(ready / "dist")
    left = check(ready).stdout
    assert "no date in the heading of 9.8.7" in left
    assert "not clean: CHANGELOG.md" in left
    assert "a tag v9.8.7 already" in left
    assert "make dist" in left


def test_a_wheel_that_is_missing_is_named(ready: Path) -> None:
    [wheel] = (ready / "dist").glob("*aarch64.whl")
    wheel.unlink()
    assert check(ready).stdout.splitlines()[0] == (
        "left to do: dist/ has no manylinux_2_17_aarch64.whl of 9.8.7: make dist"
    )


def test_this_checkout_says_one_version() -> None:
    assert "has version" not in check(ROOT).stdout


@pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="PyYAML is not installed")
def test_issue_forms_ask_for_kvtrace_doctor() -> None:
    import yaml

    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    assert len({form["name"] for form in forms}) == len(forms) > 0
    for form in forms:
        fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
        assert len(fields) == sum(field["type"] != "markdown" for field in form["body"])
        assert "kvtrace doctor" in fields["doctor"]["attributes"]["label"]
