"""The page on adding an importer is followed to the letter; what the declarations say is what the command line does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.registry import recognise, with_table
from kvtrace.ingest.sources import Sources
from tests.traces import write_trace

DOCS = Path(__file__).parents[3] / "docs"


def test_the_pages_example_is_an_importer(tmp_path: Path) -> None:
    """GIVEN the page's module beside the others WHEN its file is ingested, named or not, THEN its rows are there."""
    example = re.search(r"```python\n(.*?)```", (DOCS / "add-an-importer.md").read_text(), re.DOTALL)
    assert example
    (tmp_path / "importers").mkdir()
    (tmp_path / "importers" / "gateway.py").write_text(example[1])
    log, target = tmp_path / "log.csv", tmp_path / "t.duckdb"
    log.write_text("arrived_s,request,prompt_tokens\n1700000000.25,a,12\n1700000001,b,\n")
    added = f"import kvtrace.ingest.importers as i; i.__path__.append({str(tmp_path / 'importers')!r}); "
    command = [sys.executable, "-c", added + "from kvtrace.cli.main import main; main()", "ingest"]
    for arguments in (["--gateway", log], [log]):
        done = subprocess.run([*command, *arguments, "-o", target], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with duckdb.connect(str(target), read_only=True) as trace:
            assert trace.execute(
                "SELECT internal_id, arrival_ns, prompt_tokens FROM request ORDER BY 1"
            ).fetchall() == [
                ("a", 1_700_000_000_250_000_000, 12),
                ("b", 1_700_000_001_000_000_000, None),
            ]
            assert trace.execute("SELECT kind, file FROM source").fetchall() == [("gateway", "log.csv")]
    log.write_text("arrived_s,request,prompt_tokens\nyesterday,a,12\n")
    refused = subprocess.run([*command, log, "-o", target], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "log.csv, line 2: " in refused.stderr


def test_the_page_of_importers_has_their_table() -> None:
    page = (DOCS / "importers.md").read_text()
    assert page == with_table(page)
    assert "| `--nsight` |" in page


def test_the_command_line_starts_without_heavy_imports() -> None:
    script = "import sys, kvtrace.cli.main; print({'duckdb', 'pyarrow', 'numpy', 'pandas'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", b'{"schemaVersion": 1, "traceEvents": []}', "torch"),
        ("a.jsonl", b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n', "requests"),
        ("a.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n", "requests"),
        ("b.csv", b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,1,2,3,b\n", "requests"),
        ("d.jsonl", b'{"schema": "dynamo.request.trace.v1", "event_type": "request_end"}\n', "requests"),
        ("e.jsonl", b'{"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1"}}\n', "requests"),
        ("v.jsonl", b'{"meta": {"source": "tap", "block_size": 16}}\n', "requests"),
        ("w.jsonl", b'{"prompt_tokens": 1, "output_tokens": 1, "ttft_ms": 1}\n', "requests"),
        ("b.jsonl", b'{"sequence": 0, "ts": 1.0, "events": []}\n', "kv_events"),
        ("c.jsonl", b'{"event": "step_snapshot", "step": 1}\n', "sched_trace"),
        ("a.sqlite", b"SQLite format 3\0" + b"\0" * 100, "nsight"),
        ("p.json", b'{"layer_id": 0, "kv_write_pattern_record": []}\n', "unboxkv"),
        ("a.txt", b"nothing of the kind\n", None),
    ],
)
def test_the_content_says_what_a_file_is(name: str, content: bytes, kind: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    if kind is None:
        with pytest.raises(KvtraceError, match=r"of no known kind.*--nsight"):
            recognise(path)
    else:
        assert recognise(path).kind == kind


def test_a_trace_is_told_from_what_a_trace_is_made_of(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.duckdb")
    with pytest.raises(KvtraceError, match="such as a trace that is made already"):
        recognise(path)


def test_a_kind_that_nobody_reads_is_refused() -> None:
    with pytest.raises(KvtraceError, match="no importer of perf; expected one of kv_events, nsight"):
        Sources(perf=(Path("x"),))
