"""The documentation site: it opens from disk and fetches nothing; the recordings that come with kvtrace."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

from tests.viewer.chromium import Chromium

from .conftest import show
from .console import ROOT

LARGEST_BYTES = 2_000_000


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|link(?! rel="canonical"))\b[^>]*?\b(?:src|href)=["'](https?:[^"']*)""")
    assert {url for page in site.rglob("*.html") for url in loads.findall(page.read_text())} == set()


def test_the_sites_search_works_from_disk(site: Path, chromium: Chromium) -> None:
    show(chromium, site / "misses.html")
    chromium.wait("typeof __index !== 'undefined'")
    chromium.evaluate("document.querySelector('.md-search__input').focus()")
    for letter in "preemption":
        chromium.key(letter, letter)
    chromium.wait("document.querySelectorAll('.md-search-result__item').length > 0")
    assert "Events and tables" in chromium.texts(".md-search-result__item h1")
    assert (chromium.console, [url for url in chromium.requests if url.startswith("http")]) == ([], [])


def test_an_explored_recording_has_a_page_a_report_and_findings(explored: Path) -> None:
    assert "30% of the prompt tokens came from the prefix cache" in (explored / "index.html").read_text()
    links = re.findall(r'href="([^"]*)"', (explored / "index.html").read_text())
    assert links == ["agents-clock/page.html", "agents-clock/report/report.html"]


def test_every_recording_is_small_described_and_tells_nothing_of_the_machine() -> None:
    described = (ROOT / "examples/recordings/README.md").read_text()
    place = re.compile(rb"/(?:home|root|work|mnt|workspace|usr/local)/[^\"]*|" + re.escape(sys.prefix.encode()))
    for path in (ROOT / "examples/recordings").glob("*.tar.xz"):
        assert f"| `{path.name.removesuffix('.tar.xz')}` |" in described
        assert path.stat().st_size < LARGEST_BYTES
        with tarfile.open(path) as archive:
            members = {
                each.name: archive.extractfile(each) for each in archive if each.name.endswith((".json", ".jsonl"))
            }
            found = {name: place.findall(file.read()) for name, file in members.items() if file}
        assert {name: places for name, places in found.items() if places} == {}
