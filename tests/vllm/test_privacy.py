"""Privacy of a recording: no prompts, no environment, no keys; every file is searched for marked ones."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import MARKED_ENVIRONMENT, WORKLOAD, Recorded
from tests.vllm.served import MARKED_API_KEY, MARKED_TENANT
from tests.vllm.truth import SENTINEL


@pytest.fixture(params=["cached", "served"])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return request.getfixturevalue(request.param)


def marked() -> Iterator[tuple[str, bytes]]:
    """Return texts that no file may have, and parts of prompts as any program would write token ids."""
    yield "an API key", MARKED_API_KEY.encode()
    yield "a tenant's name", MARKED_TENANT.encode()
    yield "a value of the environment", next(iter(MARKED_ENVIRONMENT.values())).encode()
    parts = [[SENTINEL] * 8, *([7] * 4 + [20 + session] * 8 for session in range(WORKLOAD["sessions"]))]
    for tokens in parts:
        yield f"tokens {tokens} as JSON", json.dumps(tokens)[1:-1].encode()
        yield f"tokens {tokens} as short JSON", json.dumps(tokens, separators=(",", ":"))[1:-1].encode()
        for code, order in itertools.product("HIQ", "<>"):
            yield f"tokens {tokens} as {order}{code}", struct.pack(f"{order}{len(tokens)}{code}", *tokens)


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


def test_no_file_of_a_run_has_a_secret(recorded: Recorded) -> None:
    seen = {str(path.relative_to(recorded.run)): path.read_bytes() for path in files(recorded.run)}
    for (name, data), (what, secret) in itertools.product(seen.items(), marked()):
        assert secret not in data, f"{name} has {what}"
    assert any(b"session-3" in data for name, data in seen.items() if name.endswith("strings.jsonl")), (
        "what it should have"
    )
    assert "trace.duckdb" in seen


def test_no_text_of_a_trace_has_a_secret(recorded: Recorded) -> None:
    """DuckDB packs what it stores, so that a search of the file's bytes alone could miss something."""
    columns = recorded.trace.sql(
        "SELECT table_name, column_name FROM duckdb_columns() JOIN duckdb_tables() USING (table_name) "
        "WHERE data_type IN ('VARCHAR', 'BLOB', 'JSON') OR data_type LIKE '%[]'",
        "arrow",
    ).to_pylist()
    assert len(columns) > 50
    for each in columns:
        table, column = each["table_name"], each["column_name"]
        texts = recorded.trace.sql(f'SELECT DISTINCT CAST("{column}" AS VARCHAR) AS text FROM "{table}"', "arrow")
        everything = "\n".join(filter(None, texts.column(0).to_pylist())).encode()
        for what, secret in marked():
            assert secret not in everything, f"{table}.{column} has {what}"


def test_requests_without_a_tenant_or_adapter_leave_no_record_of_one(cached: Recorded) -> None:
    assert list(cached.run.rglob("request_owner.*")) == []
    assert cached.trace.sql("SELECT DISTINCT tenant, lora FROM request", "arrow").to_pylist() == [
        {"tenant": None, "lora": None}
    ]


def test_a_key_on_the_command_line_is_hidden(served: Recorded) -> None:
    command = json.loads((served.run / "manifest.json").read_text())["command"]
    assert command[command.index("--api-key") + 1] == "***"
