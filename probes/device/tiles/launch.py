"""Rewritten kernels in the place of vLLM's own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvtrace.probes.device.tiles import rewrite
from kvtrace.probes.device.tiles.source import MismatchError
from kvtrace.probes.hooks import Args, Kwargs

if TYPE_CHECKING:
    from torch import Tensor


class Parameter(Protocol):
    """A parameter of a Triton kernel."""

    name: str
    is_constexpr: bool


class Compiled(Protocol):
    """A Triton kernel compiled for some arguments."""

    n_regs: int
    n_spills: int
    metadata: Any

    def _init_handles(self) -> None: ...


class Kernel(Protocol):
    """A Triton kernel, as `triton.jit` makes it."""

    fn: types.FunctionType
    params: Sequence[Parameter]
    cache_key: str
    used_global_vals: dict[tuple[str, int], object]
    """By name and the id of the dictionary it is in."""

    def warmup(self, *args: object, grid: object, **kwargs: object) -> Compiled:
        """Compile for arguments."""

    def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        """Launch."""

    def __getitem__(self, grid: object) -> Callable[..., object]: ...


class Target(NamedTuple):
    """A kernel to rewrite."""

    module: str
    kernel: str
    rewrite: Callable[[str], str]
    kind: str  # read, write


TARGETS = (
    Target("vllm.v1.attention.ops.triton_unified_attention", "kernel_unified_attention", rewrite.attention, "read"),
    Target(
        "vllm.v1.attention.ops.triton_reshape_and_cache_flash",
        "reshape_and_cache_kernel_flash",
        rewrite.cache_write,
        "write",
    ),
    Target(
        "vllm.v1.attention.ops.triton_reshape_and_cache_flash",
        "_reshape_cache_per_token_head",
        rewrite.cache_write,
        "write",
    ),
)


class Current:
    """The layer and step of the kernels that are launched now.

    Args:
        control: Control words of the ring of tiles; None: no tiles are recorded.
        heads: The heads whose tiles are recorded, as bits.
        windows: Words of the layers' windows; None: no windows are observed.
    """

    def __init__(self, control: Tensor | None, heads: int = -1, windows: Tensor | None = None) -> None:
        self.control = control
        self.heads = heads
        self.windows = windows
        self.launched: set[str] = set()
        """Kinds of which a rewritten kernel has been launched."""
        self.what: int | None = None
        """As `rewrite.PARAMETERS` says; None where nothing is to be recorded."""
        self.left_out = False
        """True in a step that is not recorded. A graph under capture will be replayed in others."""


FORMS = "num_seqs", (1, 2, 16)
"""An argument for whose values Triton compiles a kernel once more: if it is 1, and if it is a multiple of 16."""


Options = dict[str, Any]
"""The compiler's, by name."""


class Form(NamedTuple):
    """How a rewritten kernel is compiled for some compile-time arguments.

    Attributes:
        multiprocessors: Of the GPU.
        programs: How many run on one at once when the compiler may take the registers it wants.
        held: Options by how many run on one at once with them, up to as many as vLLM's.
        prompts: How many of a prompt's are to.
        few: Options for decodes whose programs would all run at once in any case.
    """

    multiprocessors: int
    programs: int
    held: dict[int, Options]
    prompts: int
    few: Options

    def options(self, programs: float, *, decodes: bool) -> Options:
        """Choose the options for a grid.

        Of long decodes it is best to have least rounds of programs, times programs on a multiprocessor, which share its
        time. Prompts do not follow that: as many as can do without spilling registers are best.

        Args:
            programs: That have something to do.
            decodes: Each is a sequence with one token.
        """
        if not self.held or programs <= self.multiprocessors * self.programs:
            return self.few if decodes else {}
        if not decodes:
            return self.held[self.prompts]
        return self.held[min(self.held, key=lambda at_once: -(-programs // (self.multiprocessors * at_once)) * at_once)]


AS_IT_IS = Form(0, 0, {}, 0, {})


class Compilation:
    """The compilation of a rewritten kernel, as soon as its compile-time arguments are known.

    With more registers a thread than vLLM's it has fewer of its programs on an SM at once: attention would take a third
    longer at 256 sequences (docs/device-recorder.md). So the compiler is held to fewer registers in grids
    whose programs would not all run at once. With a few less than it wants it makes faster code for decodes, too, so
    those have some less where all run at once. It is told by a larger block than the kernel's: told a number, even one
    that it keeps by itself, it makes other code, which takes 3% longer.

    In all its forms at once: the first call is vLLM's own, to warm up, and at a later one that needs another form
    requests would wait for the compiler. Where only windows are observed, it is compiled in each form when vLLM's own
    would be. And less is looked at in a launch: outside graphs, Python's time is the step's.
    """

    def __init__(self, kernel: Kernel, rewritten: Kernel, *, tiles: bool = True) -> None:
        self._kernel = kernel
        self._rewritten = rewritten
        self._tiles = tiles
        self._fixed = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
        self._found: dict[tuple[object, ...], Form] = {}

    def options(self, grid: object, ours: Args, args: Args, kwargs: Kwargs) -> Options:
        """Choose the compiler's options for a launch.

        Args:
            grid: The launch's grid.
            ours: The arguments that only the rewritten kernel has, first.
            args: vLLM's arguments by position.
            kwargs: vLLM's arguments by name.
        """
        key: tuple[object, ...]
        if self._tiles:
            key = *map(kwargs.get, self._fixed), kwargs.get("num_warps")
        else:  # a layer's launches differ in these alone
            key = ours[2], kwargs.get("TILE_SIZE"), kwargs.get("IS_3D")
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._form(grid, ours, args, kwargs)
        if not found.held:
            return {}
        programs, decodes = _programs(grid, kwargs)
        return found.options(programs, decodes=decodes)

    def _form(self, grid: object, ours: Args, args: Args, kwargs: Kwargs) -> Form:
        try:
            own = self._kernel.warmup(*args, grid=grid, **kwargs)
            free = self._rewritten.warmup(*ours, *args, grid=grid, **kwargs)
            own._init_handles()
            free._init_handles()
            limited = own.n_regs and free.n_regs > own.n_regs
            form = self._limited(own, free, grid, (*ours, *args), kwargs) if limited else AS_IT_IS
        except Exception:  # another Triton: without a limit it records as well
            form = AS_IT_IS
        if self._tiles:
            self._compile(grid, (*ours, *args), kwargs)
            for options in form.held.values():
                self._compile(grid, (*ours, *args), {**kwargs, **options})
        return form

    def _limited(self, own: Compiled, free: Compiled, grid: object, args: Args, kwargs: Kwargs) -> Form:
        import torch

        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        there = getattr(gpu, "regs_per_multiprocessor", 0)  # not all torches tell
        least, most = (at_once(there, each.n_regs, each.metadata.num_warps) for each in (free, own))
        threads = _WARP * own.metadata.num_warps
        held: dict[int, Options] = {
            number: by_block(number * threads)
            for number in range(least + 1, most + 1)
            if number * threads <= _LARGEST_BLOCK
        }

        def spilled(number: int) -> int | None:
            if number not in held or (compiled := self._compiled(grid, args, {**kwargs, **held[number]})) is None:
                return None
            compiled._init_handles()
            return compiled.n_spills

        few, prompts = held[min(held)] if held else {}, max(most, 1)
        spills = spilled(most)
        if spills is None:
            few, held = {}, {prompts: {"maxnreg": own.n_regs}}
        elif spills:
            prompts = next((number for number in range(most - 1, least, -1) if spilled(number) == 0), most)
        return Form(gpu.multi_processor_count, least, held, prompts, few)

    def _compiled(self, grid: object, args: Args, kwargs: Kwargs) -> Compiled | None:
        try:
            return self._rewritten.warmup(*args, grid=grid, **kwargs)
        except Exception:  # a Triton that does not know an option
            return None

    def _compile(self, grid: object, args: Args, kwargs: Kwargs) -> None:
        name, numbers = FORMS
        for number in numbers if name in kwargs else ():
            self._compiled(grid, args, {**kwargs, name: number})  # if not, the launch will say so


_WARP, _REGISTERS_AT_ONCE, _LARGEST_BLOCK = 32, 8, 1024


def by_block(threads: int) -> Options:
    """Limit the registers to those with which a block of so many threads runs, which is larger than the kernel's."""
    return {"ptx_options": f"--maxntid={threads} -override-directive-values"}


def at_once(there: int, registers: int, warps: int) -> int:
    """Programs that a multiprocessor's registers suffice for at once: each thread has them in eights.

    Args:
        there: Registers of the multiprocessor; 0 if that is not known.
        registers: Of a thread.
        warps: Of a program.
    """
    return there // (-(-registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE * _WARP * warps)


def _programs(grid: object, kwargs: Kwargs) -> tuple[float, bool]:
    """Programs of a launch, and whether each is one of a sequence with one token: others of it end at once then."""
    if not isinstance(grid, tuple):
        return math.inf, False
    sequences, block = kwargs.get("num_seqs"), kwargs.get("BLOCK_Q")
    if sequences and block and grid[0] == sequences // block + sequences:
        return sequences * math.prod(grid[1:]), True
    return math.prod(grid), False


class Rewritten:
    """Stands for a Triton kernel: launches its rewritten form in the layers to record, else the kernel itself."""

    def __init__(
        self,
        kernel: Kernel,
        rewritten: Kernel,
        current: Current,
        failed: Callable[[str], None],
        compilation: Compilation | None = None,
        kind: str = "read",
    ) -> None:
        import torch

        self._kernel = kernel
        self._kind = kind
        self._compilation = compilation
        self._capturing = torch.cuda.is_current_stream_capturing
        self._rewritten: Kernel | None = rewritten
        self._current = current
        self._failed = failed

    def __getattr__(self, name: str) -> object:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: object) -> Callable[..., object]:
        current = self._current
        what, rewritten = current.what, self._rewritten
        if what is None or rewritten is None or (current.left_out and not self._capturing()):
            return self._kernel[grid]

        def launch(*args: Any, **kwargs: Any) -> object:
            if current.control is not None:
                tile, block = kwargs.get("TILE_SIZE", 1), kwargs.get("BLOCK_SIZE", 1)
                if max(tile, block) % min(tile, block):
                    self._give_up(f"tiles of {tile} tokens do not fit blocks of {block}")
                    return self._kernel[grid](*args, **kwargs)
            ours = current.control, current.windows, what, current.heads
            options = {} if self._compilation is None else self._compilation.options(grid, ours, args, kwargs)
            try:  # `rewritten[grid]` would copy all arguments once more
                launched = rewritten.run(*ours, *args, grid=grid, warmup=False, **kwargs, **options)
                current.launched.add(self._kind)
                return launched
            except Exception as error:  # it did not compile: nothing was launched
                self._give_up(f"{type(error).__name__}: {str(error)[:300]}")
                return self._kernel[grid](*args, **kwargs)

        return launch

    def _give_up(self, why: str) -> None:
        self._rewritten = None
        self._failed(why)


class Installed:
    """Kernels put in place, until `undo`."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.unseen: dict[str, str] = {}
        """Kinds that no kernel of this backend can record, with the reason."""
        self.problems: list[str] = []
        self.finds_layers = False
        """Kernels find their layer by themselves: nothing is to be told at a launch."""
        self._undo: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Put vLLM's kernels back."""
        while self._undo:
            self._undo.pop()()

    def put(self, owner: types.ModuleType | type, name: str, kernel: object) -> None:
        """Replace a module's kernel, or a class's function."""
        original = getattr(owner, name)
        setattr(owner, name, kernel)
        self.at_undo(lambda: setattr(owner, name, original))

    def at_undo(self, action: Callable[[], None]) -> None:
        """Have `undo` do something, too: the latest first."""
        self._undo.append(action)


def install(current: Current, kinds: frozenset[str], failed: Callable[[str], None]) -> Installed:
    """Rewrite the kernels of the wanted kinds. `problems` has those that could not be, with the reason."""
    done = Installed()
    for target in TARGETS:
        if target.kind not in kinds:
            continue
        try:
            module = importlib.import_module(target.module)
            kernel = getattr(module, target.kernel)
            rewritten = load(kernel, target.rewrite)
            tiles = current.control is not None
            compilation = Compilation(kernel, rewritten, tiles=tiles) if target.kind == "read" else None
        except (MismatchError, ImportError, AttributeError, OSError) as error:
            done.problems.append(f"{target.kernel}: {error}")
            continue
        done.put(module, target.kernel, Rewritten(kernel, rewritten, current, failed, compilation, target.kind))
        done.kinds.add(target.kind)
    return done


def load(kernel: Kernel, rewriting: Callable[[str], str]) -> Kernel:
    """Load a Triton kernel's rewritten form, as a Triton kernel.

    Raises:
        MismatchError: The source is of another form.
        OSError: The source is not there.
    """
    from kvtrace.probes.device.tiles import clock, recorder

    source = rewriting(inspect.getsource(kernel.fn))
    # Triton reads a kernel's text from its file; it is needed until the last compilation, so to the process's end.
    folder = tempfile.TemporaryDirectory(prefix="kvtrace-")
    path = Path(folder.name) / f"kvtrace_{len(sys.modules)}.py"
    path.write_text(source)
    module = types.ModuleType(path.stem)
    module.__dict__.update({k: v for k, v in kernel.fn.__globals__.items() if not k.startswith("__")})
    for room in (clock, recorder):
        module.__dict__.update({k: v for k, v in vars(room).items() if k.startswith("kvt_")})
    module.__dict__.update(__file__=str(path), __kvtrace_folder__=folder)
    sys.modules[path.stem] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    loaded: Kernel = module.__dict__[kernel.fn.__name__]
    with contextlib.suppress(Exception):  # another Triton, or its interpreter
        _keep_constants(loaded, (clock, recorder))
    return loaded


def _keep_constants(kernel: Kernel, rooms: Sequence[types.ModuleType]) -> None:
    """Keep Triton from comparing these rooms' constants with what they were, at each launch: that takes 13 to 17 us.

    It notes them when it makes the key under which compiled code is found, which has their values.
    """
    assert kernel.cache_key
    theirs = {id(vars(room)) for room in rooms}
    kernel.used_global_vals = {key: value for key, value in kernel.used_global_vals.items() if key[1] not in theirs}
