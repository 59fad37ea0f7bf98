"""Opens the recordings of examples/recordings: python examples/explore.py [FOLDER [NAME...]].

Each archive is unpacked and ingested in FOLDER (.explore), and written as page, report and findings. FOLDER/index.html
links them. An archive that has not changed since is not read again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import webbrowser
from html import escape
from pathlib import Path

import kvtrace

ARCHIVES = Path(__file__).parent / "recordings"
ENDING = ".tar.xz"
PROFILES = {"*.sqlite": "--nsight", "*.trace.json*": "--torch-trace"}
"""Profiles that lie in a run directory, and the option that ingests them."""

INDEX = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvtrace: recordings</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ background: light-dark(#fff, #14171b); color: light-dark(#1b1f24, #e6e9ed); }}
body {{ max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }}
a {{ color: light-dark(#0062a3, #6fc0f5); }}
pre {{ overflow-x: auto; font-size: 13px; border-left: 3px solid #0062a3; padding-left: 1rem; }}
</style>
<main><h1>Recordings</h1>
<p>The recordings that come with kvtrace, made by <code>make explore</code>.</p>
{}
</main>
</html>
"""


def run(*words: str | Path) -> str:
    """Run a kvtrace command; returns what it printed."""
    command = [sys.executable, "-m", "kvtrace", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"kvtrace {' '.join(map(str, words))} failed:\n{done.stderr}")
    return done.stdout


def build(archive: Path, folder: Path) -> None:
    """Unpack and ingest an archive's recording and write its page, report and findings, unless they are there."""
    made = f"{kvtrace.__version__} {hashlib.sha256(archive.read_bytes()).hexdigest()}"
    stamp = folder / "made"
    if stamp.exists() and stamp.read_text() == made:
        return
    shutil.rmtree(folder, ignore_errors=True)  # an earlier archive's recording would become a part of this one
    folder.mkdir(parents=True)
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    recording = next(folder.glob("*/manifest.json")).parent
    profiles = [
        word for form, option in PROFILES.items() for path in recording.glob(form) for word in (option, str(path))
    ]
    run("ingest", recording, *profiles)
    trace = recording / "trace.duckdb"
    run("view", trace, "-o", folder / "page.html")
    run("report", trace, "-o", folder / "report")
    (folder / "findings.txt").write_text(run("findings", trace))
    stamp.write_text(made)


def entry(name: str, folder: Path) -> str:
    """Return a recording's part of the index."""
    page, report = (f'<a href="{name}/{file}">{what} of {name}</a>' for file, what in SHOWN.items())
    findings = escape((folder / "findings.txt").read_text())
    return f'<h2>{escape(name)}</h2>\n<p>{page} · {report}</p>\n<pre tabindex="0">{findings}</pre>'


SHOWN = {"page.html": "Page", "report/report.html": "Report"}


def main() -> None:
    """Build all and open the index."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".explore")
    names = sys.argv[2:] or sorted(path.name.removesuffix(ENDING) for path in ARCHIVES.glob(f"*{ENDING}"))
    for name in names:
        build(ARCHIVES / f"{name}{ENDING}", target / name)
        print(*(target / name / file for file in (*SHOWN, "findings.txt")), sep="\n")
    index = target / "index.html"
    index.write_text(INDEX.format("\n".join(entry(name, target / name) for name in names)))
    print(index)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(index.resolve().as_uri())


if __name__ == "__main__":
    main()
