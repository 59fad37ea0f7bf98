"""Choice of a kernel: the rewritten one where something is to be recorded, vLLM's own everywhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from kvtrace.probes.device.tiles.launch import Compilation, Current, Rewritten


class Kernel:
    """A Triton kernel that says what it was launched with."""

    class Parameter:
        def __init__(self, name: str, is_constexpr: bool) -> None:
            self.name, self.is_constexpr = name, is_constexpr

    class Compiled:
        n_regs = 0
        metadata = SimpleNamespace(num_warps=4)

        def __init__(self, registers: int) -> None:
            self._registers = registers

        def _init_handles(self) -> None:
            self.n_regs = self._registers

    def __init__(self, registers: int) -> None:
        self.registers = registers
        self.params = [self.Parameter("rows", False), self.Parameter("TILE_SIZE", True)]
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.compiled: list[dict[str, Any]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.launches.append((args, kwargs))

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert not warmup
        self.launches.append((args, kwargs))

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        self.compiled.append(kwargs)
        return self.Compiled(self.registers)


SMALL, LARGE = (49, 8), (50, 8)
"""Grids that have 392 and 400 programs. With 136 registers a GPU of 132 multiprocessors runs 396 at once."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, Kernel, Current, Rewritten]:
    """Vllm's own kernel has 80 registers, the rewritten one would have 136."""
    gpu = SimpleNamespace(multi_processor_count=132, regs_per_multiprocessor=65536)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)
    own, rewritten, current = Kernel(80), Kernel(136), Current("control", -1)
    return own, rewritten, current, Rewritten(own, rewritten, current, pytest.fail, Compilation(own, rewritten))


def test_only_the_layers_to_record_launch_the_rewritten_kernel(kernels) -> None:
    own, rewritten, current, launched = kernels
    launched[LARGE]("a", rows=3, TILE_SIZE=16)
    current.what = 5
    launched[LARGE]("a", rows=3, TILE_SIZE=16)
    assert own.launches == [(("a",), {"rows": 3, "TILE_SIZE": 16})]
    assert rewritten.launches == [(("control", None, 5, -1, "a"), {"rows": 3, "TILE_SIZE": 16, "maxnreg": 80})]


def test_registers_are_limited_only_where_programs_would_wait_for_others(kernels) -> None:
    _, rewritten, current, launched = kernels
    current.what = 5
    for grid in (SMALL, LARGE, SMALL):
        launched[grid]("a", TILE_SIZE=16)
    assert [kwargs.get("maxnreg") for _, kwargs in rewritten.launches] == [None, 80, None]


def test_registers_are_limited_where_torch_does_not_tell_how_many_there_are(
    kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rewritten, current, launched = kernels
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    current.what = 5
    launched[SMALL]("a", TILE_SIZE=16)
    assert rewritten.launches[0][1]["maxnreg"] == 80


@pytest.mark.parametrize(("vllms", "ours"), [(80, 80), (0, 136)])
def test_without_more_registers_than_a_known_number_there_is_no_limit(kernels, vllms: int, ours: int) -> None:
    """Told the number that it takes anyway, the compiler would make slower code. Some Tritons tell none: 0."""
    own, rewritten, current, launched = kernels
    own.registers, rewritten.registers = vllms, ours
    current.what = 5
    launched[LARGE]("a", num_seqs=3, TILE_SIZE=16)
    assert all("maxnreg" not in kwargs for kwargs in [*rewritten.compiled, rewritten.launches[0][1]])


def test_a_step_that_is_left_out_launches_vllms_own_but_into_a_graph(kernels) -> None:
    own, rewritten, current, launched = kernels
    current.what, current.left_out = 5, True
    launched._capturing = lambda: False
    launched[(1,)]("a")
    assert (len(own.launches), len(rewritten.launches)) == (1, 0)
    launched._capturing = lambda: True
    launched[(1,)]("a")
    assert (len(own.launches), len(rewritten.launches)) == (1, 1)


def test_registers_are_looked_up_once_for_each_set_of_compile_time_arguments(kernels) -> None:
    own, _, current, launched = kernels
    current.what = 5
    for rows in range(5):
        for tile in (16, 32):
            launched[(1,)]("a", rows=rows, TILE_SIZE=tile)
    assert [compiled["TILE_SIZE"] for compiled in own.compiled] == [16, 32]


def test_without_the_number_of_registers_it_records_as_well(kernels) -> None:
    own, rewritten, current, launched = kernels
    own.warmup = None
    current.what = 5
    launched[(1,)]("a")
    assert rewritten.launches == [(("control", None, 5, -1, "a"), {})]


def test_all_forms_of_a_kernel_are_compiled_before_its_first_launch(kernels) -> None:
    _, rewritten, current, launched = kernels
    current.what = 5
    for sequences, grid in ((3, SMALL), (1, LARGE), (32, LARGE)):
        launched[grid]("a", num_seqs=sequences, TILE_SIZE=16)
        asked = {"num_seqs": 3, "TILE_SIZE": 16}  # how many registers does it take?
        forms = [asked | {"num_seqs": number} | held for held in ({}, {"maxnreg": 80}) for number in (1, 2, 16)]
        assert rewritten.compiled == [asked, *forms]  # and none for a later launch


def test_a_kernel_that_cannot_be_compiled_ahead_is_launched(kernels) -> None:
    _, rewritten, current, launched = kernels
    rewritten.warmup = None
    current.what = 5
    launched[(1,)]("a", num_seqs=3, TILE_SIZE=16)
    assert len(rewritten.launches) == 1
