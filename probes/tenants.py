"""Tenants and LoRA adapters of clients' requests.

A request tells its tenant by the tag `kvtrace_tenant`, which travels with it, by a header or by OpenAI's `user`. These
two are seen before the request has an id, and often in another task: the task that sends a streamed answer is what
asks the engine for it. So before vLLM starts any task for an HTTP request, a hook puts an empty note into the context
that all of them inherit. Header and `user` are written there, and read where the request gets its id.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tenants import Tenants
from kvtrace.events import REQUEST_OWNER
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.request_tags import client_tags
from kvtrace.probes.vllm_symbols import ENGINE_REQUEST, LORA, OPENAI, SAMPLING
from kvtrace.probes.vllm_types import EngineRequest

_TAG = "kvtrace_tenant"
_BY_TAG = "tenants by tag"
_BY_HEADER = "tenants by header, and those of streamed requests by `user`"
_BY_USER = "tenants by OpenAI's `user`"


class _Note:
    """Note of the tenant that an HTTP request's header and body name. All tasks of the request share one."""

    __slots__ = ("header", "user")

    def __init__(self) -> None:
        self.header = self.user = ""


_note: ContextVar[_Note | None] = ContextVar("kvtrace_tenant", default=None)


def hooks(recorder: Recorder, tenants: Tenants | None) -> list[Hook]:
    """The hooks on requests' ids, headers and bodies. Without `tenants` only adapters are recorded."""
    return [_on_ids(recorder, tenants), *([_on_http(tenants), *_on_users()] if tenants is not None else [])]


def _on_ids(recorder: Recorder, tenants: Tenants | None) -> Hook:
    emit = recorder.stream(REQUEST_OWNER)
    optional = OptionalAttributes(recorder)

    def after_assign(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
        request: EngineRequest = args[-1] if args else kwargs["request"]
        tenant = "" if tenants is None else _tenant(request, optional)
        lora = request.lora_request
        if not tenant and lora is None:
            return
        name = tenants.name(tenant) if tenants is not None and tenant else ""
        number, owner = recorder.intern_once(request.request_id, name)
        adapter = "" if lora is None else str(lora.lora_name)
        emit(time_ns=time.monotonic_ns(), request=number, tenant=owner, lora=recorder.intern(adapter))

    return Hook(
        "vllm.v1.engine.input_processor:InputProcessor.assign_request_id",
        "tenants, and LoRA adapters of requests that were never admitted",
        after=after_assign,
        needs=(
            Need(ENGINE_REQUEST, "request_id sampling_params pooling_params lora_request"),
            Need(LORA, "lora_name"),
            Need(SAMPLING, "extra_args", _BY_TAG),
        ),
    )


def _tenant(request: EngineRequest, optional: OptionalAttributes) -> str:
    """Return who a request says it is for: by tag, else header, else `user`; empty if it does not."""
    tag = client_tags(request, optional, _BY_TAG).get(_TAG)
    if tag is not None and (text := str(tag)):
        return text
    note = _note.get()
    return "" if note is None else note.header or note.user


def _on_http(tenants: Tenants) -> Hook:
    wanted = tenants.header.lower().encode()

    def before_call(args: Args, kwargs: Kwargs) -> None:
        scope, note = argument(args, kwargs, 1, "scope"), _Note()
        _note.set(note)
        for name, value in scope.get("headers", ()):  # in lower case, by ASGI
            if name == wanted:
                note.header = value.decode("latin-1").strip()
                break

    return Hook(
        "vllm.entrypoints.serve.elastic_ep.middleware:ScalingMiddleware.__call__",
        _BY_HEADER,
        before=before_call,
    )


def _on_users() -> list[Hook]:
    def before_create(args: Args, kwargs: Kwargs) -> None:
        note = _note.get()
        if note is None:  # not from vLLM's own HTTP server
            note = _Note()
            _note.set(note)
        note.user = argument(args, kwargs, 1, "request").user or ""

    return [
        Hook(
            f"{OPENAI}.{module}:{serving}.{function}",
            _BY_USER,
            before=before_create,
            needs=(Need(f"{OPENAI}.{module.partition('.')[0]}.protocol:{request}", "user"),),
        )
        for module, serving, function, request in (
            ("chat_completion.serving", "OpenAIServingChat", "create_chat_completion", "ChatCompletionRequest"),
            (
                "chat_completion.batch_serving",
                "OpenAIServingChatBatch",
                "create_batch_chat_completion",
                "BatchChatCompletionRequest",
            ),
            ("completion.serving", "OpenAIServingCompletion", "create_completion", "CompletionRequest"),
            ("responses.serving", "OpenAIServingResponses", "create_responses", "ResponsesRequest"),
        )
    ]
