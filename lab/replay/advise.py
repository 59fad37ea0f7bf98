"""Ranks the what-ifs an operator would ask for by what they would have gained on a recorded workload."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import TTL_PIN
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.recording import MOST_GRAPH_TOKENS
from kvtrace.lab.replay.resample import Spread, asked_draws, jobs_of, over_draws
from kvtrace.lab.replay.run import Job
from kvtrace.lab.replay.session import FITTED, Session
from kvtrace.lab.replay.settings import Settings
from kvtrace.queries.statistics import Interval

_LEAST_GAIN = 0.02
"""A smaller gain than this, or than the error of the check, is none."""

_OFFLOAD_GIB = (16, 64, 128)
_OFFLOAD_FACTORS = (1, 4)
"""Host memory by the KV pool's bytes, where that is less than the least of `_OFFLOAD_GIB`."""

_WATERMARKS = (0.01, 0.05)
"""Shares of the blocks that admission leaves free: vLLM 0.4 had 1%, vLLM of today has none unless asked."""

_FACTORS_KV, _FACTORS = (0.5, 1.5, 2, 4), (0.5, 2)
_MOST_OPTIONS = 5
_JOB_ORDER = "--scheduling-policy priority, and requests with their job's place as priority"

FIGURES = {"request": "request_mean", "ttft": "ttft_mean", "throughput": "tokens_per_s", "hit_share": "hit_share"}
"""Figures that are ranked or shown, and the check's error that each must be expected to have."""


class Question(NamedTuple):
    """A what-if: its changes as of `--set`, the options that make it in vLLM, and host memory that it takes."""

    name: str
    changes: tuple[str, ...]
    option: str
    host_bytes: int = 0


class Drawn(NamedTuple):
    """A gain over draws of step times.

    Attributes:
        gain: Of the means; positive is better.
        interval: 95% interval of the gain of one run over another: two runs of the same are as far apart by themselves.
    """

    gain: float
    interval: Interval

    @property
    def half_width(self) -> float:
        """By how much two runs differ by themselves."""
        return self.interval.high - self.gain

    def confirms(self, gain: float) -> bool:
        """A run of each would differ in the direction of that gain, whatever their step times."""
        return self.interval.low > 0 if gain > 0 else self.interval.high < 0


@dataclass
class Answer:
    """Prediction of a what-if.

    Attributes:
        memory_bytes: KV memory on the device that it takes more; None if the trace does not tell a block's bytes.
        gains: By key of `FIGURES`, shares of the fitted replay with the recorded settings (`hit_share`: a difference);
            positive is better.
        helps: The mean time of requests or their mean TTFT gains more than its expected error and, where it was drawn,
            more than two runs differ by.
        drawn: By key of `FIGURES`, gains over draws; None where none were asked for or no gain is larger than its
            expected error.
    """

    question: Question
    outcome: Outcome
    memory_bytes: int | None
    gains: dict[str, float]
    helps: bool
    drawn: dict[str, Drawn] | None = None

    def by_chance(self, figure: str) -> bool:
        """Two runs differ by as much as this figure changes, as far as it was drawn."""
        if self.drawn is None or not self.gains[figure]:
            return False
        return figure not in self.drawn or not self.drawn[figure].confirms(self.gains[figure])

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {
            "name": self.question.name,
            "set": list(self.question.changes),
            "option": self.question.option,
            "memory_bytes": self.memory_bytes,
            "host_bytes": self.question.host_bytes,
            **{f"{figure}_gain": gain for figure, gain in self.gains.items()},
            "hit_share": self.outcome.hit_share,
            "evictions": self.outcome.evictions,
            "preemptions": self.outcome.preemptions,
            "helps": self.helps,
            **({"over_draws": self._drawn_to_json(self.drawn)} if self.drawn else {}),
        }

    def _drawn_to_json(self, drawn: dict[str, Drawn]) -> dict[str, Any]:
        return {
            figure: {"gain": gain, "interval": [span.low, span.high], "told_apart": not self.by_chance(figure)}
            for figure, (gain, span) in drawn.items()
        }

    def drawn_cells(self) -> list[str]:
        """Changes over draws as a table's row, with what two runs differ by."""
        texts = []
        for figure in FIGURES:
            each = (self.drawn or {}).get(figure)
            texts.append(_change(figure, each.gain, each.half_width) if each else "-")
        return [self.question.name, *texts]

    def cells(self, errors: dict[str, float]) -> list[str]:
        """The answer as a table's row.

        Changes within what two runs differ by are in square brackets; others that are within their expected error, in
        parentheses.
        """
        texts = []
        for figure, gain in self.gains.items():
            text = _change(figure, gain)
            if self.by_chance(figure):
                texts.append(f"[{text}]")
            else:
                texts.append(text if abs(gain) > expected_error(errors, figure) else f"({text})")
        memory = "?" if self.memory_bytes is None else _bytes(self.memory_bytes)
        if self.question.host_bytes:
            memory = f"{_bytes(self.question.host_bytes)} host"
        return [self.question.name, *texts, f"{self.outcome.evictions:,}", memory]


def _change(figure: str, gain: float, half_width: float | None = None) -> str:
    """A gain as the figure's change, with what two runs differ by; what becomes less is better in the first two."""
    value = 100 * (-gain if figure in ("request", "ttft") else gain)
    text = re.sub(r"^[+-](?=0\.0$)", "", f"{value:+.1f}")
    unit = " pp" if figure == "hit_share" else "%"
    return f"{text}{unit}" if half_width is None else f"{text} ±{100 * half_width:.1f}{unit}"


def _is_gain(answer: Answer, figure: str, errors: dict[str, float]) -> bool:
    """A figure gains more than its expected error and, where it was drawn, more than two runs differ by."""
    least = max(_LEAST_GAIN, expected_error(errors, figure))
    return answer.gains[figure] > least and not answer.by_chance(figure)


def _helps(answer: Answer, errors: dict[str, float]) -> bool:
    return any(_is_gain(answer, figure, errors) for figure in ("request", "ttft"))


def expected_error(errors: dict[str, float], figure: str) -> float:
    """Size of the error that a figure of a what-if must be expected to have."""
    return abs(errors.get(FIGURES[figure], 0.0))


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(count) >= size:
            return f"{count / size:+,.1f} {unit}"
    return f"{count / 1e3:+,.0f} kB" if count else "0"


COLUMNS = ("what if", "request", "TTFT", "tokens/s", "hits", "evicted", "KV memory")
_WIDTHS = (17, 9, 9, 9, 11, 9, 15)
DRAWN_COLUMNS = COLUMNS[:5]
_DRAWN_WIDTHS = (17, 15, 15, 15, 17)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{first.strip():{widths[0]}}" + "".join(others)


@dataclass
class Advice:
    """Answers, best first, and the error their figures must be expected to have.

    `draws` is by how many replays each gain is judged; 0 for none.
    """

    answers: list[Answer]
    errors: dict[str, float]
    identical_steps: float
    failed: dict[str, str]
    warnings: list[str]
    draws: int = 0

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON."""
        return {
            **({"draws": self.draws} if self.draws else {}),
            "answers": [answer.to_json() for answer in self.answers],
            "expected_errors": self.errors,
            "identical_steps": self.identical_steps,
            "failed": self.failed,
            "warnings": self.warnings,
        }

    @property
    def rows(self) -> list[list[str]]:
        """The table of the answers, under `COLUMNS`."""
        return [answer.cells(self.errors) for answer in self.answers]

    @property
    def drawn_rows(self) -> list[list[str]]:
        """The table of the answers that were drawn, under `DRAWN_COLUMNS`; equal ones once."""
        return [answer.drawn_cells() for answer in _different(each for each in self.answers if each.drawn)]

    @property
    def drawn_title(self) -> str:
        """Heading of that table."""
        return f"{self.draws} draws of step times: predicted change, and what two runs differ by (95%)"

    @property
    def options(self) -> list[tuple[str, str]]:
        """The what-ifs that help most, and the options of vLLM that make them."""
        helping = _different(answer for answer in self.answers if answer.helps)
        return [(answer.question.name, answer.question.option) for answer in helping[:_MOST_OPTIONS]]

    @property
    def notes(self) -> list[str]:
        """Sentences on what the figures mean and how wrong they may be."""
        request, ttft, tokens = (f"{expected_error(self.errors, key):.1%}" for key in list(FIGURES)[:3])
        hits = f"{expected_error(self.errors, 'hit_share') * 100:.1f} pp"
        found = [
            "All figures are predicted: mean time of requests, mean TTFT, output tokens a second and share of prompt "
            "tokens hit, against a replay of the recorded settings.",
            f"That replay is wrong by {request} (request), {ttft} (TTFT), {tokens} (tokens/s) and {hits} (hits); with "
            f"recorded times it repeats {self.identical_steps:.2%} of the steps. Expect at least these errors here. "
            "Changes in parentheses are smaller.",
        ]
        if any(answer.question.host_bytes for answer in self.answers):
            found.append(
                "Offload errs by more: in seven cells measured with OffloadingConnector on GPUs, of which the assumed "
                "host work is, jobs are predicted 14% too fast to 9% too slow."
            )
        if drawn := [answer for answer in self.answers if answer.drawn]:
            found.append(
                f"What gains more than its expected error was replayed {self.draws} times with step times that vary as "
                "the recording's do, and so were the recorded settings. Changes in square brackets are within what two "
                "runs differ by: a run of each may come out the other way round."
            )
            if chance := [answer.question.name for answer in drawn if not answer.helps]:
                found.append(
                    f"Not recommended, as their gains are within what two runs differ by: {', '.join(chance)}."
                )
        if not self.options:
            chance_too = " and than what two runs differ by" if drawn else ""
            found.append(f"Nothing here would have helped: no gain is larger than its expected error{chance_too}.")
        found += [f"Not replayed: {name}: {why}." for name, why in self.failed.items()]
        return [*found, *(f"Warning: {warning}." for warning in self.warnings)]

    def text(self) -> list[str]:
        """The advice as lines of at most 80 columns; only an option may be longer."""
        lines = ["predicted change of"]
        lines += [_line(cells, _WIDTHS) for cells in (COLUMNS, *self.rows)]
        if drawn := self.drawn_rows:
            lines += ["", self.drawn_title]
            lines += [_line(cells, _DRAWN_WIDTHS) for cells in (DRAWN_COLUMNS, *drawn)]
        for note in self.notes:
            lines += ["", *textwrap.wrap(note, 79)]
        if self.options:
            lines += ["", "In vLLM:"]
            lines += [f"  {name:{_WIDTHS[0]}} {option}" for name, option in self.options]
        return lines


def questions(session: Session) -> list[Question]:
    """Return the what-ifs to ask of a recording. Settings that would not change are left out."""
    base, engine = session.base, session.recording.engine
    asked = []
    for factor in _FACTORS_KV:
        blocks = round(base.num_gpu_blocks * factor)
        changes = (f"num_gpu_blocks={blocks}",)
        asked.append(Question(f"KV memory {factor:g}x", changes, f"--num-gpu-blocks-override {blocks}"))
    for factor in _FACTORS:
        budget = max(round(base.max_num_batched_tokens * factor), base.max_num_seqs)
        option = f"--max-num-batched-tokens {budget}"
        asked.append(Question(f"token budget {factor:g}x", (f"max_num_batched_tokens={budget}",), option))
        seqs = max(round(base.max_num_seqs * factor), 1)
        if seqs <= base.max_num_batched_tokens:
            option = f"--max-num-seqs {seqs}"
            asked.append(Question(f"sequences {factor:g}x", (f"max_num_seqs={seqs}",), option))
    if session.model.graph_launches and base.max_cudagraph_capture_size < MOST_GRAPH_TOKENS:
        changes = (f"max_cudagraph_capture_size={MOST_GRAPH_TOKENS}",)
        asked.append(
            Question(f"graphs to {MOST_GRAPH_TOKENS}", changes, f"--max-cudagraph-capture-size {MOST_GRAPH_TOKENS}")
        )
    if "watermark" in (engine.told.get("scheduler") or {}) and session.recorded.preemptions:
        for share in _WATERMARKS:
            asked.append(Question(f"watermark {share:.0%}", (f"watermark={share}",), f"--watermark {share}"))
    for size in (2 * base.block_size, 4 * base.block_size):
        asked.append(Question(f"block size {size}", (f"block_size={size}",), f"--block-size {size}"))
    if base.num_speculative_tokens:
        asked.append(Question("no speculation", ("num_speculative_tokens=0",), "no --speculative-config"))
    if engine.prefix_caching:
        changes = ("enable_prefix_caching=false",)
        asked.append(Question("no prefix cache", changes, "--no-enable-prefix-caching"))
        asked += _offloads(session)
    if any(request.tool for request in session.recording.requests) and base.scheduler_cls is None:
        changes = ("policy=ttl-pin",)
        pins = f"--scheduler-cls {TTL_PIN}"
        asked.append(Question("TTL pins", changes, pins))
        asked.append(Question("pins, job order", (*changes, "order=jobs"), f"{pins} {_JOB_ORDER}"))
    if base.scheduler_cls == TTL_PIN:
        asked.append(Question("no pins", (f"policy={base.policy}",), "no --scheduler-cls"))
    if base.policy == "fcfs" and len(jobs_of(session.recording)) < len(session.recording.requests):
        asked.append(Question("job order", ("order=jobs",), _JOB_ORDER))
    return asked


def _offloads(session: Session) -> list[Question]:
    """Host memory for evicted blocks, with the recording's own bandwidths where it moved blocks."""
    block_bytes = session.recording.engine.block_bytes
    if not block_bytes:
        return []
    pool = session.base.num_gpu_blocks * block_bytes
    least, has = _OFFLOAD_GIB[0] << 30, session.base.cpu_bytes_to_use or 0
    sizes = {f"{factor}x": factor * pool for factor in _OFFLOAD_FACTORS if factor * pool < least}
    sizes |= {f"{gib} GiB": gib << 30 for gib in _OFFLOAD_GIB}
    return [
        Question(
            f"offload {name}",
            (f"cpu_bytes_to_use={size}",),
            f"--kv-offloading-size {size / (1 << 30):.4g} --kv-offloading-backend native",
            size,
        )
        for name, size in sizes.items()
        if size > has
    ]


def _different(answers: Iterable[Answer]) -> list[Answer]:
    """Those that come out differently: more host memory than is used changes nothing."""
    found: list[Answer] = []
    for answer in answers:
        if all(answer.outcome != other.outcome for other in found):
            found.append(answer)
    return found


def advise(session: Session, at_once: int = 1, draws: int = 0) -> Advice:
    """Replay all what-ifs and rank them by the mean time of requests.

    Args:
        session: Of the recording.
        at_once: How many replays run side by side.
        draws: Judge gains by so many draws of step times; 0 or 1 for none: a prediction is one draw.

    Raises:
        KvtraceError: The recorded settings cannot be replayed, or there are too few draws.
    """
    draws = asked_draws(draws)
    asked, refused = [], {}
    for question in questions(session):
        try:
            job = session.what_if(question.name, question.changes)
        except KvtraceError as error:
            refused[question.name] = str(error)
        else:
            job.figures_only = True
            asked.append((question, job))
    results = session.run([job for _, job in asked], at_once)
    fitted, errors = results["outcomes"][FITTED], results["errors"]
    answers = [
        _answer(session, question, job.settings, results["outcomes"][question.name], fitted, errors)
        for question, job in asked
        if question.name in results["outcomes"]
    ]
    answers.sort(key=lambda answer: (-answer.gains["request"], answer.memory_bytes or 0, answer.question.host_bytes))
    if draws:
        _draw(session, {question.name: job for question, job in asked}, answers, errors, draws, at_once)
    warnings = list(results["warnings"])
    if any(answer.question.host_bytes for answer in answers) and not session.rates_recorded:
        rates = (
            f"{session.base.load_gb_per_s:g} GB/s to the device and {session.base.store_gb_per_s:g} GB/s to the host"
        )
        warnings.append(f"the trace has no transfers, so offload is predicted with copies of {rates}")
    failed = {**refused, **results["failed"]}
    return Advice(answers, errors, results["agreement"].identical_steps, failed, warnings, draws)


def _draw(
    session: Session,
    jobs: dict[str, Job],
    answers: Sequence[Answer],
    errors: dict[str, float],
    draws: int,
    at_once: int,
) -> None:
    """Draw what helps, and take back that it does where two runs differ by as much."""
    helping = [answer for answer in answers if answer.helps]
    different = _different(helping)
    if not different:
        return
    replayed = [session.fitted(), *(jobs[answer.question.name] for answer in different)]
    spreads = over_draws(session.recording, replayed, draws, at_once)
    for answer in helping:
        [same] = [other for other in different if other.outcome == answer.outcome]
        answer.drawn = _drawn(spreads[same.question.name])
        answer.helps = _helps(answer, errors)


def _drawn(spreads: dict[str, Spread]) -> dict[str, Drawn]:
    """Gains by key of `FIGURES`, of spreads against the recorded settings."""
    found = {}
    for figure, name in FIGURES.items():
        spread = spreads.get(name)
        if spread is not None and spread.change is not None and (span := spread.change_interval) is not None:
            if figure in ("request", "ttft"):
                found[figure] = Drawn(-spread.change, Interval(-span.high, -span.low, span.units))
            else:
                found[figure] = Drawn(spread.change, span)
    return found


def gains_between(before: Outcome, after: Outcome) -> dict[str, float]:
    """Gains by key of `FIGURES`: positive is better."""

    def shorter(key: str) -> float:
        mine, other = before.latency_ms.get(key), after.latency_ms.get(key)
        return 1 - other[0] / mine[0] if mine and other and mine[0] else 0.0

    return {
        "request": shorter("request"),
        "ttft": shorter("ttft"),
        "throughput": after.tokens_per_s / before.tokens_per_s - 1 if before.tokens_per_s else 0.0,
        "hit_share": after.hit_share - before.hit_share,
    }


def _answer(
    session: Session,
    question: Question,
    settings: Settings,
    outcome: Outcome,
    fitted: Outcome,
    errors: dict[str, float],
) -> Answer:
    engine = session.recording.engine
    memory = None
    if engine.block_bytes is not None:
        tokens = settings.num_gpu_blocks * settings.block_size - session.base.num_gpu_blocks * engine.block_size
        # another block size keeps the pool's bytes up to one block
        memory = tokens * engine.block_bytes // engine.block_size if settings.block_size == engine.block_size else 0
    answer = Answer(question, outcome, memory, gains_between(fitted, outcome), helps=False)
    answer.helps = _helps(answer, errors)
    return answer
