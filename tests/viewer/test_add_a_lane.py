"""docs/add-a-lane.md is true: who follows it sees the lane."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .chromium import Chromium
from .pages import text

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "viewer" / "web"


def follow(page: str, root: Path) -> list[str]:
    """Make the changes that the page's diffs show; the files changed."""
    changed = []
    for block in re.findall(r"^ *```diff\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE):
        first, *lines = [line.removeprefix("   ") for line in block.splitlines()]
        path = root / first.removeprefix("--- ")
        path.parent.mkdir(exist_ok=True)
        content = path.read_text() if path.exists() else ""
        for hunk in "\n".join(lines).split("@@\n")[1:]:
            before, after = (
                "\n".join(line[1:] for line in hunk.splitlines() if not line.startswith(sign)) for sign in "+-"
            )
            assert before in content, f"{first}: nowhere has it\n{before}"
            content = content.replace(before, after, 1) if before else after + "\n"
        path.write_text(content)
        changed.append(first.removeprefix("--- "))
    return changed


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the viewer, beside links to everything else of the package."""
    if not (WEB / "node_modules").exists():
        pytest.skip("viewer/web/node_modules is missing; make lint installs it")
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "viewer", root / "viewer", ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    (root / "viewer" / "web" / "node_modules").symlink_to(WEB / "node_modules")
    (root / "kvtrace").mkdir()
    for path in (ROOT / "kvtrace").iterdir():
        (root / "kvtrace" / path.name).symlink_to(root / "viewer" if path.name == "viewer" else path.resolve())
    return root


def test_who_follows_the_page_sees_the_lane(chromium: Chromium, checkout: Path, trace: Path) -> None:
    changed = follow((ROOT / "docs" / "add-a-lane.md").read_text(), checkout)
    assert changed == ["viewer/tables/lookups.py", "viewer/web/src/lanes/lookups/lane.ts"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}

    def run(*command: str, cwd: Path = checkout) -> str:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    contract = checkout / "viewer" / "web" / "src" / "data" / "contract.ts"
    contract.write_text(run(sys.executable, "-m", "kvtrace.viewer.contract"))
    run("npm", "run", "build", cwd=checkout / "viewer" / "web")
    page = checkout / "page.html"
    run(sys.executable, "-m", "kvtrace", "view", str(trace), "-o", str(page))
    chromium.open(page)
    assert text(chromium, "[data-lane=lookups] .gutter") == "Prefix lookups\nshare of the prompt\nfound on the GPU"
    drawn = chromium.evaluate("""(() => {
        const canvas = document.querySelector('[data-lane=lookups] canvas');
        const data = canvas.getContext('2d').getImageData(170, 0, canvas.width - 180, canvas.height).data;
        return new Set(new Uint32Array(data.buffer)).size;
    })()""")
    assert drawn > 2
    chromium.key("?", "?")
    assert "Prefix lookups" in text(chromium, "#help")
    assert chromium.console == []
    chromium.key("Escape")


def test_a_lane_that_reads_a_column_the_contract_lacks_does_not_build(checkout: Path) -> None:
    lane = checkout / "viewer" / "web" / "src" / "lanes" / "pins" / "lane.ts"
    good = lane.read_text()
    lane.write_text(good.replace('columns.num("end_ns")', 'columns.num("until_ns")'))
    done = subprocess.run(
        ["npm", "run", "check"], cwd=checkout / "viewer" / "web", capture_output=True, text=True, check=False
    )
    lane.write_text(good)
    assert "src/lanes/pins/lane.ts" in done.stdout
    assert '"until_ns"' in done.stdout
