"""The importer of scheduler traces, an object a line."""

from __future__ import annotations

from pathlib import Path

from kvtrace.ingest.importers.importer import Importer, Target, first_object


def _load(target: Target, source_id: int, path: Path) -> list[str]:
    from kvtrace.ingest.importers.sched_trace.load import load_sched_trace

    return load_sched_trace(target, source_id, path)


def _recognises(path: Path, head: bytes) -> bool:
    from kvtrace.ingest.importers.sched_trace.fields import kind_of

    return kind_of(dict(first_object(head)))[0] is not None


IMPORTER = Importer(
    kind="sched_trace",
    option="--sched-trace",
    help="A scheduler trace (.jsonl)",
    says="steps, queues, free blocks, scheduled tokens, preemptions, prefix lookups",
    lacks="which block, GPU times, why a lookup missed",
    recognises=_recognises,
    load=_load,
)
