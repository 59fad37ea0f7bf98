"""The client against a server that speaks as vLLM's does: order, times, tags, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.lab.client import Ask, Client, Notes, Piece
from kvtrace.lab.engines import Served
from kvtrace.lab.workloads import Workload, make

aiohttp = pytest.importorskip("aiohttp")
web = pytest.importorskip("aiohttp.web")

Handler = Callable[[dict[str, Any], Any], Any]


def event(body: dict[str, Any], tokens: list[int], **more: Any) -> bytes:
    """A server-sent event as vLLM 0.32 sends it."""
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": tokens, **more}
    named = {"id": f"cmpl-{body['id']}", "object": "text_completion", "model": body["model"], "choices": [choice]}
    return b"data: " + json.dumps(named).encode() + b"\n\n"


async def answer(body: dict[str, Any], response: Any) -> None:
    """The prompt's length, then its length plus one, and so on; half of the prompt was cached."""
    length = len(body["prompt"])
    for number in range(body["max_tokens"]):
        await response.write(event(body, [length + number]))
    usage = {"prompt_tokens": length, "prompt_tokens_details": {"cached_tokens": length // 2}}
    last = {"id": f"cmpl-{body['id']}", "choices": [], "usage": usage}
    await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")


@asynccontextmanager
async def server(handle: Handler, asked: list[dict[str, Any]]) -> AsyncIterator[str]:
    async def complete(request: Any) -> Any:
        body = {**await request.json(), "id": request.headers["X-Request-Id"]}
        asked.append(body)
        if isinstance(refusal := body["vllm_xargs"].get("kvtrace_session"), str) and refusal in {"fixed-1"}:
            return web.Response(status=400, text="this model's maximum context length is 5 tokens")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await handle(body, response)
        return response

    async def models(_: Any) -> Any:
        return web.json_response({"data": [{"id": "tiny"}]})

    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    application.router.add_get("/v1/models", models)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def drive(
    workload: Workload, path: Path, handle: Handler = answer
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Drive an engine; returns what was asked, and what was noted."""
    asked: list[dict[str, Any]] = []

    async def go() -> None:
        async with server(handle, asked) as url, Served(url) as engine:
            with Notes(path) as notes:
                await Client(engine, notes.write, priority=True).drive(workload, phase=2)

    asyncio.run(go())
    return asked, [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_sends_its_history_with_the_answers_and_its_tags(tmp_path: Path) -> None:
    workload = make("w", {"kind": "eight-turns", "jobs": 2, "turns": 3, "prompt": 10, "output": 4, "tool_s": 0.02})
    asked, notes = drive(workload, tmp_path / "client.jsonl")
    for number, job in enumerate(workload.jobs):
        history: list[int] = []
        mine = [body for body in asked if body["vllm_xargs"]["kvtrace_session"] == job.session]
        assert [body["vllm_xargs"]["kvtrace_turn"] for body in mine] == [0, 1, 2]
        assert [body["vllm_xargs"]["kvtrace_tool"] for body in mine] == [turn.tool for turn in job.turns]
        for body, turn in zip(mine, job.turns, strict=True):
            history += turn.new
            assert body["prompt"] == history
            assert (body["priority"], body["max_tokens"], body["model"]) == (number, 4, "tiny")
            history += range(len(history), len(history) + 4)
    by_id = {note["request_id"]: note for note in notes}
    assert len(by_id) == 6
    note = by_id["cmpl-w-2-agent-1-1"]
    assert (note["phase"], note["workload"], note["session"], note["turn"], note["last"]) == (
        2,
        "w",
        "agent-1",
        1,
        False,
    )
    assert (note["output_tokens"], len(note["token_ns"])) == (4, 4)
    assert note["cached_tokens"] == note["prompt_tokens"] // 2
    assert note["due_ns"] <= note["send_ns"] <= note["first_token_ns"] <= note["last_token_ns"]
    later = by_id["cmpl-w-2-agent-1-2"]
    assert later["last"]
    assert "tool" not in later
    assert later["send_ns"] - note["last_token_ns"] >= 20_000_000


def test_recorded_answers_take_the_models_place(tmp_path: Path) -> None:
    messages = [{"role": role, "content": text} for role, text in (("user", "abcdefgh"), ("assistant", "ijkl")) * 2]
    (tmp_path / "t.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    workload = make("w", {"kind": "trajectories", "path": str(tmp_path / "t.jsonl"), "tool_s": 0})
    asked, _ = drive(workload, tmp_path / "client.jsonl")
    (first, second) = workload.jobs[0].turns
    assert asked[1]["prompt"] == [*first.new, *(first.answer or ()), *second.new]


def test_a_closed_loop_has_so_many_jobs_at_a_time(tmp_path: Path) -> None:
    at_once, most = 0, 0

    async def counted(body: dict[str, Any], response: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        await answer(body, response)

    workload = make("w", {"kind": "zipf", "jobs": 9, "shortest": 5, "longest": 9, "concurrency": 3})
    _, notes = drive(workload, tmp_path / "client.jsonl", counted)
    assert (most, len(notes)) == (3, 9)
    assert all(note["due_ns"] <= note["send_ns"] for note in notes)


class Held:
    """An engine that generates only when it was released; a prompt of one token is refused."""

    def __init__(self) -> None:
        self.queued, self.queued_at_release = 0, -1
        self._free = asyncio.Event()
        self._free.set()

    async def hold(self) -> None:
        self._free.clear()

    async def release(self) -> None:
        self.queued_at_release = self.queued
        self._free.set()

    async def ask(self, request: Ask) -> AsyncIterator[Piece]:
        if len(request.prompt) == 1:
            raise KvtraceError("refused")
        await asyncio.sleep(0.002 * len(request.prompt))  # sent one after another
        self.queued += 1
        await self._free.wait()
        self.queued -= 1
        yield Piece([7] * request.output_tokens)


@pytest.mark.parametrize("lengths", [[[3, 1], [9, 1], [6, 1]], [[3, 1], [1, 1], [6, 1]]])
def test_a_batch_is_in_the_queue_before_the_engine_begins(lengths: list[list[int]], tmp_path: Path) -> None:
    workload = make("w", {"kind": "listed", "lengths": lengths, "arrival": "batch"})
    notes: list[dict[str, Any]] = []

    async def go() -> Held:
        engine = Held()
        await asyncio.wait_for(Client(engine, notes.append).drive(workload), 10)
        return engine

    engine = asyncio.run(go())
    refused = sum(prompt == 1 for prompt, _ in lengths)
    assert [bool(note["error"]) for note in notes].count(True) == refused
    if not refused:
        assert engine.queued_at_release == len(lengths)
    # latencies count from when the engine might begin
    good = [note for note in notes if not note["error"]]
    assert len({note["due_ns"] for note in good}) == 1
    assert all(note["due_ns"] == note["send_ns"] <= note["first_token_ns"] for note in good)


def test_a_server_cannot_be_made_to_wait_for_a_batch(tmp_path: Path) -> None:
    workload = make("w", {"kind": "fixed", "jobs": 3, "prompt": 4, "output": 2, "arrival": "batch"})
    with pytest.raises(KvtraceError, match="use arrival all with a server"):
        drive(workload, tmp_path / "client.jsonl")


def test_a_refused_request_ends_its_job_and_no_other(tmp_path: Path) -> None:
    workload = make("w", {"kind": "fixed", "jobs": 3, "prompt": 4, "output": 2})
    _, notes = drive(workload, tmp_path / "client.jsonl")
    errors = {note["session"]: note["error"] for note in notes}
    assert errors["fixed-0"] is errors["fixed-2"] is None
    assert errors["fixed-1"] == "KvtraceError: HTTP 400: this model's maximum context length is 5 tokens"


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (b'data: {"error": {"message": "EngineDead"}}\n\n', "the server says: {'message': 'EngineDead'}"),
        (b"data: [DONE]\n\n", "1 tokens came, 3 were asked for"),
    ],
)
def test_a_stream_that_ends_early_is_an_error(last: bytes, message: str, tmp_path: Path) -> None:
    async def broken(body: dict[str, Any], response: Any) -> None:
        await response.write(event(body, [1]))
        await response.write(last)

    workload = make("w", {"kind": "fixed", "jobs": 1, "prompt": 4, "output": 3})
    (note,) = drive(workload, tmp_path / "client.jsonl", broken)[1]
    assert message in note["error"]
    assert note["output_tokens"] == 1


def test_a_server_that_is_not_there_is_named() -> None:
    async def go() -> None:
        async with Served("http://127.0.0.1:9"):
            pass

    with pytest.raises(KvtraceError, match=r"127\.0\.0\.1:9/v1/models"):
        asyncio.run(go())
