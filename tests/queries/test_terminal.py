"""Answers on a terminal: they fit its width, in people's units; elsewhere nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from kvtrace.queries import catalogue, search
from tests.viewer.simulate import create_trace

from .conftest import MakeTrace
from .test_cli import kvtrace

EACH = """
import sys, typer
from kvtrace.cli.main import app
for line in sys.stdin:
    print("@", line, end="", flush=True)
    try:
        app(line.split(), standalone_mode=False)
    except typer.Exit:
        pass
    sys.stdout.flush()
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
ONE = """
    INSERT INTO run VALUES ('started_ns', '1000000000');
    INSERT INTO request (engine_id, request, external_id, arrival_ns, queued_ns, scheduled_ns, first_token_ns,
        finished_ns, output_tokens, prompt_tokens, preemptions, finish_reason)
    VALUES (1, 7, 'cmpl-7', 2500000000, 2500000900, 2512000900, 3812000900, 3900000000, 3, 12345, 0, 'stop');
"""


def on_terminal(columns: int, *commands: str) -> str:
    """Run commands on a terminal of that width, one after another in one process, and return what they print."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", EACH],
        stdin=subprocess.PIPE,
        stdout=follower,
        stderr=follower,
        env={**environment, "TERM": "xterm"},
    )
    os.close(follower)
    assert process.stdin is not None
    process.stdin.write("".join(f"{command}\n" for command in commands).encode())
    process.stdin.close()
    printed = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        printed += data
    os.close(leader)
    assert process.wait(60) == 0, printed.decode()
    return _ESCAPES.sub("", printed.decode()).replace("\r\n", "\n")


def too_wide(printed: str, columns: int) -> list[str]:
    return [line for line in printed.splitlines() if cell_len(line) > columns and not line.startswith("@")]


def test_every_answer_fits(synthetic: Path) -> None:
    others = [f"explain {synthetic} {each}" for each in ("1", "step:10", "block:3")] + [f"findings {synthetic}"]
    printed = on_terminal(80, *(f"query {name} {synthetic}" for name in catalogue()), *others)

    assert not too_wide(printed, 80)
    assert printed.count("---") > len(catalogue())


def test_answers_of_several_engines_fit(tmp_path: Path) -> None:
    trace = create_trace(tmp_path / "trace.duckdb", engines=3)
    printed = on_terminal(100, *(f"query {name} {trace}" for name in catalogue()))

    assert not too_wide(re.sub(r"kvtrace: .*", "", printed), 100)
    assert "engine_id" in printed.split("@ query request-latency")[1].split("Left out")[0]


@pytest.mark.parametrize("columns", [80, 100])
def test_lists_explanations_and_help_fit(columns: int) -> None:
    printed = on_terminal(
        columns, "query", *(f"query {name}" for name in catalogue()), "query why slow", "query --help"
    )

    assert not too_wide(printed, columns)


def test_every_query_declares_key_columns_and_shows_them() -> None:
    for query in catalogue().values():
        assert query.key, query.name
        assert len(set(query.key)) == len(query.key)
        assert set(query.key) <= {column.name for column in query.columns}, query.name


def test_key_columns_come_before_others(make_trace: MakeTrace) -> None:
    second = "INSERT INTO request (engine_id, request) VALUES (1, 8);"
    printed = on_terminal(80, f"query request-latency {make_trace(ONE + second)}")

    head = printed.splitlines()[1].split()
    assert [name for name in ("request", "queue", "prefill", "decode", "total") if name not in head] == []
    assert "tpot" in printed.split("Left out:")[1]


def test_the_column_that_rows_are_sorted_by_is_shown(make_trace: MakeTrace) -> None:
    path = make_trace(ONE + "INSERT INTO request (engine_id, request) VALUES (1, 8);")
    assert "tpot" in on_terminal(80, f"query request-latency {path}").split("Left out:")[1]
    for order in ("tpot", "tpot_ms"):
        shown = on_terminal(80, f"query request-latency {path} --order {order}").split("Left out:")[0]
        assert "tpot" in shown.splitlines()[1].split()
    shown = on_terminal(80, f"query request-latency {path} --order total_ms").split("Left out:")[0]
    assert shown.splitlines()[1].split().count("total") == 1


def test_comparisons_and_cache_sizes_fit_and_keep_their_answer(tmp_path: Path) -> None:
    create_trace(tmp_path / "a.duckdb")
    trace = tmp_path / "a.duckdb"
    commands = f"compare {trace} {trace}", f"compare {trace} --by warmth", f"reuse {trace}"
    printed = on_terminal(80, *commands)
    compared, by_warmth, sizes = printed.split("@")[1:]
    for table in compared, by_warmth, sizes:
        rule = next(line for line in table.splitlines() if line.startswith("----"))
        assert cell_len(rule) <= 80
    assert "95% interval" in " ".join(compared.split("Left out:")[1].split())
    assert "B is" in compared.split("Left out:")[0]
    assert "lru_miss_ratio" in sizes.split("Left out:")[0]
    whole = kvtrace("compare", trace, trace).stdout
    assert "95% interval" in whole
    assert "Left out:" not in whole


def test_units_of_people_on_a_terminal_alone(make_trace: MakeTrace) -> None:
    trace = make_trace(ONE)
    wide = on_terminal(400, f"query request-latency {trace}")
    row = dict(zip(("arrival", "queue", "prefill"), re.findall(r"\+1\.5000 s|12 ms|1\.3 s", wide), strict=True))

    assert row == {"arrival": "+1.5000 s", "queue": "12 ms", "prefill": "1.3 s"}
    assert "0.9 us" in wide
    assert "12,345" in wide
    plain = json.loads(kvtrace("query", "request-latency", trace, "--json").stdout)[0]
    assert plain["arrival_ns"] == 2500000000
    assert plain["queue_ms"] == 12.0
    piped = kvtrace("query", "request-latency", trace).stdout
    assert "2500000000" in piped
    assert "12345" in piped


def test_columns_wide_and_vertical(make_trace: MakeTrace) -> None:
    trace = make_trace(ONE)

    chosen = on_terminal(80, f"query request-latency {trace} --columns total,request")
    assert chosen.splitlines()[1].split() == ["total", "request"]
    assert json.loads(kvtrace("query", "request-latency", trace, "--json", "--columns", "request").stdout) == [
        {"request": 7}
    ]
    assert "tpot" in on_terminal(80, f"query request-latency {trace} --wide").splitlines()[1]
    vertical = on_terminal(80, f"query request-latency {trace} --vertical")
    assert re.search(r"^external_id +cmpl-7", vertical, re.MULTILINE)
    assert "there is no column 'nothing'" in kvtrace("query", "request-latency", trace, "--columns", "nothing").stderr


def test_arguments_in_either_order_and_the_run_directory(make_trace: MakeTrace, tmp_path: Path) -> None:
    trace = make_trace(ONE)
    answer = kvtrace("query", "request-latency", trace).stdout

    assert kvtrace("query", trace, "request_latency").stdout == answer
    assert kvtrace("query", "request-latency", tmp_path).stdout == answer
    rows = kvtrace("sql", trace, "SELECT request FROM request").stdout
    assert kvtrace("sql", "SELECT request FROM request", trace).stdout == rows
    (tmp_path / "run").mkdir()
    refused = kvtrace("query", "request-latency", tmp_path / "run")
    assert refused.returncode == 1
    assert f"kvtrace ingest {tmp_path / 'run'}" in refused.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("why slow", "request-latency"),
        ("evicted whom", "evictor-victim"),
        ("queue", "admission-limits"),
        ("offload worth", "recompute-vs-swap"),
        ("api server bottleneck", "client-latency"),
    ],
)
def test_words_find_queries(words: str, name: str) -> None:
    assert name in [query.name for query in search(words.split())[:3]]
