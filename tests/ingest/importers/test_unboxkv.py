"""UnBoxKV-IO's patterns, CSVs and logs, as small files of the same make: what lands where, and what stays unknown."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.importers.unboxkv.log import prompt_tokens
from kvtrace.ingest.importers.unboxkv.pattern_file import Pattern, find_layout, read_patterns
from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources

from .unboxkv_files import STEPS, USAGE, USAGE_HEADER, Patterns, block_bytes, log_text, write_record

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def load(tmp_path: Path, query: Callable[[Path], Ask]) -> Callable[..., tuple[Summary, Ask]]:
    """Ingest files or folders of UnBoxKV-IO."""

    def loaded(*paths: Path, options: Options | None = None) -> tuple[Summary, Ask]:
        sources = Sources(unboxkv=paths, options=options or Options())
        summary = ingest(None, tmp_path / "trace.duckdb", sources=sources)
        return summary, query(summary.target)

    return loaded


@pytest.fixture
def patterns(tmp_path: Path) -> Patterns:
    """Prompts of 16, 40 and 5 tokens, three decodes: the first request begins a block in its first decode."""
    folder = tmp_path / "run"
    folder.mkdir()
    made = Patterns([16, 40, 5], 3)
    made.save(folder)
    return made


class TestPatterns:
    def test_steps_requests_and_block_tables(self, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        summary, ask = load(tmp_path / "run")
        assert not summary.warnings
        assert ask("SELECT block_size_tokens, blocks FROM engine") == [(16, 40)]
        assert ask("SELECT request, prompt_tokens, output_tokens FROM request ORDER BY ALL") == [
            (1, 16, 4), (2, 40, 4), (3, 5, 4),
        ]  # fmt: skip
        assert ask("SELECT step, prefill_tokens, decode_tokens FROM step_schedule ORDER BY step") == [
            (1, 61, 0), (2, 0, 3), (3, 0, 3), (4, 0, 3),
        ]  # fmt: skip
        assert ask("SELECT step, new_blocks FROM step_request WHERE request = 1 ORDER BY step") == [
            (1, 1), (2, 1), (3, 0), (4, 0),
        ]  # fmt: skip
        tables = ask("SELECT list(block_id ORDER BY position) FROM block_table GROUP BY request ORDER BY request")
        assert [table for (table,) in tables] == patterns.tables

    def test_every_access_is_there_with_its_request_block_and_time(
        self, patterns: Patterns, tmp_path: Path, load: Any
    ) -> None:
        _, ask = load(tmp_path / "run")
        kinds = dict(ask("SELECT kind::VARCHAR, count(*) FROM kv_access WHERE observed GROUP BY ALL"))
        blocks_read = 2 * 3 * sum(map(len, patterns.tables))
        assert kinds == {"k_read": blocks_read, "v_read": blocks_read, "k_write": 140, "v_write": 140}
        assert ask("SELECT count(*) FROM kv_access WHERE request IS NULL OR position IS NULL") == [(0,)]
        begun, middle = 1_002_001_000_000, patterns.tables[1][1]
        assert ask(
            f"SELECT kind::VARCHAR, start_ns - {begun}, end_ns - {begun} FROM kv_access "
            f"WHERE step = 2 AND layer = 1 AND block_id = {middle} AND kind IN ('k_read', 'v_read') ORDER BY ALL"
        ) == [("k_read", 5_000, 11_000), ("v_read", 100_000, 106_000)]
        assert ask("SELECT DISTINCT end_ns - start_ns FROM kv_access WHERE kind = 'v_write'") == [(7_000,)]

    def test_prefill_reads_nothing_and_lists_go_up(self, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        _, ask = load(tmp_path / "run")
        assert ask("SELECT programs, tiles, writes FROM tile_step WHERE step = 1") == [(0, 0, 122)]
        assert ask(
            "SELECT count(*) FROM (SELECT tile <= lag(tile) OVER list OR start_ns <= lag(start_ns) OVER list AS down "
            "FROM gpu_tile WINDOW list AS (PARTITION BY step, program ORDER BY tile)) WHERE down"
        ) == [(0,)]

    @pytest.mark.parametrize("kept", ["read", "write"])
    def test_one_of_the_two_files_is_enough(self, kept: str, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        """Reads alone know no places, so neither prompts nor the pool's size; blocks and their order they know."""
        _, ask = load(tmp_path / "run" / f"kv_{kept}_pattern.json")
        tables = ask("SELECT list(block_id ORDER BY position) FROM block_table GROUP BY request ORDER BY request")
        assert [table for (table,) in tables] == patterns.tables
        assert ask("SELECT count(*) > 0 FROM gpu_tile") == [(kept == "read",)]
        assert ask("SELECT count(*) > 0 FROM gpu_write") == [(kept == "write",)]
        assert ask("SELECT DISTINCT prompt_tokens FROM request ORDER BY ALL") == (
            [(5,), (16,), (40,)] if kept == "write" else [(None,)]
        )

    def test_lines_in_any_order_give_the_same_accesses(self, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        accesses = "SELECT * FROM kv_access ORDER BY ALL"
        before = load(tmp_path / "run")[1](accesses)
        for path in (tmp_path / "run").iterdir():
            path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
        assert load(tmp_path / "run")[1](accesses) == before

    def test_packed_files_and_two_runs_in_a_folder_stay_apart(self, tmp_path: Path, load: Any) -> None:
        folder = tmp_path / "runs"
        folder.mkdir()
        Patterns([16], 1).save(folder, "_a")
        for path in Patterns([8, 8], 1, block_tokens=32, width=128, element=1).save(folder, "_b"):
            path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
            path.unlink()
        _, ask = load(folder)
        assert ask(
            "SELECT name, block_size_tokens, (SELECT count(*) FROM request r WHERE r.engine_id = e.engine_id) "
            "FROM engine e JOIN engine_source USING (engine_id) ORDER BY name"
        ) == [("kv_pattern_a", 16, 1), ("kv_pattern_b", 32, 2)]
        assert ask("SELECT count(DISTINCT request) FROM request") == [(3,)]

    def test_v_lists_that_ran_over_are_put_right_or_left_open(self, tmp_path: Path, load: Any) -> None:
        """The kernel writes V of positions beyond a list into the next request's list, and beyond the last nowhere."""
        made = Patterns([16 * 14, 16 * 14], 1, entries=5)
        made.save(tmp_path)
        summary, ask = load(*tmp_path.glob("kv_*"))
        missing = ask("SELECT count(*) FROM gpu_tile WHERE v_ns IS NULL")[0][0]
        read = len(made.reads[0]["v_read_pattern_record"][1])
        assert 0 < missing < read
        assert any(f"V is missing beside {missing} reads of K" in warning for warning in summary.warnings)
        assert ask("SELECT bool_and(v_ns - start_ns = 101000) FROM gpu_tile WHERE v_ns IS NOT NULL") == [(True,)]

    def test_repeated_lines_are_counted_once(self, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        path = tmp_path / "run" / "kv_write_pattern.json"
        path.write_text(path.read_text() * 2)
        summary, ask = load(tmp_path / "run")
        assert ask("SELECT count(*) FROM gpu_write") == [(140,)]
        assert any("8 lines repeat" in warning for warning in summary.warnings)

    def test_what_was_assumed_is_said(self, patterns: Patterns, tmp_path: Path, load: Any) -> None:
        _, ask = load(tmp_path / "run", options=Options(tick_ns=149))
        said = ask("SELECT key, value FROM run WHERE key LIKE 'unboxkv %'")
        facts = {key.rpartition(": ")[2]: value for key, value in said}
        assert facts["tick_ns"] == "149 (given)"
        assert facts["block_bytes"].startswith("2048 of K")
        assert "found in the data" in facts["block_tokens"]
        assert ask("SELECT DISTINCT v_ns - start_ns FROM gpu_write") == [(7 * 149,)]

    def test_bytes_that_fit_no_block_ask_for_the_option(self, tmp_path: Path, load: Any) -> None:
        made = Patterns([16], 1)
        for line in made.writes:
            for row in line["kv_write_pattern_record"]:
                row[3] += 1
        paths = made.save(tmp_path)
        with pytest.raises(KvtraceError, match=r"kv_write_pattern.json, line 1: .*--block-bytes"):
            load(*paths)
        _, ask = load(*paths, options=Options(block_bytes=2048))
        assert ask("SELECT blocks FROM engine") == [(40,)]

    @given(
        block_tokens=st.sampled_from([1, 8, 16, 32, 128]),
        width=st.sampled_from([64, 128, 512, 4096]),
        element=st.sampled_from([1, 2, 4]),
        slots=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    )
    @settings(max_examples=60)
    def test_the_layout_is_found_whatever_it_is(
        self, block_tokens: int, width: int, element: int, slots: list[int]
    ) -> None:
        import numpy as np

        writes = np.array([write_record(slot, block_tokens, width, element) for slot in slots])
        size = block_bytes(block_tokens, width, element)
        found = find_layout(Pattern(0, 1, 0, (len(slots),), size * 1001, writes, None), None, None)
        assert found is not None
        assert (found.block_bytes, found.blocks) == (size, 1001)
        assert (found.blocks_of(writes) * found.block_tokens + found.places_of(writes)).tolist() == slots


class TestUsage:
    def test_samples_and_steps_are_paired(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "swap_Q4.csv").write_text(USAGE)
        (tmp_path / "swap_step_Q4.csv").write_text(STEPS)
        summary, ask = load(*tmp_path.glob("*.csv"))
        assert not summary.warnings
        assert ask("SELECT name, preemption_mode FROM engine_source") == [("swap_Q4", "swap")]
        assert ask(
            "SELECT step, time_ns / 1e6, interval_ns / 1e6, gpu_usage, host_usage, tokens_per_s FROM engine_sample "
            "WHERE step IN (1, 3)"
        ) == [(1, 100.0, 100.0, 0.95, 0.0, 1000.0), (3, 190.5, 50.5, 0.5, 0.122, 2.0)]
        assert ask(
            "SELECT step, start_ns / 1e6, duration_ns / 1e6, running, waiting, preempted_requests, resumed_requests "
            "FROM step ORDER BY step"
        ) == [
            (1, 10.0, 90.0, 2, 0, None, 0),
            (2, 100.5, 39.5, 2, 0, 0, 0),
            (3, 140.25, 50.25, 1, 1, 1, 0),
            (4, 191.0, 39.5, 1, 1, 0, 0),
            (5, 231.5, 99.0, 2, 0, 0, 1),
        ]
        assert ask("SELECT count(*) FROM step_schedule WHERE used_blocks IS NOT NULL") == [(0,)]  # no pool size given

    def test_other_columns_units_and_delimiters(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "u.csv").write_text(
            "CPU KV cache usage (%);Time elapsed (s);Avg prompt throughput (tokens/s);"
            "Avg generation throughput (tokens/s);Running (reqs);Swapped;Mood;GPU KV cache usage (%)\n"
            "0;1;387.7;0.8;4;0;good;15.0\n0.6;2;9274.9;;24;1;bad;90.1\n"
        )
        summary, ask = load(tmp_path / "u.csv")
        assert any("Mood" in warning for warning in summary.warnings)
        assert ask(
            "SELECT time_ns, tokens_per_s, prompt_tokens_per_s, output_tokens_per_s, swapped, waiting "
            "FROM engine_sample"
        ) == [(10**9, 388.5, 387.7, 0.8, 0, None), (2 * 10**9, None, 9274.9, None, 1, None)]

    def test_what_does_not_pair_stands_alone(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "a.csv").write_text(USAGE)
        (tmp_path / "a_step.csv").write_text("".join(STEPS.splitlines(keepends=True)[:4]))
        summary, ask = load(*tmp_path.glob("*.csv"))
        assert any("5 rows of statistics and 3 steps" in warning for warning in summary.warnings)
        assert ask("SELECT step, start_ns / 1e6 FROM step ORDER BY step") == [(1, 0.0), (2, 90.0), (3, 129.5)]
        assert ask("SELECT count(*) FROM engine_sample WHERE step IS NULL") == [(5,)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (USAGE_HEADER + "\n1,2\n3,4\n", f"line 2, byte {len(USAGE_HEADER) + 1}: 2 values, where the header has 7"),
            (USAGE_HEADER + "\n5,1,1,0,0,soon,0\n", "line 2, byte [0-9]+: 5, 1, 1, 0, 0, soon, 0: no number"),
            (USAGE_HEADER + "\n", "no row"),
            ("step_id,dur(ms)\n1,5\n1,6\n", "step 1 is there twice"),
            ("step_id,dur(ms)\n1,x\n", "line 2, byte 16: 1, x: a value is no number"),
        ],
    )
    def test_a_wrong_row_is_named(self, text: str, message: str, tmp_path: Path, load: Any) -> None:
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(KvtraceError, match=message):
            load(tmp_path / "a.csv")

    @pytest.mark.parametrize(
        ("good", "bad", "table"),
        [(USAGE, "1,2", "engine_sample"), (USAGE, "99999999,1,1,0,0,soon,0", "engine_sample"),
         (STEPS, "99,x,1,0", "step_schedule")],
    )  # fmt: skip
    def test_a_wrong_row_among_others_is_left_out(
        self, good: str, bad: str, table: str, tmp_path: Path, load: Any
    ) -> None:
        (tmp_path / "a.csv").write_text(good)
        _, ask = load(tmp_path / "a.csv")
        whole = ask(f"SELECT * FROM {table}")
        head, *rows = good.splitlines(keepends=True)
        (tmp_path / "a.csv").write_text("".join([head, *rows[:2], bad + "\n", *rows[2:]]))
        (tmp_path / "a.csv.duckdb").unlink(missing_ok=True)
        summary, ask = load(tmp_path / "a.csv")
        assert ask(f"SELECT * FROM {table}") == whole
        place = f"line 4, byte {len(''.join([head, *rows[:2]]))}: "
        assert any(f"1 lines are no rows and were left out: {place}" in warning for warning in summary.warnings)

    def test_a_torn_last_row_is_left_out(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "a.csv").write_text(USAGE + "340.5,1")
        summary, ask = load(tmp_path / "a.csv")
        assert ask("SELECT count(*) FROM engine_sample") == [(5,)]
        assert any("cut off" in warning for warning in summary.warnings)


class TestLog:
    def test_settings_steps_and_phases(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "log-a.log").write_text(log_text(chunked=True))
        _, ask = load(tmp_path / "log-a.log")
        assert ask(
            "SELECT model, block_size_tokens, blocks, block_bytes, max_num_batched_tokens, max_num_seqs, "
            "max_model_len, chunked_prefill, prefix_caching, vllm_version "
            "FROM engine JOIN process ON process_id = engine_id"
        ) == [("tiny-7b", 16, 1000, 8388608, 32, 8, 128, True, False, "0.4.2")]
        assert ask("SELECT name, batching, preemption_mode, host_blocks FROM engine_source") == [
            ("a", "chunked", "recompute", 500)
        ]
        assert ask(
            "SELECT s.step, part, prefill_tokens, chunked_prefill_tokens, decode_tokens, budget_left_tokens, "
            "used_blocks, output_tokens, duration_ns / 1e6 FROM step s JOIN engine_sample USING (engine_id, step) "
            "ORDER BY s.step"
        ) == [
            (1, "warmup", 16, 0, 0, 16, 100, 1, 19.0),
            (2, "benchmark", 0, 32, 0, 0, 100, 0, 49.0),
            (3, "benchmark", 8, 0, 0, 24, 100, 1, 99.5),
            (4, "benchmark", 0, 0, 1, 31, 0, 1, 9.5),
        ]

    def test_unix_time_comes_from_the_requests(self, tmp_path: Path, load: Any) -> None:
        """The last request's end is the last step's; the warm-up lies as far before as the log's stamps say."""
        (tmp_path / "b.log").write_text(log_text(chunked=False))
        _, ask = load(tmp_path / "b.log")
        last = 1_727_142_125_250_000_000
        [(first_end, last_end)] = ask("SELECT min(end_ns), max(end_ns) FROM step_update")
        assert abs(last_end - last) < 1000
        assert (
            last_end - first_end == 5_140_000_000
        )  # 5 s from the first stamp to the benchmark's, then 160 ms of steps
        assert ask("SELECT prompt_tokens, max_tokens, first_token_ns - arrival_ns FROM request") == [
            (40, 2, pytest.approx(150_000_000, abs=1000))
        ]

    def test_a_log_without_steps_says_so(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "c.log").write_text("INFO 09-24 01:41:38 config.py:654] something\n")
        with pytest.raises(KvtraceError, match="neither statistics nor steps"):
            load(tmp_path / "c.log")

    @given(
        tokens=st.integers(1, 10_000), share=st.floats(0, 1), interval_ms=st.floats(1, 5000),
    )  # fmt: skip
    @settings(max_examples=200)
    def test_prompt_tokens_are_exact_where_the_printed_rate_allows(
        self, tokens: int, share: float, interval_ms: float
    ) -> None:
        """Rate and interval are printed to a tenth; the error they can make is known."""
        prompt = round(tokens * share)
        printed_ms = round(interval_ms, 1)
        rate = round(prompt / (interval_ms / 1000), 1)
        found = prompt_tokens(tokens, rate, printed_ms / 1000)
        slack = 0.05 / interval_ms * prompt + 0.05 * interval_ms / 1000 + 1
        assert found is not None
        assert 0 <= found <= tokens
        assert abs(found - prompt) <= 2 * slack + 0.05 * tokens


class TestFiles:
    def test_a_folder_is_searched_and_the_rest_is_named(self, tmp_path: Path, load: Any) -> None:
        deep = tmp_path / "results" / "deep"
        deep.mkdir(parents=True)
        (deep / "a.csv").write_text(USAGE)
        (tmp_path / "results" / "notes.txt").write_text("nothing")
        summary, ask = load(tmp_path / "results")
        assert ask("SELECT file FROM source") == [("a.csv",)]
        assert any("notes.txt" in warning for warning in summary.warnings)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.json", b"", "a.json is empty"),
            ("a.json", b'{"a": 1}\n', "line 1"),
            ("a.csv", b"\x00\x01\x02" * 50, "line 1, byte 0: binary data"),
            ("a.log", b"hello\n", "line 1: 'hello'"),
            ("a.json.xz", lzma.compress(b'{"k' * 9000)[:100], "truncated or damaged"),
        ],
    )
    def test_something_else_is_refused_in_one_line(
        self, name: str, content: bytes, message: str, tmp_path: Path, load: Any
    ) -> None:
        (tmp_path / name).write_bytes(content)
        for given_path in (tmp_path / name, tmp_path):
            with pytest.raises(KvtraceError, match=message) as error:
                load(given_path)
            assert "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_a_folder_without_any_is_refused(self, tmp_path: Path, load: Any) -> None:
        (tmp_path / "x.txt").write_text("x")
        with pytest.raises(KvtraceError, match="no file of UnBoxKV-IO among its 1 files"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("layer_id", -1), ("step", "two"), ("start_time", None), ("seq_lens", [1.5]), ("seq_lens", 3),
         ("kv_write_pattern_record", [[1, 2]]), ("kv_write_pattern_record", [[1, 2, 3, 4, "x"]])],
    )  # fmt: skip
    def test_a_line_with_a_wrong_field_is_named_and_left_out(self, field: str, value: object, tmp_path: Path) -> None:
        lines = Patterns([16], 1).writes[:2]
        lines[1][field] = value
        path = tmp_path / "kv_write_pattern.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        warnings: list[str] = []
        [(number, _)] = read_patterns(path, warnings)
        assert number == 1
        size = len(json.dumps(lines[0])) + 1
        assert f"1 lines are no patterns and were left out: line 2, byte {size}: " in warnings[0]
        assert field in warnings[0]
        path.write_text(json.dumps(lines[1]) + "\n")
        with pytest.raises(KvtraceError, match=f"line 1, byte 0: .*{field}"):
            list(read_patterns(path, []))


def test_a_folder_as_people_have_it_with_scripts_and_equal_names(tmp_path: Path) -> None:
    """Files that are no data are warned of; equal names in other folders stay runs of their own."""
    for folder in ("a", "b"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "swap_Q1.csv").write_text(USAGE)
    script = (
        'pattern = r"Avg prompt throughput: (\\d+) tokens/s, "\nINFO 01-01 00:00:00 x.py:1] Avg prompt throughput: 1\n'
    )
    (tmp_path / "data" / "extract.py").write_text(script)
    (tmp_path / "data" / "package.json").write_text('{"name": "plots"}')
    summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(unboxkv=(tmp_path / "data",)))
    assert summary.warnings == ["data: 2 files are none of UnBoxKV-IO's: extract.py, package.json"]
    with duckdb.connect(str(summary.target), read_only=True) as trace:
        assert trace.execute("SELECT count(*) FROM engine_source").fetchall() == [(2,)]
