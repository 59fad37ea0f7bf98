"""DuckDB's SQL as Spark's: SQLGlot parses and writes it, what it does not know about is below, a function each.

Only what the canned queries and the views of a trace use is here, and `tests/backends` runs all of them on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import sqlglot
from sqlglot import exp, transforms
from sqlglot.dialects.spark import Spark

from kvtrace.errors import KvtraceError
from kvtrace.queries.backends.asof import without_asof
from kvtrace.queries.backends.running import in_stripes


def steps_to_spark(sql: str, enums: Mapping[str, Sequence[str]] | None = None) -> tuple[list[tuple[str, str]], str]:
    """A SELECT of DuckDB's as Spark 4.3 understands it.

    Args:
        sql: The SELECT.
        enums: The members of the columns of its answer that are enums, by name: the answer is sorted in that order.

    Returns:
        What it first computes AS MATERIALIZED, by name, which Spark would compute at each use; and the rest.

    Raises:
        KvtraceError: it has something that has no translation.
    """
    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise KvtraceError(f"this SQL has no translation to Spark: {error}") from error
    first: list[tuple[str, str]] = []
    given = tree.args.get("with_") or exp.With(expressions=[])
    for table in [table for table in given.expressions if table.args.get("materialized")]:
        before = [plain.copy() for plain in given.expressions[: given.expressions.index(table)]]
        given.expressions.remove(table)
        step, own = table.this, table.this.args.get("with_")
        if before:
            given_too = [*before, *(own.expressions if own else ())]
            step.set("with_", exp.With(expressions=given_too, recursive=given.args.get("recursive")))
        first.append((table.alias, _translated(step, None)))
    if not given.expressions:
        tree.set("with_", None)
    return first, _translated(tree, enums)


def _translated(tree: exp.Expr, enums: Mapping[str, Sequence[str]] | None) -> str:
    try:
        for select in list(tree.find_all(exp.Select)):
            _windows_in_place(select)
            _unnest_beside(select)
        for rewrite in _REWRITES:
            tree = tree.transform(rewrite)
        for select in list(tree.find_all(exp.Select)):
            without_asof(select)
            in_stripes(select)
        _order_enums(tree, enums or {})
        return tree.sql(dialect=_Spark, identify=True, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError as error:
        raise KvtraceError(f"this SQL has no translation to Spark: {error}") from error


def tables_of(sql: str) -> set[str]:
    """Names of the tables and views that a SELECT of DuckDB's reads, its own WITH left out; a few may be too many."""
    tree = sqlglot.parse_one(sql, read="duckdb")
    return {table.name for table in tree.find_all(exp.Table)}


def _unnest_beside(select: exp.Select) -> None:
    """`SELECT unnest(a) AS x, unnest(b) AS y` goes through both lists at once; Spark wants one LATERAL VIEW."""
    lists = [
        found for column in select.selects for found in column.find_all(exp.Explode) if _select_of(found) is select
    ]
    if not lists:
        return
    names = [exp.to_identifier(f"_unnested_{number}") for number in range(len(lists))]
    zipped: exp.Expr = exp.Explode(this=lists[0].this.copy())
    if len(lists) > 1:
        zipped = exp.Inline(this=exp.func("arrays_zip", *(found.this.copy() for found in lists)))
    for found, name in zip(lists, names, strict=True):
        found.replace(exp.column(name.copy()))
    view = exp.Lateral(this=zipped, view=True, alias=exp.TableAlias(this=exp.to_identifier("_unnest"), columns=names))
    select.append("laterals", view)


def _windows_in_place(select: exp.Select) -> None:
    """`OVER name` gets the window that WINDOW gives that name."""
    named = {window.name: window for window in select.args.get("windows") or []}
    select.set("windows", None)
    for use in list(select.find_all(exp.Window)):
        window = named.get(use.alias)
        if window is not None and _select_of(use) is select:
            use.set("alias", None)
            for part in ("partition_by", "order", "spec"):
                given = window.args.get(part)
                if given and not use.args.get(part):
                    use.set(part, [each.copy() for each in given] if isinstance(given, list) else given.copy())


def _order_enums(tree: exp.Expr, enums: Mapping[str, Sequence[str]]) -> None:
    """DuckDB sorts enums in the order of their declaration; outside they are text."""
    order = tree.args.get("order")
    for term in order.expressions if order else ():
        if isinstance(term.this, exp.Column) and (members := enums.get(term.this.name)):
            members_list = exp.Array(expressions=[exp.Literal.string(member) for member in members])
            term.set("this", exp.func("array_position", members_list, term.this.copy()))


def _not_materialised(node: exp.Expr) -> exp.Expr:
    """Return what Spark computes once it decides itself."""
    if isinstance(node, exp.CTE):
        node.set("materialized", None)
    return node


def _select_of(node: exp.Expr) -> exp.Select | None:
    return node.find_ancestor(exp.Select)


def _arg_max(node: exp.Expr) -> exp.Expr:
    """DuckDB's `arg_max(a, b)` leaves out rows without `a`."""
    if not isinstance(node, (exp.ArgMax, exp.ArgMin)) or isinstance(node.parent, exp.Filter):
        return node
    there = exp.Not(this=exp.Is(this=node.this.copy(), expression=exp.null()))
    return exp.Filter(this=node.copy(), expression=exp.Where(this=there))


def _quantile(node: exp.Expr) -> exp.Expr:
    """`quantile_disc(x, q)` is `percentile_disc(q) WITHIN GROUP (ORDER BY x)`, `quantile_cont` is `percentile`.

    SQLGlot would take `percentile_approx` for both. Where several quantiles are asked for, values may be many and all
    different: `percentile_disc` keeps each with its count in a hash map of objects, a list is smaller.
    """
    if isinstance(node, exp.PercentileCont):
        return exp.Anonymous(this="percentile", expressions=[node.this.copy(), node.expression.copy()])
    if not isinstance(node, exp.PercentileDisc) or isinstance(node.parent, exp.WithinGroup):
        return node
    if isinstance(node.expression, exp.Array) and not isinstance(node.parent, exp.Filter):
        picked: exp.Expr = sqlglot.parse_one(_SORTED, read="spark")
        for column in list(picked.find_all(exp.Column)):
            if column.name in ("_values", "_shares"):
                column.replace((node.this if column.name == "_values" else node.expression).copy())
        return picked
    share, order = node.expression, exp.Order(expressions=[exp.Ordered(this=node.this, desc=False)])
    if isinstance(share, exp.Order):
        share, order = share.this, exp.Order(expressions=share.expressions)
    return exp.WithinGroup(
        this=exp.Anonymous(this="percentile_disc", expressions=[share.copy()]), expression=order.copy()
    )


_SORTED = """flatten(transform(array(sort_array(collect_list(_values))), _sorted -> transform(
    _shares, _share -> try_element_at(_sorted, CAST(greatest(1, ceil(_share * size(_sorted))) AS INT)))))"""
"""The list is made once, and has a name. Shares are decimals, so a product that is whole is not rounded up."""


def _text_of_set(node: exp.Expr) -> exp.Expr:
    """`string_agg(DISTINCT x, ', ' ORDER BY x)`: several of Spark's `listagg(DISTINCT ...)` in one SELECT fail."""
    if not isinstance(node, exp.GroupConcat) or not isinstance(node.this.this, exp.Distinct):
        return node
    values = exp.func("array_sort", exp.func("collect_set", node.this.this.expressions[0].copy()))
    joined = exp.Anonymous(this="array_join", expressions=[values, node.args["separator"].copy()])
    return exp.func("nullif", joined, exp.Literal.string(""))


def _tuple(node: exp.Expr) -> exp.Expr:
    """`(a, b)` is a struct whose fields have the same names wherever it is compared."""
    if not isinstance(node, exp.Tuple) or isinstance(node.parent, (exp.In, exp.Distinct)):
        return node
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(f"field_{number}"), expression=value.copy())
        for number, value in enumerate(node.expressions)
    ]
    return exp.Struct(expressions=pairs)


def _element(node: exp.Expr) -> exp.Expr:
    """`list[i]` counts from 1 and is NULL beyond the end. SQLGlot has taken 1 off literal indices when parsing."""
    if not isinstance(node, exp.Bracket) or len(node.expressions) != 1:
        return node
    index = node.expressions[0]
    if index.is_int:
        index = exp.Literal.number(int(index.this) + 1)
    return exp.func("try_element_at", node.this.copy(), index.copy())


def _cast(node: exp.Expr) -> exp.Expr:
    """Enums are text outside DuckDB, a list written as JSON is parsed, and a fraction is rounded, not cut off."""
    if not isinstance(node, exp.Cast):
        return node
    kind = node.to
    if kind.this == exp.DataType.Type.USERDEFINED:
        return exp.cast(node.this.copy(), "TEXT")
    if kind.this in (exp.DataType.Type.LIST, exp.DataType.Type.ARRAY):
        return exp.func("from_json", node.this.copy(), exp.Literal.string("ARRAY<BIGINT>"))
    if kind.this in exp.DataType.INTEGER_TYPES and _is_fraction(node.this):
        return exp.cast(exp.func("rint", node.this.copy()), kind.copy())
    return node


def _is_fraction(node: exp.Expr) -> bool:
    """Return whether an expression is certainly a fraction: it multiplies by one."""
    return any("e" in literal.this.lower() for literal in node.find_all(exp.Literal) if literal.is_number)


_FUNCTIONS: dict[str, Callable[..., exp.Expr]] = {
    "LIST_POSITION": lambda items, item: exp.func("array_position", items, item),
    "LIST_PRODUCT": lambda items: exp.func(
        "aggregate",
        items,
        exp.cast(exp.Literal.number(1), "DOUBLE"),
        exp.Lambda(
            this=exp.column("a") * exp.column("b"), expressions=[exp.to_identifier("a"), exp.to_identifier("b")]
        ),
    ),
    "HASH": lambda *values: exp.func("xxhash64", *values),
}


def _function(node: exp.Expr) -> exp.Expr:
    """Functions of other names."""
    if isinstance(node, exp.Anonymous) and (made := _FUNCTIONS.get(node.name.upper())):
        return made(*(argument.copy() for argument in node.expressions))
    return node


_REWRITES = (_not_materialised, _arg_max, _quantile, _text_of_set, _tuple, _element, _cast, _function)


class _Spark(Spark):
    """SQLGlot's Spark, which takes it for one without QUALIFY."""

    class Generator(Spark.Generator):  # type: ignore[misc, valid-type]
        """Writes it."""

        TRANSFORMS: ClassVar = {
            **Spark.Generator.TRANSFORMS,
            exp.Select: transforms.preprocess([transforms.eliminate_distinct_on, transforms.unnest_to_explode]),
        }
