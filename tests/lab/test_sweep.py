"""Six cells on a real engine, interrupted twice and gone on with; the report against the clients' records."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvtrace.lab.matrix import Cell, read_matrix
from kvtrace.queries import Trace
from kvtrace.queries.text import rounded
from tests.vllm.conftest import vllm_environment

from .cells import lab, table

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "examples" / "studies" / "tiny-policies.toml"
PATIENCE_S = 240


def results(directory: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("cells/*/result.json")}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study at its higher rate only."""
    path = tmp_path_factory.mktemp("matrix") / STUDY.name
    path.write_text(STUDY.read_text().replace("rate = [4.0, 16.0]", "rate = [16.0]"))
    return path


def interrupted(matrix: Path, directory: Path, cells: int, number: signal.Signals, *more: str) -> tuple[int, str]:
    """Start the sweep, and end it in the middle of the cell after so many."""
    command = [sys.executable, "-m", "kvtrace", "lab", "run", str(matrix), "-o", str(directory), "--warm", *more]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=vllm_environment(), start_new_session=True, **pipes)
    deadline = time.monotonic() + PATIENCE_S
    while len(results(directory)) < cells or not list(directory.glob("cells/*/run/processes")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while not [run for run in directory.glob("cells/*/run") if not (run.parent / "result.json").exists()]:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


class Swept(NamedTuple):
    cells: dict[str, Cell]
    directory: Path
    after: list[dict[str, dict[str, Any]]]  # the results after each part
    codes: list[int]
    said: str
    markdown: str


@pytest.fixture(scope="module")
def swept(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    pytest.importorskip("vllm")
    directory = tmp_path_factory.mktemp("sweep") / "policies"
    code, said = interrupted(matrix, directory, 1, signal.SIGINT)
    codes, after = [code], [results(directory)]
    code, _ = interrupted(matrix, directory, 3, signal.SIGKILL, "--engines", "2")
    codes, after = [*codes, code], [*after, results(directory)]
    with ThreadPoolExecutor() as both:  # the rest by two processes, as on two GPUs
        rest = ("run", matrix, "-o", directory, "--warm", "--share")
        done = list(both.map(lambda share: lab(*rest, share, timeout=PATIENCE_S), ["1/2", "2/2"]))
    assert [part.returncode for part in done] == [0, 0], done
    codes, after = [*codes, 0], [*after, results(directory)]
    made = lab("report", directory, timeout=PATIENCE_S)
    assert made.returncode == 0, made.stderr
    cells = {cell.id: cell for cell in read_matrix(matrix).cells}
    markdown = (directory / "report" / "report.md").read_text()
    yield Swept(cells, directory, after, codes, said + done[0].stdout, markdown)


def client(swept: Swept, cell: str) -> list[dict[str, Any]]:
    lines = (swept.directory / "cells" / cell / "run" / "client.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_an_interrupted_sweep_goes_on_where_it_was(swept: Swept) -> None:
    assert swept.codes == [130, -signal.SIGKILL, 0]
    assert "the cell that ran is discarded" in swept.said
    assert [len(found) for found in swept.after] == [1, 3, 6]
    assert {result["status"] for result in swept.after[-1].values()} == {"ok"}
    assert set(swept.after[-1]) == set(swept.cells)
    for earlier, later in zip(swept.after, swept.after[1:], strict=False):  # what was done was not done again
        assert earlier.items() <= later.items()


def test_cells_ran_in_the_matrix_order_each_in_an_engine_of_its_own(swept: Swept) -> None:
    started = sorted(swept.after[-1], key=lambda cell: swept.after[-1][cell]["started_ns"])
    order = list(swept.cells)
    assert started[:3] == order[:3]
    for first in range(2):  # the rest ran in two shares of every second cell
        ours = order[first::2]
        assert [cell for cell in started[3:] if cell in ours] == [cell for cell in ours if cell in order[3:]]
    engines = set()
    for cell in swept.cells:
        with Trace(swept.directory / "cells" / cell / "run" / "trace.duckdb") as trace:
            (row,) = trace.sql(
                "SELECT host, pid, started_ns, blocks FROM process JOIN engine ON process_id = engine_id",
                format="arrow",
            ).to_pylist()
            engines.add((row["pid"], row["started_ns"]))
            assert row["blocks"] == swept.cells[cell].kv_tokens // 32
    assert len(engines) == 6


def test_engines_start_side_by_side_and_their_cells_send_requests_in_turn(swept: Swept) -> None:
    """The second and the third cell did; the first had been alone."""
    alone, first, second = sorted(swept.after[1], key=lambda cell: swept.after[1][cell]["started_ns"])
    asked_ns = {cell: [record["send_ns"] for record in client(swept, cell)] for cell in (first, second)}
    last_ns = max(record["last_token_ns"] for record in client(swept, first))
    facts = {cell: json.loads((swept.directory / "cells" / cell / "facts.json").read_text()) for cell in swept.after[1]}
    up_ns = swept.after[1][second]["started_ns"] + facts[second]["start_s"] * 1e9
    assert up_ns < min(asked_ns[first]) <= last_ns < min(asked_ns[second])
    with Trace(swept.directory / "cells" / second / "run" / "trace.duckdb") as trace:  # it took no step until then
        own = trace.sql(f"SELECT count(*) AS steps FROM step WHERE start_ns <= {last_ns}", format="arrow")
    assert own.to_pylist() == [{"steps": 0}]
    assert facts[alone]["waited_s"] == 0
    assert facts[second]["waited_s"] > (last_ns - min(asked_ns[first])) / 1e9
    # together they took what the sweep did: starts that ran side by side are counted once
    ended_s = (swept.directory / "cells" / second / "result.json").stat().st_mtime
    took_s = [swept.after[1][cell]["seconds"] for cell in (first, second)]
    assert sum(took_s) == pytest.approx(ended_s - swept.after[1][first]["started_ns"] / 1e9, rel=0.2)
    assert took_s[0] > facts[first]["start_s"]
    assert not [*swept.directory.glob("cells/*/wait"), *swept.directory.glob("cells/*/ready")]


def test_what_the_clients_saw_is_what_the_engines_did(swept: Swept) -> None:
    compared = """
        SELECT count(*) AS requests, count(r.request) AS matched,
            bool_and(c.prompt_tokens = r.prompt_tokens AND c.output_tokens = r.output_tokens
                AND c.cached_tokens = r.local_cached_tokens AND c.session = r.session AND c.turn = r.turn) AS same,
            bool_and(c.send_ns <= r.queued_ns AND r.first_token_ns <= c.first_token_ns
                AND r.finished_ns <= c.last_token_ns + 5000000) AS in_order
        FROM client_request c LEFT JOIN request r USING (request)
    """
    for cell in swept.cells:
        records = client(swept, cell)
        assert len(records) == 32
        assert [record["error"] for record in records] == [None] * 32
        with Trace(swept.directory / "cells" / cell / "run" / "trace.duckdb") as trace:
            assert trace.sql(compared, format="arrow").to_pylist() == [
                {"requests": 32, "matched": 32, "same": True, "in_order": True}
            ]
            latency = trace.query("client-latency", format="arrow").to_pylist()
        assert sum(row["jct_ms"] is not None for row in latency) == 8


def test_turns_wait_for_their_tools_and_jobs_for_their_time(swept: Swept) -> None:
    for cell in swept.cells:
        workload = swept.cells[cell].make_workloads()[0]
        by_job: dict[str, list[dict[str, Any]]] = {}
        for record in client(swept, cell):
            by_job.setdefault(record["session"], []).append(record)
        start = min(turns[0]["due_ns"] for turns in by_job.values())
        for job, arrival in zip(workload.jobs, workload.arrivals_s or [], strict=True):
            turns = sorted(by_job[job.session], key=lambda record: record["turn"])
            assert turns[0]["due_ns"] - start == pytest.approx(arrival * 1e9, abs=2)
            for before, after, turn in zip(turns, turns[1:], job.turns, strict=False):
                waited = after["due_ns"] - before["last_token_ns"]
                assert turn.tool_s * 1e9 <= waited < turn.tool_s * 1e9 + 1e8
            assert all(turn["send_ns"] >= turn["due_ns"] for turn in turns)


def test_less_room_is_less_cached(swept: Swept) -> None:
    def cached(kv_tokens: int) -> int:
        fcfs = {id_: cell for id_, cell in swept.cells.items() if cell.policy["name"] == "fcfs"}
        chosen = [id_ for id_, cell in fcfs.items() if cell.kv_tokens == kv_tokens]
        return sum(record["cached_tokens"] for id_ in chosen for record in client(swept, id_))

    assert cached(1280) < cached(8192)


def test_the_reports_figures_are_those_of_the_clients_records(swept: Swept) -> None:
    rows = {(row["policy"].split()[0], row["rate"], row["kv_tokens"]): row for row in table(swept.markdown, "Cells")}
    assert len(rows) == 6
    for id_, cell in swept.cells.items():
        records = client(swept, id_)
        row = rows[cell.policy["name"], str(cell.axes["rate"]), str(cell.kv_tokens)]
        ttft = [(record["first_token_ns"] - record["send_ns"]) / 1e6 for record in records]
        jct = jct_of(records)
        seconds = (max(r["last_token_ns"] for r in records) - min(r["due_ns"] for r in records)) / 1e9
        assert row["TTFT mean ms"] == rounded(statistics.fmean(ttft))
        assert row["JCT mean s"] == rounded(statistics.fmean(jct.values()))
        assert row["makespan s"] == rounded(seconds)
        assert row["output tok/s"] == rounded(sum(r["output_tokens"] for r in records) / seconds)
        shares = sum(r["cached_tokens"] for r in records) / sum(r["prompt_tokens"] for r in records)
        assert row["cached share"] == rounded(shares)


def test_the_reports_differences_are_those_of_the_clients_records(swept: Swept) -> None:
    by_place = {
        (cell.policy["name"], str(cell.axes["rate"]), str(cell.kv_tokens)): jct_of(client(swept, id_))
        for id_, cell in swept.cells.items()
    }
    rows = [row for row in table(swept.markdown, "Against fcfs") if row["of"] == "JCT (s)"]
    assert len(rows) == 4  # two policies, two capacities
    for row in rows:
        mine = by_place[row["policy"].split()[0], row["rate"], row["kv_tokens"]]
        base = by_place["fcfs", row["rate"], row["kv_tokens"]]
        assert row["jobs"] == "8"
        assert row["difference"] == rounded(statistics.fmean(mine[job] - base[job] for job in base))


def jct_of(records: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for session in {record["session"] for record in records}:
        turns = [record for record in records if record["session"] == session]
        found[session] = (max(t["last_token_ns"] for t in turns) - min(t["due_ns"] for t in turns)) / 1e9
    return found


def test_a_cell_that_cannot_run_fails_with_its_reason_and_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    path = tmp_path / "m.toml"
    path.write_text(
        'name = "fails"\ncell = { kv_tokens = 4096, rate = 9.0 }\n'
        'axes.policy = ["fcfs", { name = "lmcache", host_gib = 1 }, { name = "hf-generate", batch = 2 }]\n'
        'workloads.w = { kind = "zipf", jobs = 3, shortest = 20, longest = 60 }\n'
    )
    done = lab("run", path, "-o", tmp_path / "out", "--engines", "3", "--warm", timeout=PATIENCE_S)
    assert done.returncode == 3, done.stdout + done.stderr
    by_policy = {name.split("-")[0]: result for name, result in results(tmp_path / "out").items()}
    assert by_policy["lmcache"]["error"] == "policy lmcache: the package lmcache is not installed in this environment"
    # What failed is in a process of the engine's, whose log line tells it; the cell's own error points there.
    assert by_policy["fcfs"]["error"] == "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."
    # The baseline's batches are two, then one; a batch returns as a whole, and each of its jobs has its own lengths.
    assert by_policy["hf"]["status"] == "ok", by_policy["hf"]["error"]
    (file,) = (tmp_path / "out").glob("cells/hf-*/run/client.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["first_token_ns"] == records[0]["first_token_ns"] for r in records] == [True, True, False]
    assert records[0]["last_token_ns"] == records[1]["last_token_ns"] <= records[2]["first_token_ns"]
    workload = read_matrix(path).cells[0].make_workloads()[0]
    assert [(r["prompt_tokens"], r["output_tokens"]) for r in records] == [
        (len(job.turns[0].new), job.turns[0].output_tokens) for job in workload.jobs
    ]
    again = lab("run", path, "-o", tmp_path / "out", timeout=60)
    assert (again.returncode, again.stdout) == (0, "3 of 3 cells have results already\n")


def test_a_time_limit_leaves_cells_for_the_next_time(tmp_path: Path) -> None:
    done = lab("run", STUDY, "-o", tmp_path, "--time-limit", "0", timeout=60)
    assert (done.returncode, done.stdout) == (4, "out of time: 12 cells left; the same command goes on\n")
    assert results(tmp_path) == {}
