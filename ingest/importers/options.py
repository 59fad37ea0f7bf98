"""Options for importers of other tools' files, for facts that the files do not say themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

TICK_NS = 1000
"""UnBoxKV-IO divides its GPU clock by 210 and takes the result for microseconds."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """None: found in the data, or else assumed; table `run` says which."""

    block_tokens: int | None = None  # tokens a block
    block_bytes: int | None = None  # bytes of K (or V) of a block in one layer
    tick_ns: int | None = None  # length of a tick of UnBoxKV-IO's clock
    launch_shapes: bool = False  # read table gpu_launch_shape of Nsight exports, too


def say(connection: duckdb.DuckDBPyConnection, key: str, value: object, how: str) -> None:
    """Keep in table `run` what a value was taken to be, and why."""
    connection.execute("INSERT INTO run VALUES (?, ?)", [key, f"{value} ({how})"])
