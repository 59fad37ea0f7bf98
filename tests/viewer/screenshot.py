"""Takes the picture of a page: python -m tests.viewer.screenshot trace.html picture.png [--dark] [--fragment ...]."""

from __future__ import annotations

import argparse
from pathlib import Path

from .chromium import Chromium


def take(
    page: Path,
    picture: Path,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    fragment: str = "",
    keys: str = "",
) -> None:
    """Write what a browser of that size shows of a page as PNG.

    `fragment` is the page's address after `#`; `keys` are pressed one after the other before the picture is taken.
    """
    with Chromium(width, height, dark) as browser:
        browser.open(page, fragment)
        for key in keys:
            browser.key(key, key)
        browser.wait("document.documentElement.dataset.loading === 'false'")
        browser.evaluate("new Promise((done) => setTimeout(done, 300))")
        picture.write_bytes(browser.screenshot())
        if browser.console:
            raise SystemExit("the page complained: " + "; ".join(browser.console))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280, help="pixels")
    parser.add_argument("--height", type=int, default=900, help="pixels")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--fragment", default="", help="as in the page's address, e.g. request=ID&from=1&to=2")
    parser.add_argument("--keys", default="", help="keys to press first, e.g. p selects a preempted request")
    take(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
