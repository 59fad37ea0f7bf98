"""The scheduler's side of a connector: lookups, planned transfers, and references on blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from kvtrace.capture._native import Around
from kvtrace.events import CONNECTOR_LOOKUP, CONNECTOR_NEWS, TRANSFER_BLOCK, ConnectorNews, Direction, PinEnd
from kvtrace.probes.connectors.adapter import Adapter, Facts, Planned
from kvtrace.probes.connectors.part import Part, low_hashes
from kvtrace.probes.engine import STEP_ATTRIBUTE, Engine
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.pins import Holder
from kvtrace.probes.vllm_symbols import BLOCK, BLOCK_POOL, CONNECTOR, CONNECTOR_OUTPUT, REQUEST, SCHEDULER_OUTPUT
from kvtrace.probes.vllm_types import Request

LOOKUP = Hook(
    f"{CONNECTOR}.get_num_new_matched_tokens", "what connectors were asked", needs=(Need(REQUEST, "request_id"),)
)
CONTENT = "the content of a tier's blocks"
ORDER = "in which order the connector took requests that ended at once"
PLAN = Hook(
    f"{CONNECTOR}.build_connector_meta",
    f"the blocks of transfers, the steps of calls, {ORDER}",
    needs=(
        Need(BLOCK_POOL, "blocks"),
        Need(BLOCK, "block_hash", CONTENT),
        Need(REQUEST, "block_hashes", CONTENT),
        Need(SCHEDULER_OUTPUT, "finished_req_ids", ORDER),
    ),
)
_LOST = "references connectors take on blocks"
TAKING = Hook(f"{CONNECTOR}.update_state_after_alloc", _LOST)
RELEASING_ONES = (
    Hook(f"{CONNECTOR}.request_finished", _LOST),
    Hook("vllm.distributed.kv_transfer.kv_connector.v1.base:SupportsHMA.request_finished_all_groups", _LOST),
)
RESULTS = Hook(
    f"{CONNECTOR}.update_connector_output",
    f"{_LOST}, {ORDER}",
    needs=(Need(CONNECTOR_OUTPUT, "finished_recving", ORDER),),
)
RESET = Hook(f"{CONNECTOR}.reset_cache", _LOST)
HOOKS = LOOKUP, PLAN, TAKING, *RELEASING_ONES, RESULTS, RESET


def attach(part: Part, adapter: Adapter) -> Facts:
    """Hook the scheduler's side of a connector; facts for the journal."""
    facts = adapter.attach_scheduler()
    _hook_lookups(part)
    _hook_plans(part, adapter)
    _hook_references(part)
    return facts


def _hook_lookups(part: Part) -> None:
    emit, recorder = part.recorder.stream(CONNECTOR_LOOKUP), part.recorder

    def before_lookup(args: Args, kwargs: Kwargs) -> int:
        return time.monotonic_ns()

    def after_lookup(asked_ns: int, found: tuple[int | None, bool], args: Args, kwargs: Kwargs) -> None:
        engine = part.engine()
        if engine is None:
            return
        request: Request = argument(args, kwargs, 0, "request")
        local: int = argument(args, kwargs, 1, "num_computed_tokens")
        number, name = engine.number(request.request_id), recorder.intern(part.name)
        matched = -1 if found[0] is None else found[0]
        if matched < 0:
            engine.deferred = engine.step, request.request_id
        emit(
            time_ns=time.monotonic_ns(),
            step=engine.step,
            request=number,
            part=part.index,
            connector=name,
            local_tokens=local,
            matched_tokens=matched,
            asynchronous=bool(found[1]),
            asked_ns=asked_ns,
        )

    part.hook(part.connector, LOOKUP, before_lookup, after_lookup)


def _hook_plans(part: Part, adapter: Adapter) -> None:
    plans, tell = Plans(part), _teller(part, ConnectorNews.ended)
    holding = _holding(part, PinEnd.saved)
    let_go = holding.after

    def after_build(until: object, metadata: object, args: Args, kwargs: Kwargs) -> None:
        let_go(until, metadata, args, kwargs)
        engine = part.engine()
        if engine is None:
            return
        try:  # noqa: SIM105 - a step of every engine comes here
            setattr(metadata, STEP_ATTRIBUTE, (engine.pid, engine.step))
        except AttributeError:  # a metadata class with slots: its workers know no step, and say so
            pass
        output = argument(args, kwargs, 0, "scheduler_output")
        for plan in adapter.planned(metadata, output):
            plans.record(engine, plan)
        tell(part.optional.read(output, "finished_req_ids", ORDER))

    part.hook(part.connector, PLAN, holding.before, after_build, _nobody_holds(part))


def _hook_references(part: Part) -> None:
    off = _nobody_holds(part)
    part.hook(part.connector, TAKING, _holding_for(part, PinEnd.loaded), _let_go, off)
    kinds = {kind.__name__ for kind in type(part.connector).__mro__}
    for declared in RELEASING_ONES:
        if "SupportsHMA" not in declared.path or "SupportsHMA" in kinds:
            part.hook(part.connector, declared, _holding_for(part, PinEnd.released), _let_go, off)
    holding = _holding(part, PinEnd.released)
    part.hook(part.connector, RESET, holding.before, holding.after, off)
    _hook_results(part)


def _hook_results(part: Part) -> None:
    """Record which loads the workers report, beside the references that end with that."""
    holding, tell = _holding(part, PinEnd.released), _teller(part, ConnectorNews.loaded)

    def before_results(args: Args, kwargs: Kwargs) -> object:
        tell(part.optional.read(argument(args, kwargs, 0, "connector_output"), "finished_recving", ORDER))
        return holding.before(args, kwargs)

    part.hook(part.connector, RESULTS, before_results, holding.after, _nobody_holds(part))


def _teller(part: Part, op: ConnectorNews) -> Callable[[Collection[str] | None], None]:
    """Make the function that records requests of which the engine's connector is told, in their set's order."""
    emit = part.recorder.stream(CONNECTOR_NEWS)

    def tell(request_ids: Collection[str] | None) -> None:
        engine = part.engine() if request_ids and not part.index else None
        if engine is None or not request_ids:
            return
        moment = time.monotonic_ns()
        for request_id in request_ids:
            emit(time_ns=moment, step=engine.acting_step, request=engine.number(request_id), op=op)

    return tell


def _nobody_holds(part: Part) -> Callable[[], None]:
    """Make the function for a hook that is off, which ends the connector's turn as holder."""

    def off() -> None:
        engine = part.engine()
        if engine is not None:
            engine.holder = None

    return off


def _holding(part: Part, ends: PinEnd) -> Around:
    """Attribute references on blocks to the connector until a call returns; `ends` is why they will end."""
    return Around(part.engine, "holder", Holder(0, ends))


Held = tuple[Engine, Holder | None] | None


def _holding_for(part: Part, ends: PinEnd) -> Callable[[Args, Kwargs], Held]:
    """Attribute references on blocks to the connector, for a request, until a call returns."""

    def hold(args: Args, kwargs: Kwargs) -> Held:
        engine = part.engine()
        if engine is None:
            return None
        request: Request = argument(args, kwargs, 0, "request")
        previous = engine.holder
        engine.holder = Holder(engine.number(str(request.request_id)), ends)
        return engine, previous

    return hold


def _let_go(state: Held, _: object, args: Args, kwargs: Kwargs) -> None:
    if state is not None:
        state[0].holder = state[1]


class Plans:
    """Records the blocks of planned transfers."""

    def __init__(self, part: Part) -> None:
        self._emit = part.recorder.columns(TRANSFER_BLOCK)

    def record(self, engine: Engine, plan: Planned) -> None:
        """Record a planned transfer, a row a block."""
        if not plan.gpu_blocks:
            return
        numbers = {request: engine.number(request) if request else 0 for request in dict.fromkeys(plan.requests)}
        requests = [numbers[request] for request in plan.requests]
        hashes, groups = _hashes(engine, plan)
        self._emit(
            len(requests),
            time_ns=time.monotonic_ns(),
            step=engine.step,
            transfer=plan.transfer,
            direction=plan.direction,
            request=requests,
            gpu_block_id=plan.gpu_blocks,
            other_block_id=plan.other_blocks,
            block_hash=hashes,
            kv_group=groups,
        )


def _hashes(engine: Engine, plan: Planned) -> tuple[list[int], list[int]]:
    """Look up the content hash of each planned GPU block: the block's, or its request's before it is filled."""
    blocks = engine.block_pool.blocks
    keys = engine.optional.read_all([blocks[block] for block in plan.gpu_blocks], "block_hash", CONTENT)
    if plan.direction is Direction.load and not all(keys):
        of_requests = {request: _keys_of_request(engine, request) for request in set(plan.requests) if request}
        owned = zip(keys, plan.requests, plan.gpu_blocks, strict=True)
        keys = [key or of_requests.get(request, {}).get(block) for key, request, block in owned]
    return low_hashes(keys)


def _keys_of_request(engine: Engine, request_id: str) -> dict[int, bytes]:
    """Make the keys (hash and group) of a request's blocks from its prompt, where blocks are hashed whole."""
    request = engine.scheduler.requests.get(request_id)
    if request is None or engine.hash_block_size != engine.block_size:
        return {}
    hashes: Iterable[bytes] = engine.optional.read(request, "block_hashes", CONTENT, ())
    manager = engine.scheduler.kv_cache_manager
    return {
        block: hash_ + group.to_bytes(4, "big")
        for group, ids in enumerate(manager.get_block_ids(request_id))
        for block, hash_ in zip(ids, hashes, strict=False)
    }
