from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.viewer.encode import decode, delta, encode, undelta


@given(st.lists(st.integers(-(2**53), 2**53)))
def test_delta_columns_come_back(values: list[int]) -> None:
    assert undelta(delta(values)) == values


@given(st.text())
def test_any_text_comes_back_and_cannot_leave_its_element(text: str) -> None:
    packed = encode({"id": text})
    assert decode(packed) == {"id": text}
    assert packed.isascii()
    assert not set(packed) & set("<>&\"'")
