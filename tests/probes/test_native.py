"""The compiled part of `probes/blocks.py` records what its Python does, over ends of segments, and fails as it does."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import re
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.stream import NATIVE_VARIABLE
from kvtrace.events import BLOCK_EVENT, BlockOp
from kvtrace.format.reader import open_recording
from kvtrace.probes import blocks
from kvtrace.probes.engine import Pool
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Hook, Patches
from tests.probes.records import EngineWith

_native = pytest.importorskip("kvtrace.capture._native", reason="kvtrace was installed without its compiled part")
SLOW_WAYS: Any = [print] * 6
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
    """One way of recording: a pool and its map, hooked."""

    def __init__(self, run: Path, native: bool, monkeypatch: pytest.MonkeyPatch, counting: bool = False) -> None:
        monkeypatch.setenv(NATIVE_VARIABLE, "1" if native else "0")
        self.run = run
        self.recorder = Recorder(run, largest_segment_bytes=1 << 18, count_writes=counting)
        self.engines = Engines(self.recorder)
        self.pool = BlockPool()
        self.connector = Connector()
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

    def records(self) -> Iterator[tuple[int, ...]]:
        """Return the records, without times."""
        yield from self.records_of(os.getpid())

    def records_of(self, pid: int) -> Iterator[tuple[int, ...]]:
        """The same of one process."""
        [process] = [one for one in open_recording(self.run).processes if one.pid == pid]
        for segment in process.segments().get(BLOCK_EVENT.name, []):
            count, torn = segment.count()
            assert torn == 0
            data, size = segment.path.read_bytes()[4096:], BLOCK_EVENT.struct.size
            for index in range(count):
                yield BLOCK_EVENT.struct.unpack_from(data, index * size)[1:]


changes = st.tuples(
    st.sampled_from(["insert", "pop", *METHODS]),
    st.integers(-1, (1 << 31) - 1),
    st.integers(0, (1 << 32) - 1),
    st.binary(min_size=12, max_size=40),
    st.integers(0, (1 << 31) - 100),
    st.integers(-1, 1 << 20),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(changes, min_size=1, max_size=40))
def test_both_ways_record_the_same(tmp_path_factory: pytest.TempPathFactory, done: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        ways = [Recorded(tmp_path_factory.mktemp("run"), native, monkeypatch) for native in (True, False)]
    for way in ways:
        way.do(("insert", 1, 1, bytes(12), 1, 1, False))
        for change in done:
            way.do(change)
        assert way.disabled == []
    native, python = ways
    assert list(native.records()) == list(python.records())
    counts = [(way.state.cached, way.state.evicted) for way in ways]
    assert counts[0] == counts[1]
    assert native.connector.told == python.connector.told


def test_it_is_the_compiled_part_that_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {hook.path[-1]: hook for hook in blocks.hooks(Engines(Recorder(tmp_path)))}
    assert type(by_name["insert"].after).__name__ == "builtin_function_or_method"
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    by_name = {hook.path[-1]: hook for hook in blocks.hooks(Engines(Recorder(tmp_path / "other")))}
    assert type(by_name["insert"].after).__name__ == "function"


def test_records_go_on_in_the_next_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = Recorded(tmp_path, True, monkeypatch)
    many = PER_SEGMENT + 100
    for number in range(many):
        way.do(("insert", number, 0, number.to_bytes(12, "big"), number, 1, False))
    found = list(way.records())
    assert [record[1] for record in found] == list(range(many))
    assert {record[2] for record in found} == {int(BlockOp.cache)}
    way.recorder.rotate()
    way.do(("pop", 1, 0, bytes(12), 8, 0, False))
    assert len(list(way.records())) == many + 1


def test_records_are_counted_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Recorded(tmp_path / str(native), native, monkeypatch, counting=True) for native in (True, False)]
    for way in ways:
        for number in range(PER_SEGMENT + 100):  # over the end of a segment
            way.do(("insert", number, 0, bytes(12), number, 1, False))
        way.do(("allocate", 1, 0, bytes(12), 1, 9, False))
    counts = [way.recorder._by_name[BLOCK_EVENT.name].written for way in ways]
    assert counts == [len(list(way.records())) for way in ways] == [PER_SEGMENT + 110] * 2


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("kind", "gone"),
    [
        *itertools.product(["insert", "pop", *METHODS], ["block_id", "ref_cnt"]),
        *itertools.product(METHODS, ["is_null"]),
    ],
)
def test_an_attribute_that_is_gone_switches_the_hook_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool, kind: str, gone: str
) -> None:
    way = Recorded(tmp_path, native, monkeypatch)
    way.do((kind, 1, 0, bytes(12), 1, 1, False))
    way.map.found = block = SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)
    delattr(block, gone)
    for _ in range(2):
        way.as_ever(kind, block)
    assert len(way.disabled) == 1
    assert gone in way.disabled[0]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["insert", "pop", *METHODS])
def test_a_pool_without_an_engine_switches_the_hook_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool, kind: str
) -> None:
    way = Recorded(tmp_path, native, monkeypatch)
    way.do((kind, 1, 0, bytes(12), 1, 1, False))
    way.map.found = block = SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)
    del way.state.engine
    for _ in range(2):
        way.as_ever(kind, block)
    assert len(way.disabled) == 1


@pytest.mark.parametrize(
    "change", [("insert", 1 << 31, 0), ("insert", 1, 1 << 32), ("allocate", 1 << 31, 0), ("free", 1, 1 << 32)]
)
def test_numbers_too_large_for_a_record_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, int, int]
) -> None:
    way = Recorded(tmp_path, True, monkeypatch)
    way.do((*change, bytes(12), 1, 1, False))
    assert len(way.disabled) == 1


def test_a_stopped_recorder_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = Recorded(tmp_path, True, monkeypatch)
    way.do(("insert", 1, 0, bytes(12), 1, 1, False))
    way.recorder.stop("for a test")
    for number in range(2 * PER_SEGMENT):
        way.do(("insert", number, 0, bytes(12), 1, 1, False))
    assert way.disabled == []
    assert 1 <= len(list(way.records())) <= PER_SEGMENT


def test_a_writer_in_a_cycle_is_let_go_of_with_its_segment(tmp_path: Path) -> None:
    class Map(mmap.mmap): ...

    class Stream(SimpleNamespace): ...

    segment, stream = Map(-1, 8192), Stream()
    packer = _native.Packer(BLOCK_EVENT.struct.format, stream, None)  # type: ignore[arg-type]
    assert packer.follow(segment, 4096) == 0
    stream.pool = Pool(EngineWith(), None, 1)  # type: ignore[arg-type]
    stream.writer = _native.Writer(packer, {}, {id(stream): stream.pool}, *SLOW_WAYS, *range(5))
    stream.writer.after_free(None, None, (stream, [SimpleNamespace(block_id=1, ref_cnt=1, is_null=False)]), {})
    assert segment[4096 + 35] == 1
    gone, cycle = weakref.ref(segment), weakref.ref(stream)
    del segment, stream, packer
    gc.collect()
    assert (gone(), cycle()) == (None, None)


def test_a_writer_of_another_layout_is_refused() -> None:
    packer = _native.Packer("<qiiBiIQBIB", None, None)
    rest = ({}, {}, *SLOW_WAYS, *range(5))
    for arguments in [(), (packer, *rest), (1, *rest)]:
        with pytest.raises((TypeError, ValueError)):
            _native.Writer(*arguments)


@pytest.mark.parametrize("layout", ["", "<", "<qq", ">qB", "<qdB", "<" + "q" * 33 + "B", "<" + "Q" * 32 + "B"])
def test_a_layout_that_cannot_be_packed_is_refused(layout: str) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        _native.Packer(layout, None, None)


def test_a_map_that_belongs_to_no_pool_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = Recorded(tmp_path, True, monkeypatch)
    type(way.map)().insert(bytes(12), SimpleNamespace(block_id=1, ref_cnt=1))
    way.do(("insert", 1, 0, bytes(12), 1, 1, False))
    assert len(list(way.records())) == 1


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
def test_pages_are_made_ready_ahead_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a recorder whose first segment holds one record, of one page
    way = Recorded(tmp_path, True, monkeypatch)
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
    assert len(list(way.records_of(os.getpid()))) == PER_SEGMENT + 2


def test_segments_that_come_and_go_while_pages_are_made_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Recorded(tmp_path / str(number), True, monkeypatch) for number in range(3)]
    for number in range(300):
        for way in ways:
            way.do(("insert", number, 0, bytes(12), number, 1, False))
            way.recorder.rotate()
        if number == 200:
            ways.pop()
    assert [[record[1] for record in way.records()] for way in ways] == [list(range(300))] * 2
