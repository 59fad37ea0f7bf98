"""Every reader on whole inputs, on what fuzzing found, and on a few mutations of each: read, or refused by name.

`python -m bench.fuzz READER` runs 100,000 mutations of a reader; what it found is in `cases.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fuzz.mutations import mutate
from tests.hostile.cases import CASES, Case
from tests.hostile.judge import Judge
from tests.hostile.readers import Reader, readers

READERS = readers()
MUTATIONS, LARGEST_BYTES = 60, 1 << 17
"""Of each reader here, read without DuckDB; the fuzzer runs the rest."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = Judge(tmp_path_factory.mktemp("judge"))
    yield judge
    judge.desk.close()


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_whole_input_is_read(name: str, judge: Judge) -> None:
    """The inputs that mutations start from are read to the end, joins included: else they would test little."""
    reader = READERS[name]
    for path in reader.paths[:: max(1, len(reader.paths) // 6)]:
        before = judge.accepted
        assert judge.judge(reader, path, reader.files[path]) is None
        assert judge.accepted == before + 1, path


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reader}-{case.what}")
def test_what_was_found_stays_mended(case: Case, judge: Judge) -> None:
    finding = judge.judge(READERS[case.reader], case.path, case.data())
    assert finding is None, finding


@pytest.mark.parametrize("name", sorted(READERS))
def test_mutations(name: str, judge: Judge) -> None:
    """The same in each run."""
    reader, rng = READERS[name], random.Random(name)
    refused = 0
    for _ in range(MUTATIONS):
        path = rng.choice(reader.paths)
        data = mutate(path, reader.files[path], rng, LARGEST_BYTES)
        before = judge.accepted
        finding = judge.judge(reader, path, data, "dry")
        assert finding is None, (path, data[:2000], finding)
        refused += judge.accepted == before
    assert refused > 0, "nothing was refused: do mutations reach the reader?"


def test_the_judge_sees_a_crash_and_a_message_without_a_name(judge: Judge, tmp_path: Path) -> None:
    """A judge that finds nothing could as well be blind."""

    def crash(folder: Path, path: Path, desk: object) -> None:
        raise TypeError("not this")

    found = judge.judge(Reader("x", {"a.json": b""}, crash, {}), "a.json", b"")
    assert found is not None
    assert "TypeError" in found.where

    def vague(folder: Path, path: Path, desk: object) -> None:
        from kvtrace.errors import KvtraceError

        raise KvtraceError("something is wrong somewhere")

    found = judge.judge(Reader("x", {"a.json": b""}, vague, {}), "a.json", b"")
    assert found is not None
    assert "without a file" in found.where
