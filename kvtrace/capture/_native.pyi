from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvtrace.capture.stream import Stream
from kvtrace.events import FinishReason
from kvtrace.probes.engine import Engine, LiveRequest, Pool
from kvtrace.probes.hooks import After, Args, Kwargs
from kvtrace.probes.pins import Holder

class Packer:
    def __init__(self, layout: str, stream: Stream, wrote: Callable[[], None] | None, /) -> None: ...
    def emit(self, *values: Any) -> None: ...
    def columns(self, rows: int, *values: Any) -> None: ...
    def follow(self, map_: Any, first: int, /) -> int: ...

class EngineState:
    requests: dict[str, LiveRequest]
    lookup: tuple[int, Any, int] | None
    holder: Holder | None
    acting_step: int
    owner: int

class PoolState:
    engine: Engine
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
        maps: dict[int, tuple[Any, Pool]],
        pools: dict[int, Pool],
        inserted: After,
        popped: After,
        allocated: After,
        touched: After,
        freed: After,
        listed: Callable[[Args, Kwargs], tuple[Args, Kwargs]],
        cache: int,
        evict: int,
        allocate: int,
        hit: int,
        free: int,
        /,
    ) -> None: ...
    def after_insert(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_pop(self, state: None, block: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_allocate(self, state: None, blocks: Iterable[Any], args: Args, kwargs: Kwargs, /) -> None: ...
    def after_touch(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_free(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def listed(self, args: Args, kwargs: Kwargs, /) -> tuple[Args, Kwargs]: ...

class Guard:
    def __init__(self, original: Any, before: Any, after: Any, arguments: Any, fire: Any, disable: Any, /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Owner:
    def __init__(self, managers: dict[int, Any], before: Any, after: After, /) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> Any: ...
    def after(self, state: Any, result: Any, args: Args, kwargs: Kwargs, /) -> None: ...

class Steps:
    def __init__(
        self,
        steps: Packer | None,
        shares: Packer | None,
        tables: Packer | None,
        schedulers: dict[int, Any],
        mark: str,
        begun: Callable[[Any, int], None] | None,
        ended: Callable[[Any], None] | None,
        settle: Callable[[Any], None],
        share: Callable[[Any, int, str, int], tuple[int, int]],
        limit: Callable[[Any, int, int], tuple[int, int, int, int]],
        set_: int,
        append: int,
        nobody_waits: int,
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> tuple[Any, int] | None: ...
    def after(self, state: tuple[Any, int] | None, output: Any, args: Args, kwargs: Kwargs, /) -> None: ...

class Calls:
    def __init__(
        self,
        packer: Packer | None,
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
        load: int,
        save: int,
        poll: int,
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
        packer: Packer | None,
        mark: str,
        name_mode: Callable[[Any], int],
        missing: Callable[[Any, int], None],
        piecewise: int,
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
        schedulers: dict[int, Any],
        reasons: dict[str, FinishReason],
        before: Callable[[Args, Kwargs], None],
        finish: int,
        other: int,
        /,
    ) -> None: ...
    def before(self, args: Args, kwargs: Kwargs, /) -> None: ...

class Updates:
    def __init__(
        self,
        packer: Packer | None,
        schedulers: dict[int, Any],
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

class Marks:
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

class Marked:
    def __init__(
        self,
        marks: Marks,
        mark: str,
        begin: Callable[[int, bool, Any], None],
        end: Callable[[int], None],
        enqueued: Callable[[], None],
        interval_ns: int,
        /,
    ) -> None: ...
    def begin(self, start_ns: int, dummy: bool, scheduler_output: Any, /) -> None: ...
    def end(self, tokens: int, /) -> None: ...

class Stamped:
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
def write_chain(
    packer: Packer | None,
    step: int,
    request: int,
    hashes: Sequence[bytes],
    first: int,
    plain: Sequence[bytes] | None,
    /,
) -> None: ...
def set_virtual_clock(ns: int, /) -> None: ...
