"""When outputs were handed on: vLLM's own collector, asked as the task asks that sends outputs to a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.run import ingest
from kvtrace.probes import frontend
from kvtrace.probes.hooks import Patches
from kvtrace.queries import Trace

output_processor = pytest.importorskip("vllm.v1.engine.output_processor")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    recorder = Recorder(tmp_path)
    recorder.note("role", role="frontend")
    patches = Patches(lambda target, state, detail: recorder.note("hook", hook=target, state=state, detail=detail))
    patches.install(frontend.hooks(recorder))
    yield tmp_path
    patches.uninstall()


def collector(name: str) -> Any:
    return output_processor.RequestOutputCollector(output_processor.RequestOutputKind.DELTA, name)


def deliveries(run: Path) -> list[dict[str, Any]]:
    target = ingest(run).target
    with Trace(target) as trace:
        return trace.sql(
            "SELECT internal_id, time_ns - first_ns AS between_ns FROM request_delivery JOIN request USING (request) "
            "ORDER BY internal_id",
            format="arrow",
        ).to_pylist()


def test_the_first_is_handed_on_when_the_second_is_asked_for(run: Path) -> None:
    streamed = collector("streamed")
    for _ in range(3):
        assert streamed.get_nowait() is None
    assert "get_nowait" not in vars(streamed), "later questions are not watched"
    streamed.close()
    (row,) = deliveries(run)
    assert row["between_ns"] > 0


def test_one_output_has_no_first_and_a_collector_is_told_of_once(run: Path) -> None:
    whole = collector("whole")
    whole.get_nowait()
    whole.close()
    whole.close()
    assert deliveries(run) == [{"internal_id": "whole", "between_ns": None}]


def test_a_collector_works_as_without(run: Path) -> None:
    watched = collector("a")
    watched.put(ValueError("it failed"))
    with pytest.raises(ValueError, match="it failed"):
        watched.get_nowait()
    assert watched.get_nowait() is None
