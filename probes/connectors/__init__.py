"""KV connectors: what they were asked, what they moved between which tiers, and what their tiers hold.

Every connector is recorded by vLLM's connector interface: lookups, calls, and references it takes on blocks. Those that
have an adapter here are recorded down to the transfer and the block; the journal says which way it was.
"""

from __future__ import annotations

from typing import Any

from kvtrace.probes.connectors import by_slots, offload_tiers, offloading, scheduler_side, simple_cpu, worker_side
from kvtrace.probes.connectors.part import Adapter, Part
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, Patches, argument
from kvtrace.probes.optional_attributes import Lacks

_FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory"


_PARTS = "the parts of a MultiConnector"


def hooks(engines: Engines, patches: Patches) -> list[Hook]:
    """The hook on the making of connectors, in the scheduler's process and in the workers'."""

    def after_create(_: None, connector: Any, args: Args, kwargs: Kwargs) -> None:
        role = argument(args, kwargs, 2, "role").name.lower()
        for index, one in enumerate([connector, *_children(connector, engines.lacks)]):
            _attach(Part(engines, patches, connector, one, index), role)

    parts = Need(
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector",
        "_connectors",
        _PARTS,
    )
    lost = "KV connectors: lookups, transfers, tiers"
    return [Hook(f"{_FACTORY}.create_connector", lost, after=after_create, needs=(parts,))]


def declared() -> list[Hook]:
    """The hooks that are put on connectors and their parts when they are made; they have no functions yet."""
    rooms = scheduler_side, worker_side, by_slots, simple_cpu, offloading, offload_tiers
    values = [value for room in rooms for value in vars(room).values()]
    single = [value for value in values if isinstance(value, Hook)]
    several = [value for value in values if isinstance(value, tuple) and not isinstance(value, Hook)]
    return single + [hook for value in several for hook in value if isinstance(hook, Hook)]


def _children(connector: Any, lacks: Lacks) -> list[Any]:
    """The parts of a MultiConnector, and theirs."""
    if not any(kind.__name__ == "MultiConnector" for kind in type(connector).__mro__):
        return []
    parts = lacks.read(connector, "_connectors", _PARTS, ())
    return [found for part in parts for found in (part, *_children(part, lacks))]


def _attach(part: Part, role: str) -> None:
    adapter = _adapter(part)
    facts = scheduler_side.attach(part, adapter) if role == "scheduler" else worker_side.attach(part, adapter)
    part.recorder.note(
        "connector",
        part=part.index,
        connector=part.name,
        role=role,
        recorded="generically" if type(adapter) is Adapter else "in detail",
        **facts,
    )


def _adapter(part: Part) -> Adapter:
    """Return the adapter of this kind of connector, told by what the object has and not by its version."""
    for kind in (simple_cpu.SimpleCpu, offloading.Offloading, by_slots.BySlots):
        if kind.fits(part.connector):
            return kind(part)
    return Adapter(part)
