from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.viewer.columns import pack, unpack

LEAST, MOST = -(2**62), 2**62


@given(st.lists(st.tuples(st.integers(LEAST, MOST), st.none() | st.integers(LEAST, MOST), st.none() | st.text())))
def test_columns_come_back_and_cannot_leave_their_element(rows: list[tuple[int, int | None, str | None]]) -> None:
    schema = pa.schema([("time", pa.int64()), ("count", pa.int64()), ("name", pa.string())])
    table = pa.table([pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema)
    text = pack(table, ("time",))
    assert text.isascii()
    assert not set(text) & set("<>&\"'")
    assert list(zip(*unpack(text).to_pydict().values(), strict=True)) == rows


def test_small_numbers_take_little_room() -> None:
    assert unpack(pack(pa.table({"state": [0, 1, 2, 3]}))).schema.field("state").type == pa.int8()
