"""The flight recorder: what stays is the tail of what was written, and what is in force at its beginning."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.capture.limits import Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import (
    BLOCK_EVENT,
    BLOCK_TABLE,
    PIN_END,
    PIN_START,
    REQUEST_ARRIVAL,
    REQUEST_EVENT,
    REQUEST_OWNER,
    REQUEST_QUEUED,
    STEP_UPDATE,
    BlockOp,
    Event,
    RequestOp,
    TableOp,
)
from kvtrace.format import layout
from kvtrace.format.discarded import read_discards
from kvtrace.format.reader import ProcessRecording, open_recording
from kvtrace.retention.process import _records
from kvtrace.retention.retention import Retention

STEP_NS = 1_000_000
KEEP_NS = 30 * STEP_NS
BLOCKS = 6

Values = tuple[Any, ...]
ACTIONS = {
    "queue": 3,
    "admit": 4,
    "grow": 4,
    "share": 4,
    "finish": 3,
    "evict": 1,
    "reset": 2,
    "pin": 2,
    "unpin": 2,
    "rotate": 1,
    "keep": 2,
}


@dataclass
class Live:
    """A request of the pretended engine."""

    name: str
    number: int
    blocks: list[int] = field(default_factory=list)


class Engine:
    """Pretends to schedule, one step an action, and remembers every record it writes."""

    def __init__(self, run: Path, keep_ns: int | None = KEEP_NS, max_bytes: int | None = None) -> None:
        self.now = 10**12
        self.written: defaultdict[str, list[Values]] = defaultdict(list)
        self.names: dict[int, str] = {}
        limits = Limits(keeps=True, keep_ns=keep_ns, max_bytes=max_bytes)
        self.recorder = Recorder(run, limits, largest_segment_bytes=layout.SEGMENT_HEADER_BYTES + 400)
        self.retention = Retention(run, limits, lambda: self.now)
        self.waiting: list[Live] = []
        self.running: list[Live] = []
        self.references = [0] * BLOCKS
        self.hashes: dict[int, int] = {}
        self.pins: list[tuple[int, int]] = []
        self.count = 0

    def emit(self, event: Event, *values: Any) -> None:
        self.recorder.stream(event)(*values)
        self.written[event.name].append(values)

    def intern(self, text: str) -> int:
        number = self.recorder.intern(text)
        self.names[number] = text
        return number

    def act(self, action: str, choice: int) -> None:
        self.now += STEP_NS
        self.count += 1
        getattr(self, f"_{action}")(choice)
        self.emit(STEP_UPDATE, self.now, self.now, self.count, 1, 0)

    def _block(self, block: int, op: BlockOp, request: int, block_hash: int = 0) -> None:
        self.emit(
            BLOCK_EVENT, self.now, self.count, block, op, self.references[max(block, 0)], request, block_hash, 0, 0
        )

    def _queue(self, _: int) -> None:
        name = f"request-{self.count}"
        arrival = self.intern(name)
        self.emit(REQUEST_ARRIVAL, self.now, arrival, self.intern(f"client-{self.count}"))
        self.emit(REQUEST_OWNER, self.now, arrival, self.intern(f"tenant-{self.count % 3}"), 0)
        self.recorder.forget(f"tenant-{self.count % 3}")
        self.recorder.forget(name)
        self.recorder.forget(f"client-{self.count}")
        live = Live(name, self.intern(name))
        self.emit(REQUEST_QUEUED, self.now, live.number, self.now, 32, 8, 0, 0, -1, 0)
        self.waiting.append(live)

    def _admit(self, choice: int) -> None:
        if self.waiting:
            live = self.waiting.pop(choice % len(self.waiting))
            self.running.append(live)
            self._take(live, TableOp.set)
            self.emit(REQUEST_EVENT, self.now, self.count, live.number, RequestOp.schedule, 0, 0, 0, 0, -1, 1)

    def _take(self, live: Live, op: TableOp) -> None:
        free = [block for block in range(BLOCKS) if not self.references[block]]
        if free:
            block = free[self.count % len(free)]
            if block in self.hashes:
                self._block(block, BlockOp.evict, live.number, self.hashes.pop(block))
            self.references[block] += 1
            self._block(block, BlockOp.allocate, live.number)
            self.hashes[block] = self.count
            self._block(block, BlockOp.cache, live.number, self.count)
            self.emit(BLOCK_TABLE, self.count, live.number, 0, op, len(live.blocks), block)
            live.blocks.append(block)

    def _grow(self, choice: int) -> None:
        if self.running:
            self._take(self.running[choice % len(self.running)], TableOp.append)

    def _share(self, choice: int) -> None:
        findable = sorted(self.hashes)
        if findable and self.running:
            live, block = self.running[choice % len(self.running)], findable[choice % len(findable)]
            if block not in live.blocks:
                self.references[block] += 1
                self._block(block, BlockOp.hit, live.number)
                self.emit(BLOCK_TABLE, self.count, live.number, 0, TableOp.append, len(live.blocks), block)
                live.blocks.append(block)

    def _finish(self, choice: int) -> None:
        if self.running:
            live = self.running.pop(choice % len(self.running))
            for block in reversed(live.blocks):
                self.references[block] -= 1
                self._block(block, BlockOp.free, live.number)
            self.emit(REQUEST_EVENT, self.now, self.count, live.number, RequestOp.finish, 2, 0, 0, -1, -1, 1)
            self.recorder.forget(live.name)

    def _preempt(self, choice: int) -> None:
        if self.running:
            live = self.running.pop(choice % len(self.running))
            for block in reversed(live.blocks):
                self.references[block] -= 1
                self._block(block, BlockOp.free, live.number)
            live.blocks = []
            self.emit(REQUEST_EVENT, self.now, self.count, live.number, RequestOp.preempt, 0, 0, 0, -1, -1, 1)
            self.waiting.append(live)

    def _evict(self, choice: int) -> None:
        idle = [block for block in sorted(self.hashes) if not self.references[block]]
        if idle:
            block = idle[choice % len(idle)]
            self._block(block, BlockOp.evict, 0, self.hashes.pop(block))

    def _reset(self, choice: int) -> None:
        if choice == 0 and not any(self.references):
            self.hashes.clear()
            self._block(-1, BlockOp.reset, 0)

    def _pin(self, choice: int) -> None:
        self.pins.append((self.count, choice))
        self.emit(PIN_START, self.now, self.count, self.count, choice, 1, 0, -1)

    def _unpin(self, choice: int) -> None:
        if self.pins:
            pin, block = self.pins.pop(choice % len(self.pins))
            self.emit(PIN_END, self.now, self.count, pin, block, 1)

    def _rotate(self, _: int) -> None:
        self.recorder.rotate()

    def _keep(self, _: int) -> None:
        self.retention.enforce()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments begin at the pretended time, and the process that began before it did is still the same."""
    for module in ("recorder", "stream"):
        monkeypatch.setattr(f"kvtrace.capture.{module}.clock_pair", _reading)
    monkeypatch.setattr("kvtrace.retention.process.is_alive", lambda facts: True)


ENGINE: list[Engine] = []


def _reading() -> dict[str, int]:
    now = ENGINE[-1].now
    return {"realtime_ns": now + 10**18, "monotonic_ns": now, "uncertainty_ns": 0}


def engine(run: Path, **limits: Any) -> Engine:
    ENGINE[:] = [Engine(run, **limits)]
    return ENGINE[-1]


@dataclass
class Found:
    """Records of a stream in a recording."""

    carried: list[Values]
    whole: list[Values]


def read(process: ProcessRecording) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for event, segments in process.segments().items():
        carried = [values for segment in segments if segment.carried for values in _records(segment)]
        whole = [values for segment in segments if not segment.carried for values in _records(segment)]
        found[event] = Found(carried, whole)
        assert sum(segment.count()[1] for segment in segments) == 0, f"{event} has torn records"
    return found


def pool(records: Iterable[Values]) -> dict[int, tuple[int, Counter[int], set[int]]]:
    """Each block's reference count, the requests that refer to it and the hashes that lead to it."""
    counts: Counter[int] = Counter()
    holders: defaultdict[int, Counter[int]] = defaultdict(Counter)
    hashes: defaultdict[int, set[int]] = defaultdict(set)
    for _, _, block, op, ref_count, request, block_hash, _, _ in records:
        if op == BlockOp.reset:
            hashes.clear()
        elif op == BlockOp.cache:
            hashes[block].add(block_hash)
        elif op == BlockOp.evict:
            hashes[block].discard(block_hash)
        else:
            counts[block] = ref_count
            holders[block][request] += -1 if op == BlockOp.free else 1
            holders[block] = +holders[block]
    return {
        block: (counts[block], holders[block], hashes[block])
        for block in range(BLOCKS)
        if counts[block] or holders[block] or hashes[block]
    }


def tables(records: Iterable[Values]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for _, request, _, op, position, block in records:
        if op == TableOp.set and position == 0:
            found[request] = []
        found.setdefault(request, [])[position:] = [block]
    return found


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 32), st.integers(60, 400))
def test_what_stays_is_the_tail_and_what_is_in_force(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    actions = chance.choices(list(ACTIONS), list(ACTIONS.values()), k=steps)
    with tempfile.TemporaryDirectory() as folder:
        writer = engine(Path(folder))
        for action in actions:
            writer.act(action, chance.randrange(8))
        writer.now += KEEP_NS // 2
        writer.retention.enforce()

        (process,) = open_recording(Path(folder)).processes
        found, strings = read(process), process.strings()

        # The whole part is the tail of what was written, and the counts tell how much is gone.
        for event, written in writer.written.items():
            kept, gone = found[event], process.discarded(event).records
            assert kept.whole == written[gone:]
            assert is_subsequence(kept.carried, written[:gone])
        assert process.missing_segments() == []
        # Nothing that ended within the time to keep is gone.
        assert all(
            values[0] <= writer.now - KEEP_NS
            for values in writer.written["step_update"][: gone_of(process, "step_update")]
        )

        # Replayed from what is carried, the pool is at the cut, and at the end, what it was.
        blocks = found.get("block_event", Found([], []))
        everything, cut = writer.written["block_event"], gone_of(process, "block_event")
        assert pool(blocks.carried) == pool(everything[:cut])
        assert pool(blocks.carried + blocks.whole) == pool(everything)
        # So are the tables of requests that run, and everybody who can be met is known by name.
        table = found.get("block_table", Found([], []))
        now, then = tables(table.carried + table.whole), tables(writer.written["block_table"])
        assert {live.number: now.get(live.number, []) for live in writer.running} == {
            live.number: then.get(live.number, []) for live in writer.running
        }
        queued = found.get("request_queued", Found([], []))
        known = {values[1] for values in queued.carried + queued.whole}
        assert {live.number for live in writer.running + writer.waiting} <= known
        for event, index in (("request_event", 2), ("block_event", 5), ("block_table", 1)):
            assert {values[index] for values in found.get(event, Found([], [])).whole} - {0} <= known
        arrived = found.get("request_arrival", Found([], []))
        assert {strings[values[1]] for values in arrived.carried + arrived.whole} >= {strings[n] for n in known}
        owned = found.get("request_owner", Found([], []))
        assert [v[1] for v in owned.carried + owned.whole] == [v[1] for v in arrived.carried + arrived.whole]
        texts = [("request_queued", 1), ("request_event", 2), ("block_event", 5), ("request_arrival", 2)]
        for event, index in [*texts, ("request_owner", 2)]:
            kept = found.get(event, Found([], []))
            for values in kept.carried + kept.whole:
                assert not values[index] or strings[values[index]] == writer.names[values[index]]
        starts, ends = (found.get(event, Found([], [])) for event in ("pin_start", "pin_end"))
        ended = {values[2:4] for values in ends.carried + ends.whole}
        assert not {values[2:4] for values in starts.carried} & {values[2:4] for values in ends.carried}
        assert {values[2:4] for values in starts.carried + starts.whole} - ended == set(writer.pins)


def gone_of(process: ProcessRecording, event: str) -> int:
    return process.discarded(event).records


def is_subsequence(some: list[Values], all_of_them: list[Values]) -> bool:
    rest = iter(all_of_them)
    return all(values in rest for values in some)


def work(writer: Engine, turns: int) -> Iterator[int]:
    """Requests one after another; the first stays."""
    writer.act("queue", 0)
    writer.act("admit", 0)
    for turn in range(turns):
        for action in ("queue", "admit", "grow"):
            writer.act(action, 1)
        writer.act("finish", 1)
        yield turn


def test_a_recording_of_days_stays_within_its_size(tmp_path: Path) -> None:
    # GIVEN a cap, and records of many times its size
    writer = engine(tmp_path, keep_ns=None, max_bytes=400_000)
    sizes = []
    for turn in work(writer, 1500):
        if turn % 10 == 0:
            writer.recorder.rotate()
            writer.retention.enforce()
            sizes.append(sum(path.lstat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()))

    # THEN it is kept at every look, names and all, and the newest are there
    (process,) = open_recording(tmp_path).processes
    assert max(sizes) <= 400_000
    assert sum(gone.bytes for gone in process.discards.streams.values()) > 10 * 400_000
    assert read(process)["step_update"].whole[-1] == writer.written["step_update"][-1]
    # and the request that stays is still known, with its block
    first = writer.running[0]
    assert process.strings()[first.number] == "request-1"
    assert (first.number,) in {values[1:2] for values in read(process)["request_queued"].carried}
    assert tables(read(process)["block_table"].carried)[first.number] == first.blocks


def test_a_crash_between_noting_and_deleting_leaves_a_readable_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a retention that dies when it has noted what it discards
    writer = engine(tmp_path)
    for turn in work(writer, 40):
        if turn % 10 == 0:
            writer.recorder.rotate()
    monkeypatch.setattr("kvtrace.retention.process.ProcessRetention._write_compacted", _die)
    with pytest.raises(InterruptedError):
        writer.retention.enforce()

    # THEN the streams that it noted are whole from where it says, and nothing counts twice
    (process,) = open_recording(tmp_path).processes
    for event, kept in read(process).items():
        assert kept.whole == writer.written[event][process.discarded(event).records :]
        assert is_subsequence(kept.carried, writer.written[event])


def test_a_segment_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    # GIVEN a process that was stopped while it made its newest segment: its magic is not there yet
    writer = engine(tmp_path)
    for turn in work(writer, 40):
        if turn % 10 == 0:
            writer.recorder.rotate()
    newest = max(tmp_path.glob("processes/*/step_update.*.seg"))
    header = newest.read_bytes()
    newest.write_bytes(b"\0" * len(layout.SEGMENT_MAGIC) + header[len(layout.SEGMENT_MAGIC) :])

    # THEN all others go as they should, and the rest when it is made
    assert writer.retention.enforce() > 0
    newest.write_bytes(header)
    writer.now += 2 * KEEP_NS
    assert writer.retention.enforce() > 0
    (process,) = open_recording(tmp_path).processes
    assert read(process)["step_update"].whole == writer.written["step_update"][gone_of(process, "step_update") :]


def _die(*_: Any) -> None:
    raise InterruptedError


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "not a JSON object"),
        (b'{"format_version": 99}', "format version 99"),
        (b'{"format_version": 1, "streams": {}}', "lacks `streams` or `first_strings`"),
        (b'{"format_version": 1, "streams": {"x": {"first": -1}}, "first_strings": 0}', "stream 'x'"),
    ],
)
def test_a_damaged_note_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    (tmp_path / layout.KEPT).write_bytes(data)
    with pytest.raises(KvtraceError, match=rf"kept\.json.*{complaint}"):
        read_discards(tmp_path)
