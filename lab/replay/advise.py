"""Ranks the what-ifs an operator would ask for by what they would have gained on a recorded workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.session import FITTED, Session

_LEAST_GAIN = 0.02
"""A smaller gain than this, or than the error of the check, is none."""


class Question(NamedTuple):
    """A what-if: its changes as of `--set`, and the options that make it in vLLM."""

    name: str
    changes: tuple[str, ...]
    option: str


@dataclass
class Answer:
    """Prediction of a what-if. Gains are shares of the fitted replay with the recorded settings; positive is better."""

    question: Question
    outcome: Outcome
    memory_bytes: int | None
    request_gain: float
    ttft_gain: float
    throughput_gain: float
    hit_gain: float
    helps: bool

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {
            "name": self.question.name,
            "set": list(self.question.changes),
            "option": self.question.option,
            "memory_bytes": self.memory_bytes,
            "request_gain": self.request_gain,
            "ttft_gain": self.ttft_gain,
            "throughput_gain": self.throughput_gain,
            "hit_share_gain": self.hit_gain,
            "hit_share": self.outcome.hit_share,
            "evictions": self.outcome.evictions,
            "preemptions": self.outcome.preemptions,
            "helps": self.helps,
        }


@dataclass
class Advice:
    """Answers, best first, and the error their figures must be expected to have."""

    answers: list[Answer]
    errors: dict[str, float]
    identical_steps: float
    failed: dict[str, str]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON."""
        return {
            "answers": [answer.to_json() for answer in self.answers],
            "expected_errors": self.errors,
            "identical_steps": self.identical_steps,
            "failed": self.failed,
            "warnings": self.warnings,
        }

    def text(self) -> list[str]:
        """The advice as lines of text."""
        lines = [f"warning: {warning}" for warning in self.warnings]
        lines.append(
            f"{'what if':22}{'request':>9}{'TTFT':>9}{'tokens/s':>10}{'hits':>10}{'evictions':>11}"
            f"{'preempt.':>10}{'KV memory':>14}   vLLM"
        )
        for answer in self.answers:
            memory = "" if answer.memory_bytes is None else f"{answer.memory_bytes / 1e6:+,.1f} MB"
            lines.append(
                f"{answer.question.name:22}{-answer.request_gain:>+9.1%}{-answer.ttft_gain:>+9.1%}"
                f"{answer.throughput_gain:>+10.1%}{answer.hit_gain * 100:>+7.1f} pp{answer.outcome.evictions:>11,}"
                f"{answer.outcome.preemptions:>10,}{memory:>14}   {answer.question.option}"
            )
        expected = self.errors
        lines.append(
            f"expect errors of {abs(expected.get('request_mean', 0)):.1%} (request), "
            f"{abs(expected.get('ttft_mean', 0)):.1%} (TTFT), {abs(expected.get('tokens_per_s', 0)):.1%} (tokens/s), "
            f"{abs(expected['hit_share']) * 100:.1f} pp (hits): those of the recorded settings, whose replay repeats "
            f"{self.identical_steps:.2%} of the steps"
        )
        lines += [f"not replayed: {name}: {why}" for name, why in self.failed.items()]
        if not any(answer.helps for answer in self.answers):
            lines.append("nothing here would have helped: no gain is larger than its expected error")
        return lines


def questions(session: Session) -> list[Question]:
    """Return the what-ifs to ask of a recording. Settings that would not change are left out."""
    base, engine = session.base, session.recording.engine
    asked = []
    for factor in (0.5, 1.5, 2, 4):
        blocks = round(base.num_gpu_blocks * factor)
        changes = (f"num_gpu_blocks={blocks}",)
        asked.append(Question(f"KV memory {factor:g}x", changes, f"--num-gpu-blocks-override {blocks}"))
    for factor in (0.5, 2):
        budget = max(round(base.max_num_batched_tokens * factor), base.max_num_seqs)
        option = f"--max-num-batched-tokens {budget}"
        asked.append(Question(f"token budget {factor:g}x", (f"max_num_batched_tokens={budget}",), option))
        seqs = max(round(base.max_num_seqs * factor), 1)
        if seqs <= base.max_num_batched_tokens:
            option = f"--max-num-seqs {seqs}"
            asked.append(Question(f"sequences {factor:g}x", (f"max_num_seqs={seqs}",), option))
    for size in (2 * base.block_size, 4 * base.block_size):
        asked.append(Question(f"block size {size}", (f"block_size={size}",), f"--block-size {size}"))
    if engine.prefix_caching:
        changes = ("enable_prefix_caching=false",)
        asked.append(Question("no prefix cache", changes, "--no-enable-prefix-caching"))
    if any(request.tool for request in session.recording.requests) and base.scheduler_cls is None:
        changes = ("policy=ttl-pin",)
        asked.append(Question("TTL pins", changes, "--scheduler-cls kvtrace.lab.ttl_pin.TTLPinScheduler"))
    return asked


def advise(session: Session, at_once: int = 1) -> Advice:
    """Replay all what-ifs and rank them by the mean time of requests.

    Raises:
        KvtraceError: The recorded settings cannot be replayed.
    """
    asked, refused = [], {}
    for question in questions(session):
        try:
            asked.append((question, session.what_if(question.name, question.changes)))
        except KvtraceError as error:
            refused[question.name] = str(error)
    results = session.run([job for _, job in asked], at_once)
    fitted, errors = results["outcomes"][FITTED], results["errors"]
    answers = []
    for question, job in asked:
        outcome = results["outcomes"].get(question.name)
        if outcome is not None:
            answers.append(_answer(session, question, job.settings, outcome, fitted, errors))
    answers.sort(key=lambda answer: -answer.request_gain)
    return Advice(
        answers, errors, results["agreement"].identical_steps, {**refused, **results["failed"]}, results["warnings"]
    )


def _answer(
    session: Session, question: Question, settings: Any, outcome: Outcome, fitted: Outcome, errors: dict[str, float]
) -> Answer:
    def gain(key: str) -> float:
        before, after = fitted.latency_ms.get(key), outcome.latency_ms.get(key)
        return 1 - after[0] / before[0] if before and after and before[0] else 0.0

    block_bytes, engine = session.recording.engine.block_bytes, session.recording.engine
    memory = None
    if block_bytes is not None:
        tokens = settings.num_gpu_blocks * settings.block_size - (engine.blocks + 1) * engine.block_size
        memory = tokens * block_bytes // engine.block_size
    request = gain("request")
    throughput = outcome.tokens_per_s / fitted.tokens_per_s - 1 if fitted.tokens_per_s else 0.0
    helps = request > max(_LEAST_GAIN, abs(errors.get("request_mean", 0.0)))
    return Answer(
        question, outcome, memory, request, gain("ttft"), throughput, outcome.hit_share - fitted.hit_share, helps
    )
