"""Spans that OpenTelemetry's own schema accepts, with the trace's times, and links that lead somewhere."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

import kvtrace
from kvtrace.errors import KvtraceError
from kvtrace.export import otlp
from kvtrace.export.otlp import export_otlp
from kvtrace.export.otlp_spans import GEN_AI

from .conftest import HOSTILE, STEPS

IDS = ("traceId", "spanId", "parentSpanId")


def parse(path: Path) -> list[tuple[dict[str, Any], Span]]:
    """Spans with their resources' attributes. Ids are hexadecimal in OTLP, and base64 in protobuf's own JSON."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        message = json.loads(line, object_hook=_base64_ids)
        for resource in json_format.ParseDict(message, TracesData()).resource_spans:
            facts = attributes(resource.resource)
            found += [(facts, span) for scope in resource.scope_spans for span in scope.spans]
    return found


def _base64_ids(entry: dict[str, Any]) -> dict[str, Any]:
    for name in IDS:
        if name in entry:
            entry[name] = base64.b64encode(bytes.fromhex(entry[name])).decode()
    return entry


def attributes(holder: Any) -> dict[str, Any]:
    return {each.key: _plain(each.value) for each in holder.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@pytest.fixture(scope="module")
def spans(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], Span]]:
    path = tmp_path_factory.mktemp("otlp") / "spans.jsonl"
    counts = export_otlp(trace, path)
    parsed = parse(path)
    assert len(parsed) == sum(counts.values())
    return parsed


def test_every_request_stretch_step_and_forward_pass_is_a_span(
    trace: Path, spans: list[tuple[dict[str, Any], Span]]
) -> None:
    with kvtrace.open(trace) as opened:
        states = opened.query("request-states", "arrow").to_pylist()
        steps = opened.sql("SELECT start_ns, end_ns FROM step WHERE end_ns IS NOT NULL", "arrow").to_pylist()
    names = Counter(span.name for _, span in spans)
    assert names["text_completion tiny"] == 19
    assert names["job"] == 1
    assert names["step"] == names["forward"] == STEPS
    assert {name: names[name] for name in ("queued", "prefill", "decode", "preempted", "resumed")} == Counter(
        state["state"] for state in states
    )
    ended = {(span.start_time_unix_nano, span.end_time_unix_nano) for _, span in spans if span.name == "step"}
    assert {(step["start_ns"], step["end_ns"]) for step in steps} <= ended
    preempted = next(span for _, span in spans if span.name == "preempted")
    [expected] = [state for state in states if state["state"] == "preempted"]
    assert (preempted.start_time_unix_nano, preempted.end_time_unix_nano) == (expected["start_ns"], expected["end_ns"])


def test_parents_are_there_and_a_job_is_one_trace(spans: list[tuple[dict[str, Any], Span]]) -> None:
    by_id = {(span.trace_id, span.span_id): span for _, span in spans}
    assert len(by_id) == len(spans)
    assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for _, span in spans)
    for _, span in spans:
        if span.parent_span_id:
            parent = by_id[span.trace_id, span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    [job] = [span for _, span in spans if span.name == "job"]
    turns = [span for _, span in spans if span.parent_span_id == job.span_id and span.trace_id == job.trace_id]
    assert [attributes(turn)["kvtrace.turn"] for turn in turns] == [1, 2, 3, 4]
    roots = {span.trace_id for _, span in spans if span.name.startswith("text_completion") and not span.parent_span_id}
    assert len(roots) == 15


def test_stretches_link_to_the_steps_that_computed_for_them(
    trace: Path, spans: list[tuple[dict[str, Any], Span]]
) -> None:
    steps = {(s.trace_id, s.span_id): attributes(s)["kvtrace.step"] for _, s in spans if s.name == "step"}
    linked = Counter(
        (attributes(span)["kvtrace.request"], steps[link.trace_id, link.span_id])
        for _, span in spans
        for link in span.links
    )
    with kvtrace.open(trace) as opened:
        shares = opened.sql("SELECT request, step FROM step_request", "arrow").to_pylist()
    assert linked == Counter((share["request"], share["step"]) for share in shares)


def test_more_links_than_fit_are_counted(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_REQUESTS", otlp._REQUESTS.replace(f"[:{otlp.MOST_LINKS}]", "[:3]"))
    export_otlp(trace, tmp_path / "spans.jsonl")
    for _, span in parse(tmp_path / "spans.jsonl"):
        assert len(span.links) <= 3
        if steps := attributes(span).get("kvtrace.steps"):
            assert len(span.links) + span.dropped_links_count == steps


def test_attributes_say_what_happened(spans: list[tuple[dict[str, Any], Span]]) -> None:
    requests = {
        attributes(span)["kvtrace.request"]: (resource, span, attributes(span))
        for resource, span in spans
        if span.name.startswith("text_completion")
    }
    resource, span, facts = requests[1]
    assert resource["service.name"] == "vllm"
    assert resource["service.version"] == "0.32.0"
    assert resource["host.name"] == "one"
    assert facts["gen_ai.usage.input_tokens"] == 16
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 8
    assert facts["gen_ai.response.finish_reasons"] == ["length"]
    assert facts["gen_ai.conversation.id"] == "job"
    assert facts["kvtrace.most_blocks"] == 4
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.status.code == 0
    assert requests[2][2]["gen_ai.response.id"] == HOSTILE
    assert requests[5][1].status.code == 2
    assert requests[19][2]["kvtrace.unfinished"] is True


def test_names_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {*GEN_AI.values(), "gen_ai.operation.name", "gen_ai.provider.name"} <= known
    assert otlp._OPERATION in {value.value for value in gen_ai_attributes.GenAiOperationNameValues}


def test_a_file_is_replaced_only_by_force(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text("mine")
    with pytest.raises(KvtraceError, match="--force"):
        export_otlp(trace, path)
    assert path.read_text() == "mine"
    export_otlp(trace, path, force=True)
    assert [each.name for each in tmp_path.iterdir()] == ["spans.jsonl"]
    first = path.read_bytes()
    export_otlp(trace, path, force=True)
    assert path.read_bytes() == first
