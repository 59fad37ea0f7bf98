from collections.abc import Callable, Iterable
from typing import Any

from kvtrace.probes.engine import Pool
from kvtrace.probes.hooks import After, Args, Kwargs
from kvtrace.stream import Stream

class Packer:
    def __init__(self, layout: str, stream: Stream, wrote: Callable[[], None] | None, /) -> None: ...
    def emit(self, *values: Any) -> None: ...
    def columns(self, rows: int, *values: Any) -> None: ...
    def follow(self) -> None: ...

class Writer:
    def __init__(
        self,
        packer: Packer,
        maps: dict[int, tuple[Any, Pool]],
        inserted: After,
        popped: After,
        cache: int,
        evict: int,
        /,
    ) -> None: ...
    def after_insert(self, state: None, result: None, args: Args, kwargs: Kwargs, /) -> None: ...
    def after_pop(self, state: None, block: Any, args: Args, kwargs: Kwargs, /) -> None: ...
    def write_blocks(
        self, blocks: Iterable[Any], block_pool: Any, time_ns: int, step: int, op: int, request: int, pool: int, /
    ) -> None: ...
