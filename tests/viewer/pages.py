"""Helpers of the page's tests: making one, reading what it shows, and a trace with something of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.viewer.page import make_page as path_make_page

from .chromium import Chromium
from .simulate import EPOCH_NS, insert

MS = 1_000_000
AT = EPOCH_NS + 4_000 * MS


def make_page(*traces: Path, name: str = "page") -> Path:
    page = traces[0].parent / f"{traces[0].stem}-{name}.html"
    path_make_page(traces, page, max_bytes=40_000_000)
    return page


def text(browser: Chromium, selector: str) -> str:
    found: str = browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def wait_for_text(browser: Chromium, text: str, selector: str = "#inspector") -> str:
    browser.wait(f"document.querySelector({json.dumps(selector)}).innerText.includes({json.dumps(text)})")
    found: str = browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def middle(browser: Chromium, lane: str) -> tuple[float, float]:
    box = browser.evaluate(
        f"(() => {{ const box = document.querySelector('[data-lane={lane}]').getBoundingClientRect();"
        "return [box.left + 200, box.right - 20, (box.top + box.bottom) / 2]; })()"
    )
    return (box[0] + box[1]) / 2, box[2]


def window(browser: Chromium) -> tuple[float, float]:
    from_ns, to_ns = browser.evaluate("[kvtrace.view.from, kvtrace.view.to]")
    return from_ns, to_ns


def rows(trace: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(trace), read_only=True) as connection:
        return connection.sql(query).fetchall()


def row(trace: Path, query: str) -> tuple[Any, ...]:
    return rows(trace, query)[0]


def column(trace: Path, query: str) -> list[Any]:
    return [found[0] for found in rows(trace, query)]


def insert_moves(path: Path) -> None:
    """A transfer, a pin, a tier's block, a kernel and the accesses of step 300, at times that are easy to point at."""
    engine, worker = {"engine_id": 1}, {"process_id": 1}
    step = {"engine_id": 1, "step": 300}
    kernel = {"activity_id": 1, "source_id": 1, "kind": "kernel", "pid": 1, "device": 0, "stream": 7}
    with duckdb.connect(str(path)) as connection:
        request, start = connection.sql(
            "SELECT request, scheduled_ns FROM step_request JOIN step USING (step) WHERE step = 300 LIMIT 1"
        ).fetchall()[0]
        submit = engine | worker | {"transfer": 5, "direction": "load", "from_tier": "cpu", "to_tier": "gpu"}
        insert(connection, "transfer_submit", [submit | {"submitted_ns": AT, "step": 300, "blocks": 3, "bytes": 10**6}])
        end = worker | {"transfer": 5, "started_ns": AT, "finished_ns": AT + 2 * MS, "device_ns": 2 * MS}
        insert(connection, "transfer_end", [end | {"success": True}])
        pin = engine | {"pin": 9, "block_id": 40}
        insert(connection, "pin_start", [pin | {"time_ns": AT + 10 * MS, "cause": "ttl", "request": request}])
        insert(connection, "pin_end", [pin | {"time_ns": AT + 30 * MS, "reason": "expired"}])
        tier = engine | {"time_ns": AT, "connector": "c", "tier": "cpu", "op": "write", "tier_block_id": 1}
        insert(connection, "tier_block", [tier, tier | {"time_ns": AT + 50 * MS, "tier_block_id": 2}])
        insert(connection, "kernel_name", [{"kernel_name_id": 1, "source_id": 1, "category": "attention"}])
        connection.execute("UPDATE kernel_name SET short_name = 'flash<script>'")
        insert(
            connection,
            "gpu_activity",
            [kernel | {"start_ns": AT + 40 * MS, "end_ns": AT + 44 * MS, "kernel_name_id": 1}],
        )
        insert(connection, "gpu_attribution", [{"activity_id": 1, **step, "method": "nvtx_forward"}])
        table = step | {"request": request, "kv_group": 0, "op": "set"}
        insert(connection, "block_table", [table | {"position": i, "block_id": 20 + i} for i in range(3)])
        layer = worker | step | {"start_ns": start, "end_ns": start + MS, "kind": "attention"}
        later = layer | {"layer": 1, "start_ns": start + MS // 2, "observed": False}
        insert(connection, "kv_window", [layer | {"layer": 0, "observed": True}, later])
