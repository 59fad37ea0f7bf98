"""Pairing the requests of two runs."""

from __future__ import annotations

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.reports.pairing import pair


def requests(rows: list[tuple[str | None, int | None, str | None]]) -> pd.DataFrame:
    """Requests numbered from 1 in order of arrival, with session, turn and external id."""
    frame = pd.DataFrame(rows, columns=["session", "turn", "external_id"])
    return frame.assign(turn=frame.turn.astype("Int64"), request=range(1, len(rows) + 1))


def test_sessions_and_turns_pair_whatever_the_order() -> None:
    base = requests([("a", 0, "1"), ("b", 0, "2"), ("a", 1, "3"), ("c", 0, "4")])
    other = requests([("a", 1, "4"), ("b", 0, "1"), ("a", 0, "9")])

    found = pair(base, other)

    assert (found.method, found.base.tolist(), found.other.tolist()) == ("session", [1, 2, 3], [3, 2, 1])
    assert found.clusters is not None
    assert found.clusters.tolist() == [0, 1, 0]
    assert found.description == "3 pairs from 2 sessions by session and turn, of 4 and 3 requests"


def test_a_repeated_turn_pairs_with_its_repetition() -> None:
    base = requests([("a", 0, None), ("a", 0, None)])
    assert pair(base, base).other.tolist() == [1, 2]


def test_ids_pair_where_sessions_do_not() -> None:
    base = requests([("a", 0, "x"), (None, None, "y"), (None, None, "z")])
    other = requests([(None, None, "z"), (None, None, "y"), (None, None, "w")])

    found = pair(base, other)

    assert (found.method, found.base.tolist(), found.other.tolist()) == ("id", [2, 3], [2, 1])
    assert found.description == "2 pairs by the id the client knows, of 3 and 3 requests"


def test_order_pairs_what_nothing_else_does() -> None:
    base = requests([(None, None, "p"), (None, None, "q"), (None, None, "r")])
    other = requests([(None, None, "s"), (None, None, "t")])

    found = pair(base, other)

    assert (found.method, found.base.tolist(), found.other.tolist()) == ("order", [1, 2], [1, 2])
    assert pair(base, other, "id").base.tolist() == []


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, None]), st.sampled_from(["x", "y", None])),
    max_size=12,
)


@settings(max_examples=60)
@given(ROWS, ROWS)
def test_partners_have_the_same_key_and_only_one_partner(
    first: list[tuple[str | None, int | None, str | None]], second: list[tuple[str | None, int | None, str | None]]
) -> None:
    base, other = requests(first), requests(second)
    for method in ("session", "id", "order"):
        found = pair(base, other, method)
        pairs = list(zip(found.base.tolist(), found.other.tolist(), strict=True))
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
        for a, b in pairs:
            if method == "session":
                assert first[a - 1][:2] == second[b - 1][:2]
            if method == "id":
                assert first[a - 1][2] == second[b - 1][2]
