"""Explains a request, a step or a block by the canned queries: the page's panel as sections of facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.queries.findings.rule import count
from kvtrace.queries.identify import Subject, label
from kvtrace.queries.text import duration, inert
from kvtrace.queries.trace import Trace

_MOST = 6
"""Neighbours, and events of a block from each end, that are listed."""

_PLACES = {
    "arrived": "before a step",
    "behind": "behind others",
    "head": "at its head",
    "skipped": "no head waited",
}
"""Places in the queue, as request-queue has them, and how they are told."""
_STAGES = ("intake", "scheduler", "dispatch", "handshake", "posting", "wire", "notification", "admission")
"""Of a handover, in their order: columns of query `handover-stages`."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A heading and its facts, each a name and a text; the name may be empty."""

    title: str
    facts: tuple[tuple[str, str], ...]


def explain(trace: Trace, subject: Subject) -> list[Section]:
    """Explain one request, step or block.

    Args:
        trace: An open trace.
        subject: What to explain.

    Returns:
        Sections with something to say; the first has the subject's name as its title.

    Raises:
        KvtraceError: the trace has no such step or block.
    """
    if subject.kind == "request":
        return list(_Request(trace, subject.number).sections())
    return list((_step if subject.kind == "step" else _block)(trace, subject.number))


def _rows(trace: Trace, query: str, **params: object) -> list[Row]:
    """The rows of a canned query; none where the trace lacks what it needs."""
    if trace.missing(query):
        return []
    rows: list[Row] = trace.query(query, format="arrow", **params).to_pylist()
    return rows


def _clock(trace: Trace, time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{(time_ns - trace.origin_ns) / 1e9:+.4f} s"


class _Request:
    def __init__(self, trace: Trace, request: int) -> None:
        self.trace = trace
        self.request = request
        self.all = {row["request"]: row for row in _rows(trace, "request-latency")}
        self.row = self.all[request]
        self.states = sorted(self._own("request-states"), key=lambda row: row["start_ns"])
        self.preemptions = _rows(trace, "preempted-for")
        self.samples = self._find_samples()

    def sections(self) -> Iterator[Section]:
        yield self._head()
        parts = (
            self._sampled(),
            self._times(),
            self._spent(),
            self._waited(),
            self._handed_over(),
            self._missed(),
            self._decoded(),
            self._preempted(),
            self._neighbours(),
        )
        yield from (part for part in parts if part.facts)

    def _own(self, query: str) -> list[Row]:
        return [row for row in _rows(self.trace, query) if row["request"] == self.request]

    def _name(self, request: int | None) -> str:
        row = self.all.get(request)
        return "another request" if row is None else f"{label(row)} (request {request})"

    def _head(self) -> Section:
        row = self.row
        facts = [("client's id", inert(str(row["external_id"])))] if row["external_id"] else []
        facts += [(name, inert(row[name])) for name in ("tenant", "lora") if row[name] is not None]
        if self.samples:
            facts.append(("samples", f"{len(self.samples):,} of one prompt; the engine knows only these"))
        facts.append(("prompt", f"{row['prompt_tokens'] or 0:,} tokens"))
        facts.append(("output", f"{row['output_tokens'] or 0:,} tokens"))
        if row["parent"] is not None:
            facts.append(("sample", f"{row['sample']:,} of {self._name(row['parent'])}"))
        if not self.samples:
            facts.append(("ended by", row["finish_reason"] or "not in this recording"))
        for load in self._own("failed-loads"):
            begun = "" if load["transfers"] else ", before anything was transferred"
            then = "so it ended" if load["outcome"] == "ended" else "and was done without"
            facts.append(("load failed", f"after {duration(load['load_ms'])}{begun}; {then}"))
        return Section(f"Request {self.request}: {label(row)}", tuple(facts))

    def _find_samples(self) -> list[Row]:
        """The rows of its samples, where it is a client's request with n > 1."""
        found = [row for row in self.all.values() if row["parent"] == self.request]
        return sorted(found, key=lambda row: row["sample"])

    def _sampled(self) -> Section:
        facts = []
        for row in self.samples:
            parts = [f"{row['output_tokens'] or 0:,} tokens"]
            parts += [f"{duration(row['total_ms'])} in all"] if row["total_ms"] is not None else []
            parts += [f"{duration(row['queue_ms'])} queued"] if row["queue_ms"] is not None else []
            parts.append(f"ended by {row['finish_reason'] or 'nothing in this recording'}")
            facts.append((f"request {row['request']}", ", ".join(parts)))
        return Section("Samples", tuple(facts))

    def _times(self) -> Section:
        row = self.row
        events = [(row["arrival_ns"], "arrived")] if row["arrival_ns"] is not None else []
        events += [(state["start_ns"], state["state"]) for state in self.states]
        if self.samples and events and row["total_ms"] is not None:
            events.append((row["arrival_ns"] + round(row["total_ms"] * 1e6), "the last sample ended"))
        if self.states and self.states[-1]["end_ns"] is not None:
            events.append((self.states[-1]["end_ns"], f"ended: {row['finish_reason'] or 'unknown'}"))
        return Section("Timeline", tuple((_clock(self.trace, time), what) for time, what in events))

    def _spent(self) -> Section:
        sums: dict[str, int] = {}
        for state in self.states:
            if state["end_ns"] is not None:
                sums[state["state"]] = sums.get(state["state"], 0) + state["end_ns"] - state["start_ns"]
        total = sum(sums.values())
        if self.samples:  # its states are its samples', each of which has its own
            sums = {name: round((self.row[f"{name}_ms"] or 0) * 1e6) for name in ("prefill", "decode")}
            sums = {"queued": round((self.row["queue_ms"] or 0) * 1e6), **sums}
            total = sum(sums.values())
        if not total:
            return Section("", ())
        facts = [
            (name, f"{duration(ns / 1e6):>8} {ns / total:>6.1%} {'#' * round(30 * ns / total)}")
            for name, ns in sums.items()
        ]
        if self.row["frontend_ms"] is not None:
            facts.insert(0, ("before the engine", f"{duration(self.row['frontend_ms']):>8}"))
        if self.row["output_ms"] is not None:
            facts.append(("after the engine", f"{duration(self.row['output_ms']):>8}"))
        return Section("Where its time went", tuple(facts))

    def _waited(self) -> Section:
        if self.samples:
            return Section("", ())
        if self.row["queue_ms"] is None:
            told = (("", "It was never admitted."), *self._queued())
            return Section("Why it waited", told if self.states else ())
        facts = [("in the queue", duration(self.row["queue_ms"])), *self._queued()]
        for wait in self._own("request-waits"):
            if all(name != "at its head" for name, _ in facts):
                steps = count(wait["head_steps"], "step")
                facts.append(
                    ("when preempted", f"at its head in {steps}, mostly for {wait['admission_limit']} (inferred)")
                )
            if wait["need_blocks"] is not None:
                kept = f", {wait['kept_blocks']:,} of them to be kept free" if wait["kept_blocks"] else ""
                free = f"{wait['free_blocks'] or 0:,} {'was' if wait['free_blocks'] == 1 else 'were'} free{kept}"
                facts.append(("it needed", f"{wait['need_blocks']:,} blocks; {free}"))
                facts += self._held(wait["first_step"], wait["engine_id"])
        return Section("Why it waited", tuple(facts))

    def _queued(self) -> Iterator[tuple[str, str]]:
        """Split the time in the queue by its place there."""
        parts = _rows(self.trace, "request-queue", request=self.request)
        for place, name in _PLACES.items():
            rows = sorted((row for row in parts if row["place"] == place), key=lambda row: -row["wait_ms"])
            if not rows:
                continue
            time = duration(sum(row["wait_ms"] for row in rows))
            steps = count(sum(row["steps"] for row in rows), "step")
            if place == "head":
                yield name, f"{time} (derived) in {steps}, mostly for {rows[0]['admission_limit']} (inferred)"
            elif place == "behind":
                yield name, f"{time} (derived) in {steps}"
                yield from self._behind(rows)
            else:
                yield name, time if place == "arrived" else f"{time} in {steps}"

    def _behind(self, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
        """Say who was at the head meanwhile, and why that one was not admitted (inferred)."""
        times: dict[int, float] = {}
        limits: dict[int, list[str]] = {}
        for row in rows:  # the longest first
            times[row["head_request"]] = times.get(row["head_request"], 0) + row["wait_ms"]
            limits.setdefault(row["head_request"], []).append(row["admission_limit"])
        heads = sorted(times, key=lambda head: -times[head])
        for head in heads[:_MOST]:
            yield "", f"{duration(times[head])} behind {self._name(head)}: {', '.join(limits[head])}"
        if len(heads) > _MOST:
            yield "", f"{duration(sum(times[head] for head in heads[_MOST:]))} behind others"

    def _decoded(self) -> Section:
        rows = {row["request"]: row for row in _rows(self.trace, "request-decode")}
        row = rows.get(self.request)
        if row is None:
            return Section("", ())

        def of_all(column: str) -> float:
            return float(median(other[column] for other in rows.values() if other[column] is not None))

        slower = sum(other["tpot_ms"] < row["tpot_ms"] for other in rows.values())
        facts = [
            (
                "each token",
                f"{duration(row['tpot_ms'])}; {duration(of_all('tpot_ms'))} in the median of all requests; "
                f"slower than {slower:,} of {len(rows) - 1:,}",
            )
        ]
        if row["prefill_steps"]:
            more = row["slower_ms"]
            than = "" if more is None else f", {duration(max(more, 0))} more than its other steps take (derived)"
            facts.append(
                (
                    "beside prefills",
                    f"{row['prefill_steps']:,} of {count(row['decode_steps'], 'step')}, with "
                    f"{count(row['prefill_tokens'], 'token')} of others' prompts: {duration(row['with_prefill_ms'])} "
                    f"(recorded){than}",
                )
            )
        if row["preemptions"]:
            facts.append(
                (
                    "preempted",
                    f"{count(row['preemptions'], 'time')}: {duration(row['preempted_ms'])} out of the batch, "
                    f"{duration(row['recompute_ms'])} to compute its KV again (recorded)",
                )
            )
        if row["step_ms"] is not None:
            facts.append(
                (
                    "other steps",
                    f"{duration(row['step_ms'])} each in the median; {duration(of_all('step_ms'))} of all requests",
                )
            )
        if row["batch_requests"] is not None:
            facts.append(
                (
                    "batch",
                    f"{row['batch_requests']:.1f} requests in the mean of its steps; "
                    f"{of_all('batch_requests'):.1f} in the median of all requests",
                )
            )
        return Section("How it generated", tuple(facts))

    def _held(self, step: int, engine: int) -> Iterator[tuple[str, str]]:
        """Say who held the blocks that were not free."""
        rows = _rows(self.trace, "step-holders", step=step, engine=engine)
        for number, row in enumerate(rows[:_MOST]):
            label = f"held in step {step:,}" if not number else ""
            yield (
                label,
                f"{row['blocks']:,} {'block' if row['blocks'] == 1 else 'blocks'} by {self._name(row['request'])}",
            )
        if len(rows) > _MOST:
            yield "", f"and {sum(row['blocks'] for row in rows[_MOST:]):,} by {len(rows) - _MOST:,} more"

    def _handed_over(self) -> Section:
        """Tell the stages of its handover, in the decode engine; in the prefill engine, who read it."""
        facts: list[tuple[str, str]] = []
        for row in _rows(self.trace, "handover-stages"):
            if row["decode_request"] == self.request:
                facts += self._stages(row)
            elif row["prefill_request"] == self.request:
                facts.append(("read by", f"{self._name(row['decode_request'])} of engine {row['decode_engine_id']}"))
                if row["release_ms"] is not None:
                    facts.append(
                        ("noticed", f"{duration(row['release_ms'])} after the last byte was known to be there")
                    )
        return Section("Its handover", tuple(facts))

    def _stages(self, row: Row) -> Iterator[tuple[str, str]]:
        if row["prefill_request"] is not None:
            yield "computed by", f"{self._name(row['prefill_request'])} of engine {row['prefill_engine_id']}"
        if row["failed_reads"]:
            yield "failed", f"{row['failed_reads']:,} of {count(row['reads'], 'read')}"
        posted = "" if row["posted_descriptors"] is None else f", {row['posted_descriptors']:,} after NIXL joined them"
        of_stage = {"posting": f" {count(row['descriptors'], 'descriptor')}{posted}"}
        if row["wire_ms"] is not None:
            size = "" if row["bytes"] is None else f" {row['bytes'] / 1e6:,.1f} MB"
            of_stage["wire"] = f"{size}, at least {duration(row['wire_least_ms'])} of it"
        for stage in _STAGES:
            if row[f"{stage}_ms"] is not None:
                yield stage, f"{duration(row[f'{stage}_ms']):>8}{of_stage.get(stage, '')}"
        if row["latency_ms"] is not None:
            yield "until its first step", duration(row["latency_ms"])

    def _missed(self) -> Section:
        facts: list[tuple[str, str]] = []
        for miss in self._own("prefix-miss"):
            when = "when resumed" if miss["resumed"] else "at first"
            hits = (miss["local_hit_tokens"] or 0) + (miss["external_hit_tokens"] or 0)
            facts.append((when, f"{hits:,} of {miss['queried_tokens']:,} tokens found; {miss['verdict']}"))
            facts.append(("", inert(str(miss["why"]))))
            if miss["avoidable_tokens"]:
                price = f", about {duration(miss['avoidable_ms'])}" if miss["avoidable_ms"] is not None else ""
                facts.append(("avoidable", f"{miss['avoidable_tokens']:,} tokens{price}"))
        for lost in self._own("eviction-cost"):
            if lost["evicted_for"] is not None:
                facts.append(("evicted for", self._name(lost["evicted_for"])))
        return Section("Why it missed", tuple(facts))

    def _preempted(self) -> Section:
        facts: list[tuple[str, str]] = []
        for row in self.preemptions:
            when = f"step {row['step']:,} ({_clock(self.trace, row['time_ns'])})"
            if row["request"] == self.request:
                whom = "itself" if row["preempted_for"] is None else self._name(row["preempted_for"])
                again = "not admitted again" if row["wait_ms"] is None else f"again after {duration(row['wait_ms'])}"
                facts.append((when, f"for {whom}: {row['lost_tokens'] or 0:,} tokens of KV lost, {again}"))
            elif row["preempted_for"] == self.request:
                facts.append((when, f"{self._name(row['request'])} was preempted for it"))
        return Section("Preemptions", tuple(facts))

    def _neighbours(self) -> Section:
        begin, end = (0, 0) if self.samples else self._span(self.row)
        beside = []
        for row in self.all.values():
            first, last = self._span(row)
            overlap = min(end, last) - max(begin, first)
            if row["request"] != self.request and row["engine_id"] == self.row["engine_id"] and overlap > 0:
                beside.append((overlap, row["request"]))
        facts = [
            (duration(overlap / 1e6), self._name(request))
            for overlap, request in sorted(beside, key=lambda each: (-each[0], each[1]))[:_MOST]
        ]
        if len(beside) > _MOST:
            facts.append(("", f"and {len(beside) - _MOST:,} more"))
        return Section("In the batch beside it, by time", tuple(facts))

    def _span(self, row: Row) -> tuple[float, float]:
        """The time in the batch, first admission to end; empty without one."""
        if row["arrival_ns"] is None or row["frontend_ms"] is None or row["queue_ms"] is None:
            return 0, 0
        begin = row["arrival_ns"] + (row["frontend_ms"] + row["queue_ms"]) * 1e6
        return begin, row["arrival_ns"] + row["total_ms"] * 1e6 if row["total_ms"] is not None else begin


def _step(trace: Trace, step: int) -> Iterator[Section]:
    rows = _rows(trace, "step-timeline", first_step=step, last_step=step)
    if not rows:
        raise KvtraceError(f"{trace.path} has no step {step:,}")
    for row in rows:
        yield Section(
            f"Step {step:,} of engine {row['engine_id']}, at {_clock(trace, row['start_ns'])}",
            (
                ("took", "-" if row["duration_ms"] is None else duration(row["duration_ms"])),
                ("batch", f"{count(row['scheduled_requests'], 'request')}, {count(row['scheduled_tokens'], 'token')}"),
                ("of them", _phases(row)),
                ("running, waiting", f"{row['running'] or 0:,}, {row['waiting'] or 0:,}"),
                ("KV blocks", f"{row['used_blocks'] or 0:,} used, {row['free_blocks'] or 0:,} free"),
                ("queue's head", _limit(row)),
            ),
        )
    gone = [row for row in _rows(trace, "preempted-for") if row["step"] == step]
    facts = [(f"request {row['request']}", f"for request {row['preempted_for'] or row['request']}") for row in gone]
    if facts:
        yield Section("Preempted in it", tuple(facts))


def _phases(row: Row) -> str:
    phases = ("prefill", "chunked_prefill", "decode", "resumed")
    parts = [f"{name} {row[f'{name}_tokens']:,}" for name in phases if row[f"{name}_tokens"]]
    return ", ".join(parts) or "nothing recorded"


def _limit(row: Row) -> str:
    if row["admission_limit"] == "none":
        return "nothing waited, or all that waited was admitted"
    needs = "" if row["limit_need_blocks"] is None else f", needed {row['limit_need_blocks']:,} blocks"
    if row["limit_kept_blocks"]:
        needs += f" beside {row['limit_kept_blocks']:,} kept free"
    return f"request {row['limit_request']}: {row['admission_limit']}{needs} (inferred)"


def _block(trace: Trace, block: int) -> Iterator[Section]:
    rows = _rows(trace, "block-history", block=block)
    if not rows:
        raise KvtraceError(f"{trace.path} has no event of block {block:,}")
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["op"]] = counts.get(row["op"], 0) + 1
    yield Section(f"Block {block:,}", tuple((op, count(number, "time")) for op, number in counts.items()))
    shown: Sequence[Row] = rows if len(rows) <= 2 * _MOST else rows[:_MOST] + rows[-_MOST:]
    facts = [
        (_clock(trace, row["time_ns"]), f"{row['op']} by {label(row) if row['request'] is not None else 'nobody'}")
        for row in shown
    ]
    if len(rows) > len(shown):
        facts.insert(_MOST, ("", f"{len(rows) - len(shown):,} events left out (kvtrace query block-history)"))
    yield Section("Events", tuple(facts))
