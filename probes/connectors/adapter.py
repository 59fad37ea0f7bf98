"""The interface of adapters. An adapter knows one kind of connector; its declaration is what the registry finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from kvtrace.events import Direction, Tier
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.hooks import Args, Hook, Kwargs
from kvtrace.probes.vllm_types import SchedulerOutput

Facts: TypeAlias = dict[str, Any]
"""Columns of table `connector`, from the scheduler's side: `tier`, `capacity_blocks`, `blocks_per_chunk`."""


class Planned(NamedTuple):
    """A transfer as the scheduler's side decided it; the lists have an entry a block.

    Attributes:
        transfer: The key, from `Part.transfer`.
        direction: To the other tier (`store`) or to the GPU (`load`).
        requests: Request ids; empty where no request owns the block.
        gpu_blocks: Block ids of the GPU's pool.
        other_blocks: Block ids of the other tier; -1 where they are not known.
    """

    transfer: int
    direction: Direction
    requests: list[str]
    gpu_blocks: list[int]
    other_blocks: list[int]


class Adapter:
    """The adapter of a connector that has none of its own: only the connector interface is recorded."""

    def __init__(self, part: Part) -> None:
        self.part = part

    @staticmethod
    def fits(connector: object) -> bool:
        """Check that a connector of a declared class has the form this adapter reads."""
        return True

    def attach_scheduler(self) -> Facts:
        """Hook the scheduler's side; facts for table `connector`."""
        return {}

    def planned(self, metadata: Any, scheduler_output: SchedulerOutput) -> Iterable[Planned]:
        """List the transfers that a step's metadata asks the workers for."""
        return ()

    def attach_worker(self) -> bool:
        """Hook the worker's side. False: it is not built yet, so ask again with the next step."""
        return True

    def after_load(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Run after `start_load_kv`."""

    def before_save(self) -> None:
        """Run before `wait_for_save`."""

    def after_save(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Run after `wait_for_save`."""

    def after_poll(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Run after `get_finished`, or `get_transfer_results` of a connector that has it."""

    def own(self, name: str) -> Callable[..., None] | None:
        """Look up a method that this adapter overrides; None if there is nothing to call in a step."""
        return None if getattr(type(self), name) is getattr(Adapter, name) else getattr(self, name)

    def without_polls(self) -> None:
        """Forget unfinished transfers: the hook that sees their ends is off."""


class Form(NamedTuple):
    """A row of the table in docs/offload.md: a connector, or one of its backends.

    Attributes:
        name: The connector and, where it has several, its backend.
        tiers: The tiers it copies to and from, beside the GPU.
        transfers: Which transfers and blocks are recorded.
        copy_time: What times a copy.
        content: What tells the tier's content; "none" where nothing does.
        since: The first vLLM that has this backend, where that is later than the connector's.
    """

    name: str
    tiers: tuple[Tier, ...]
    transfers: str
    copy_time: str
    content: str
    since: str = ""


class Declaration(NamedTuple):
    """An adapter as the registry, the compatibility table, the fault matrix and docs/offload.md know it.

    Attributes:
        adapter: Made once for each connector object.
        connectors: Where vLLM declares the connectors, `module:Class`. Subclasses have the same adapter.
        forms: The rows of docs/offload.md.
        hooks: The hooks that the adapter puts on objects, with every attribute it reads as their `needs`.
        since: The first vLLM whose connector has the form the adapter reads; empty: all that kvtrace knows.
    """

    adapter: type[Adapter]
    connectors: tuple[str, ...]
    forms: tuple[Form, ...]
    hooks: tuple[Hook, ...]
    since: str = ""
