"""Step times that an engine with known ones would have recorded are found again."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.lab.replay.recording import StepTime
from kvtrace.lab.replay.timing import Work, fit

DECODE_NS, CONTEXT_NS, LAUNCH_NS = 6_000_000, 150, 20_000_000
IDLE_NS, OVERHEAD_NS = 50_000_000, 500_000
GRAPH_LAUNCH_NS, BESIDE_NS = 9_000_000, 3_000_000


def launched(work: Work, graph_tokens: int) -> tuple[int, int, str]:
    """Times of launching a step and its forward pass, and how that runs."""
    if not work.prefill_tokens:
        return OVERHEAD_NS, OVERHEAD_NS, "full"
    has_graph = work.decode_tokens + work.prefill_tokens <= graph_tokens
    takes_ns = GRAPH_LAUNCH_NS if has_graph else LAUNCH_NS
    return takes_ns, takes_ns - BESIDE_NS, "piecewise" if has_graph else "eager"


def batches(token_ns: int, prompts: list[int], passes: int, graph_tokens: int | None = None) -> list[StepTime]:
    """Requests one after another on an idle engine that schedules ahead; each prompt is a pass of its own."""
    steps: list[StepTime] = []
    now = 0
    for prompt in itertools.chain.from_iterable((each, each) for each in prompts):
        now += IDLE_NS
        work = Work(0, prompt, 0, prompt * (prompt + 1) // 2)
        launch_ns, forward_ns, mode = launched(work, graph_tokens or 0)
        ends = now + max(launch_ns, token_ns * prompt)
        step = StepTime(len(steps), now, ends, ends + OVERHEAD_NS, *work, 0)
        steps.append(step if graph_tokens is None else step._replace(launched_ns=forward_ns, graph_mode=mode))
        starts = now + launch_ns + OVERHEAD_NS  # a decoding step is scheduled when the one before it is launched
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


@given(token_ns=st.integers(40_000, 60_000), prompts=st.permutations([16, 64, 128, 1024, 2048, 4096, 8192] * 4))
def test_launches_that_a_longer_step_hides_are_told_by_their_forward_passes(token_ns: int, prompts: list[int]) -> None:
    """As of passes of one model: only small ones, with CUDA graphs, are bound by their launch."""
    model = fit(batches(token_ns, prompts, 8, graph_tokens=512))
    work = Work(8, 300, 8 * 300, 45_000)
    launches = {tokens: model.with_graphs(tokens).launch(0, work) for tokens in (0, 128, 512)}
    assert launches == pytest.approx({0: LAUNCH_NS, 128: LAUNCH_NS, 512: GRAPH_LAUNCH_NS}, rel=0.02)


def loaded(sizes: list[int], graph_tokens: int) -> list[StepTime]:
    """Steps scheduled ahead of which every fifth has a prefill of the next size beside four requests that decode."""
    works = [Work(4, sizes[n // 5 % len(sizes)] if n % 5 == 0 else 0, 4 * 500, 0) for n in range(5 * len(sizes))]
    starts, ends, told, results, free = [], [], [], [0, 0], 0
    for work in works:
        start = results[-1] + OVERHEAD_NS  # after the results of the step before the last one
        launch_ns, *rest = launched(work, graph_tokens)
        free = max(start + launch_ns, max(start, free) + DECODE_NS + 20_000 * work.prefill_tokens)
        if starts:  # the engine takes results in after the launch
            results.append(max(ends[-1], start + launch_ns))
        starts.append(start)
        ends.append(free)
        told.append(rest)
    results = [*results[2:], ends[-1]]
    return [
        StepTime(n, starts[n], results[n], results[n] + 10_000, *work, 0, launched_ns=told[n][0], graph_mode=told[n][1])
        for n, work in enumerate(works)
    ]


@given(sizes=st.permutations([16, 48, 100, 124, 125, 200, 300, 400, 1600, 3200] * 8))
def test_launches_with_cuda_graphs_and_without_are_told_apart(sizes: list[int]) -> None:
    model = fit(loaded(sizes, graph_tokens=128))
    for prefill, takes_ns in ((16, GRAPH_LAUNCH_NS), (124, GRAPH_LAUNCH_NS), (125, LAUNCH_NS), (400, LAUNCH_NS)):
        work = Work(4, prefill, 4 * 500, 0)
        assert model.with_graphs(128).launch(3, work) == pytest.approx(takes_ns, rel=0.02)
        ends_ns = model.with_graphs(128).end_ns(0, 0, work)  # its results are taken in behind the next launch
        assert 0 <= ends_ns - max(takes_ns, model.step_ns(work)) < 2.1 * OVERHEAD_NS
        assert model.with_graphs(512).launch(3, work) == pytest.approx(GRAPH_LAUNCH_NS, rel=0.02)


def burst(token_ns: int, budget: int, requests: int, prompt: int, outputs: int) -> list[StepTime]:
    """Requests that all come at once to an engine that schedules ahead: prefill after prefill, then decoding only.

    A step's results are taken in when the device has them and the step after it is launched.
    """
    works, left = [], requests * prompt
    while left:
        tokens, done = min(budget, left), requests - -(-left // prompt)
        left -= tokens
        works.append(Work(done, tokens, done * prompt, tokens * prompt // 2))
    works += [Work(requests, 0, requests * (prompt + n), 0) for n in range(outputs)]
    steps: list[StepTime] = []
    host = device = 0
    for number, work in enumerate(works):
        start, takes = host, DECODE_NS + 30_000 * work.decode_tokens + token_ns * work.prefill_tokens
        host += LAUNCH_NS if work.prefill_tokens else OVERHEAD_NS
        device = max(device, start) + max(takes, host - start)
        steps.append(StepTime(number, start, device, device + OVERHEAD_NS, *work, 0))
        if number:  # the step before is taken in now, and the next is scheduled after that
            before = steps[-2]
            taken_in = max(host, before.update_ns or 0)
            steps[-2] = before._replace(update_ns=taken_in, end_ns=taken_in + OVERHEAD_NS)
            host = taken_in + OVERHEAD_NS
    return steps


@given(
    token_ns=st.integers(15_000, 60_000),
    budget=st.sampled_from([2048, 4096, 8192]),
    requests=st.integers(100, 300),
    prompt=st.integers(700, 1500),
)
def test_a_burst_tells_what_prefills_take(token_ns: int, budget: int, requests: int, prompt: int) -> None:
    """As of an offline batch: no prefill comes between steps that only decode, and most follow one another."""
    steps = burst(token_ns, budget, requests, prompt, 200)
    first = steps[0]._replace(start_ns=steps[0].start_ns - 6_000_000_000)  # an engine's first step
    model = fit([first, *steps[1:]])
    work = Work(requests // 2, budget, requests // 2 * prompt, budget * prompt // 2)
    assert model.step_ns(work) == pytest.approx(DECODE_NS + 15_000 * requests + token_ns * budget, rel=0.15)


@given(
    context_ns=st.integers(20, 120),
    token_ns=st.integers(0, 40_000),
    seed=st.integers(0, 1000),
)
def test_reading_long_contexts_takes_its_time_beside_prefills_too(context_ns: int, token_ns: int, seed: int) -> None:
    """Where the recording only has prefills with a few short contexts beside them, whose share is lost in the noise."""
    dice = random.Random(seed)
    steps, now = [], 0
    for number in range(600):
        decodes, prefill = dice.randrange(1, 12), dice.randrange(16, 8000) if number % 6 == 0 else 0
        context = decodes * (dice.randrange(10, 200) if prefill else dice.randrange(100, 9000))
        takes = DECODE_NS + token_ns * decodes + context_ns * context + 20_000 * prefill * dice.uniform(0.8, 1.2)
        steps.append(StepTime(number, now, now + int(takes), now + int(takes), decodes, prefill, context, 0, 0))
        now += int(takes)

    model = fit(steps)

    loaded = Work(42, 4000, 42 * 7000, 0)
    decoding = token_ns * 42 + context_ns * 42 * 7000
    truth = DECODE_NS + decoding + 20_000 * 4000
    assert 0.85 * truth < model.step_ns(loaded) < 1.15 * (truth + decoding)  # reading is slower beside prefills


@given(asking_ns=st.integers(0, 15_000_000))
def test_questions_to_a_connector_are_no_part_of_a_launch(asking_ns: int) -> None:
    """A replay adds what its own questions take."""
    plain, asked, added = [], [], 0
    for number in range(400):
        now = number * 10 * DECODE_NS
        large = number % 4 == 0
        start = now - OVERHEAD_NS if large else now - DECODE_NS  # scheduled ahead; the launch holds back what is before
        steps = [
            StepTime(2 * number, now - 2 * DECODE_NS, now + (LAUNCH_NS if large else 0), 0, 1, 0, 100, 0, 0),
            StepTime(2 * number + 1, start, now + 2 * LAUNCH_NS, 0, 1, 500 if large else 0, 100, 125_250, 0),
        ]
        plain += steps
        added = asking_ns if large else 0
        asked += [
            steps[0]._replace(update_ns=now + (LAUNCH_NS + added if large else 0)),
            steps[1]._replace(update_ns=now + 2 * LAUNCH_NS + added, asking_ns=added),
        ]

    expected, found = fit(plain), fit(asked)

    assert expected.launches.mean_ns > 0
    assert found.launches == expected.launches


def saving(token_ns: int, prompts: list[int], copy_ns: int, passes: int) -> list[StepTime]:
    """Prefills, some one after another and some between decoding steps, whose worker stores what each has computed.

    It waits for the step's own work first, and the engine goes on when it has stored: results before it are late.
    """
    works = []
    for number, prompt in enumerate(prompts):
        works.append(Work(1, prompt, 100, prompt * prompt // 2))
        works += [Work(1, 0, 100 + each, 0) for each in range(passes if number % 3 == 0 else 0)]
    steps: list[StepTime] = []
    host = device = 0
    for number, work in enumerate(works):
        start, takes = host, DECODE_NS + token_ns * work.prefill_tokens
        launched = start + (LAUNCH_NS if work.prefill_tokens else OVERHEAD_NS)
        begins = max(device, start)
        device = worked = max(begins + takes, launched)
        waited = copying = 0
        if work.prefill_tokens:
            waited, copying = worked - launched, copy_ns * work.prefill_tokens
            launched = device = worked + copying
        times = StepTime(number, start, device, device, *work, 0, copying, 0, waited, worked - start if waited else 0)
        steps.append(times)
        host = launched
        if number:
            taken_in = max(host, steps[-2].update_ns or 0)
            steps[-2] = steps[-2]._replace(update_ns=taken_in, end_ns=taken_in + OVERHEAD_NS)
            host = taken_in + OVERHEAD_NS
    return steps


@given(
    token_ns=st.integers(15_000, 60_000),
    prompts=st.permutations([256, 512, 1024, 2048, 4096, 8192] * 6),
    copy_ns=st.integers(0, 30_000),
    passes=st.integers(3, 12),
)
def test_prefills_that_are_stored_tell_what_they_take_without_it(
    token_ns: int, prompts: list[int], copy_ns: int, passes: int
) -> None:
    """Where a worker waited for a step's work, that tells the step's time and its launch, however long it stored."""
    model = fit(saving(token_ns, prompts, copy_ns, passes))
    for prompt in (2048, 8192):
        work = Work(1, prompt, 100, prompt * prompt // 2)
        assert model.step_ns(work) == pytest.approx(DECODE_NS + token_ns * prompt, rel=0.05)
    assert model.launches.mean_ns == pytest.approx(LAUNCH_NS, rel=0.05)
    assert not model.copies_taken_off
