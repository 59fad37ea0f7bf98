"""Logs of vLLM 0.4 as UnBoxKV-IO runs it: a statistics line and a step line a step, and what the run was set to.

The text is searched for what is known; everything else in a log is nobody's business.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.append import Appender, nanoseconds, real, whole
from kvtrace.ingest.importers.engines import ImportedEngine, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Progress
from kvtrace.ingest.importers.lines import Line, read_lines
from kvtrace.ingest.importers.options import say
from kvtrace.ingest.importers.unboxkv.samples import insert_steps, make_step_table

EXPECTED = "expected a log of vLLM"
LOG_LINE = re.compile(r"Namespace\(|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d |.*Avg prompt throughput: ")

_STAMP = re.compile(r"[A-Z]+ (\d\d-\d\d \d\d:\d\d:\d\d) ")
_SETTING = re.compile(r"\b(\w+)=('[^']*'|[^,()\s]+)")
_BLOCKS = re.compile(r"# GPU blocks: (\d+), # CPU blocks: (\d+)")
_BLOCK_BYTES = re.compile(r"cache_block_size: (\d+) Bytes")
_VERSION = re.compile(r"LLM engine \(v([\w.+-]+)\)")
_PROMPT = re.compile(r"User Requests: prompt_len=(\d+), output_len=(\d+)")
_BATCH = re.compile(r"input_ids\.shape=torch\.Size\(\[(\d+)\]\)")
_STATISTICS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, (.*)"
)
_COUNT = re.compile(r"(Running|Swapped|Pending|Waiting): (\d+)")
_USAGE = re.compile(r"(GPU|CPU) KV cache usage: ([\d.]+)%")
_INTERVAL = re.compile(r"Interval\(ms\): ([\d.]+)")
_STEP = re.compile(r"step\(\).*time_cost ([\d.]+) resumed_reqs=(\d+), running_reqs=(\d+)")
_OUTPUT = re.compile(r"RequestOutput\(request_id=(\w+),.*?metrics=RequestMetrics\((.*)\)")
_BATCHINGS = {"Mixed batch is enabled": "mixed", "Chunked prefill is enabled": "chunked", "default batching": "default"}
_PARTS = {"Start warmup": "warmup", "Start benchmarking": "benchmark"}


def load_log(
    connection: duckdb.DuckDBPyConnection, name: str, source_id: int, path: Path, progress: Progress
) -> list[str]:
    """Read a log; returns warnings.

    Raises:
        KvtraceError: It cannot be read, or holds neither statistics nor steps.
    """
    engine = new_engine(connection, name, source_id)
    make_step_table(connection)
    log = _Log(connection, engine)
    for line in read_lines(path, EXPECTED):
        log.take(line)
        if not line.number % 10_000:
            progress("log", line.number, line.number)
    if not log.samples.count and not log.steps.count:
        raise KvtraceError(f"{path} is a log, but holds neither statistics nor steps; was the run interrupted early?")
    return log.finish(path)


class _Log:
    """State of reading a log: what it has said so far."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, engine: ImportedEngine) -> None:
        self._connection = connection
        self._engine = engine
        self._part: str | None = None
        self._clock_ns = 0
        self._first_stamp: datetime | None = None
        self._batch_tokens: int | None = None
        self._statistics: tuple[float, float, int | None] | None = None  # prompt/s, output/s, interval
        self._settings: dict[str, str] = {}
        self._prompts: list[tuple[int, int]] = []
        self._outputs: list[tuple[str, dict[str, int | None]]] = []
        self._last_finished_ns: int | None = None
        self.samples = Appender(
            connection,
            "engine_sample",
            "engine_id source_id sample part time_ns interval_ns running swapped waiting gpu_usage host_usage "
            "tokens_per_s prompt_tokens_per_s output_tokens_per_s",
        )
        self.steps = Appender(
            connection,
            "imported_step",
            "step duration_ns running resumed_requests output_tokens prefill_tokens chunked_prefill_tokens "
            "decode_tokens decode_requests resumed_tokens budget_tokens budget_left_tokens",
        )

    def take(self, line: Line) -> None:
        """Read a line."""
        text = line.text
        if found := _STATISTICS.search(text):
            self._sample(text, *found.groups())
        elif found := _STEP.search(text):
            self._step(*found.groups())
        elif found := _BATCH.search(text):
            self._batch_tokens = whole(found[1])
        elif text.startswith("RequestOutput("):
            self._output(text)
        else:
            self._describe(text)

    def _describe(self, text: str) -> None:
        facts = self._engine.facts
        if text.startswith("Namespace(") or "SchedulerConfig]" in text or "LLM engine (" in text:
            for key, value in _SETTING.findall(text):
                self._settings.setdefault(key, value.strip("'"))
        if found := _VERSION.search(text):
            self._engine.vllm_version = found[1]
        if found := _BLOCKS.search(text):
            facts["blocks"], self._engine.host_blocks = whole(found[1]), whole(found[2], 63)
        if found := _BLOCK_BYTES.search(text):
            facts["block_bytes"] = whole(found[1], 63)
        if found := _PROMPT.search(text):
            self._prompts.append((int(found[1][:9]), int(found[2][:9])))
        if "Selected required requests" in text:  # what follows are the chosen ones, in order
            self._prompts.clear()
        for words, batching in _BATCHINGS.items():
            if words in text:
                self._engine.batching = batching
        for words, part in _PARTS.items():
            if words in text:
                self._part = part
                self._catch_up(text)

    def _catch_up(self, text: str) -> None:
        """A new part begins: what passed unlogged is known to the second, by the log's own stamps."""
        stamp = _STAMP.match(text)
        if stamp is None:
            return
        try:
            now = datetime.strptime(f"2000-{stamp[1]}", "%Y-%m-%d %H:%M:%S")
        except ValueError:
            return
        self._first_stamp = self._first_stamp or now
        self._clock_ns = max(self._clock_ns, round((now - self._first_stamp).total_seconds()) * 1_000_000_000)

    def _sample(self, text: str, prompt: str, output: str, rest: str) -> None:
        interval = _INTERVAL.search(rest)
        interval_ns = nanoseconds(interval[1], 1e6) if interval else None
        if interval_ns is None:
            self._catch_up(text)
        self._clock_ns += interval_ns or 0
        counts = {key: whole(value) for key, value in _COUNT.findall(rest)}
        usage = {key: real(value) for key, value in _USAGE.findall(rest)}
        shares = [None if usage.get(key) is None else (usage[key] or 0.0) / 100 for key in ("GPU", "CPU")]
        prompt_per_s, output_per_s = real(prompt), real(output)
        if prompt_per_s is None or output_per_s is None:
            return
        self._statistics = prompt_per_s, output_per_s, interval_ns
        self.samples.add(
            self._engine.engine_id, self._engine.source_id, self.samples.count + 1, self._part, self._clock_ns,
            interval_ns, counts.get("Running"), counts.get("Swapped"), counts.get("Pending", counts.get("Waiting")),
            *shares, prompt_per_s + output_per_s, prompt_per_s, output_per_s,
        )  # fmt: skip

    def _step(self, time_cost: str, resumed: str, running: str) -> None:
        duration_ns = nanoseconds(time_cost, 1e6)
        resumed_requests, running_requests = whole(resumed), whole(running)
        tokens, output = self._batch_tokens, None
        prompt: int | None = None
        if self._statistics and self._statistics[2] is not None:
            seconds = self._statistics[2] / 1e9
            output = whole(round(self._statistics[1] * seconds))
            prompt = prompt_tokens(tokens, self._statistics[0], seconds)
        decode = None if tokens is None or prompt is None else whole(tokens - prompt)
        finished = None if output is None or decode is None else output - decode
        kinds = dict.fromkeys(("prefill", "chunked", "resumed"), None if prompt is None else 0)
        if prompt is not None:
            recomputed = resumed_requests and self._settings.get("preemption_mode") == "recompute"
            chunk = self._engine.batching == "chunked" and prompt and not finished
            kinds["resumed" if recomputed else "chunked" if chunk else "prefill"] = prompt
        budget = whole(self._settings.get("max_num_batched_tokens"))
        left = None if budget is None or tokens is None else whole(budget - tokens)
        self.steps.add(
            self.steps.count + 1, duration_ns, running_requests, resumed_requests, output, kinds["prefill"],
            kinds["chunked"], decode, decode, kinds["resumed"], budget, left,
        )  # fmt: skip
        self._batch_tokens = self._statistics = None

    def _output(self, text: str) -> None:
        if found := _OUTPUT.search(text):
            values = dict(_SETTING.findall(found[2]))
            times = {key: nanoseconds(value, 1e9) for key, value in values.items() if key.endswith("_time")}
            self._outputs.append((found[1], times))
            ended = times.get("finished_time")
            if ended is not None:
                self._last_finished_ns = max(ended, self._last_finished_ns or ended)

    def finish(self, path: Path) -> list[str]:
        """Fill the tables; returns warnings."""
        engine, settings = self._engine, self._settings
        self.samples.flush()
        self.steps.flush()
        if engine.batching is None and settings.get("enable_chunked_prefill") == "True":
            engine.batching = "chunked"
        engine.preemption_mode = settings.get("preemption_mode")
        names = {
            "block_size_tokens": ("block_size", "kv_block_size"),
            "max_num_batched_tokens": ("max_num_batched_tokens",),
            "max_num_seqs": ("max_num_seqs",),
            "max_model_len": ("max_model_len", "max_seq_len"),
            "tp_size": ("tensor_parallel_size",),
        }
        for column, keys in names.items():
            engine.facts[column] = next((whole(settings[key]) for key in keys if key in settings), None)
        engine.facts["model"] = settings.get("model", "").rstrip("/").rpartition("/")[2] or None
        for column, key in (("prefix_caching", "enable_prefix_caching"), ("chunked_prefill", "enable_chunked_prefill")):
            if settings.get(key) in ("True", "False"):
                engine.facts[column] = settings[key] == "True"
        self._move_to_unix_time()
        engine.insert(self._connection)
        warning = insert_steps(self._connection, engine.engine_id)
        self._insert_requests()
        counted = ((self.samples, "statistics", "engine_sample"), (self.steps, "steps", "step_schedule"))
        for rows, what, target in counted:
            if rows.count:
                count_source(self._connection, engine.source_id, what, rows.count, rows.count, target)
        return [f"{path.name}: {warning}"] if warning else []

    def _move_to_unix_time(self) -> None:
        """The last request's end is the last step's, as nearly as the log tells."""
        if self._last_finished_ns is None or not self.samples.count:
            return
        shift = self._last_finished_ns - self._clock_ns
        self._connection.execute(
            "UPDATE engine_sample SET time_ns = time_ns + ? WHERE engine_id = ?", [shift, self._engine.engine_id]
        )
        self._connection.execute(
            "UPDATE source SET session_start_ns = ? WHERE source_id = ?", [shift, self._engine.source_id]
        )
        self._engine.started_ns = shift
        how = "the last finished_time of a request is taken for the end of the last step"
        say(self._connection, f"unboxkv {self._engine.name}: UNIX time", shift, how)

    def _insert_requests(self) -> None:
        rows = Appender(
            self._connection,
            "request",
            "request engine_id internal_id prompt_tokens max_tokens output_tokens arrival_ns scheduled_ns "
            "first_token_ns finished_ns",
        )
        lengths: list[tuple[Any, Any]] = [(None, None)] * len(self._outputs)
        ordered = sorted(self._outputs, key=lambda each: (len(each[0]), each[0]))
        if len(self._prompts) == len(ordered):
            lengths = list(self._prompts)
        first = next_key(self._connection, "request", "request")
        for nth, ((number, times), (prompt, output)) in enumerate(zip(ordered, lengths, strict=True)):
            wanted = ("arrival_time", "first_scheduled_time", "first_token_time", "finished_time")
            rows.add(
                first + nth, self._engine.engine_id, number, prompt, output, None, *(times.get(key) for key in wanted)
            )
        rows.flush()
        if rows.count:
            count_source(self._connection, self._engine.source_id, "RequestOutput", rows.count, rows.count, "request")


def prompt_tokens(tokens: int | None, prompt_per_s: float, seconds: float) -> int | None:
    """Return how many of a pass's tokens were prompts', from vLLM's rounded rate; None if its tokens are unknown.

    The rate and the interval are printed to a tenth, so the product is known to within `slack`. A pass that may have
    been all prompts by that is taken to be.
    """
    if tokens is None:
        return None
    found = prompt_per_s * seconds
    slack = 0.5 + 0.05 * seconds + 0.00005 * prompt_per_s
    if prompt_per_s == 0.0:
        return 0
    if abs(tokens - found) <= min(slack, 0.05 * tokens + 0.5):
        return tokens
    return max(0, min(tokens, round(found)))
