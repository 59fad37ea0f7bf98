"""Size of the page of a huge trace, time until it shows something, and frame times of zooming and panning.

    python -m bench.viewer [--events 5000000] [--split] [--keep FILE] [--frames 120]

The trace is that of bench/synthetic.py: synthetic, nobody ran it. The page is opened from disk in headless Chromium
with software rendering; first view is the time from the start of the navigation until what is in sight has been loaded
and drawn, frames are the page's own times between frames while each of them changes the window. Exit code 1 if a page
is larger than `--limit-mb` (not with --split), opens later than `--limit-open-s`, or draws fewer than `--limit-fps`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from kvtrace.viewer.page import make_folder, make_page
from tests.viewer.chromium import Chromium

sys.path.insert(0, str(Path(__file__).parent))  # modules of bench/ import each other by name
from synthetic import build

OTHER_EVENTS = 1_600_000
"""Rows that bench/queries.py makes beside block events."""

EVENT_TABLES = ("block_event", "step_request", "step_schedule", "step_update", "request_event", "prefix_lookup")

MOVES = {
    "zoom in and out": """i => {
        const whole = view.last - view.first;
        const share = Math.pow(10, -4 * (0.5 - 0.5 * Math.cos(i / {frames} * 2 * Math.PI)));
        kvtrace.show(middle - whole * share / 2, middle + whole * share / 2, false);
    }""",
    "pan, everything in sight": "i => pan(0.5, i)",
    "pan, a tenth": "i => pan(0.1, i)",
    "pan, a hundredth": "i => pan(0.01, i)",
    "pan, single steps": "i => pan(0.0005, i)",
}
MEASURE = """(async () => {{
    const view = kvtrace.view, middle = (view.first + view.last) / 2;
    const pan = (share, i) => {{
        const whole = view.last - view.first, width = whole * share;
        const at = view.first + width + i / {frames} * Math.min(width, whole - 2 * width);
        kvtrace.show(at, at + width, false);
    }};
    const move = {move};
    move(0);
    const rest = () => new Promise((done) => setTimeout(done, 150));
    for (let i = 0; i < 40; i++) {{ await rest(); if (document.documentElement.dataset.loading === 'false') break; }}
    return kvtrace.measureFrames({frames}, move);
}})()"""


def main() -> int:
    """Make the trace and the page, open it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--split", action="store_true", help="Write a folder instead of a file.")
    parser.add_argument("--keep", type=Path, help="Write the trace here and keep it, or use it if it is there.")
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--limit-mb", type=float, default=40)
    parser.add_argument("--limit-open-s", type=float, default=None, help="Default: 2, with --split 3.")
    parser.add_argument("--limit-fps", type=float, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        trace = options.keep or Path(temporary) / "trace.duckdb"
        if not trace.exists():
            build(trace, options.events - OTHER_EVENTS)
        with duckdb.connect(str(trace), read_only=True) as connection:
            rows = sum(connection.sql(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in EVENT_TABLES)
        started, target = time.perf_counter(), Path(temporary) / "page.html"
        if options.split:
            target = Path(temporary) / "page"
            size = make_folder([trace], target)
            target /= "index.html"
        else:
            size = make_page([trace], target, max_bytes=int(options.limit_mb * 1e6))
        wall = time.perf_counter() - started
        kind = " in a folder" if options.split else ""
        print(f"{rows:,} events; page {size / 1e6:.1f} MB{kind}, written in {wall:.0f} s")
        return measure(target, size, options)


def measure(page: Path, size: int, options: argparse.Namespace) -> int:
    """Open the page and print what it measures of itself; 1 if it is slower or larger than it may be."""
    limit_s = options.limit_open_s or (3 if options.split else 2)
    failed = not options.split and size > options.limit_mb * 1e6
    with Chromium(1280, 900) as browser:
        opened = []
        for _ in range(3):
            browser.open(page)
            opened.append(int(browser.evaluate("document.documentElement.dataset.readyMs")) / 1e3)
        failed |= statistics.median(opened) > limit_s
        print(f"first view after {statistics.median(opened):.2f} s (median of {', '.join(f'{s:.2f}' for s in opened)})")
        for name, move in MOVES.items():
            source = MEASURE.format(frames=options.frames, move=move.replace("{frames}", str(options.frames)))
            times = browser.evaluate(source)
            median, slow = statistics.median(times), sorted(times)[int(len(times) * 0.95)]
            failed |= 1000 / median < options.limit_fps
            print(f"{name:26} median {median:5.1f} ms ({1000 / median:.0f} fps), 95 of 100 within {slow:.1f} ms")
        if browser.console:
            print("the page complained:", *browser.console[:3])
            failed = True
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, Chromium without a GPU")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
