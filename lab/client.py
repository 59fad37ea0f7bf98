"""The client: many jobs at once, turn by turn with tool calls in between; notes what it sees of each request."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from kvtrace.lab.workloads import Job, Workload

_READINGS = 16
_POLL_S = 0.001


@dataclass(frozen=True)
class Ask:
    """A request to an engine. Lower `priority` goes first where the engine's policy looks at it."""

    request_id: str
    prompt: Sequence[int]
    output_tokens: int
    tags: dict[str, Any]
    priority: int = 0


class Piece(NamedTuple):
    """Tokens as they come, and what the engine told beside them, each time or once."""

    tokens: Sequence[int]
    cached_tokens: int | None = None
    request_id: str | None = None


class Engine(Protocol):
    """An engine that answers requests: in this process or over HTTP."""

    def ask(self, request: Ask) -> AsyncIterator[Piece]:
        """Generate, streaming. Raises what went wrong."""
        ...

    async def hold(self) -> None:
        """Take no further step.

        Raises:
            KvtraceError: This engine cannot be held.
        """
        ...

    async def release(self) -> None:
        """Take steps again, with all that was asked."""
        ...

    @property
    def queued(self) -> int:
        """Requests that the engine has been sent and has not finished."""
        ...


class Notes:
    """`client.jsonl`, a line a finished request, written as it comes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> Notes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()


def realtime_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, by the closest of some readings; traces of a recording use one, too."""

    def reading() -> tuple[int, int]:
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        return after - before, now - (before + after) // 2

    return min(reading() for _ in range(_READINGS))[1]


class Client:
    """Sends workloads to an engine.

    Args:
        engine: Where to.
        write: Gets what was seen of each request: a line of `client.jsonl`.
        priority: Give earlier jobs precedence, for an engine whose policy looks at priorities.
    """

    def __init__(
        self,
        engine: Engine,
        write: Callable[[dict[str, Any]], None],
        *,
        priority: bool = False,
    ) -> None:
        self._engine = engine
        self._write = write
        self._priority = priority
        self._offset_ns = realtime_offset_ns()
        self._released_ns = 0

    def now_ns(self) -> int:
        """UNIX time, on a clock that is never set."""
        return time.monotonic_ns() + self._offset_ns

    async def drive(self, workload: Workload, phase: int = 0) -> None:
        """Run all jobs of a workload to their ends. A job ends with its first failure."""
        if workload.arrivals_s is None:
            await self._closed(workload, phase)
            return
        if workload.batch:
            await self._batch(workload, phase)
            return
        start_ns = self.now_ns()
        due = [start_ns + round(seconds * 1e9) for seconds in workload.arrivals_s]
        jobs = zip(itertools.count(), workload.jobs, due, strict=False)
        await asyncio.gather(*(self._job(workload.name, phase, *each) for each in jobs))

    async def _batch(self, workload: Workload, phase: int) -> None:
        """Send all jobs to an engine that waits for the last of them."""
        await self._engine.hold()
        try:
            now_ns = self.now_ns()
            jobs = [
                asyncio.ensure_future(self._job(workload.name, phase, number, job, now_ns))
                for number, job in enumerate(workload.jobs)
            ]
            while self._engine.queued < len(jobs) and not any(job.done() for job in jobs):
                await asyncio.sleep(_POLL_S)
            self._released_ns = self.now_ns()
        finally:
            await self._engine.release()
        await asyncio.gather(*jobs)

    async def _closed(self, workload: Workload, phase: int) -> None:
        jobs = iter(enumerate(workload.jobs))

        async def slot() -> None:
            for number, job in jobs:
                await self._job(workload.name, phase, number, job, self.now_ns())

        await asyncio.gather(*(slot() for _ in range(workload.concurrency or 1)))

    async def _job(self, workload: str, phase: int, number: int, job: Job, due_ns: int) -> None:
        history: list[int] = []
        for index, turn in enumerate(job.turns):
            await self._sleep_until(due_ns)
            history += turn.new
            place = {"phase": phase, "workload": workload, "session": job.session, "turn": job.first_turn + index}
            tags = {"kvtrace_session": job.session, "kvtrace_turn": job.first_turn + index, "kvtrace_tool": turn.tool}
            request = Ask(
                f"{workload}-{phase}-{job.session}-{job.first_turn + index}",
                list(history),
                turn.output_tokens,
                tags,
                number if self._priority else 0,
            )
            record = {**place, "last": index == len(job.turns) - 1, "due_ns": due_ns}
            if turn.tool:
                record |= {"tool": turn.tool, "tool_ms": turn.tool_s * 1e3}
            output = await self._request(request, record)
            if output is None:
                return
            history += output if turn.answer is None else turn.answer
            due_ns = self.now_ns() + round(turn.tool_s * 1e9)

    async def _request(self, request: Ask, record: dict[str, Any]) -> list[int] | None:
        """Send one request and write its record; its output, or None if it failed."""
        output: list[int] = []
        times: list[int] = []
        cached: int | None = None
        request_id, error = request.request_id, None
        send_ns = self.now_ns()
        try:
            async for piece in self._engine.ask(request):
                times += [self.now_ns()] * len(piece.tokens)
                output += piece.tokens
                cached = piece.cached_tokens if piece.cached_tokens is not None else cached
                request_id = piece.request_id or request_id
            if len(output) != request.output_tokens:
                error = f"{len(output)} tokens came, {request.output_tokens} were asked for"
        except Exception as failure:  # of whatever kind: it is the run's result
            error = f"{type(failure).__name__}: {failure}"[:500]
        self._write(
            {
                "request_id": request_id,
                **record,
                # a batch is due, and counts as sent, when the engine may begin with it
                "due_ns": max(record["due_ns"], self._released_ns),
                "send_ns": max(send_ns, self._released_ns),
                "first_token_ns": times[0] if times else None,
                "last_token_ns": times[-1] if times else None,
                "prompt_tokens": len(request.prompt),
                "output_tokens": len(output),
                "cached_tokens": cached,
                "token_ns": times,
                "error": error,
            }
        )
        return None if error else output

    async def _sleep_until(self, due_ns: int) -> None:
        while (left_ns := due_ns - self.now_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
