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
        n_regs = n_spills = 0
        metadata = SimpleNamespace(num_warps=4)

        def __init__(self, registers: int, spills: int) -> None:
            self._registers, self._spills = registers, spills

        def _init_handles(self) -> None:
            self.n_regs, self.n_spills = self._registers, self._spills

    def __init__(self, registers: int) -> None:
        self.registers, self.unknown_option = registers, ""
        self.spilling: tuple[int, ...] = ()  # with so many programs at once
        self.params = [self.Parameter("rows", False), self.Parameter("TILE_SIZE", True)]
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.compiled: list[dict[str, Any]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.launches.append((args, kwargs))

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert not warmup
        self.launches.append((args, kwargs))

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        if self.unknown_option in kwargs:
            raise KeyError(f"Keyword argument {self.unknown_option} was specified but unrecognised")
        self.compiled.append(kwargs)
        spills = any(block(programs).items() <= kwargs.items() for programs in self.spilling)
        return self.Compiled(self.registers, 6 * spills)


SMALL, LARGE = (49, 8), (50, 8)
"""Grids that have 392 and 400 programs. With 136 registers a GPU of 132 multiprocessors runs 396 at once, 3 on each."""


def block(programs: int) -> dict[str, str]:
    """Options for so many programs of 128 threads on a multiprocessor at once."""
    return {"ptx_options": f"--maxntid={128 * programs} -override-directive-values"}


AS_VLLMS = block(6)


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
    assert rewritten.launches == [(("control", None, 5, -1, "a"), {"rows": 3, "TILE_SIZE": 16, **AS_VLLMS})]


def test_registers_are_limited_only_where_programs_would_wait_for_others(kernels) -> None:
    _, rewritten, current, launched = kernels
    current.what = 5
    for grid in (SMALL, LARGE, SMALL):
        launched[grid]("a", TILE_SIZE=16)
    assert [kwargs for _, kwargs in rewritten.launches] == [{"TILE_SIZE": 16} | held for held in ({}, AS_VLLMS, {})]


@pytest.mark.parametrize(
    ("sequences", "at_once"),
    # Of programs: 400, 800, 1,600 and 2,048. Rounds of them times those on a multiprocessor: 4, 8, 16 and 16 with four,
    # 5, 10, 15 and 20 with five, 6, 12, 18 and 18 with six.
    [(50, 4), (100, 4), (200, 5), (256, 4)],
)
def test_decodes_get_the_registers_with_which_their_rounds_of_programs_take_least(
    kernels, sequences: int, at_once: int
) -> None:
    _, rewritten, current, launched = kernels
    current.what = 5
    told = {"num_seqs": sequences, "BLOCK_Q": 4, "TILE_SIZE": 16}
    launched[(sequences + sequences // 4, 8)]("a", **told)
    launched[(sequences + sequences // 4 + 1, 8)]("a", **told)  # a prompt among them
    launched[(49 + 12, 8)]("a", **told | {"num_seqs": 49})  # 488 programs, of which 392 have a sequence and run at once
    limits = [{key: kwargs[key] for key in kwargs if key not in told} for _, kwargs in rewritten.launches]
    assert limits == [block(at_once), AS_VLLMS, block(4)]


@pytest.mark.parametrize(("spilling", "at_once"), [((6,), 5), ((5, 6), 4), ((4, 5, 6), 6), ((5,), 6)])
def test_prompts_get_the_most_programs_at_once_that_spill_no_registers(
    kernels, spilling: tuple[int, ...], at_once: int
) -> None:
    _, rewritten, current, launched = kernels
    rewritten.spilling = spilling
    current.what = 5
    launched[LARGE]("a", TILE_SIZE=16)
    assert rewritten.launches[0][1] == {"TILE_SIZE": 16, **block(at_once)}


@pytest.mark.parametrize(("vllms", "unknown"), [(80, "ptx_options"), (48, "")])
def test_registers_are_limited_by_their_number_where_no_block_can_say_it(kernels, vllms: int, unknown: str) -> None:
    """Triton knows no such option, or a block of ten programs' threads were larger than there are any."""
    own, rewritten, current, launched = kernels
    own.registers, rewritten.unknown_option = vllms, unknown
    current.what = 5
    launched[LARGE]("a", TILE_SIZE=16)
    assert rewritten.launches[0][1] == {"TILE_SIZE": 16, "maxnreg": vllms}


def test_decodes_that_all_run_at_once_are_not_held_to_a_number_of_registers(kernels) -> None:
    """Told a number, the compiler makes slower code."""
    _, rewritten, current, launched = kernels
    rewritten.unknown_option = "ptx_options"
    current.what = 5
    launched[(40, 8)]("a", num_seqs=32, BLOCK_Q=4, TILE_SIZE=16)
    assert set(rewritten.launches[0][1]) == {"num_seqs", "BLOCK_Q", "TILE_SIZE"}


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
    assert all(
        not {"maxnreg", "ptx_options"} & set(kwargs) for kwargs in [*rewritten.compiled, rewritten.launches[0][1]]
    )


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
        limits = {}, block(4), block(5), AS_VLLMS
        forms = [asked | {"num_seqs": number} | held for held in limits for number in (1, 2, 16)]
        assert rewritten.compiled == [asked, asked | AS_VLLMS, *forms]  # and none for a later launch


def test_a_kernel_that_cannot_be_compiled_ahead_is_launched(kernels) -> None:
    _, rewritten, current, launched = kernels
    rewritten.warmup = None
    current.what = 5
    launched[(1,)]("a", num_seqs=3, TILE_SIZE=16)
    assert len(rewritten.launches) == 1
