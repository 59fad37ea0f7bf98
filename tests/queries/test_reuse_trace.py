"""Block references read from traces, and `kvtrace reuse` as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace
from kvtrace.queries.reuse import COLD, EngineReferences, lru_distances, read_references, sizing
from kvtrace.queries.reuse.plot import plot
from tests.traces import write_trace

from .conftest import MakeTrace

TWO_ENGINES = (Path(__file__).parent / "working-set" / "trace.sql").read_text()
ENGINE = "INSERT INTO engine (engine_id, block_size_tokens, blocks) VALUES (1, 16, 4);"
LOOKUPS = """
    INSERT INTO prefix_lookup
        (engine_id, time_ns, step, request, queried_tokens, local_hit_tokens, admitted, resumed, enabled) VALUES
"""
CHANGES = (
    "INSERT INTO block_event (engine_id, time_ns, step, block_id, op, ref_count, request, block_hash, pool) VALUES"
)


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace that the working set is tested on; its comments tell the story. Nobody writes to it."""
    return write_trace(tmp_path_factory.mktemp("two") / "trace.duckdb", TWO_ENGINES)


def read(path: Path) -> list[EngineReferences]:
    with Trace(path) as trace:
        return read_references(trace)


def reuse(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["reuse", *map(str, arguments)])


def test_references_are_lookups_and_stores_in_order(two_engines: Path) -> None:
    recorded, imported = read(two_engines)

    references = recorded.references
    assert references.key.tolist() == [99, 10, 11, 12, 11, 10, 10, 11, 10]
    assert np.bincount(references.event)[np.unique(references.event)].tolist() == [1, 3, 2, 1, 2]
    assert references.counted.nonzero()[0].tolist() == [4, 5, 6]
    assert references.uncached_lookups == 3 + 1, "request 1's A, B and C before they were stored, and E"
    assert (recorded.block_tokens, recorded.block_bytes, recorded.pool_blocks, recorded.recorded_hits) == (
        16,
        100,
        5,
        3,
    )

    assert imported.references.key.tolist() == [21, 20, 23, 21, 20]
    assert imported.references.counted.tolist() == [True, True, False, True, True]
    assert imported.references.uncached_lookups == 0
    assert (imported.block_bytes, imported.pool_blocks, imported.recorded_hits) == (None, None, None)


def test_the_query_computes_what_the_file_does_not_have(two_engines: Path) -> None:
    """Only the recorded engine has rows; those of its pool's size are those of `kvtrace reuse`."""
    with Trace(two_engines) as trace:
        assert trace.sql("FROM reuse_size", format="arrow").num_rows == 0
        assert trace.missing("reuse") == ()
        rows = trace.query("reuse", format="arrow").to_pylist()
        recorded, _ = read_references(trace)
    assert [(row["engine_id"], row["times"], row["size_blocks"]) for row in rows] == [
        (recorded.engine_id, times, size) for times, size in ((0.5, 2), (1, 5), (2, 10), (4, 20))
    ]
    frame = sizing([recorded], [2, 5, 10, 20])
    missed = dict(zip(frame.size_blocks, frame.lru_miss_ratio, strict=True))
    assert [1 - row["hit_rate"] for row in rows] == pytest.approx([missed[row["size_blocks"]] for row in rows])
    assert [row["recorded_hit_tokens"] for row in rows] == [None, 3 * 16, None, None]


def test_without_lookups_the_query_has_no_rows(make_trace: MakeTrace) -> None:
    with Trace(make_trace(ENGINE)) as trace:
        assert trace.missing("reuse") == ("reuse_size",)
        assert trace.query("reuse", format="arrow").num_rows == 0


def test_releases_make_recent_and_resets_forget(make_trace: MakeTrace) -> None:
    """Recency.

    GIVEN a prompt of blocks 10, 11 stored and released from its tail, a nameless block released, a reset
    WHEN 10 is looked up before and after it
    THEN the release decides how recent blocks are, and what was stored before the reset is another block.
    """
    lookups = "(1, 45, 2, 5, 17, 16, true, false, true), (1, 70, 3, 6, 17, 16, true, false, true);"
    changes = """
        (1, 10, 1, 1, 'cache', 1, 4, 10, 0), (1, 10, 1, 2, 'cache', 1, 4, 11, 0),
        (1, 20, 1, 2, 'free', 0, 4, NULL, 0), (1, 20, 1, 1, 'free', 0, 4, NULL, 0),
        (1, 30, 1, 2, 'evict', 0, 4, 11, 0), (1, 31, 1, 2, 'allocate', 1, 4, NULL, 0),
        (1, 40, 1, 2, 'free', 0, 4, NULL, 0),
        (1, 46, 2, 1, 'hit', 1, 5, NULL, 0),
        (1, 50, 2, -1, 'reset', 0, NULL, NULL, 0),
        (1, 60, 3, 1, 'cache', 1, 4, 10, 0),
        (1, 71, 3, 1, 'hit', 2, 6, NULL, 0);
    """
    (engine,) = read(make_trace(ENGINE + LOOKUPS + lookups + CHANGES + changes))

    keys = engine.references.key
    assert keys[:5].tolist() == [10, 11, 11, 10, 10]
    assert keys[5] == keys[6] != 10
    assert lru_distances(engine.references).tolist() == [COLD, COLD, 0, 1, 0, COLD, 0]
    assert engine.references.lookups == engine.recorded_hits == 2


def test_blocks_of_several_cache_groups_count_once(make_trace: MakeTrace) -> None:
    lookups = "(1, 45, 2, 5, 17, 16, true, false, true);"
    changes = """
        (1, 10, 1, 1, 'cache', 1, 4, 10, 0), (1, 10, 1, 2, 'cache', 1, 4, 10, 0),
        (1, 46, 2, 1, 'hit', 2, 5, NULL, 0), (1, 46, 2, 2, 'hit', 2, 5, NULL, 0);
    """
    (engine,) = read(make_trace(ENGINE + LOOKUPS + lookups + CHANGES + changes))

    assert engine.references.key.tolist() == [10, 10]
    assert engine.references.event.tolist()[0] != engine.references.event.tolist()[1]


def test_blocks_longer_than_a_hash_are_named_by_their_last_one(make_trace: MakeTrace) -> None:
    engine = "INSERT INTO engine (engine_id, block_size_tokens, hash_block_tokens) VALUES (1, 32, 16);"
    hashes = """
        INSERT INTO request_hash (engine_id, step, request, position, block_hash)
            SELECT 1, 1, 5, i, 70 + i FROM range(5) t(i);
    """
    path = make_trace(engine + LOOKUPS + "(1, 45, 1, 5, 82, 0, true, false, true);" + hashes)
    with Trace(path) as trace:
        rows = trace.sql("SELECT position, block_hash, counted FROM block_lookup ORDER BY ALL", format="arrow")

    assert [tuple(row.values()) for row in rows.to_pylist()] == [(0, 71, True), (1, 73, True)]


def test_sizes_misses_and_what_a_hit_rate_needs(two_engines: Path) -> None:
    frame = sizing(read(two_engines), sizes=[1, 2, 3], hit_rates=[0.4, 0.9])
    one = frame[frame.engine_id == 1].set_index("size_of")
    given = one.loc["given"]

    assert given.size_blocks.tolist() == [1, 2, 3]
    assert given.size_tokens.tolist() == [16, 32, 48]
    assert given.size_bytes.tolist() == [100, 200, 300]
    assert given.lru_miss_ratio.tolist() == pytest.approx([6 / 7, 5 / 7, 4 / 7])
    assert given.belady_miss_ratio.tolist() == pytest.approx([5 / 7, 4 / 7, 4 / 7])
    assert one.loc["pool", "lru_miss_ratio"] == one.loc["pool", "recorded_miss_ratio"] == pytest.approx(4 / 7)
    assert one.loc["0.4 hits, LRU", "size_blocks"] == 3
    assert one.loc["0.4 hits, Belady", "size_blocks"] == 2
    assert one.loc[["0.9 hits, LRU", "0.9 hits, Belady"], "size_blocks"].isna().all()

    other = frame[frame.engine_id == 2]
    assert other.lru_miss_ratio.tolist()[:3] == [0.75, 0.5, 0.5]
    assert other.size_bytes.isna().all()
    assert "pool" not in set(other.size_of)


def test_what_the_pool_lacks_in_bytes(two_engines: Path) -> None:
    frame = sizing(read(two_engines)[:1], sizes=[4, 9], block_bytes=1000)

    assert frame.beyond_pool_bytes.tolist() == [0, 0, 4000]
    assert frame.size_of.tolist() == ["given", "pool", "given"]


def test_spread_sizes_end_where_everything_fits(two_engines: Path) -> None:
    frame = sizing(read(two_engines))

    assert frame[frame.size_of == "everything"].size_blocks.tolist() == [4, 3]
    assert frame.groupby("engine_id").lru_miss_ratio.min().tolist() == pytest.approx([4 / 7, 1 / 2])


def test_plot_shows_both_curves_and_the_recorded_point(two_engines: Path) -> None:
    figure = plot(sizing(read(two_engines)))

    recorded, imported = figure.axes
    assert [line.get_label() for line in recorded.lines] == ["LRU", "Belady's bound", "recorded"]
    assert recorded.lines[2].get_xydata().tolist() == [[5, pytest.approx(4 / 7)]]
    assert [line.get_label() for line in imported.lines] == ["LRU", "Belady's bound"]
    assert "cache (blocks)" in imported.get_xlabel()


def test_command_writes_a_table_a_file_and_a_plot(two_engines: Path, tmp_path: Path) -> None:
    path = two_engines

    shown = reuse(path, "--sizes", "1,3", "--target-hit-rate", "0.9", "--plot", tmp_path / "curve.svg")
    written = reuse(path, "--sizes", "1,3", "-o", tmp_path / "curve.csv")
    listed = reuse(path, "--sizes", "1", "--block-bytes", "10", "-f", "json")

    assert shown.exit_code == written.exit_code == listed.exit_code == 0
    assert "0.857143" in shown.stdout
    assert "engine 1: no cache of any size has 0.9 hits, LRU" in shown.stderr
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["size_blocks"] for row in rows] == ["1", "3", "5", "1", "3"]
    assert rows[0]["lru_error"] == ""
    assert [row["size_bytes"] for row in json.loads(listed.stdout)] == [10, 50, 10]


def test_sampled_command_has_errors_where_the_sample_can_tell(make_trace: MakeTrace) -> None:
    hashes = """
        INSERT INTO engine (engine_id, block_size_tokens) VALUES (1, 16);
        INSERT INTO request (request, engine_id, prompt_tokens, arrival_ns)
            SELECT i, 1, 161, i FROM range(2000) t(i);
        INSERT INTO request_hash (engine_id, request, position, block_hash)
            SELECT 1, i, p, hash(hash(i) % 300, p) FROM range(2000) t(i), range(10) s(p);
    """
    path = make_trace(hashes)
    done = reuse(path, "--sizes", "50,1000,2500", "--sample", "0.5", "-f", "json")
    small, middle, large = json.loads(done.stdout)

    assert small["lru_miss_ratio"] is None, "below 32 blocks of the sample"
    exact = sizing(read(path), [1000, 2500])
    for row, (lru, belady) in zip(
        (middle, large), exact[["lru_miss_ratio", "belady_miss_ratio"]].to_numpy(), strict=True
    ):
        assert abs(row["lru_miss_ratio"] - lru) < 4 * row["lru_error"] + 0.005
        assert abs(row["belady_miss_ratio"] - belady) < 4 * row["belady_error"] + 0.005


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "1,x"], "numbers of blocks"),
        (["--sizes", "-5"], "numbers of blocks"),
        (["--sample", "0"], "share above 0"),
        (["--plot", "x.gif"], "png, svg, pdf"),
    ],
)
def test_wrong_options_say_what_is_expected(two_engines: Path, options: list[str], message: str) -> None:
    with pytest.raises(KvtraceError, match=message):
        CliRunner().invoke(app, ["reuse", str(two_engines), *options], catch_exceptions=False)


def test_a_trace_without_lookups_says_so(make_trace: MakeTrace) -> None:
    with pytest.raises(KvtraceError, match="no lookups of named blocks"):
        read(make_trace(ENGINE))
