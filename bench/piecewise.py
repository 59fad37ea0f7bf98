"""On a GPU, with piecewise CUDA graphs: what a recording costs a decode step, in us.

    python bench/piecewise.py MODEL_DIR [BATCHES]

Between piecewise graphs Python launches attention, and stamps, so that a step takes as long as the processor does; it
differs by more between two engines, or two minutes, than a recording costs. Here one engine decodes, in the process
that measures, 32 sequences a batch. Of three batches one is not recorded; in the others it changes every few steps, at
random, which layers have stamps:

- `host`: none, as at level `host`
- `layer`: as recorded
- `8 apart`, `ends`: one layer of eight and the last, or the first and the last

Figures are means of the middle half, less those of `host`, with the two numbers between which they are with 95%
(batches drawn with replacement):

- `in calls`: what the recorder's calls take in a step, by the clock: those around the pass, and the stand-ins for
  attention less what they stand in for. A step that waits for Python is longer by as much.
- `in steps`: how much longer steps are, which also has what the recorder does to everything else, and all noise

And of `host` itself `in hooks`, what its hooks take (`hook_time.timing`), less the same in batches without them.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count as counted
from typing import Any, NamedTuple

import hook_time
import numpy as np
import throughput

SEQUENCES, PROMPT_TOKENS, OUTPUT_TOKENS = 32, 512, 128
FIRST, LAST = 8, 3  # steps of a batch that are left out: prefills, and the end
BLOCK = 10  # steps of a kind in a row; the first is left out: it waits for results of another kind
DRAWS = 1000
OFF = "off"
KINDS = "host", "layer", "8 apart", "ends"
FIGURES = "in steps", "in calls"


class Call(NamedTuple):
    """A call of a layer's attention implementation, and what stands in for it where the layer has stamps; clocked."""

    layer: int
    owner: Any
    name: str
    original: Callable[..., Any]
    timed: Callable[..., Any]
    recorded: bool


class Step(NamedTuple):
    """Return the microseconds that a step took, and those clocked in it."""

    kind: str
    in_steps: float
    in_calls: float
    in_hooks: float


class Clock:
    """Time spent in some calls less that in others, ns.

    Attributes:
        recording: False: what is called around passes does nothing.
    """

    def __init__(self) -> None:
        self.spent = 0
        self.recording = True

    def while_recording(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(lambda *given: call(*given) if self.recording else None)

    def around(self, call: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            result = call(*args, **kwargs)
            self.spent += sign * (time.perf_counter_ns() - start)
            return result

        return clocked


def gather(clock: Clock) -> list[Call]:
    """Return the places where an engine will find the recorder's stand-ins."""
    from kvtrace.probes.device import layers

    calls: list[Call] = []
    make, wrap, around = layers.stamped, layers.LayerRecorder._wrap, layers.LayerRecorder.around
    current = 0

    def made(original: Any, *given: Any, in_graphs: bool, follows: bool) -> Any:
        inner = clock.around(original, -1)
        timed = clock.around(make(inner, *given, in_graphs=True, follows=follows))
        owner, name = original.__self__, original.__name__
        calls.append(Call(current, owner, name, clock.around(inner), timed, in_graphs))
        return make(original, *given, in_graphs=in_graphs, follows=follows)

    def wrapped(self: Any, layer: int, *args: Any, **kwargs: Any) -> None:
        nonlocal current
        current = layer
        wrap(self, layer, *args, **kwargs)

    def around_passes(self: Any, *calls: Any) -> Any:
        return tuple(map(clock.while_recording, around(self, *calls)))

    layers.stamped = made  # type: ignore[assignment]
    layers.LayerRecorder._wrap = wrapped  # type: ignore[method-assign]
    layers.LayerRecorder.around = around_passes  # type: ignore[method-assign]
    return calls


def kinds(rng: random.Random) -> Iterator[tuple[str, bool]]:
    """The kind of one step after another, and whether it is the first of a block."""
    while True:
        for kind in rng.sample(KINDS, len(KINDS)):
            for n in range(BLOCK):
                yield kind, n == 0


def batches(model: str, count: int) -> list[list[Step]]:
    """Decode steps, batch by batch."""
    throughput.prepare("")
    from kvtrace.format.layout import KV_LEVEL_VARIABLE, RUN_DIR_VARIABLE
    from kvtrace.probes import hooks, plugin

    os.environ.update({RUN_DIR_VARIABLE: tempfile.mkdtemp(), KV_LEVEL_VARIABLE: "layer"})

    clock = Clock()
    calls = gather(clock)
    recording, in_hooks_ns = [True], defaultdict[str, list[int]](list)
    hooks.wrap = hook_time.timing(throughput.selectable(hooks.wrap, recording), in_hooks_ns)
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
    apart = {call.layer for call in calls if call.layer % 8 == 0 or call.layer == last}
    recorded = {call.layer for call in calls if call.recorded}
    stamped = {OFF: set(), "host": set(), "layer": recorded, "8 apart": apart, "ends": {0, last}}
    of_interest = [call for call in calls if call.layer in apart]
    rng = random.Random(0)

    def dress(kind: str) -> None:
        clock.recording = bool(stamped[kind])
        for call in of_interest:
            setattr(call.owner, call.name, call.timed if call.layer in stamped[kind] else call.original)

    def batch(number: int) -> list[Step]:
        recording[0] = number % 3 != 0
        sequence = kinds(rng) if recording[0] else ((OFF, n % BLOCK == 0) for n in counted())
        for n in range(SEQUENCES):
            prompt = [(n * 7 + p * (number + 1)) % 500 + 3 for p in range(PROMPT_TOKENS)]
            engine.add_request(f"{number}-{n}", {"prompt_token_ids": prompt}, parameters)
        found = []
        while engine.has_unfinished_requests():
            kind, fresh = next(sequence)
            if fresh:
                dress(kind)
            in_hooks_ns.clear()
            start, clock.spent = time.perf_counter_ns(), 0
            engine.step()
            took = time.perf_counter_ns() - start
            in_hooks = sum(map(sum, in_hooks_ns.values()))
            found.append(Step("" if fresh else kind, took / 1e3, clock.spent / 1e3, in_hooks / 1e3))
        return [step for step in found[FIRST:-LAST] if step.kind]

    for number in range(3):
        batch(number)
    return [batch(3 + number) for number in range(count)]


def middle(found: list[float]) -> float:
    """The mean of the middle half."""
    cut = len(found) // 4
    return statistics.fmean(sorted(found)[cut : len(found) - cut])


def more(found: list[Step]) -> dict[tuple[str, str], float]:
    """By kind and figure, how much longer than at level `host`; and the hooks of that."""

    def of(kind: str, figure: str) -> float:
        return middle([getattr(step, figure.replace(" ", "_")) for step in found if step.kind == kind])

    longer = {(kind, figure): of(kind, figure) - of("host", figure) for kind in KINDS[1:] for figure in FIGURES}
    return {("host", "in hooks"): of("host", "in hooks") - of(OFF, "in hooks"), **longer}


def main(model: str, count: int = 40) -> None:
    found = batches(model, count)
    decode = statistics.median(step.in_steps for batch in found for step in batch if step.kind == "host")
    apart = []
    for batch in found:
        usual = statistics.median(step.in_steps for step in batch)
        apart.append([step._replace(in_steps=step.in_steps - usual) for step in batch])
    plain, recorded = ([batch for batch in apart if (batch[0].kind == OFF) is off] for off in (True, False))
    rng = random.Random(0)

    def draw() -> list[Step]:
        return [step for kind in (plain, recorded) for batch in rng.choices(kind, k=len(kind)) for step in batch]

    drawn = [more(draw()) for _ in range(DRAWS)]
    print(f"{count} batches of {SEQUENCES}; a step at level host takes {decode:,.0f} us in the median")
    for (kind, figure), longer in more([step for batch in apart for step in batch]).items():
        low, high = np.quantile([one[kind, figure] for one in drawn], [0.025, 0.975])
        print(f"{kind:8} {figure:9} {longer:7.1f} us ({low:.1f} to {high:.1f}): {decode / (decode + longer):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
