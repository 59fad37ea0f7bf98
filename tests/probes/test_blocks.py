"""Blocks are recorded as a small model of them says, over ends of segments, forks and failures."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import re
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.capture import _native
from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, BlockOp
from kvtrace.format.reader import open_recording
from kvtrace.probes import blocks
from kvtrace.probes.engine import Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Hook, Patches
from tests.probes.records import EngineWith, records_of

CALLBACKS: Any = [print] * 4
PER_SEGMENT = ((1 << 18) - 4096) // BLOCK_EVENT.struct.size


class Map:
    """A map from hashes to blocks, as vLLM's."""

    def insert(self, key: bytes, block: Any) -> None: ...

    def pop(self, key: bytes, block_id: int) -> Any:
        return self.found

    found: Any = None


class BlockPool:
    def __init__(self) -> None:
        self.cached_block_hash_to_block = Map()

    def get_new_blocks(self, blocks: list[Any]) -> list[Any]:
        return blocks

    def touch(self, blocks: list[Any]) -> list[Any]:
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> list[Any]:
        return list(ordered_blocks)


OPS = {"insert": BlockOp.cache, "pop": BlockOp.evict}
OPS |= {"allocate": BlockOp.allocate, "hit": BlockOp.hit, "free": BlockOp.free}
METHODS = {"allocate": "get_new_blocks", "hit": "touch", "free": "free_blocks"}


class Connector:
    """Pins, while a connector takes and releases references: what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def touched(self, blocks: Iterable[Any]) -> None:
        self.told.append(("touched", [block.block_id for block in blocks]))

    def freed(self, blocks: Iterable[Any]) -> None:
        self.told.append(("freed", [block.block_id for block in blocks]))


class Recorded:
    """A pool and its map, hooked, and what is to be recorded of them."""

    def __init__(self, run: Path, *, counting: bool = False) -> None:
        self.expected: list[Any] = []
        self.run = run
        self.recorder = Recorder(run, largest_segment_bytes=1 << 18, count_writes=counting)
        self.engines = Engines(self.recorder)
        self.pool = BlockPool()
        self.connector = Connector()
        self.held: list[tuple[str, list[int]]] = []  # what it is to be told
        engine: Any = EngineWith(pins=self.connector)
        self.state = self.engines.pools[id(self.pool)] = Pool(engine, self.pool, 3)
        self.disabled: list[str] = []
        self.patches = Patches(
            lambda target, state, detail: self.disabled.append(detail) if state == "disabled" else None
        )
        by_name = {hook.path[-1]: hook for hook in blocks.hooks(self.engines)}
        self.map = type("HashMap", (Map,), {})()
        self.pool.cached_block_hash_to_block = self.map
        self._patch(type(self.map), by_name["insert"])
        self._patch(type(self.map), by_name["pop"])
        self.pool_class: Any = type("Pool", (BlockPool,), {})
        for method in METHODS.values():
            self._patch(self.pool_class, by_name[method])

    def _report(self, target: str, state: str, detail: str) -> None:
        if state == "disabled":
            self.disabled.append(detail)

    def _patch(self, owner: Any, hook: Hook) -> None:
        self.patches.patch(owner, hook.path[-1], hook)

    def do(self, change: tuple[Any, ...]) -> None:
        kind, step, owner, key, number, references, by_name = change
        engine: Any = self.state.engine
        engine.acting_step, engine.owner = step, owner
        engine.holder = self if step % 3 == 0 else None
        block = SimpleNamespace(block_id=number, ref_cnt=references, is_null=number % 7 == 0)
        row = {"time_ns": 0, "step": step, "request": owner, "pool": 3, "op": OPS[kind], "block_hash": 0, "kv_group": 0}
        if kind in ("insert", "pop") and not (kind == "pop" and number % 5 == 0):
            row |= {"block_hash": int.from_bytes(key[-12:-4], "big"), "kv_group": key[-1]}
            self.expected.append(BLOCK_EVENT.record(**row, block_id=number, ref_count=references))
        if kind == "insert":
            self.map.insert(key=key, block=block) if by_name else self.map.insert(key, block)
        elif kind == "pop":
            self.map.found = None if number % 5 == 0 else block
            self.map.pop(key, block_id=number) if by_name else self.map.pop(key, number)
        else:
            others = [SimpleNamespace(block_id=number + i, ref_cnt=1, is_null=False) for i in range(references % 20)]
            found = [block, *others]
            if by_name:
                for i, one in enumerate(found):
                    one.pool = (None, self.pool, self)[i % 3]
            for one in found:
                if not one.is_null and getattr(one, "pool", None) is not self:
                    row |= {"block_id": one.block_id, "ref_count": one.ref_cnt}
                    self.expected.append(BLOCK_EVENT.record(**row))
            if engine.holder is not None and kind != "allocate":
                self.held.append(({"hit": "touched", "free": "freed"}[kind], [one.block_id for one in found]))
            method = getattr(self.pool_class, METHODS[kind])
            if by_name and kind != "allocate":
                given = {"hit": "blocks", "free": "ordered_blocks"}[kind]
                assert method(self.pool, **{given: iter(found) if kind == "free" else found}) == found
            else:
                assert method(self.pool, iter(found) if kind == "free" else found) == found

    def as_ever(self, kind: str, block: Any) -> None:
        """Change a block, and see that the engine gets what it would without hooks."""
        if kind == "insert":
            self.map.insert(bytes(12), block)
        elif kind == "pop":
            assert self.map.pop(bytes(12), 1) is block
        else:
            assert getattr(self.pool_class, METHODS[kind])(self.pool, [block]) == [block]

    def records(self) -> list[Any]:
        """Return the records of this process, without times."""
        found = records_of(self.run, BLOCK_EVENT, pid=os.getpid())[BLOCK_EVENT.name]
        assert all(record.time_ns > 0 for record in found)
        return [record._replace(time_ns=0) for record in found]


changes = st.tuples(
    st.sampled_from(["insert", "pop", *METHODS]),
    st.integers(-1, (1 << 31) - 1),
    st.integers(0, (1 << 32) - 1),
    st.binary(min_size=12, max_size=40),
    st.integers(0, (1 << 31) - 100),
    st.integers(-1, 1 << 20),
    st.booleans(),
)


@given(st.lists(changes, min_size=1, max_size=40), st.integers(0, 1))
def test_changes_are_recorded_as_the_model_says(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[Any, ...]], index: int
) -> None:
    way = Recorded(tmp_path_factory.mktemp("run"))
    way.state.index = index  # 0: the scheduler's own pool, in which others may hold blocks
    way.do(("insert", 1, 1, bytes(12), 1, 1, False))
    for change in done:
        way.do(change)
    assert way.disabled == []
    assert way.records() == [record._replace(pool=index) for record in way.expected]
    ops = [record.op for record in way.expected]
    cached, evicted = ops.count(BlockOp.cache), ops.count(BlockOp.evict)
    assert (way.state.cached, way.state.evicted) == (cached - evicted, evicted)
    assert way.connector.told == ([] if index else way.held)


class Tier:
    """Stands for an offload tier, which records its blocks itself."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def changed(self, op: int, blocks: Iterable[Any]) -> None:
        self.told.append((op, *blocks))

    def hashed(self, op: int, key: bytes, block: Any) -> None:
        self.told.append((op, key, block))


def test_a_pool_of_a_tier_s_tells_the_tier(tmp_path: Path) -> None:
    way = Recorded(tmp_path)
    way.recorder.open()
    way.state.tier = tier = Tier()
    way.map.found = block = SimpleNamespace(block_id=4)
    for kind in OPS:
        way.as_ever(kind, block)
    key = bytes(12)
    assert tier.told == [(3, key, block), (4, key, block), (1, block), (2, block), (5, block)]
    assert (way.records(), way.disabled, way.state.cached, way.state.evicted) == ([], [], 0, 1)


def test_records_go_on_in_the_next_segment(tmp_path: Path) -> None:
    way = Recorded(tmp_path)
    many = PER_SEGMENT + 100
    for number in range(many):
        way.do(("insert", number, 0, number.to_bytes(12, "big"), number, 1, False))
    found = way.records()
    assert [record.block_id for record in found] == list(range(many))
    assert {record.op for record in found} == {int(BlockOp.cache)}
    way.recorder.rotate()
    way.do(("pop", 1, 0, bytes(12), 8, 0, False))
    assert len(way.records()) == many + 1


def test_records_are_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    way = Recorded(tmp_path, counting=True)
    for number in range(PER_SEGMENT + 100):  # over the end of a segment
        way.do(("insert", number, 0, bytes(12), number, 1, False))
    way.do(("allocate", 1, 0, bytes(12), 1, 9, False))
    assert way.recorder._by_name[BLOCK_EVENT.name].written == len(way.records()) == PER_SEGMENT + 110


@pytest.mark.parametrize(
    ("kind", "gone"),
    [
        *itertools.product(["insert", "pop", *METHODS], ["block_id", "ref_cnt"]),
        *itertools.product(METHODS, ["is_null"]),
    ],
)
def test_an_attribute_that_is_gone_switches_the_hook_off(tmp_path: Path, kind: str, gone: str) -> None:
    way = Recorded(tmp_path)
    way.do((kind, 1, 0, bytes(12), 1, 1, False))
    way.map.found = block = SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)
    delattr(block, gone)
    for _ in range(2):
        way.as_ever(kind, block)
    assert len(way.disabled) == 1
    assert gone in way.disabled[0]


@pytest.mark.parametrize("kind", ["insert", "pop", *METHODS])
def test_a_pool_without_an_engine_switches_the_hook_off(tmp_path: Path, kind: str) -> None:
    way = Recorded(tmp_path)
    way.do((kind, 1, 0, bytes(12), 1, 1, False))
    way.map.found = block = SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)
    del way.state.engine
    for _ in range(2):
        way.as_ever(kind, block)
    assert len(way.disabled) == 1


@pytest.mark.parametrize(
    "change", [("insert", 1 << 31, 0), ("insert", 1, 1 << 32), ("allocate", 1 << 31, 0), ("free", 1, 1 << 32)]
)
def test_numbers_too_large_for_a_record_are_refused(tmp_path: Path, change: tuple[str, int, int]) -> None:
    way = Recorded(tmp_path)
    way.do((*change, bytes(12), 1, 1, False))
    assert len(way.disabled) == 1


def test_a_stopped_recorder_takes_no_more(tmp_path: Path) -> None:
    way = Recorded(tmp_path)
    way.do(("insert", 1, 0, bytes(12), 1, 1, False))
    way.recorder.stop("for a test")
    for number in range(2 * PER_SEGMENT):
        way.do(("insert", number, 0, bytes(12), 1, 1, False))
    assert way.disabled == []
    assert 1 <= len(way.records()) <= PER_SEGMENT


def test_a_writer_in_a_cycle_is_let_go_of_with_its_segment(tmp_path: Path) -> None:
    class Map(mmap.mmap): ...

    class Stream(SimpleNamespace): ...

    segment, stream = Map(-1, 8192), Stream()
    packer = _native.Packer(BLOCK_EVENT.layout, stream, None)  # type: ignore[arg-type]
    assert packer.follow(segment, 4096) == 0
    stream.pool = Pool(EngineWith(), None, 1)  # type: ignore[arg-type]
    stream.writer = _native.Writer(packer, {}, {id(stream): stream.pool}, *CALLBACKS)
    stream.writer.after_free(None, None, (stream, [SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)]), {})
    assert segment[4096 + 35] == 1
    gone, cycle = weakref.ref(segment), weakref.ref(stream)
    del segment, stream, packer
    gc.collect()
    assert (gone(), cycle()) == (None, None)


def test_a_writer_needs_a_packer() -> None:
    for arguments in [(), (1, {}, {}, *CALLBACKS)]:
        with pytest.raises(TypeError):
            _native.Writer(*arguments)


WRONG = ["", "time", ":q", "a:", "a:d", "a:q b", " ".join(f"f{n}:q" for n in range(33)), "a:q  b:q"]


@pytest.mark.parametrize("layout", WRONG)
def test_a_layout_that_cannot_be_packed_is_refused(layout: str) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        _native.Packer(layout, None, None)  # type: ignore[arg-type]


def test_a_map_that_belongs_to_no_pool_is_left_alone(tmp_path: Path) -> None:
    way = Recorded(tmp_path)
    type(way.map)().insert(bytes(12), SimpleNamespace(block_id=1, ref_cnt=1))
    way.do(("insert", 1, 0, bytes(12), 1, 1, False))
    assert len(way.records()) == 1


@pytest.fixture
def pages_can_be_made_ready() -> None:
    try:
        mmap.mmap(-1, 4096).madvise(23)  # MADV_POPULATE_WRITE
    except OSError:
        pytest.skip("this kernel cannot make pages ready (Linux 5.14 can)")


def has_pages(run: Path, least_bytes: int) -> bool:
    """Return whether as much of the latest segment of block events is in this process's memory, within some seconds."""
    [process] = [one for one in open_recording(run).processes if one.pid == os.getpid()]
    path = str(process.segments()[BLOCK_EVENT.name][-1].path)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        _, _, after = Path("/proc/self/smaps").read_text().partition(path)
        resident = re.search(r"^Rss: *(\d+) kB", after, re.MULTILINE)
        if resident and int(resident[1]) << 10 >= least_bytes:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("pages_can_be_made_ready")
def test_pages_are_made_ready_ahead_of_records(tmp_path: Path) -> None:
    # GIVEN a recorder whose first segment holds one record, of one page
    way = Recorded(tmp_path)
    way.do(("insert", 1, 0, bytes(12), 1, 1, False))

    # WHEN nothing happens, THEN there are pages for hundreds
    assert has_pages(tmp_path, 1 << 16)
    assert not way.disabled

    # AND so in the segments that follow, and for more of them where much was written
    for number in range(PER_SEGMENT + 1):
        way.do(("insert", number, 0, bytes(12), 1, 1, False))
    assert has_pages(tmp_path, 1 << 18)

    # AND in a child that goes on recording
    child = os.fork()
    if child == 0:
        try:
            way.do(("insert", 1, 0, bytes(12), 1, 1, False))
            os._exit(0 if has_pages(tmp_path, 1 << 16) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(way.records()) == PER_SEGMENT + 2


def test_segments_that_come_and_go_while_pages_are_made_ready(tmp_path: Path) -> None:
    ways = [Recorded(tmp_path / str(number)) for number in range(3)]
    for number in range(300):
        for way in ways:
            way.do(("insert", number, 0, bytes(12), number, 1, False))
            way.recorder.rotate()
        if number == 200:
            ways.pop()
    assert [[record.block_id for record in way.records()] for way in ways] == [list(range(300))] * 2
