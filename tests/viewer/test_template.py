"""The built page is in the package, so that users need no Node; it has to be of these very sources."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import kvtrace.viewer
from kvtrace.viewer.page import TEMPLATE

WEB = Path(kvtrace.viewer.__file__).resolve().parent / "web"
ROOT_FILES = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")


def test_the_built_page_is_of_the_sources_in_the_repository() -> None:
    names = [*ROOT_FILES, *(path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*") if path.is_file())]
    wanted = hashlib.sha256()
    for name in sorted(names):
        wanted.update(name.encode() + b"\0" + (WEB / name).read_bytes() + b"\0")
    built = re.search('data-sources="([0-9a-f]{64})"', TEMPLATE.read_text())
    assert built
    assert built[1] == wanted.hexdigest(), "viewer/web changed after viewer/assets/page.html was built: make page"


def test_nothing_else_than_the_built_page_is_shipped() -> None:
    assert [path.name for path in TEMPLATE.parent.iterdir()] == ["page.html"]


def test_npm_ci_can_use_the_lock_file_with_any_registry() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    # npm ci refuses a lock file in which a dependency, even an optional one for another platform, has no entry.
    for place, facts in packages.items():
        wanted = {**facts.get("dependencies", {}), **facts.get("optionalDependencies", {})}
        for name in [*wanted, *(facts.get("devDependencies", {}) if not place else {})]:
            assert f"{place}/node_modules/{name}" in packages or f"node_modules/{name}" in packages, (place, name)
    # Files come from the registry that is set up, checked by their hashes.
    assert all("resolved" not in facts for facts in packages.values())
    assert all(facts["integrity"].startswith("sha512-") for place, facts in packages.items() if place)
