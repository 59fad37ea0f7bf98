"""On a GPU, with piecewise CUDA graphs: what stamps cost a decode step, in us.

    python bench/piecewise.py MODEL_DIR [BATCHES]

Between piecewise graphs Python launches attention, and stamps, so that a step takes as long as the processor does; it
differs by more between two engines, or two minutes, than a recording costs. Here one engine decodes, in the process
that measures, 32 sequences a batch, and which layers have stamps is chosen for each step anew, at random. A step's time
is the difference to its neighbours'; what is given is how far the mean of the middle half of these is from that of
steps without stamps, and between which two numbers it is with 95% (batches drawn with replacement).

- `none`: level `host`, and nothing else
- `layer`: as recorded
- `8 apart`, `ends`: one layer of eight and the last, or the first and the last
- `bare`: as recorded, but nothing stands in for the calls of layers without stamps
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import throughput

SEQUENCES, PROMPT_TOKENS, OUTPUT_TOKENS = 32, 512, 128
AROUND = 12  # as many steps to both sides are a step's neighbours
FIRST, LAST = 8, 3  # steps of a batch that are left out: prefills, and the end
DRAWS = 1000


class Call(NamedTuple):
    """A call of a layer's attention implementation, and what stands in for it without and with stamps."""

    layer: int
    owner: Any
    name: str
    bare: Callable[..., Any]
    timed: Callable[..., Any]
    recorded: bool


def gather() -> tuple[list[Any], list[Call]]:
    """Where the recorder and its stand-ins will be found once an engine has been started."""
    from kvtrace.probes.device import layers

    recorders: list[Any] = []
    calls: list[Call] = []
    make, wrap = layers.stamped, layers.LayerRecorder._wrap
    current = 0

    def made(original: Any, *given: Any, pieces: bool, follows: bool, **flags: bool) -> Any:
        bare = make(original, *given, full=False, pieces=False, follows=follows)
        timed = make(original, *given, full=True, pieces=True, follows=follows)
        calls.append(Call(current, original.__self__, original.__name__, bare, timed, pieces))
        return make(original, *given, pieces=pieces, follows=follows, **flags)

    def wrapped(self: Any, layer: int, *args: Any, **kwargs: Any) -> None:
        nonlocal current
        current, recorders[:] = layer, [self]
        wrap(self, layer, *args, **kwargs)

    layers.stamped = made  # type: ignore[assignment]
    layers.LayerRecorder._wrap = wrapped  # type: ignore[method-assign]
    return recorders, calls


def stand_in(kind: str, call: Call, last: int) -> Callable[..., Any] | None:
    """What stands in for a call in steps of a kind."""
    if kind == "none" or (kind == "bare" and not call.recorded):
        return None
    stamped = {
        "layer": call.recorded,
        "bare": True,
        "8 apart": call.layer % 8 == 0 or call.layer == last,
        "ends": call.layer in (0, last),
    }
    return call.timed if stamped[kind] else call.bare


KINDS = "none", "layer", "8 apart", "ends", "bare"


def batches(model: str, count: int) -> list[list[tuple[str, float]]]:
    """The kind and the time, in us, of each decode step, batch by batch."""
    throughput.prepare("")
    from kvtrace.layout import KV_LEVEL_VARIABLE, RUN_DIR_VARIABLE
    from kvtrace.probes import plugin

    os.environ.update({RUN_DIR_VARIABLE: tempfile.mkdtemp(), KV_LEVEL_VARIABLE: "layer"})

    recorders, calls = gather()
    plugin.load()
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=SEQUENCES,
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=8 << 30,
        compilation_config={"cudagraph_mode": "PIECEWISE"},
    ).llm_engine
    if not calls:
        raise SystemExit("no layer has stamps: there is no CUDA device, or no CuPy")
    parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    last = max(call.layer for call in calls)
    stand_ins = {kind: [stand_in(kind, call, last) for call in calls] for kind in KINDS}
    rng = random.Random(0)

    def dress(kind: str) -> None:
        recorders[0]._alive = kind != "none"
        for call, found in zip(calls, stand_ins[kind], strict=True):
            vars(call.owner).pop(call.name, None)
            if found is not None:
                setattr(call.owner, call.name, found)

    def batch(number: int) -> list[tuple[str, float]]:
        for n in range(SEQUENCES):
            prompt = [(n * 7 + p * (number + 1)) % 500 + 3 for p in range(PROMPT_TOKENS)]
            engine.add_request(f"{number}-{n}", {"prompt_token_ids": prompt}, parameters)
        found = []
        while engine.has_unfinished_requests():
            kind = rng.choice(KINDS)
            dress(kind)
            start = time.perf_counter_ns()
            engine.step()
            found.append((kind, (time.perf_counter_ns() - start) / 1e3))
        return found

    for number in range(3):
        batch(number)
    return [batch(3 + number) for number in range(count)]


def differences(batch: Sequence[tuple[str, float]]) -> list[tuple[str, str, float]]:
    """Of each step: its kind, that of the step before it, whose results it waits for, and how much longer it took."""
    times = [took for _, took in batch]
    return [
        (batch[i][0], batch[i - 1][0], times[i] - statistics.median(times[max(FIRST, i - AROUND) : i + AROUND]))
        for i in range(FIRST, len(batch) - LAST)
    ]


def more(steps: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """By kind, how much longer a step takes than without stamps: it and the one after it."""

    def mean(found: list[float]) -> float:
        cut = len(found) // 4
        return statistics.fmean(sorted(found)[cut : len(found) - cut])

    of = {
        kind: mean([longer for now, _, longer in steps if now == kind])
        + mean([longer for _, before, longer in steps if before == kind])
        for kind in KINDS
    }
    return {kind: of[kind] - of["none"] for kind in KINDS}


def main(model: str, count: int = 40) -> None:
    found = batches(model, count)
    apart = [differences(batch) for batch in found]
    rng = random.Random(0)
    drawn = [more([step for batch in rng.choices(apart, k=len(apart)) for step in batch]) for _ in range(DRAWS)]
    said = more([step for batch in apart for step in batch])
    decode = statistics.median(took for batch in found for kind, took in batch[FIRST:-LAST] if kind == "none")
    print(f"{count} batches of {SEQUENCES}; a step without stamps takes {decode:,.0f} us in the median")
    for kind in KINDS[1:]:
        low, high = np.quantile([draw[kind] for draw in drawn], [0.025, 0.975])
        print(f"{kind:10} {said[kind]:8.1f} us more ({low:.1f} to {high:.1f}): {decode / (decode + said[kind]):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
