"""Requests, steps and block tables (derived) from the patterns of a run, on their way into the trace."""

from __future__ import annotations

import duckdb

from kvtrace.ingest.append import Appender
from kvtrace.ingest.importers.unboxkv.pattern_plan import Planner, Row, StepPlan


class PlanTables:
    """Fills batch_row, block_table, gpu_block_list, step_request, step_schedule and request of one engine."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, engine_id: int, first_request: int, block_tokens: int
    ) -> None:
        self._connection = connection
        self._engine_id = engine_id
        self._first_request = first_request
        self._block_tokens = block_tokens
        self._last_prefill: dict[int, int] = {}
        self._shares: list[tuple[int, Row]] = []
        keys = "process_id engine_id step"
        self._batch = Appender(connection, "batch_row", f"{keys} row request")
        self._listed = Appender(
            connection, "gpu_block_list", f"{keys} layer row first_token kernel_block kernel_block_tokens"
        )
        self._tables = Appender(connection, "block_table", "engine_id step request kv_group op position block_id")

    def add(self, plan: StepPlan) -> None:
        """Take a step."""
        engine_id, size = self._engine_id, self._block_tokens
        for number, row in enumerate(plan.rows):
            if row.request is None:
                continue
            request = self._first_request + row.request.number - 1
            self._batch.add(engine_id, engine_id, plan.step, number, request)
            for position, block in enumerate(row.request.blocks[: row.blocks]):
                self._listed.add(engine_id, engine_id, plan.step, 0, number, position * size, block, size)
                if position >= row.blocks_before:
                    op = "append" if row.blocks_before else "set"
                    self._tables.add(engine_id, plan.step, request, 0, op, position, block)
            if not row.decode:
                self._last_prefill[row.request.number] = plan.step
            self._shares.append((plan.step, row))

    def finish(self, planner: Planner) -> None:
        """Hand over everything; a prompt's last part is its prefill, those before it chunks."""
        shares = Appender(
            self._connection,
            "step_request",
            "engine_id step request phase scheduled_tokens computed_tokens new_blocks",
        )
        for step, row in self._shares:
            number = row.request.number if row.request else 0
            chunk = not row.decode and self._last_prefill[number] != step
            phase = "decode" if row.decode else "chunked_prefill" if chunk else "prefill"
            request = self._first_request + number - 1
            added = row.blocks - row.blocks_before
            shares.add(self._engine_id, step, request, phase, row.tokens, row.computed, added)
        requests = Appender(self._connection, "request", "request engine_id internal_id prompt_tokens output_tokens")
        for found in planner.requests:
            request = self._first_request + found.number - 1
            requests.add(request, self._engine_id, f"row {found.number}", found.prompt_tokens, found.outputs)
        for appender in (self._batch, self._listed, self._tables, shares, requests):
            appender.flush()
        phases = ", ".join(
            f"count(*) FILTER (phase = '{phase}') AS {phase}_requests, "
            f"coalesce(sum(scheduled_tokens) FILTER (phase = '{phase}'), 0)::INTEGER AS {phase}_tokens"
            for phase in ("prefill", "chunked_prefill", "decode", "resumed")
        )
        self._connection.execute(
            f"INSERT INTO step_schedule BY NAME SELECT engine_id, step, {phases} FROM step_request "
            "WHERE engine_id = ? GROUP BY engine_id, step ORDER BY step",
            [self._engine_id],
        )
