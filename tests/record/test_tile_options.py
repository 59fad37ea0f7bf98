"""`kvtrace record`'s filters of tiles: what they keep, how they get to vLLM, and what is no filter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.capture.tile_options import TileOptions, from_environment, parse_indices, parse_kinds, parse_steps
from kvtrace.errors import KvtraceError

SHOW = "import json, os; print(os.environ.get('KVTRACE_TILES', ''))"


def record(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace", "record", "-o", str(run), "--quiet", "--no-preflight", *options]
    return subprocess.run([*command, "--", sys.executable, "-c", SHOW], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (TileOptions(), [1, 2, 3, 4, 5, 6]),
        (TileOptions(every=3), [3, 6]),
        (TileOptions(first_step=2, last_step=4), [2, 3, 4]),
        (TileOptions(every=2, first_step=3), [4, 6]),
    ],
)
def test_steps_are_kept_by_number(options: TileOptions, kept: list[int]) -> None:
    assert [step for step in range(1, 7) if options.wants(step)] == kept


def test_heads_are_bits_of_a_signed_word() -> None:
    assert TileOptions().head_bits == -1
    assert TileOptions(heads=(0, 2)).head_bits == 0b101
    assert TileOptions(heads=(63,)).head_bits == -(1 << 63)


def test_what_is_asked_for_arrives(tmp_path: Path) -> None:
    flags = "--layers 0,30-31 --heads 1 --every 10 --steps 5:90 --kinds write --max-mb-per-s 2.5 --ring-mb 64"
    done = record(tmp_path / "run", "--kv-level", "tile", *flags.split())
    assert done.returncode == 0, done.stderr
    assert from_environment({"KVTRACE_TILES": done.stdout}) == TileOptions(
        layers=(0, 30, 31),
        heads=(1,),
        every=10,
        first_step=5,
        last_step=90,
        kinds=("write",),
        max_mb_per_s=2.5,
        ring_mb=64,
    )


def test_filters_without_tiles_are_a_mistake(tmp_path: Path) -> None:
    done = record(tmp_path / "run", "--every", "10")
    assert done.returncode == 2
    assert "--kv-level tile" in done.stderr
    assert not (tmp_path / "run").exists()


def test_layers_are_for_layer_windows_too(tmp_path: Path) -> None:
    done = record(tmp_path / "run", "--kv-level", "layer", "--layers", "0,2")
    assert from_environment({"KVTRACE_TILES": done.stdout}) == TileOptions(layers=(0, 2))
    done = record(tmp_path / "all", "--layers", "all")
    assert from_environment({"KVTRACE_TILES": done.stdout}).layers == tuple(range(256))
    done = record(tmp_path / "tiles", "--kv-level", "tile", "--layers", "all")
    assert from_environment({"KVTRACE_TILES": done.stdout}).layers == ()
    done = record(tmp_path / "other", "--kv-level", "host", "--layers", "0,2")
    assert done.returncode == 2
    assert "--layers needs" in done.stderr


@pytest.mark.parametrize("text", ["", "a", "3-1", "256", "1,,2", "-1"])
def test_no_layers(text: str) -> None:
    with pytest.raises(KvtraceError, match="--layers"):
        parse_indices(text, "--layers", 256)


@pytest.mark.parametrize("text", ["5", ":", "b:", "9:3"])
def test_no_steps(text: str) -> None:
    with pytest.raises(KvtraceError, match="--steps"):
        parse_steps(text)


def test_no_kinds() -> None:
    with pytest.raises(KvtraceError, match="--kinds"):
        parse_kinds("read,delete")
