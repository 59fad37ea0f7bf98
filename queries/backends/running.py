"""Counts over a table in its own order, for engines whose rows have none: in order of `place`, a stripe a task.

    SELECT *, count(*) OVER (ROWS UNBOUNDED PRECEDING) AS n FROM t WHERE c

    SELECT t.*, _before + count(*) OVER (PARTITION BY t.place DIV 1048576 ORDER BY t.place ROWS ...) AS n
    FROM t JOIN (
        SELECT _stripe, coalesce(sum(_rows) OVER (ORDER BY _stripe ROWS ... 1 PRECEDING), 0) AS _before
        FROM (SELECT place DIV 1048576 AS _stripe, count(*) AS _rows FROM t WHERE c GROUP BY ALL)
    ) ON t.place DIV 1048576 = _stripe WHERE c

DuckDB streams such a window over rows as they come. Rows that came through a shuffle have lost their order, and
a window over all of them would be one task.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import UnsupportedError

STRIPE_ROWS = 1 << 20
"""Rows of one task. There are as many sums before stripes as stripes; those are few, and sent to all workers."""


def in_stripes(select: exp.Select) -> None:
    """Give the running count of a SELECT, if it has one, the order of column `place` and tasks of stripes.

    Raises:
        UnsupportedError: there are several, or it is not a count over one table.
    """
    counts = [window for window in select.find_all(exp.Window) if _runs(window, select)]
    if not counts:
        return
    counted = counts[0].this.this if isinstance(counts[0].this, exp.Filter) else counts[0].this
    if len(counts) > 1 or not isinstance(counted, exp.Count) or select.args.get("joins"):
        raise UnsupportedError(
            "a window with ROWS and no order must be the only one of its SELECT, and count one table"
        )
    window, name = counts[0], select.args["from_"].this.alias_or_name
    stripe = exp.IntDiv(this=exp.column("place", name), expression=exp.Literal.number(STRIPE_ROWS))
    rows = exp.select(exp.alias_(stripe.copy(), "_stripe"), exp.alias_(window.this.copy(), "_rows"))
    rows = rows.from_(select.args["from_"].this.copy()).group_by("_stripe")
    if where := select.args.get("where"):
        rows = rows.where(where.this.copy())
    order = exp.Order(expressions=[exp.Ordered(this=exp.column("_stripe"))])
    earlier = exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="1", end_side="PRECEDING")
    before = exp.Window(this=exp.Sum(this=exp.column("_rows")), order=order, spec=earlier)
    sums = exp.select("_stripe", exp.alias_(exp.func("coalesce", before, exp.Literal.number(0)), "_before"))
    for star in list(select.selects):
        if isinstance(star, exp.Star):
            star.replace(exp.Column(this=star.copy(), table=exp.to_identifier(name)))
    window.set("partition_by", [stripe])
    window.set("order", exp.Order(expressions=[exp.Ordered(this=exp.column("place", name))]))
    window.replace(exp.paren(exp.column("_before") + window.copy()))
    select.join(
        sums.from_(rows.subquery("_counted")).subquery("_stripes"),
        on=exp.EQ(this=stripe.copy(), expression=exp.column("_stripe", "_stripes")),
        copy=False,
    )
    select.set("hint", exp.Hint(expressions=[exp.Anonymous(this="BROADCAST", expressions=[exp.column("_stripes")])]))


def _runs(window: exp.Window, select: exp.Select) -> bool:
    spec = window.args.get("spec")
    ordered = window.args.get("order") or window.args.get("partition_by")
    of_rows = spec is not None and spec.args.get("kind") == "ROWS"
    return of_rows and not ordered and window.find_ancestor(exp.Select) is select
