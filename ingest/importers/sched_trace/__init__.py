"""The importer of scheduler traces, an object a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvtrace.ingest.importers.importer import Importer, Target, first_object


def _load(target: Target, files: Sequence[tuple[int, Path]]) -> list[str]:
    from kvtrace.ingest.importers.sched_trace.load import load_sched_traces

    return load_sched_traces(target, files)


def _recognises(path: Path, head: bytes) -> bool:
    from kvtrace.ingest.importers.sched_trace.fields import kind_of

    return kind_of(dict(first_object(head)))[0] is not None


IMPORTER = Importer(
    kind="sched_trace",
    option="--sched-trace",
    help="A scheduler trace (.jsonl); its steps and requests files together",
    says="steps, queues, free blocks, scheduled tokens, preemptions, prefix lookups",
    lacks="which block, GPU times, why a lookup missed",
    recognises=_recognises,
    load_together=_load,
)
