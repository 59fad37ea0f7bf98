"""ASOF joins for engines that have none: both sides in one order, and the last row of the other side kept in mind.

    FROM l ASOF JOIN r ON l.k = r.k AND l.t >= r.s

    FROM (SELECT l, r FROM (
        SELECT _is_left, l, last_value(r) IGNORE NULLS OVER (PARTITION BY _key_0 ORDER BY _moment, _is_left) AS r
        FROM (SELECT l.k AS _key_0, l.t AS _moment, true AS _is_left, struct(l's columns) AS l, NULL AS r FROM l
              UNION ALL SELECT r.k, r.s, false, NULL, struct(r's columns) FROM r)
    ) WHERE _is_left AND r IS NOT NULL)

It sorts, so it costs n log n where a join on a range would cost n * m. Columns stay `l.x` and `r.y`, for they are
fields of structs of these names. So in a SELECT with an ASOF join, which must be its first join, every column has its
table's name before it, and the joins after it have ON.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import UnsupportedError

_TURNED = {exp.LTE: exp.GTE, exp.LT: exp.GT, exp.GTE: exp.LTE, exp.GT: exp.LT}
"""The comparisons, and what they become when their sides change places."""


def without_asof(select: exp.Select) -> None:
    """Replace the ASOF join of a SELECT, if it has one.

    Raises:
        UnsupportedError: it is not the first join, its condition has another form, or a column lacks its table's name.
    """
    joins: list[exp.Join] = select.args.get("joins") or []
    asof = [number for number, join in enumerate(joins) if join.args.get("method") == "ASOF"]
    if not asof:
        return
    if asof != [0]:
        raise UnsupportedError("an ASOF join must be the first join of its SELECT, and the only ASOF join")
    join, source = joins[0], select.args["from_"].this
    left, right = source.alias_or_name, join.this.alias_or_name
    keys, comparison = _condition(join, left)
    strict = type(comparison) in (exp.GT, exp.LT)
    used = _used(select, left, right)
    sides = exp.union(
        _side(source, left, right, [key.this for key in keys], comparison.this, used[left], is_left=True),
        _side(
            join.this, left, right, [key.expression for key in keys], comparison.expression, used[right], is_left=False
        ),
        distinct=False,
    )
    # Of rows at the same moment, the other side's come first if they count (>=, <=), else after (>, <).
    order = (
        exp.Ordered(this=exp.column("_moment"), desc=type(comparison) in (exp.LTE, exp.LT), nulls_first=True),
        exp.Ordered(this=exp.column("_is_left"), desc=strict),
    )
    last = exp.Window(
        this=exp.IgnoreNulls(this=exp.LastValue(this=exp.column(right))),
        partition_by=[exp.column(f"_key_{number}") for number in range(len(keys))],
        order=exp.Order(expressions=list(order)),
        spec=exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW"),
    )
    seen = exp.select("_is_left", exp.column(left), exp.alias_(last, right)).from_(sides.subquery("_sides"))
    matched = exp.select(exp.column(left), exp.column(right)).from_(seen.subquery("_seen")).where("_is_left")
    if join.side != "LEFT":
        matched = matched.where(_not_null(exp.column(right)))
    select.args["from_"].set("this", matched.subquery("_asof"))
    join.pop()


def _condition(join: exp.Join, left: str) -> tuple[list[exp.Expr], exp.Expr]:
    """The equations, and the one comparison, each with the left table's column on its left."""
    condition = join.args.get("on")
    parts = [_turned(part, left) for part in condition.flatten()] if isinstance(condition, exp.And) else []
    keys: list[exp.Expr] = [part for part in parts if isinstance(part, exp.EQ)]
    others = [part for part in parts if not isinstance(part, exp.EQ)]
    if not keys or len(others) != 1 or type(others[0]) not in _TURNED:
        raise UnsupportedError("an ASOF join must be ON l.k = r.k AND l.t >= r.s: equations and one comparison")
    return keys, others[0]


def _turned(part: exp.Expr, left: str) -> exp.Expr:
    if not isinstance(part, exp.Binary) or all(column.table == left for column in part.this.find_all(exp.Column)):
        return part
    return _TURNED.get(type(part), type(part))(this=part.expression, expression=part.this)


def _side(
    source: exp.Expr,
    left: str,
    right: str,
    keys: list[exp.Expr],
    moment: exp.Expr,
    used: list[str],
    *,
    is_left: bool,
) -> exp.Select:
    own = left if is_left else right
    content = exp.Struct(
        expressions=[exp.PropertyEQ(this=exp.to_identifier(name), expression=exp.column(name, own)) for name in used]
    )
    if not used:
        content = exp.Struct(expressions=[exp.Column(this=exp.Star(), table=exp.to_identifier(own))])
    chosen = exp.select(
        *(exp.alias_(key.copy(), f"_key_{number}") for number, key in enumerate(keys)),
        exp.alias_(moment.copy(), "_moment"),
        exp.alias_(exp.Boolean(this=is_left), "_is_left"),
        *(exp.alias_(content if name == own else exp.null(), name) for name in (left, right)),
    ).from_(source.copy())
    if not is_left:
        # NULL equals nothing; without these rows, the left side's NULLs meet none.
        chosen = chosen.where(*(_not_null(value.copy()) for value in (*keys, moment)))
    return chosen


def _used(select: exp.Select, left: str, right: str) -> dict[str, list[str]]:
    """The columns of both tables that the SELECT uses, none for all of them: wide rows are slow to sort."""
    used: dict[str, dict[str, None]] = {left: {}, right: {}}
    whole = set()
    for column in select.find_all(exp.Column):
        if column.find_ancestor(exp.Select) is not select:
            continue
        if not column.table:
            raise UnsupportedError(f"column {column.name} of a SELECT with an ASOF join needs its table's name")
        if isinstance(column.this, exp.Star):
            whole.add(column.table)
        elif column.table in used:
            used[column.table][column.name] = None
    return {table: [] if table in whole else list(names) for table, names in used.items()}


def _not_null(value: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Is(this=value, expression=exp.null()))
