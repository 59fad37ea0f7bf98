import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

class _Stream(Protocol):
    @property
    def segment(self) -> mmap.mmap | None: ...
    def emit_in_next(self, full: mmap.mmap | None, values: tuple[Any, ...]) -> None: ...
    def refuse(self, compiled: str = "") -> None: ...

class Packer:
    def __init__(self, layout: str, stream: _Stream, wrote: Callable[[], None] | None, /) -> None: ...
    def emit(self, *values: Any, **by_name: Any) -> None: ...
    def columns(self, rows: int, /, *values: Any, **by_name: Any) -> None: ...
    def follow(self, segment: mmap.mmap | None, first: int, /) -> int: ...

class EngineState:
    requests: Any
    lookup: Any
    holder: Any
    acting_step: int
    owner: int

class PoolState:
    engine: Any
    tier: Any
    index: int
    cached: int
    evicted: int

class RequestState:
    number: int
    decode_from: int

class Writer:
    def __init__(
        self,
        packer: Packer,
        maps: Mapping[int, tuple[Any, PoolState]],
        pools: Mapping[int, PoolState],
        find_map: Callable[[Any], PoolState | None],
        find_pool: Callable[[Any], PoolState | None],
        touched: Callable[[Any, Iterable[Any]], None],
        freed: Callable[[Any, Iterable[Any]], None],
        /,
    ) -> None: ...
    def after_insert(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_pop(self, state: None, block: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_allocate(self, state: None, blocks: Iterable[Any], args: Args, kwargs: Kwargs, /) -> None: ...
    def after_touch(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_free(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def listed(self, args: Args, kwargs: Kwargs, /) -> tuple[Args, Kwargs]: ...

class Hashes:
    def __init__(self, packer: Packer, /) -> None: ...
    def write(
        self, step: int, request: int, hashes: Sequence[bytes], first: int, plain: Sequence[bytes] | None, /
    ) -> None: ...

def catch_up() -> None: ...
def forget_put_off() -> None: ...

class Guard:
    def __init__(
        self,
        original: Any,
        before: Any,
        after: Any,
        arguments: Any,
        later: Any,
        fire: Any,
        disable: Any,
        catches_up: bool,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Owner:
    def __init__(
        self,
        managers: Mapping[int, EngineState],
        admits: Callable[[Any, Any], None],
        unknown: Callable[[Any, Any], None],
        settled: Callable[[Any, Any, Args, Kwargs], Any],
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> Any: ...
    def after(self, state: Any, result: Any, args: Args, kwargs: Kwargs, /) -> Any: ...

class Steps:
    def __init__(
        self,
        steps: Packer,
        shares: Packer,
        tables: Packer,
        schedulers: Mapping[int, EngineState],
        mark: str,
        begun: Callable[[Any, int], None] | None,
        ended: Callable[[Any], None] | None,
        settle: Callable[[Any], None],
        share: Callable[[Any, int, str, int], tuple[int, int]],
        limit: Callable[[Any, int, int], tuple[int, int, int, int, int]],
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> tuple[Any, int] | None: ...
    def after(self, state: tuple[Any, int] | None, output: Any, args: Args, kwargs: Kwargs, /) -> Any: ...
    def record(self, chosen: Any, /) -> None: ...

class Calls:
    def __init__(
        self,
        packer: Packer,
        part: Any,
        recorder: Any,
        name: str,
        mark: str,
        attach: Callable[[], bool],
        missing: Callable[[Any], None],
        before_save: Callable[[], None] | None,
        after_load: Callable[..., None] | None,
        after_save: Callable[..., None] | None,
        after_poll: Callable[..., None] | None,
        index: int,
        /,
    ) -> None: ...
    def metadata(self, args: Args, kwargs: Kwargs, /) -> None: ...
    def without_step(self) -> None: ...
    def begin(self, args: Args, kwargs: Kwargs, /) -> int: ...
    def begin_save(self, args: Args, kwargs: Kwargs, /) -> int: ...
    def load(self, start_ns: int, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def save(self, start_ns: int, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def poll(self, start_ns: int, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...

class Around:
    def __init__(self, find: Callable[[], Any], name: str, value: Any, /) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> Any: ...
    def after(self, until: Any, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...

class Forwards:
    mode: int
    def __init__(
        self,
        packer: Packer,
        mark: str,
        name_mode: Callable[[Any], int],
        missing: Callable[[Any, int], None],
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> int: ...
    def after(self, start_ns: int, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def context(self, args: Args, kwargs: Kwargs, /) -> None: ...
    def watch(
        self,
        begin: Callable[[int, bool, Any], None],
        end: Callable[[int], None],
        turn: Callable[[bool], None] | None,
        other: Callable[[], None] | None,
        /,
    ) -> None: ...

class Ends:
    def __init__(
        self,
        packer: Packer,
        schedulers: Mapping[int, EngineState],
        reasons: Mapping[str, int],
        first_tokens: Callable[[Any, Any], None],
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> None: ...

class Updates:
    def __init__(
        self,
        packer: Packer,
        schedulers: Mapping[int, EngineState],
        mark: str,
        missing: Callable[[Any, Any], None],
        first_tokens: Callable[[Any], None],
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> Any: ...
    def after(self, engine: Any, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...

class Launch:
    def __init__(self, launch_kernel: int, function: int, threads: int, arguments: int, keep: Any, /) -> None: ...
    def __call__(self, stream: int, /) -> None: ...

class EventRing:
    def __init__(
        self,
        event_record: int,
        events: int,
        places: int,
        steps: int,
        stops: int,
        state: int,
        count: int,
        keep: Any,
        /,
    ) -> None: ...
    def begin(self) -> None: ...
    def leave(self) -> None: ...
    def end(self, step: int, /) -> bool: ...
    def mark(self, place: int, /) -> Callable[[int], None]: ...

class TimedPasses:
    def __init__(
        self,
        ring: EventRing,
        mark: str,
        begin: Callable[[int, bool, Any], None],
        end: Callable[[int], None],
        enqueued: Callable[[], None],
        interval_ns: int,
        /,
    ) -> None: ...
    def begin(self, start_ns: int, dummy: bool, scheduler_output: Any, /) -> None: ...
    def end(self, tokens: int, /) -> None: ...

class TimestampedCall:
    def __init__(
        self,
        original: Callable[..., Any],
        before: Callable[[int], None],
        after: Callable[[int], None],
        mark_before: Callable[[int], None],
        mark_after: Callable[[int], None],
        stream: Callable[[], int],
        capturing: Callable[[], bool],
        failed: Callable[[Exception], None],
        in_graphs: bool,
        follows: bool,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def argument(args: Args, kwargs: Kwargs, position: int, name: str, default: Any = None, /) -> Any: ...
def elapsed(
    event_elapsed: int, since: int, events: int, first: int, count: int, ring: int, out: int, /
) -> tuple[int, int]: ...
def drain_tiles(drain: int, bytes_of_it: int, until_ns: int, /) -> tuple[int, int]: ...
def fence() -> None: ...
def write_line(descriptor: int, line: bytes, /) -> int: ...
def set_virtual_clock(ns: int, /) -> None: ...
def now_ns() -> int: ...
def watch_reads(watcher: Callable[[Any, str], None] | None, /) -> None: ...
