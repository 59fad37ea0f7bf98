"""Checks of a release, before it is tagged: python release/check.py [ROOT]. It changes nothing and uploads nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def versions(root: Path) -> dict[str, str]:
    """The version as each file says it; empty where a file does not."""
    return {
        "pyproject.toml": str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]),
        "kvtrace/__init__.py": find(root / "kvtrace/__init__.py", r'__version__ = "(.*)"'),
        "CITATION.cff": find(root / "CITATION.cff", r"version: (\S+)"),
        "CHANGELOG.md": find(root / "CHANGELOG.md", r"## (\S+?),.*"),
    }


def find(path: Path, line: str) -> str:
    """The group of the first line that matches; empty if none does."""
    match = re.search(f"^{line}$", path.read_text(), re.MULTILINE)
    return match[1] if match else ""


def problems(root: Path) -> Iterator[str]:
    """Say what is left to do."""
    said = versions(root)
    version = said["pyproject.toml"]
    for name, other in said.items():
        if other != version:
            yield f"{name} has version {other or 'none'}, pyproject.toml has {version}"
    date = find(root / "CHANGELOG.md", rf"## {re.escape(version)}, (\d{{4}}-\d\d-\d\d)")
    if not date:
        yield f"CHANGELOG.md has no date in the heading of {version}: ## {version}, YYYY-MM-DD"
    elif find(root / "CITATION.cff", r"date-released: '?([\d-]+)'?") != date:
        yield f"CITATION.cff has another date-released than CHANGELOG.md, which has {date}"
    if changed := git(root, "status", "--porcelain"):
        yield f"the tree is not clean: {', '.join(line[3:] for line in changed.splitlines())}"
    if git(root, "tag", "--list", f"v{version}"):
        yield f"there is a tag v{version} already"
    built = [path.name for path in (root / "dist").glob(f"kvtrace-{version}*")]
    for ending in (".tar.gz", *(f"manylinux_2_17_{processor}.whl" for processor in ("x86_64", "aarch64"))):
        if not any(name.endswith(ending) for name in built):
            yield f"dist/ has no {ending} of {version}: make dist"


def git(root: Path, *arguments: str) -> str:
    """The output of a git command in the checkout."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.rstrip()


def main(root: Path) -> int:
    """Print what is left to do; 1 if anything is."""
    left = list(problems(root))
    for problem in left:
        print(f"left to do: {problem}")
    print(f"{len(left)} left to do" if left else "ready to be tagged; RELEASING.md says how to go on")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
