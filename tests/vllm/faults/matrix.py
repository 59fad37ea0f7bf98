"""Every hook made to raise, every attribute it reads removed, in turn: what becomes of the engine and of the recording?

    python -m tests.vllm.faults.matrix [VARIANT ...] [--only TEXT] [--every N]     # needs vLLM; `make faults` runs all

First come the conditions (`conditions.py`), on the first variant.

The faults are found, not listed: a recorded run of each variant of engine tells which functions of which hooks are
called and which attributes of vLLM's objects they read. Each is tried on the first variant that has it. A hook's
function raises at its first call, and after half of its calls once its work is done. A trial is good if

- the engine's outputs, its schedule and what its requests found in the cache are the same as without kvtrace,
- the recording can be ingested and either holds what it would have held, or the summary names a hook or an attribute
  that failed or is not there (and was there without the fault), or a fact of the engine is left unknown,
- a hook that was made to raise is named by the summary,
- no request is kept alive once it has ended.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vllm.faults import cells
from tests.vllm.faults.cells import Fault
from tests.vllm.faults.conditions import CONDITIONS
from tests.vllm.faults.judge import Reference, judge, judge_condition
from tests.vllm.faults.variants import SERVED, variants
from tests.vllm.offload.engines import connector_engines

IN_MATRIX = ("plain", "uncached", "subclassed", *connector_engines(Path()), "ttl", "groups", "states", SERVED)
_PYTHONS_OWN = ("__spec__", "__mro__", "__module__", "__qualname__", "__name__")


def faults(reference: Reference, known: set[Any]) -> Iterator[Fault]:
    """The faults that are possible on a variant and not in `known`, which grows."""
    variant = reference.variant
    yield Fault(variant, "raise all")
    for place, calls in reference.fresh.calls:
        if calls and place not in known:
            known.add(place)
            yield Fault(variant, "raise", place=place)
            if place.part != "arguments":  # it walks an iterator: nothing of it could fail after that
                yield Fault(variant, "raise", place=place, call=(calls + 1) // 2, works=True)
    for attribute in reference.fresh.seen:
        if attribute not in known and attribute.rpartition(".")[2] not in _PYTHONS_OWN:
            known.add(attribute)
            yield Fault(variant, "missing", missing=attribute)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("variants", nargs="*", help=f"of {', '.join(IN_MATRIX)}; all if none is named")
    parser.add_argument("--only", default="", help="only faults whose description matches this pattern")
    parser.add_argument("--every", type=int, default=1, help="only every Nth fault of a variant, and all conditions")
    parser.add_argument("--list", action="store_true", help="only list them")
    arguments = parser.parse_args()
    cells.prepare()
    known: set[Any] = set()
    counts: Counter[str] = Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults") as temporary:
        for variant in arguments.variants or IN_MATRIX:
            assert variant in variants(Path(temporary))
            reference = Reference(variant, Path(temporary) / variant)
            if reference.fresh.outcome != reference.off.outcome:
                print(f"WRONG {variant}: recorded without a fault, it differs", flush=True)
                counts["wrong"] += 1
            conditions = [Fault(variant, kind) for kind in CONDITIONS if variant == "plain"]
            found = [*conditions, *list(faults(reference, known))[:: arguments.every]]
            chosen = [fault for fault in found if re.search(arguments.only, str(fault))]
            for number, fault in enumerate(chosen):
                if arguments.list:
                    print(fault)
                    continue
                folder = Path(temporary) / variant / f"{number}"
                try:
                    judged = judge_condition if fault.kind in CONDITIONS else judge
                    wrong, told = judged(fault, reference, folder)
                except RuntimeError as error:
                    wrong, told = [f"the engine FAILED: {error}"], ""
                counts["wrong" if wrong else "good"] += 1
                counts["condition" if fault.kind in CONDITIONS else told.split(":")[0]] += 1
                print(f"{'WRONG' if wrong else 'good '} {fault}: {'; '.join([*wrong, told])}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
            reference.close()
    seconds, tried = time.monotonic() - started, counts["good"] + counts["wrong"]
    print(f"{tried} faults in {seconds:.0f} s, {counts['wrong']} wrong: {dict(counts)}")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
