"""UnBoxKV-IO's own data: the numbers that the IPDPS'25 study's Figures 4a, 6a, 6b and 11a show.

The data are not shipped: KVTRACE_UNBOXKV_DATA names their folder, else they are looked for beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace
from kvtrace.queries.plotting import find_plot

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("KVTRACE_UNBOXKV_DATA", ROOT.parent / "shared" / "data" / "unboxkv"))
LOG = "Yarn-Llama-2-7b-64k-fixed-p8191-g1-block16-r1-recmp-G95-pinned-1-thrpt"

pytestmark = pytest.mark.skipif(
    not any(DATA.glob("kv_*_pattern.json*")), reason=f"no data in {DATA}; KVTRACE_UNBOXKV_DATA names their folder"
)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return ingest(None, tmp_path_factory.mktemp("unboxkv") / "trace.duckdb", sources=Sources(unboxkv=(DATA,)))


@pytest.fixture(scope="module")
def trace(summary: Summary) -> Trace:
    return Trace(summary.target)


def test_everything_arrives(summary: Summary) -> None:
    tables = {(table.file.partition(".")[0], table.table): table.imported for table in summary.source_tables}
    assert tables["kv_write_pattern", "kv_write_pattern"] == 160
    assert tables["kv_read_pattern", "kv_read_pattern"] == 128
    assert tables["swap_Q4a_16k", "utilisation"] == tables["swap_step_Q4a_16k", "steps"] == 1134
    assert all(table.rows == table.imported for table in summary.source_tables)


class TestFigure6:
    def test_the_pool_and_its_blocks_are_found_in_the_data(self, trace: Trace) -> None:
        assert trace.sql("SELECT block_size_tokens, blocks FROM engine WHERE engine_id = 1").values.tolist() == [
            [16, 303]
        ]
        facts = dict(trace.sql("SELECT key, value FROM run").values.tolist())
        assert facts["unboxkv kv_pattern: block_bytes"].startswith("131072 ")
        prompts = trace.sql("SELECT prompt_tokens FROM request WHERE engine_id = 1 ORDER BY request").prompt_tokens
        assert prompts.tolist() == [16, 343, 16, 893]

    def test_6a_writes(self, trace: Trace) -> None:
        frame = trace.query("kv-write-pattern")
        assert frame["pass"].unique().tolist() == [1, 2, 3, 4, 5]
        assert (frame.pool_blocks.unique().tolist(), frame.block_id.max(), frame.block_id.min()) == ([303], 302, 220)
        prefill, decode = frame[frame["pass"] == 1], frame[frame["pass"] > 1]
        assert (set(prefill.phase), set(decode.phase)) == ({"prefill"}, {"decode"})
        assert sorted(prefill.block_id) == list(range(223, 303))  # 80 blocks, taken from the top
        assert prefill.groupby("request").tokens.sum().tolist() == [16, 343, 16, 893]
        assert prefill.groupby("request").block_id.max().tolist() == [302, 301, 279, 278]
        assert decode[decode["pass"] == 2].sort_values("request").block_id.tolist() == [222, 280, 221, 223]
        assert decode[decode["pass"] == 5].sort_values("request").block_id.tolist() == [222, 280, 221, 220]
        assert decode.tokens.tolist() == [1] * 16
        begins = frame.groupby("pass").pass_ms.first().round(1).tolist()
        assert begins == [0.0, 129.2, 155.8, 182.0, 208.2]

    def test_6b_reads(self, trace: Trace) -> None:
        for layer in (0, 31):
            frame = trace.query("kv-read-pattern", layer=layer)
            prefill, decode = frame[frame["pass"] == 1], frame[frame["pass"] > 1]
            assert prefill.block_id.isna().all()
            assert prefill.phase.tolist() == ["prefill"]
            assert decode.groupby("pass").block_id.nunique().tolist() == [82, 82, 82, 83]
            assert (decode.block_id.min(), decode.block_id.max()) == (220, 302)
            for _, warp in decode.groupby(["step", "program"]):
                assert warp.position.is_monotonic_increasing
                assert warp.position.is_unique
                assert warp.sort_values("k_start_ms").position.tolist() == warp.position.tolist()
                assert (warp.position.diff().dropna() == 4).all()  # four warps take blocks in turn
            known = decode.dropna(subset=["v_start_ms"])
            assert (known.v_start_ms > known.k_end_ms).all()  # V is read when the scores with all of K are there
            assert (known.groupby("request").v_start_ms.min() > known.groupby("request").k_end_ms.max()).all()

    def test_every_layer_reads_the_same_blocks(self, trace: Trace) -> None:
        [[layers, lists]] = trace.sql(
            "SELECT count(*), count(DISTINCT blocks) FROM (SELECT layer, list(read ORDER BY read) AS blocks FROM "
            "(SELECT layer, (step, request, block_id) AS read FROM kv_access WHERE kind = 'k_read') GROUP BY layer)"
        ).values.tolist()
        assert (layers, lists) == (32, 1)

    def test_reads_without_v_are_those_the_tool_had_no_room_for(self, summary: Summary, trace: Trace) -> None:
        """V is put at place 20 * warp + position of a list of 80: from position 23 on, warp 3's do not fit."""
        assert any("V is missing beside 1664 reads of K" in warning for warning in summary.warnings)
        lost = trace.sql("SELECT request, min(position) FROM kv_access WHERE end_ns IS NULL GROUP BY request")
        assert lost.values.tolist() == [[4, 23]]
        assert trace.sql("SELECT count(start_ns) AS n FROM kv_access WHERE end_ns IS NULL").n.tolist() == [0]


def test_11a_memory_over_time(trace: Trace) -> None:
    frame = trace.query("kv-memory-timeline")
    moments = {}
    for name in ("recmp_Q4a_16k", "swap_Q4a_16k"):
        run = frame[frame.name == name]
        evicted, resumed = run[run.preempted > 0], run[run.resumed > 0]
        assert (evicted.preempted.tolist(), resumed.resumed.tolist()) == ([1], [1])
        moments[name] = (evicted.start_s.iloc[0], resumed.start_s.iloc[0])
        before, after = run[run.time_s < evicted.time_s.iloc[0]], run[run.time_s >= evicted.time_s.iloc[0]]
        assert before.gpu_usage.iloc[0] == pytest.approx(0.951)
        assert before.gpu_usage.max() > 0.99
        assert after.gpu_usage.iloc[0] == pytest.approx(0.057)
        assert resumed.gpu_usage.iloc[0] == pytest.approx(0.943)
        held = run[(run.time_s >= evicted.time_s.iloc[0]) & (run.time_s < resumed.time_s.iloc[0])].host_usage
        assert held.unique().tolist() == pytest.approx([0.122 if name.startswith("swap") else 0.0])
    assert moments["recmp_Q4a_16k"] == (pytest.approx(15.37, abs=0.01), pytest.approx(24.76, abs=0.01))
    assert moments["swap_Q4a_16k"] == (pytest.approx(15.38, abs=0.01), pytest.approx(25.22, abs=0.01))
    for eviction, resume in moments.values():
        assert eviction == pytest.approx(15, abs=1)
        assert resume == pytest.approx(24.5, abs=1)


def test_11a_what_resuming_cost(trace: Trace) -> None:
    """Recomputing took one step of 1.2 s; swapping one of 471 ms out and one of 545 ms in."""
    steps = trace.sql(
        "SELECT name, duration_ns / 1e6 AS ms FROM step JOIN engine_source USING (engine_id) "
        "WHERE resumed_requests > 0 OR preempted_requests > 0 ORDER BY name, step"
    )
    assert steps.values.tolist() == [
        ["recmp_Q4a_16k", 14.7865], ["recmp_Q4a_16k", 1199.7104],
        ["swap_Q4a_16k", 471.3395], ["swap_Q4a_16k", 545.0006],
    ]  # fmt: skip


def test_4a_throughput_of_passes(trace: Trace) -> None:
    frame = trace.query("pass-throughput")
    runs = {name.removeprefix(LOG): run for name, run in frame.groupby("name") if name.startswith(LOG)}
    assert runs[""].reported_tokens_per_s.tolist() == pytest.approx([13741.8])
    assert (runs[""].batch_tokens.tolist(), runs[""].tokens_per_s.round(0).tolist()) == ([8191], [14433.0])
    assert runs["-chunked4096"].reported_tokens_per_s.tolist() == pytest.approx([90303.0, 5159.7])
    assert runs["-chunked1024"].reported_tokens_per_s.tolist() == pytest.approx(
        [23028.7, 11791.6, 11512.3, 10176.5, 8895.2, 7934.7, 7087.4, 3194.3]
    )
    assert runs["-chunked1024"].batch_tokens.tolist() == [1024] * 7 + [1023]
    assert frame[frame.name.isin([LOG + name for name in runs])].phase.unique().tolist() == ["prefill"]
    assert {name: set(run.batching) for name, run in runs.items()} == {
        "": {"default"}, "-chunked1024": {"chunked"}, "-chunked4096": {"chunked"},
    }  # fmt: skip
    assert runs["-chunked1024"].fill.tolist() == pytest.approx([1.0] * 7 + [1023 / 1024])
    warm = trace.query("pass-throughput", with_warmup=True)
    decode = warm[(warm.phase == "decode") & (warm.name == LOG)]
    assert len(decode) == 18
    assert decode.reported_tokens_per_s.median() == pytest.approx(68.6, abs=0.2)


@pytest.mark.parametrize(
    ("name", "axes"),
    [("kv-write-pattern", 5), ("kv-read-pattern", 10), ("kv-memory-timeline", 4), ("pass-throughput", 2)],
)
def test_each_figure_is_drawn(name: str, axes: int, trace: Trace) -> None:
    plot = find_plot(name)
    assert plot is not None
    figure = plot(trace.query(name))
    assert len(figure.axes) == axes


def test_6a_and_6b_show_five_passes_and_no_read_in_the_first(trace: Trace) -> None:
    figures = [find_plot(name)(trace.query(name)) for name in ("kv-write-pattern", "kv-read-pattern")]  # type: ignore[misc]
    for figure in figures:
        titles = [axes.get_title().partition("\n")[0] for axes in figure.axes[:5]]
        assert titles == ["F1 prefill", *(f"F{number} decode" for number in range(2, 6))]
    assert "0 to 302" in figures[0].axes[0].get_ylabel()
    assert [text.get_text() for text in figures[1].axes[0].texts] == ["no read"]


def test_other_queries_answer_from_the_same_trace(trace: Trace) -> None:
    lists = trace.query("tile-times")
    assert (lists.increasing == 1).all()
    phases = trace.query("kv-reads-writes").set_index("phase")
    assert phases.loc["prefill", "written_tokens"] == 1268
    assert phases.loc["decode", "read_blocks"] == 329
    fit = trace.query("step-regression").set_index(["engine_id", "composition"])
    assert pd.notna(fit.slope_us_per_token).any()
