"""Fixtures of several tests of tiles."""

from __future__ import annotations

import ctypes

import pytest

from tests.probes.tiles.ring_code import compiled


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The ring's code."""
    return compiled(tmp_path_factory.mktemp("ring"))
