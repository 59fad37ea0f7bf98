"""Tenants and adapters of requests, by vLLM's own middleware, serving classes and ids; `tests/vllm` asks a server."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tenants import HEADER, Tenants
from kvtrace.errors import KvtraceError
from kvtrace.ingest.run import ingest
from kvtrace.probes import frontend, tenants
from kvtrace.probes.hooks import Patches
from kvtrace.queries import Trace

pytest.importorskip("vllm")
NAMES = Tenants("names")
HASHED = Tenants()


class Api:
    """An API process that is recorded."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.recorder = Recorder(run)
        self.recorder.note("role", role="frontend")
        self.failed: list[str] = []
        self.patches = Patches(
            lambda target, state, detail: self.failed.append(detail) if state == "disabled" else None
        )

    def install(self, given: Tenants | None) -> None:
        """Install the hooks."""
        self.patches.install([*frontend.hooks(self.recorder), *tenants.hooks(self.recorder, given)])

    def assign(self, name: str, *, tag: object = None, lora: str = "") -> None:
        """Give a request its id, as the engine's client does."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.input_processor import InputProcessor

        parameters = SamplingParams(extra_args=None if tag is None else {"kvtrace_tenant": tag})
        adapter = LoRARequest(lora, 1, "/nowhere") if lora else None
        InputProcessor.assign_request_id(EngineCoreRequest(name, [1], None, parameters, None, 0.0, adapter, None, None))

    def serve(self, name: str, *, user: str | None = None, header: bytes | None = None, tag: object = None) -> None:
        """Handle an HTTP request: its answer is streamed by another task than the one that saw its body."""
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
        from vllm.entrypoints.serve.elastic_ep.middleware import ScalingMiddleware

        async def handler() -> None:
            request = CompletionRequest(prompt=[1], user=user)
            OpenAIServingCompletion.create_completion(None, request).close()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.create_task(handler())
            await asyncio.create_task(stream())

        async def stream() -> None:
            self.assign(name, tag=tag)

        headers = [(b"host", b"x"), *([(HEADER.lower().encode(), header)] if header is not None else [])]
        scope = {"type": "http", "headers": headers}

        async def connection() -> None:
            await ScalingMiddleware(app)(scope, None, None)

        asyncio.run(connection())

    def owners(self) -> dict[str, tuple[str | None, str | None]]:
        """Tenant and adapter by the client's id, as a trace has them."""
        assert self.failed == []
        with Trace(ingest(self.run).target) as trace:
            rows = trace.sql("SELECT external_id, tenant, lora FROM request", format="arrow").to_pylist()
        return {row["external_id"]: (row["tenant"], row["lora"]) for row in rows}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    yield made
    made.patches.uninstall()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, None),
        ({"user": "u"}, "u"),
        ({"header": b"h"}, "h"),
        ({"tag": "t"}, "t"),
        ({"user": "u", "header": b"h"}, "h"),
        ({"user": "u", "tag": "t"}, "t"),
        ({"header": b"h", "tag": "t"}, "t"),
        ({"user": "u", "header": b"  ", "tag": ""}, "u"),
        ({"user": ""}, None),
        ({"tag": 42}, "42"),
        ({"header": "café".encode("latin-1")}, "café"),
        ({"user": "\ud800 <b>"}, "? <b>"),
    ],
    ids=str,
)
def test_the_tag_comes_before_the_header_and_that_before_the_user(
    api: Api, told: dict[str, Any], expected: str | None
) -> None:
    api.install(NAMES)
    api.serve("a", **told)
    [(tenant, lora)] = api.owners().values()
    assert (tenant, lora) == (expected, None)


def test_hashes_are_equal_for_equal_tenants_alone(api: Api) -> None:
    """Whichever way they are told, and with characters that UTF-8 has no bytes for."""
    api.install(HASHED)
    api.serve("user", user="acme")
    api.serve("header", header=b"acme")
    api.serve("tag", tag="acme")
    api.serve("other", user="globex")
    api.serve("odd", user="\ud800")
    found = {name: tenant for name, (tenant, _) in api.owners().items()}
    assert found["user"] == found["header"] == found["tag"]
    assert len({*found.values()} - {None}) == 3
    assert not [path for path in api.run.rglob("*") if path.is_file() and b"acme" in path.read_bytes()]


def test_a_request_is_not_for_the_tenant_of_the_one_before(api: Api) -> None:
    """In one task, as where another server than vLLM's calls its serving classes."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    def serve(name: str, user: str | None) -> None:
        OpenAIServingCompletion.create_completion(None, CompletionRequest(prompt=[1], user=user)).close()
        api.assign(name)

    def both() -> None:
        serve("first", "acme")
        serve("second", None)

    api.install(NAMES)
    contextvars.copy_context().run(both)
    assert {name: tenant for name, (tenant, _) in api.owners().items()} == {"first": "acme", "second": None}


def test_without_tenants_only_adapters_are_recorded(api: Api) -> None:
    api.install(None)
    api.serve("a", user="acme", header=b"acme", tag="acme")
    api.assign("b", tag="acme", lora="sql")
    assert api.owners() == {"a": (None, None), "b": (None, "sql")}
    assert len(list(api.run.rglob("request_owner.*"))) == 1


def test_requests_of_nobody_leave_no_record(api: Api) -> None:
    api.install(HASHED)
    api.serve("a")
    assert api.owners() == {"a": (None, None)}
    assert list(api.run.rglob("request_owner.*")) == []


def test_a_request_without_what_tells_them_costs_tenants_and_nothing_else(api: Api) -> None:
    """As of a vLLM that names it differently: ids are still recorded, and the summary says what is lost."""
    from vllm.v1.engine.input_processor import InputProcessor

    api.install(NAMES)
    for name in ("a", "b"):
        InputProcessor.assign_request_id(SimpleNamespace(request_id=name, external_req_id=None))
    [detail] = api.failed
    assert "lost: tenants" in detail
    api.failed.clear()
    assert api.owners() == {"a": (None, None), "b": (None, None)}


@pytest.mark.parametrize("header", ["", "X Tenant", "X-Tenant:", "é"])
def test_a_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(KvtraceError, match="expected the name of a header"):
        Tenants(header=header).check()


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "Cookie"])
def test_the_values_of_a_secret_header_are_recorded_as_hashes_only(header: str) -> None:
    with pytest.raises(KvtraceError, match="may hold a secret"):
        Tenants("names", header).check()
    Tenants("hashed", header).check()


def test_the_key_goes_no_further_than_the_environment() -> None:
    assert HASHED.key not in repr(HASHED)
    assert json.loads(NAMES.to_environment()["_KVTRACE_TENANTS"])["key"] == ""
    assert Tenants("off").to_environment() == {}
