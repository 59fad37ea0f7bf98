"""Searches in a Triton kernel's syntax tree: loads from a pointer, and dependences between names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator


class MismatchError(Exception):
    """The source does not have the form that can be rewritten; the message says what was looked for."""


def parameters(function: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters."""
    return {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def names(node: ast.AST) -> set[str]:
    """Every name read in a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def targets(node: ast.AST) -> set[str]:
    """Every name a statement assigns, its inner blocks included."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def accesses(node: ast.AST, operation: str, pointer: str) -> Iterator[ast.Call]:
    """Calls `tl.operation(pointer + ..., ...)` in a node."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not call.args or ast.unparse(call.func) != f"tl.{operation}":
            continue
        if pointer in names(call.args[0]):
            yield call


def holder_of(body: list[ast.stmt], wanted: Callable[[ast.stmt], bool]) -> tuple[list[ast.stmt], int]:
    """The innermost list of statements that holds the one wanted statement, and its place there.

    Raises:
        MismatchError: There is none or more than one.
    """
    found = [
        (block, index)
        for node in (ast.Module(body, []), *(n for s in body for n in ast.walk(s)))
        for block in _blocks(node)
        for index, statement in enumerate(block)
        if wanted(statement)
    ]
    if len(found) != 1:
        raise MismatchError(f"{len(found)} statements access the KV cache where one was expected")
    return found[0]


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def assignments(body: Iterable[ast.stmt]) -> Iterator[ast.Assign | ast.AugAssign]:
    """The assignments in a body and its inner blocks."""
    for statement in body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Assign | ast.AugAssign):
                yield inner


def assigned_from(body: list[ast.stmt], operation: str, pointer: str) -> set[str]:
    """Names assigned from `tl.operation(pointer + ...)`."""
    return {
        name
        for assignment in assignments(body)
        if any(accesses(assignment.value, operation, pointer))
        for name in targets(assignment)
    }


def tainted(body: list[ast.stmt], sources: set[str]) -> set[str]:
    """The sources and all names that a loop's body computes from them, in this turn or a later one."""
    found = set(sources)
    while True:
        more = {name for a in assignments(body) if names(a.value) & found for name in targets(a)} - found
        if not more:
            return found
        found |= more


def carried_into(function: ast.FunctionDef, loop: ast.For) -> set[str]:
    """Names that have a value before a loop and another one in it."""
    before = {name for a in assignments(function.body) if a.lineno < loop.lineno for name in targets(a)}
    return before & {name for a in assignments(loop.body) for name in targets(a)}


def meanings(body: list[ast.stmt], expression: ast.expr) -> list[ast.AST]:
    """An expression and the values of the names in it that a body assigns."""
    wanted = names(expression)
    return [expression, *(a.value for a in assignments(body) if targets(a) & wanted)]


def factor_of(places: Iterable[ast.AST], factor: str) -> ast.expr:
    """Return the factor that a name is multiplied with.

    Raises:
        MismatchError: Nothing is.
    """
    for place in places:
        for node in ast.walk(place):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                for one, other in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(other, ast.Name) and other.id == factor and isinstance(one, ast.Name | ast.Subscript):
                        return one
    raise MismatchError(f"no address uses {factor}")


def definition(body: list[ast.stmt], name: str) -> ast.expr:
    """The one value that a body assigns to a name.

    Raises:
        MismatchError: It is assigned more than once or never.
    """
    values = [a.value for a in assignments(body) if targets(a) == {name}]
    if len(values) != 1:
        raise MismatchError(f"{name} is assigned {len(values)} times where once was expected")
    return values[0]


def only(found: set[str], what: str) -> str:
    """The one name of a set.

    Raises:
        MismatchError: There is none or more than one.
    """
    if len(found) != 1:
        raise MismatchError(f"expected one {what}, found {', '.join(sorted(found)) or 'none'}")
    return next(iter(found))
