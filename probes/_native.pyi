from collections.abc import Callable, Iterable
from typing import Any

from kvtrace.probes.engine import Pool
from kvtrace.probes.hooks import After, Args, Kwargs
from kvtrace.stream import Emit, Stream

class Writer:
    def __init__(
        self,
        layout: str,
        stream: Stream,
        emit: Emit,
        maps: dict[int, tuple[Any, Pool]],
        inserted: After,
        popped: After,
        wrote: Callable[[], None] | None,
        cache: int,
        evict: int,
        /,
    ) -> None: ...
    def after_insert(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_pop(self, state: None, block: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def write_blocks(
        self, blocks: Iterable[Any], block_pool: Any, time_ns: int, step: int, op: int, request: int, pool: int, /
    ) -> None: ...
