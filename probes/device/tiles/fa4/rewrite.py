"""Rewrites FlashAttention 4's Hopper kernel (CuTe DSL) so that its programs record the KV tiles they read.

Nothing depends on line numbers or on the order of methods. The rewriting looks for the entry point (`@cute.kernel`),
for the loop over work tiles of the warps that multiply (they wait for Q), and for the statements that give K's and V's
shared memory back: by then the tile has been multiplied. A source of another form raises `MismatchError`, and vLLM's
own kernel stays in place. What a kernel computes is untouched.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from kvtrace.probes.device.tiles.source import MismatchError, holder_of, parameters

KERNEL = "FlashAttentionForwardSm90"
RECORDING = f"Recording{KERNEL}"
"""The class with the kernel, and the subclass that records."""

PIPELINES = {"pipeline_k": "kvt_key", "pipeline_v": "kvt_value"}
"""The pipelines that hand tiles from the warps that load to those that multiply, and what is called for each tile."""

_ENTRY = {"self", "mK", "mPageTable", "aux_data"}
_MMA = {"self", "tidx", "pipeline_q", "mO"}


def attention(source: str) -> str:
    """The source of a subclass whose programs record the tiles they read.

    Args:
        source: The text of the module that defines the kernel's class.

    Raises:
        MismatchError: The class has another form.
    """
    methods = _methods(source)
    entries = [method for method in methods if "cute.kernel" in map(ast.unparse, method.decorator_list)]
    consumers = [method for method in methods if any(_waits_for_query(method))]
    if len(entries) != 1 or len(consumers) != 1:
        raise MismatchError(f"{KERNEL} has {len(entries)} entry points and {len(consumers)} methods that wait for Q")
    _take_inputs(entries[0])
    _begin_programs(consumers[0])
    marked = _mark_tiles(methods)
    rewritten = [entries[0], consumers[0], *marked]
    body = ast.unparse(ast.fix_missing_locations(ast.ClassDef(
        RECORDING, [ast.Name(KERNEL, ast.Load())], [], list(dict.fromkeys(rewritten)), [],
    )))  # fmt: skip
    return body + "\n"


def _methods(source: str) -> list[ast.FunctionDef]:
    classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == KERNEL]
    if len(classes) != 1:
        raise MismatchError(f"the module defines {len(classes)} classes {KERNEL}")
    return [node for node in classes[0].body if isinstance(node, ast.FunctionDef)]


def _calls(node: ast.AST, owner: str, prefix: str) -> Iterator[ast.Call]:
    """Calls `owner.prefix...(...)` in a node."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr.startswith(prefix) and ast.unparse(call.func.value) == owner:
            yield call


def _waits_for_query(method: ast.FunctionDef) -> Iterator[ast.Call]:
    return _calls(method, "pipeline_q", "consumer_wait")


def _take_inputs(method: ast.FunctionDef) -> None:
    """At the entry point: note the page table, and take kvtrace's scalar from those of score functions."""
    if missing := _ENTRY - parameters(method):
        raise MismatchError(f"{KERNEL}.{method.name} has no parameter {', '.join(sorted(missing))}")
    method.body.insert(0, _statement("aux_data = kvt_inputs(self, aux_data, mPageTable)"))


def _begin_programs(method: ast.FunctionDef) -> None:
    """In the loop over work tiles: begin a program before it waits for its queries, end it before it stores."""
    if missing := _MMA - parameters(method):
        raise MismatchError(f"{KERNEL}.{method.name} has no parameter {', '.join(sorted(missing))}")
    body, at = holder_of(
        method.body, lambda s: isinstance(s, ast.While) and any(_calls(s, "pipeline_q", "consumer_wait"))
    )
    loop = body[at]
    assert isinstance(loop, ast.While)
    query_block, head, row, _ = _names(
        loop, lambda value: isinstance(value, ast.Attribute) and value.attr == "tile_idx", 4
    )
    low, high = _names(loop, lambda value: _is_call_of(value, "get_n_block_min_max"), 2)
    (lengths,) = _names(loop, lambda value: _is_call_of(value, "SeqlenInfoCls"), 1)
    inner, wait = holder_of(
        loop.body, lambda s: isinstance(s, ast.Expr) and any(_calls(s, "pipeline_q", "consumer_wait"))
    )
    if inner is not loop.body:
        raise MismatchError(f"{KERNEL}.{method.name}: the wait for Q is not in the loop over work tiles itself")
    begin = f"kvt_begin(self, tidx, {low}, {high}, {lengths}.seqlen_k, {row}, {head}, {query_block})"
    inner.insert(wait, _statement(begin))
    stores = [index for index, statement in enumerate(inner) if _reads(statement, "mO")]
    if len(stores) != 1 or stores[0] <= wait:
        raise MismatchError(f"{KERNEL}.{method.name}: {len(stores)} statements store the output where one was expected")
    inner.insert(stores[0], _statement("kvt_end(self, tidx)"))
    body.insert(at, _statement("kvt_prepare(self)"))


def _reads(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement))


def _names(loop: ast.While, wanted: Callable[[ast.expr], bool], count: int) -> list[str]:
    """The names that the one assignment with a wanted value in a loop gives values to."""
    found = [
        node.targets[0]
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and wanted(node.value)
    ]
    if len(found) != 1:
        raise MismatchError(f"{len(found)} assignments in the loop over work tiles where one was expected")
    names = found[0].elts if isinstance(found[0], ast.Tuple) else [found[0]]
    if len(names) != count or not all(isinstance(name, ast.Name) for name in names):
        raise MismatchError(f"{ast.unparse(found[0])} is not {count} names")
    return [ast.unparse(name) for name in names]


def _is_call_of(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == name


def _mark_tiles(methods: list[ast.FunctionDef]) -> list[ast.FunctionDef]:
    """Before a tile's shared memory is given back: record it. Returns the methods that do."""
    marked: dict[str, list[ast.FunctionDef]] = {pipeline: [] for pipeline in PIPELINES}
    for method in methods:
        for pipeline, call in PIPELINES.items():
            places = [index for index, statement in enumerate(method.body) if _gives_back(statement, pipeline)]
            if len(list(_calls(method, pipeline, "consumer_release"))) != len(places) or len(places) > 1:
                raise MismatchError(
                    f"{KERNEL}.{method.name} does not give {pipeline}'s memory back once, at its top level"
                )
            for place in places:
                method.body.insert(place, _statement(f"{call}(self)"))
                marked[pipeline].append(method)
    keys, values = marked.values()
    both = [method for method in keys if method in values]
    if not both or len(keys) != len(values):
        raise MismatchError(f"{KERNEL} gives K's memory back in {len(keys)} methods and V's in {len(values)}")
    return [*keys, *values]


def _gives_back(statement: ast.stmt, pipeline: str) -> bool:
    return isinstance(statement, ast.Expr) and any(_calls(statement, pipeline, "consumer_release"))


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
