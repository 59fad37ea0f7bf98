"""Rewrites FlashAttention 4's kernels (CuTe DSL) so that their programs record the KV tiles they read.

Nothing depends on line numbers or on the order of methods. The rewriting looks for the entry point (`@cute.kernel`),
for the loop over work tiles of the warps that multiply (they wait for Q), and for the statements that give K's and V's
shared memory back. A source of another form raises `MismatchError`, and vLLM's own kernel stays in place. What a kernel
computes is untouched.

`Form` has what differs between the kernels of two GPUs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvtrace.probes.device.tiles.source import MismatchError, holder_of, names, parameters

KEY, VALUE = "kvt_key", "kvt_value"
"""The calls for each tile, when its K or its V is given back."""


class Form(NamedTuple):
    """A kernel, and where it does what is recorded."""

    kernel: str
    """Its class."""
    module: str
    thread: str
    """The number of a thread among those of which the first one stamps, in the method that waits for Q."""
    tile_tokens: str
    """The object's attribute with the tokens of a tile."""
    takes: frozenset[str]
    """Parameters of the method that waits for Q."""

    @property
    def recording(self) -> str:
        """The name of the subclass that records."""
        return f"Recording{self.kernel}"


HOPPER = Form(
    "FlashAttentionForwardSm90", "flash_fwd_sm90", "tidx", "tile_n", frozenset({"self", "tidx", "pipeline_q", "mO"})
)
"""The warps that multiply wait for their products and store the output. K and V have a pipeline each."""
BLACKWELL = Form(
    "FlashAttentionForwardSm100",
    "flash_fwd_sm100",
    "cute.arch.lane_idx()",
    "n_block_size",
    frozenset({"self", "pipeline_q", "pipeline_kv", "sK", "sV"}),
)
"""One warp issues all products and waits for none. Other warps wait for the last one, and store. K and V share a
pipeline."""

FORMS = {9: HOPPER, 10: BLACKWELL}
"""By the major number of a GPU's compute capability."""

_PIPELINES = {"pipeline_k": KEY, "pipeline_v": VALUE}
_SHARED_PIPELINE, _MEMORY = "pipeline_kv", {"sK": KEY, "sV": VALUE}
_LAST_PRODUCT = "pipeline_o_acc"
_ENTRY = frozenset({"self", "mK", "mPageTable", "aux_data"})


def attention(source: str, form: Form = HOPPER) -> str:
    """The source of a subclass whose programs record the tiles they read.

    Args:
        source: The text of the module that defines the kernel's class.
        form: Which kernel.

    Raises:
        MismatchError: The class has another form.
    """
    methods = _methods(source, form.kernel)
    entries = [method for method in methods if "cute.kernel" in map(ast.unparse, method.decorator_list)]
    consumers = [method for method in methods if any(_waits_for_query(method))]
    if len(entries) != 1 or len(consumers) != 1:
        raise MismatchError(
            f"{form.kernel} has {len(entries)} entry points and {len(consumers)} methods that wait for Q"
        )
    _require(entries[0], _ENTRY)
    # The page table is noted, and kvtrace's scalar taken from those of score functions.
    entries[0].body.insert(0, _statement("aux_data = kvt_inputs(self, aux_data, mPageTable)"))
    _require(consumers[0], form.takes)
    loop, inner, wait = _begin_programs(consumers[0], form)
    if "pipeline_kv" in form.takes:
        _mark_products(methods, inner, wait)
        others = [_end_behind_last_product(methods)]
    elif inner is loop.body:
        others = _mark_tiles(methods, form.kernel)
        _end_before_store(inner, wait)
    else:  # tiles would be marked in programs that never began
        raise MismatchError(f"{form.kernel}: the wait for Q is not in the loop over work tiles itself")
    rewritten = list(dict.fromkeys([entries[0], consumers[0], *others]))
    return ast.unparse(ast.fix_missing_locations(ast.ClassDef(
        form.recording, [ast.Name(form.kernel, ast.Load())], [], list(rewritten), [],
    ))) + "\n"  # fmt: skip


def _methods(source: str, kernel: str) -> list[ast.FunctionDef]:
    classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == kernel]
    if len(classes) != 1:
        raise MismatchError(f"the module defines {len(classes)} classes {kernel}")
    return [node for node in classes[0].body if isinstance(node, ast.FunctionDef)]


def _require(method: ast.FunctionDef, wanted: frozenset[str]) -> None:
    if missing := wanted - parameters(method):
        raise MismatchError(f"{method.name} has no parameter {', '.join(sorted(missing))}")


def _calls(node: ast.AST, owner: str, prefix: str) -> Iterator[ast.Call]:
    """Calls `owner.prefix...(...)` in a node."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr.startswith(prefix) and ast.unparse(call.func.value) == owner:
            yield call


def _waits_for_query(node: ast.AST) -> Iterator[ast.Call]:
    return _calls(node, "pipeline_q", "consumer_wait")


def _begin_programs(method: ast.FunctionDef, form: Form) -> tuple[ast.While, list[ast.stmt], int]:
    """In the loop over work tiles: begin a program before it waits for its queries.

    Returns the loop, the block that waits, and the place of the wait there.
    """
    body, at = holder_of(method.body, lambda s: isinstance(s, ast.While) and any(_waits_for_query(s)))
    loop = body[at]
    assert isinstance(loop, ast.While)
    query_block, head, row, _ = _names(
        loop, lambda value: isinstance(value, ast.Attribute) and value.attr == "tile_idx", 4
    )
    low, high = _names(loop, lambda value: _is_call_of(value, "get_n_block_min_max"), 2)
    (lengths,) = _names(loop, lambda value: _is_call_of(value, "SeqlenInfoCls"), 1)
    inner, wait = _waiting_block(loop.body)
    begin = f"kvt_begin(self, {form.thread}, {low}, {high}, {lengths}.seqlen_k, {row}, {head}, {query_block})"
    inner.insert(wait, _statement(begin))
    body.insert(at, _statement("kvt_prepare(self)"))
    return loop, inner, wait + 1


def _waiting_block(block: list[ast.stmt]) -> tuple[list[ast.stmt], int]:
    """The block with the one statement, or loop, that waits for Q, and its place there."""
    places = [index for index, statement in enumerate(block) if any(_waits_for_query(statement))]
    if len(places) != 1:
        raise MismatchError(f"{len(places)} statements wait for Q where one was expected")
    statement = block[places[0]]
    if isinstance(statement, ast.If) and not any(any(_waits_for_query(s)) for s in statement.orelse):
        return _waiting_block(statement.body)
    return block, places[0]


def _names(loop: ast.While, wanted: Callable[[ast.expr], bool], count: int) -> list[str]:
    """The names that the one assignment with a wanted value in a loop gives values to."""
    found = [
        node.targets[0]
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and wanted(node.value)
    ]
    if len(found) != 1:
        raise MismatchError(f"{len(found)} assignments in the loop over work tiles where one was expected")
    elements = found[0].elts if isinstance(found[0], ast.Tuple) else [found[0]]
    if len(elements) != count or not all(isinstance(name, ast.Name) for name in elements):
        raise MismatchError(f"{ast.unparse(found[0])} is not {count} names")
    return [ast.unparse(name) for name in elements]


def _is_call_of(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == name


def _mark_tiles(methods: list[ast.FunctionDef], kernel: str) -> list[ast.FunctionDef]:
    """Where K and V have a pipeline each: record a tile before its memory is given back. Returns the methods."""
    marked: dict[str, list[ast.FunctionDef]] = {pipeline: [] for pipeline in _PIPELINES}
    for method in methods:
        for pipeline, call in _PIPELINES.items():
            places = [index for index, statement in enumerate(method.body) if _gives_back(statement, pipeline)]
            if len(list(_calls(method, pipeline, "consumer_release"))) != len(places) or len(places) > 1:
                raise MismatchError(
                    f"{kernel}.{method.name} does not give {pipeline}'s memory back once, at its top level"
                )
            for place in places:
                method.body.insert(place, _statement(f"{call}(self)"))
                marked[pipeline].append(method)
    keys, values = marked.values()
    both = [method for method in keys if method in values]
    if not both or len(keys) != len(values):
        raise MismatchError(f"{kernel} gives K's memory back in {len(keys)} methods and V's in {len(values)}")
    return [*keys, *values]


def _end_before_store(inner: list[ast.stmt], wait: int) -> None:
    stores = [index for index, statement in enumerate(inner) if "mO" in names(statement)]
    if len(stores) != 1 or stores[0] <= wait:
        raise MismatchError(f"{len(stores)} statements store the output where one was expected")
    inner.insert(stores[0], _statement("kvt_end(self, tidx)"))


def _mark_products(methods: list[ast.FunctionDef], inner: list[ast.stmt], wait: int) -> None:
    """Where K and V share a pipeline: what is given back is what was read last, in the order of the text."""
    marked: list[str] = []
    read: str | None = None

    def mark(block: list[ast.stmt]) -> None:
        nonlocal read
        for statement in list(block):
            if _gives_back(statement, _SHARED_PIPELINE):
                if read is None:
                    raise MismatchError(
                        f"{_SHARED_PIPELINE}'s memory is given back where neither K nor V has been read"
                    )
                block.insert(block.index(statement), _statement(f"{_MEMORY[read]}(self)"))
                marked.append(_MEMORY[read])
                read = None
            elif isinstance(statement, ast.If | ast.For):
                mark(statement.body)
                mark(statement.orelse)
            else:
                found = names(statement) & _MEMORY.keys()
                if len(found) > 1:
                    raise MismatchError("K and V are read by one statement")
                read = found.pop() if found else read

    rest = inner[wait:]
    mark(rest)
    inner[wait:] = rest
    given = sum(len(list(_calls(method, _SHARED_PIPELINE, "consumer_release"))) for method in methods)
    if given != len(marked) or marked.count(KEY) != marked.count(VALUE) or not marked:
        raise MismatchError(
            f"{_SHARED_PIPELINE}'s memory is given back {given} times, {marked.count(KEY)} times with K "
            f"and {marked.count(VALUE)} times with V in the loop over work tiles"
        )


def _end_behind_last_product(methods: list[ast.FunctionDef]) -> ast.FunctionDef:
    """Where others wait for the last product of each group of queries: end a program behind the last one."""
    found = [method for method in methods if any(_calls(method, _LAST_PRODUCT, "consumer_wait"))]
    if len(found) != 1:
        raise MismatchError(f"{len(found)} methods wait for the last product where one was expected")
    loop, groups = holder_of(
        found[0].body,
        lambda s: isinstance(s, ast.For) and any(any(_calls(t, _LAST_PRODUCT, "consumer_wait")) for t in s.body),
    )
    statement = loop[groups]
    assert isinstance(statement, ast.For)
    block, wait = holder_of(
        statement.body, lambda s: isinstance(s, ast.Expr) and any(_calls(s, _LAST_PRODUCT, "consumer_wait"))
    )
    counted = statement.iter
    if block is not statement.body or not (_is_call_of(counted, "range_constexpr") and isinstance(counted, ast.Call)):
        raise MismatchError("the wait for the last product is not in a loop over groups of queries")
    last = f"{ast.unparse(statement.target)} + 1 == {ast.unparse(counted.args[-1])}"
    if "tidx" not in {n.id for n in ast.walk(found[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}:
        raise MismatchError(f"{found[0].name} does not know its threads' numbers (tidx)")
    block.insert(wait + 1, _statement(f"kvt_end(self, tidx, {last})"))
    return found[0]


def _gives_back(statement: ast.stmt, pipeline: str) -> bool:
    return isinstance(statement, ast.Expr) and any(_calls(statement, pipeline, "consumer_release"))


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
