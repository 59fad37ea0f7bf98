"""The documentation site and an explored recording, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.viewer.chromium import Chromium

from .console import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every link checked."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make explore` makes of one recording."""
    folder = tmp_path_factory.mktemp("explore")
    command = [sys.executable, "examples/explore.py", str(folder), "agents-clock"]
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(Path(line).is_file() for line in done.stdout.splitlines())
    return folder


def show(browser: Chromium, page: Path) -> None:
    """Open a page that does not say when it is ready."""
    browser.console.clear()
    browser.requests.clear()
    browser.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait("document.readyState === 'complete'")
