"""Which tests share a process when files run side by side, as in `make test`: a file's, and those of one recording."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHARED_RECORDINGS = {"vllm/test_truth.py", "vllm/test_misses.py"}


def group_of(item: pytest.Item) -> str:
    """The name of the tests that must run in the process of this one, because they share its fixtures."""
    file = item.path.relative_to(HERE)
    if file.as_posix() in SHARED_RECORDINGS:
        return "recordings"
    return str(file.parent if file.parts[:2] == ("vllm", "offload") else file)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    # Those that start engines take longest: first, so that no process is left alone with them at the end.
    items.sort(key=lambda item: (HERE / "vllm" not in item.path.parents, group_of(item)))
