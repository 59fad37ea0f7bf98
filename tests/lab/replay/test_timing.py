"""Step times that an engine with known ones would have recorded are found again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.lab.replay.recording import StepTime
from kvtrace.lab.replay.timing import Work, fit

DECODE_NS, CONTEXT_NS, LAUNCH_NS = 6_000_000, 150, 20_000_000
IDLE_NS, OVERHEAD_NS = 50_000_000, 500_000


def batches(token_ns: int, prompts: list[int], passes: int) -> list[StepTime]:
    """Requests one after another on an idle engine that schedules ahead; each prompt is a pass of its own."""
    steps: list[StepTime] = []
    now = 0
    for prompt in itertools.chain.from_iterable((each, each) for each in prompts):
        now += IDLE_NS
        ends = now + max(LAUNCH_NS, token_ns * prompt)
        steps.append(StepTime(len(steps), now, ends, ends + OVERHEAD_NS, 0, prompt, 0, prompt * (prompt + 1) // 2, 0))
        starts = now + LAUNCH_NS + OVERHEAD_NS  # a decoding step is scheduled when the one before it is launched
        for _ in range(passes):
            now, ends = ends, ends + DECODE_NS + CONTEXT_NS * prompt
            steps.append(StepTime(len(steps), min(starts, now), ends, ends + OVERHEAD_NS, 1, 0, prompt, 0, 0))
            starts = now + OVERHEAD_NS
        now = ends
    return steps


@given(
    token_ns=st.integers(15_000, 60_000),
    prompts=st.permutations([64, 256, 512, 1024, 2048, 4096, 8192] * 4),
    passes=st.integers(6, 12),
)
def test_prefills_of_an_idle_engine_tell_what_prefills_take(token_ns: int, prompts: list[int], passes: int) -> None:
    """As of a run of batches, where no prompt comes while others decode. Decoding reads its context much slower."""
    model = fit(batches(token_ns, prompts, passes))
    for prompt in (4096, 8192):
        work = Work(0, prompt, 0, prompt * (prompt + 1) // 2)
        assert model.end_ns(0, 0, work) == pytest.approx(token_ns * prompt, rel=0.25)
    assert model.end_ns(0, 0, Work(0, 16, 0, 136)) == pytest.approx(LAUNCH_NS, rel=0.25)
    decode = Work(1, 0, 2048, 0)
    assert model.end_ns(0, 0, decode) == pytest.approx(DECODE_NS + CONTEXT_NS * 2048, rel=0.1)
