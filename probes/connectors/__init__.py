"""KV connectors: lookups, transfers between tiers, and the content of their tiers.

Every connector is recorded by vLLM's connector interface: lookups, calls, and references it takes on blocks.
One with an adapter (`adapters/`) is recorded down to the transfer and the block; the journal says which way it was.
"""

from __future__ import annotations

from kvtrace.probes.connectors import scheduler_side, worker_side
from kvtrace.probes.connectors.adapter import Adapter
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.connectors.registry import adapter_of
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, Patches, argument
from kvtrace.probes.optional_attributes import OptionalAttributes

_FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory"
_PARTS = "the parts of a MultiConnector"


def hooks(engines: Engines, patches: Patches) -> list[Hook]:
    """The hook on the making of connectors, in the scheduler's process and in the workers'."""

    def after_create(_: None, connector: object, args: Args, kwargs: Kwargs) -> None:
        role = argument(args, kwargs, 2, "role").name.lower()
        for index, one in enumerate([connector, *_children(connector, engines.optional)]):
            _attach(Part(engines, patches, connector, one, index), role)

    parts = Need(
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector",
        "_connectors",
        _PARTS,
    )
    lost = "KV connectors: lookups, transfers, tiers"
    return [Hook(f"{_FACTORY}.create_connector", lost, after=after_create, needs=(parts,))]


def _children(connector: object, optional: OptionalAttributes) -> list[object]:
    """List the parts of a MultiConnector, and their parts."""
    if not any(kind.__name__ == "MultiConnector" for kind in type(connector).__mro__):
        return []
    parts = optional.read(connector, "_connectors", _PARTS, ())
    return [found for part in parts for found in (part, *_children(part, optional))]


def _attach(part: Part, role: str) -> None:
    adapter = adapter_of(part)
    facts = scheduler_side.attach(part, adapter) if role == "scheduler" else worker_side.attach(part, adapter)
    part.recorder.note(
        "connector",
        part=part.index,
        connector=part.name,
        role=role,
        recorded="generically" if type(adapter) is Adapter else "in detail",
        **facts,
    )
