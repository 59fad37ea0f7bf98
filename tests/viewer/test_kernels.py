"""The kernel lane on a real profile: vLLM on an H200, nothing but an Nsight Systems export."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources

from .chromium import Chromium
from .pages import column, make_page, middle, row, rows, text, wait_for_text

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("KVTRACE_NSIGHT_DATA", ROOT.parent / "shared" / "data" / "nsight"))
EXPORT = DATA / "2025.3.2_h200-vllm-0.26-llama8b-graph-nodes.sqlite.xz"

pytestmark = pytest.mark.skipif(not EXPORT.exists(), reason=f"no {EXPORT.name} in {DATA}")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace of the profile alone, and its page."""
    folder = tmp_path_factory.mktemp("h200")
    packed = folder / "h200.sqlite"
    packed.write_bytes(lzma.decompress(EXPORT.read_bytes()))
    trace = ingest(None, folder / "h200.duckdb", sources=Sources(nsight=(packed,))).target
    return trace, make_page(trace)


def test_a_profile_alone_is_shown_and_says_what_is_missing(chromium: Chromium, profiled: tuple[Path, Path]) -> None:
    trace, page = profiled
    chromium.open(page)
    activities = column(trace, "SELECT count(*) FROM gpu_activity")[0]
    cards = text(chromium, "#cards")
    assert f"GPU activities\n{activities:,}" in cards
    assert "Prompt tokens" not in cards
    assert "No scheduler steps were recorded" in text(chromium, "body")
    missing = chromium.evaluate(
        "[...document.querySelectorAll('#lane-list input:disabled')].map((each) => each.dataset.name)"
    )
    assert {"queue", "pool", "map", "transfers", "pins"} <= set(missing)
    assert chromium.console == []


def test_kernels_gaps_and_streams_are_drawn_as_they_were(chromium: Chromium, profiled: tuple[Path, Path]) -> None:
    # GIVEN the longest attention kernel of the profile and 30 us around it
    trace, page = profiled
    origin = column(trace, "SELECT min(start_ns) FROM gpu_activity")[0]
    name, start, end, device, stream = row(
        trace,
        """SELECT short_name, start_ns, end_ns, device, stream FROM gpu_activity JOIN kernel_name USING (kernel_name_id)
        WHERE category = 'attention' ORDER BY end_ns - start_ns DESC LIMIT 1""",
    )
    low, high = start - 30_000, end + 30_000
    chromium.open(page, f"from={(low - origin) / 1e9:.9f}&to={(high - origin) / 1e9:.9f}")
    chromium.frame()
    # THEN each row is a stream, and a pixel is filled if and only if a kernel ran in its time
    drawn = chromium.evaluate("""(() => {
        const lane = kvtrace.lanes().find((each) => each.name === 'kernels'), canvas = lane.canvas;
        const tall = canvas.height / lane.streams.length, width = canvas.width - 180;
        return lane.streams.map((name, index) => {
            const line = canvas.getContext('2d').getImageData(168, Math.floor((index + 1) * tall) - 4, width, 1).data;
            return [name, Array.from({length: width}, (_, x) => line[4 * x + 3] === 255 && line[4 * x] + line[4 * x + 1]
                + line[4 * x + 2] < 680)];
        });
    })()""")
    view = chromium.evaluate("[kvtrace.view.from, kvtrace.view.to]")
    streams = {f"{device}/{stream}": [] for _, _, device, stream in running(trace, low, high)}
    for begin, stop, on, at in running(trace, low, high):
        streams[f"{on}/{at}"].append((begin - origin, stop - origin))
    assert [name for name, _ in drawn] == sorted(streams, key=lambda each: [int(part) for part in each.split("/")])
    for name_of_stream, filled in drawn:
        nanoseconds = (view[1] - view[0]) / len(filled)
        wrong = 0
        for x, is_filled in enumerate(filled):
            left, right = view[0] + x * nanoseconds, view[0] + (x + 1) * nanoseconds
            busy = sum(max(0, min(stop, right) - max(begin, left)) for begin, stop in streams[name_of_stream])
            # A pixel that was busy for a little of its time is filled only a little.
            if not busy or busy > nanoseconds / 4:
                wrong += is_filled != (busy > 0)
        assert wrong <= 0.02 * len(filled)
    # WHEN the kernel is clicked, THEN it is the one that ran there, with its stream and duration
    x, _ = middle(chromium, "kernels")
    index = [name for name, _ in drawn].index(f"{device}/{stream}")
    top, height = chromium.evaluate(
        "(() => { const box = document.querySelector('[data-lane=kernels]').getBoundingClientRect();"
        "return [box.top, box.height]; })()"
    )
    chromium.click(x, top + height * (index + 0.5) / len(drawn))
    facts = wait_for_text(chromium, "category\nattention")
    assert name in facts
    assert f"stream\n{stream}" in facts
    # The next one on any stream follows it.
    chromium.key(".", ".")
    following = rows(
        trace, f"SELECT start_ns FROM gpu_activity WHERE start_ns >= {start} ORDER BY 1, activity_id LIMIT 2"
    )
    chromium.wait(f"Math.abs(kvtrace.view.selection.span[0] - {following[1][0] - origin}) < 1000")
    assert chromium.console == []


def running(trace: Path, low: int, high: int) -> list[tuple[int, int, int, int]]:
    return rows(
        trace,
        f"SELECT start_ns, end_ns, device, stream FROM gpu_activity WHERE end_ns >= {low} AND start_ns <= {high}",
    )
