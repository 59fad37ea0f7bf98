"""Rewrites the source of a Triton kernel so that its programs record the KV tiles they read or the slots they write.

The same text has two outputs, each only where its memory is given: records of tiles (`kvt_control`) and the layer's
window (`kvt_windows`). Without one of them, the compiler leaves out its part.

Loads and stores are found by the pointer parameters they go through, and what to record by what flows into their
addresses, so a moved line or a renamed variable does not matter. A source of another form raises `MismatchError`, and
vLLM's own kernel stays in place. What a kernel computes is untouched: the added calls (`recorder`) only read.
"""

from __future__ import annotations

import ast
import copy
import functools
import textwrap

from kvtrace.probes.device.tiles.layout import ATTENTION_WINDOW, PROGRAMS, TILES, WRITE_WINDOW, WRITES
from kvtrace.probes.device.tiles.source import (
    MismatchError,
    accesses,
    assigned_from,
    assignments,
    carried_into,
    definition,
    factor_of,
    holder_of,
    meanings,
    names,
    only,
    parameters,
    tainted,
    targets,
)

PARAMETERS = {"kvt_control": None, "kvt_windows": None, "kvt_what": "tl.int32", "kvt_heads": "tl.int64"}
"""Added in front of a kernel's own, with their annotations.

The control words (`layout`), None: no tiles; the layers' windows, None: no windows; the layer's index, plus, shifted by
8, one more than the KV head whose programs sum up their blocks, and shifted by 16, one more than the head whose
programs list them; the heads to record, as bits.
"""

_TILES, _WINDOWS = "kvt_control is not None", "kvt_windows is not None"

_LOOKUP = 64
"""Blocks that a program looks up at once."""

_PLACE = "kvt_pair, kvt_end_place, kvt_address"
_SIZES = "TILE_SIZE, BLOCK_SIZE"
"""Arguments that several added calls share."""

KEY, VALUE, SLOTS = "key_cache_ptr", "value_cache_ptr", "slot_mapping_ptr"


def attention(source: str) -> str:
    """The source of an attention kernel whose programs record the tiles they read.

    Args:
        source: The text of the kernel's function, decorators included.

    Raises:
        MismatchError: The kernel does not loop over KV tiles in the known way.
    """
    function = _function(source, {KEY, VALUE, "BLOCK_SIZE", "TILE_SIZE", "BLOCK_Q", "stride_k_cache_0"})
    body, at = holder_of(function.body, lambda s: isinstance(s, ast.For) and any(accesses(s, "load", KEY)))
    loop = body[at]
    assert isinstance(loop, ast.For)
    if not isinstance(loop.target, ast.Name) or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 2:
        raise MismatchError(f"{function.name}: the loop over KV tiles is not `for NAME in range(LOW, HIGH)`")
    tile, (low, high) = loop.target.id, map(ast.unparse, loop.iter.args)
    load = next(accesses(loop, "load", KEY))
    address = meanings(loop.body, load.args[0])
    block = factor_of(address, "stride_k_cache_0")
    head = ast.unparse(factor_of(address, "stride_k_cache_2"))
    sequence = ast.unparse(factor_of([function], "block_table_stride"))
    query_block = ast.unparse(factor_of([function], "BLOCK_Q"))
    inside = _mask_of(load, block)
    at_key, needs_key = _needs_key(function, loop)

    lookup = _block_lookup(loop.body, _name(block), inside)
    loop.body.insert(at_key, _if_tiles(f"kvt_key_time = kvt_key_now({needs_key})"))
    loop.body.insert(0, _if_tiles(f"kvt_since = kvt_value(kvt_since, kvt_key_time, {_PLACE}, {tile} - 1, {low})"))
    before = f"""
        {_PLACE}, kvt_start = kvt_begin(kvt_control, kvt_tiles, kvt_first_tile, kvt_what, kvt_heads, {head},
            {low}, {high}, {_SIZES})
        kvt_since = kvt_start
        kvt_key_time = kvt_start
    """
    end = f"""
        kvt_end(kvt_programs, kvt_first_program, kvt_pair, kvt_start, kvt_end_place, kvt_address, kvt_total,
            {sequence}, {query_block}, kvt_what, {head}, {low}, {high}, {_SIZES})
    """
    record = [
        _call(f"kvt_programs, kvt_first_program = kvt_room(kvt_control, {PROGRAMS})"),
        _call("kvt_total = 0"),
        _if(f"(kvt_what >> 8) & 0xFF == {head} + 1", _block_sum(*lookup, head, low, high)),
        *_statements(end),
    ]
    last = _call(f"kvt_value(kvt_since, kvt_key_time, {_PLACE}, {high} - 1, {low})")
    window = f"kvt_windows, kvt_what, {ATTENTION_WINDOW}, {low} < {high}"
    body[at : at + 1] = [
        _if_windows(f"kvt_window_first({window})"),
        _if_tiles(before),
        loop,
        _if(_TILES, [last, _if("kvt_tiles > 0", record)]),
        _if_windows(f"kvt_window_last({window})"),
    ]
    function.body.insert(0, _if_tiles(f"kvt_tiles, kvt_first_tile = kvt_room(kvt_control, {TILES})"))
    return _finished(function)


def _block_sum(look_up: str, read: str, head: str, low: str, high: str) -> list[ast.stmt]:
    """Statements that look up a program's blocks, list them if they are to be listed, and sum them up in `kvt_total`.

    Args:
        look_up: The place that the ids of the blocks `kvt_index` are loaded from.
        read: Which of them attention reads.
        head: The KV head.
        low: The first tile.
        high: The end of the tiles.
    """
    return _statements(f"""
        kvt_sum = tl.zeros([{_LOOKUP}], dtype=tl.int32)
        kvt_unit: tl.constexpr = TILE_SIZE if TILE_SIZE < BLOCK_SIZE else BLOCK_SIZE
        for kvt_first in range({low} * TILE_SIZE // kvt_unit, {high} * TILE_SIZE // kvt_unit, {_LOOKUP}):
            kvt_index = kvt_first + tl.arange(0, {_LOOKUP})
            kvt_inside = (kvt_index * kvt_unit < {high} * TILE_SIZE) & ({read})
            kvt_block = tl.load({look_up}, mask=kvt_inside, other=0)
            kvt_sum = kvt_see(kvt_sum, kvt_block, kvt_inside, kvt_index, {low}, {high}, kvt_what, {head},
                {_PLACE}, {_SIZES})
        kvt_total = tl.sum(kvt_sum, axis=0)
    """)


def _needs_key(function: ast.FunctionDef, loop: ast.For) -> tuple[int, str]:
    """Find where in the loop a tile's K is there, by what flows into the running maximum: the place, and what needs K.

    vLLM hands scores and maximum to a function: the scores need K, and the time is in front of the function. Where a
    loop has it in statements, the maximum does, and the time is behind them.
    """
    keys = tainted(loop.body, assigned_from(loop.body, "load", KEY))
    values = tainted(loop.body, assigned_from(loop.body, "load", VALUE))
    of_keys, carried = keys - values, carried_into(function, loop)
    scored = _last_assigning(loop.body, of_keys & carried)
    statement = loop.body[scored]
    highest = next(name for name in _in_order(statement) if name in of_keys & carried)
    given = statement.value.args if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) else []
    arguments = [argument.id for argument in given if isinstance(argument, ast.Name)]
    scores = [name for name in arguments if name in of_keys - carried]
    if highest in arguments and len(scores) == 1:
        return scored, scores[0]
    return scored + 1, highest


def cache_write(source: str) -> str:
    """The source of a cache-write kernel whose programs record the slots they write.

    Raises:
        MismatchError: The kernel does not store K and V at slots in the known way.
    """
    function = _function(source, {KEY, VALUE, SLOTS})
    slot = only(assigned_from(function.body, "load", SLOTS), "slot")
    window = f"kvt_windows, kvt_what, {WRITE_WINDOW}, {slot} >= 0"
    left = _if_windows(f"kvt_window_last({window})")
    plain = copy.deepcopy(function.body)
    body, at = holder_of(plain, functools.partial(_is_store, VALUE))
    body.insert(at + 1, left)
    for pointer, ticked, since in ((KEY, "kvt_to_key", "kvt_start"), (VALUE, "kvt_to_value", "kvt_key_time")):
        body, at = holder_of(function.body, functools.partial(_is_store, pointer))
        stored = ast.unparse(next(accesses(body[at], "store", pointer)).args[1])
        body[at:at] = [
            _call(f"{ticked} = kvt_ticks(kvt_bits({stored}), {since})"),
            _call("kvt_key_time = kvt_key(kvt_start, kvt_to_key)"),
        ]
    wrote = f"kvt_wrote(kvt_writes, kvt_first_write, kvt_what, {slot}, kvt_place, kvt_start, kvt_to_key, kvt_to_value)"
    body[at + 3 : at + 3] = [_call(wrote), left]
    body, at = holder_of(function.body, lambda s: isinstance(s, ast.Assign) and targets(s) == {slot})
    if body is not function.body:
        raise MismatchError(f"{function.name}: the slot is not loaded on the function's top level")
    behind = at + 2 if isinstance(body[at + 1], ast.If) else at + 1  # padding returns first
    # In a step that is not recorded, vLLM's own statements. Chosen here, and not further up: the word was asked for at
    # the top, and has come when the slot is known.
    recorded = [_call("kvt_place, kvt_start = kvt_write(kvt_control, kvt_writes)"), *body[behind:]]
    end = [] if isinstance(recorded[-1], ast.Return) else [ast.Return()]
    choice = _if("kvt_writes > 0", [*recorded, *end])
    body[behind:] = [_if_windows(f"kvt_window_first({window})"), _if(_TILES, [choice]), *plain[behind:]]
    function.body.insert(0, _if_tiles(f"kvt_writes, kvt_first_write = kvt_room(kvt_control, {WRITES})"))
    return _finished(function)


def _function(source: str, needed: set[str]) -> ast.FunctionDef:
    function = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(function, ast.FunctionDef):
        raise MismatchError("the kernel is no function")
    if missing := needed - parameters(function):
        raise MismatchError(f"{function.name} has no parameter {', '.join(sorted(missing))}")
    if [ast.unparse(decorator) for decorator in function.decorator_list] != ["triton.jit"]:
        raise MismatchError(f"{function.name} is decorated with more than triton.jit")
    return function


def _finished(function: ast.FunctionDef) -> str:
    """The function as text, with the added parameters and without specialisation on them."""
    function.args.args[:0] = [
        ast.arg(name, ast.parse(annotation, mode="eval").body if annotation else None)
        for name, annotation in PARAMETERS.items()
    ]
    fixed = [name for name, annotation in PARAMETERS.items() if annotation]
    function.decorator_list = [ast.parse(f"triton.jit(do_not_specialize={fixed})", mode="eval").body]
    return ast.unparse(ast.fix_missing_locations(function)) + "\n"


def _block_lookup(body: list[ast.stmt], block: str, inside: str) -> tuple[str, str]:
    """Make the place a block id is loaded from and the mask of its tokens, both for the blocks `kvt_index`."""
    load = definition(body, block)
    pointers = [
        call.args[0]
        for call in ast.walk(load)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.load" and call.args
    ]
    if len(pointers) != 1:
        raise MismatchError(f"{block} is not loaded from the block table")
    moving = names(pointers[0]) & {name for assignment in assignments(body) for name in targets(assignment)}
    position = only(moving, "position in the block table")
    by_index = ast.parse("(kvt_index * kvt_unit)", mode="eval").body
    replaced = _Replaced(position, by_index)
    where, whether = (replaced.visit(copy.deepcopy(e)) for e in (pointers[0], definition(body, inside)))
    return ast.unparse(where), ast.unparse(whether)


class _Replaced(ast.NodeTransformer):
    """Puts an expression in the place of a name."""

    def __init__(self, name: str, by: ast.expr) -> None:
        self._name = name
        self._by = by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._by) if node.id == self._name else node


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text)).body


def _call(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _if(condition: str, body: list[ast.stmt]) -> ast.If:
    return ast.If(ast.parse(condition, mode="eval").body, body, [])


def _if_tiles(text: str) -> ast.stmt:
    """Statements that run only where tiles are recorded: decided when the kernel is compiled."""
    return _if(_TILES, _statements(text))


def _if_windows(text: str) -> ast.stmt:
    """Statements that run only where windows are observed: decided when the kernel is compiled."""
    return _if(_WINDOWS, _statements(text))


def _is_store(pointer: str, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and any(accesses(statement, "store", pointer))


def _name(expression: ast.expr) -> str:
    return ast.unparse(expression.value if isinstance(expression, ast.Subscript) else expression)


def _mask_of(load: ast.Call, block: ast.expr) -> str:
    """The part of a load's mask along the same axis as its block ids: which of the tile's tokens are read."""
    masks = [keyword.value for keyword in load.keywords if keyword.arg == "mask"]
    if isinstance(block, ast.Subscript) and masks:
        axis = ast.unparse(block.slice)
        for part in ast.walk(masks[0]):
            if isinstance(part, ast.Subscript) and ast.unparse(part.slice) == axis:
                return _name(part)
    raise MismatchError("the load of K has no mask along its tokens")


def _last_assigning(body: list[ast.stmt], wanted: set[str]) -> int:
    found = [index for index, statement in enumerate(body) if targets(statement) & wanted]
    if not found:
        raise MismatchError("nothing kept from tile to tile depends on K alone")
    return found[-1]


def _in_order(statement: ast.stmt) -> list[str]:
    """Assigned names as they stand in the text."""
    return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
