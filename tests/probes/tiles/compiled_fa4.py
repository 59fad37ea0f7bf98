"""Compiles FlashAttention 4's kernel for a GPU, as it is and rewritten, without one, and prints facts of the code.

    python compiled_fa4.py VLLM_FOLDER sm_90a|sm_100a

A JSON object a form of the arguments and an output (tiles, windows or both): counts of what the PTX has before and
after rewriting, and the machine code's registers and stack. The exit code is 3 where vLLM's own kernel does not
compile: the packages are of another version.
"""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from importlib.util import find_spec
from pathlib import Path

TOOLS = Path(find_spec("triton").origin).parent / "backends/nvidia/bin"
FORMS = {
    "pages of 16": {},
    "pages of a tile": {"page": 128},
    "split": {"num_splits": 3},
    "sliding window": {"window_size_left": 255, "window_size_right": 0},
    "softcap": {"softcap": 30.0},
}
MORE = {"sm_90a": {}, "sm_100a": {"two groups of queries": {"max_seqlen_q": 512}}}
"""A program of Blackwell's has one group of queries or two."""
GPUS = {"sm_90a": (9, 132, "wgmma.mma_async"), "sm_100a": (10, 148, "tcgen05.mma")}
"""Its compute capability's major number, its multiprocessors, and its instruction for products."""
COUNTED = (
    "%globaltimer_lo", "%globaltimer;", "red.relaxed", "st.global.u8", "atom.relaxed", "redux.sync", "wgmma.mma_async",
    "tcgen05.mma", "tcgen05.commit", "tcgen05.ld", "cp.async.cg", "cp.async.bulk", "mbarrier.try_wait", "bra.uni",
)  # fmt: skip
CONTROL, WINDOWS = 0x7F0000000000, 0x7F0000100000
OUTPUTS = {"tiles": (CONTROL, None), "windows": (None, WINDOWS), "both": (CONTROL, WINDOWS)}


def stand_in(folder: Path, major: int, multiprocessors: int) -> types.ModuleType:
    """Stand in for a GPU and for the packages around FlashAttention 4; its interface."""
    import torch

    for name in ("vllm", "vllm.vllm_flash_attn"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = module
    properties = types.SimpleNamespace(multi_processor_count=multiprocessors, major=major, minor=0)
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.get_device_capability = lambda *_, **__: (major, 0)
    torch.cuda.current_device = lambda: 0
    import quack.activation
    from cutlass import cute
    from cutlass.utils import HardwareInfo

    # quack's name for it until CuTe DSL had it, which vLLM 0.26 calls
    if not hasattr(quack.activation, "sub_packed_f32x2"):
        quack.activation.sub_packed_f32x2 = cute.arch.sub_packed_f32x2

    # Persistent kernels, of which Blackwell's are, size their grid by it: it would ask the driver.
    HardwareInfo.__init__ = lambda *_, **__: None
    HardwareInfo.get_device_multiprocessor_count = lambda *_: multiprocessors
    return importlib.import_module("vllm.vllm_flash_attn.cute.interface")


def compiled(interface: types.ModuleType, major: int, product: str, form: dict) -> tuple[str, list[int]]:
    """The PTX of the one kernel with products that a launch compiles, and what its machine code takes."""
    import torch

    spec = interface._make_compile_only_tensor_spec
    kind, size = torch.bfloat16, 128
    form = {"max_seqlen_q": 1, **form}
    cache = (1000, form.pop("page", 16), 8, size)
    found = []
    compile_ = interface.cute.compile

    class Watch:
        def __getattr__(self, name):
            return getattr(compile_, name)

        def __call__(self, *args, **kwargs):
            found.append(compile_(*args, **kwargs))
            return found[-1]

    interface.cute.compile = Watch()
    try:
        interface._flash_attn_fwd(
            spec((64, 32, size), kind),
            spec(cache, kind),
            spec(cache, kind),
            cu_seqlens_q=spec((33,), torch.int32, 4),
            seqused_k=spec((32,), torch.int32, 4),
            page_table=spec((32, 64), torch.int32, 4),
            max_seqlen_k=1024,
            softmax_scale=size**-0.5,
            causal=True,
            out=spec((64, 32, size), kind),
            compile_only=True,
            _arch=10 * major,
            **form,
        )
    finally:
        interface.cute.compile = compile_
    [kernel] = [kernel for kernel in found if product in (kernel.__ptx__ or "")]
    return kernel.__ptx__, taken(kernel.__cubin__)


def taken(code: bytes) -> list[int]:
    """Registers of a thread, and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    [found] = re.findall(r"REG:(\d+) STACK:(\d+)", said.stdout + said.stderr)
    return [int(number) for number in found]


def around(text: str) -> list[str]:
    """The surroundings of each timer read of a tile: products since the one before, and what ends them."""
    found = re.findall(r"tcgen05\.mma|tcgen05\.commit|%globaltimer_lo", text)
    timers = [place for place, name in enumerate(found) if name == "%globaltimer_lo"]
    return [
        name
        for before, at in itertools.pairwise(timers)
        for name in (
            "product" if "tcgen05.mma" in found[before:at] else "none",
            "".join(found[at + 1 : at + 2]).removeprefix("tcgen05."),
        )
    ]


def main():
    major, multiprocessors, product = GPUS[sys.argv[2]]
    forms = FORMS | MORE[sys.argv[2]]
    interface = stand_in(Path(sys.argv[1]), major, multiprocessors)
    from kvtrace.probes.device.tiles.fa4.launch import install
    from kvtrace.probes.device.tiles.launch import Current

    try:
        before = {name: compiled(interface, major, product, form) for name, form in forms.items()}
    except AttributeError as error:
        print(error)
        sys.exit(3)
    for output, addresses in OUTPUTS.items():
        memory = [address and types.SimpleNamespace(data_ptr=lambda address=address: address) for address in addresses]
        current, failures = Current(memory[0], -1, memory[1]), []
        installed = install(current, frozenset(["read"]), failures.append)
        assert installed.kinds == {"read"}, installed.problems
        current.what = 5
        for name, form in forms.items() if output != "both" else list(forms.items())[:1]:
            own, took = before[name]
            after, takes = compiled(interface, major, product, form)
            assert not failures, failures
            counts = {text: (own.count(text), after.count(text)) for text in COUNTED}
            numbers = {int(number) for number in re.findall(r"\b\d{10,}\b", after)}
            there = [not numbers.isdisjoint(range(first, first + 1024)) for first in (CONTROL, WINDOWS)]
            print(
                json.dumps(
                    {
                        "form": name,
                        "output": output,
                        "memory": there,
                        "around": around(after),
                        "taken": [took, takes],
                        **counts,
                    }
                ),
                flush=True,
            )
        installed.undo()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "CUTE_DSL_ARCH": sys.argv[2],
            "CUTE_DSL_KEEP_PTX": "1",
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_DUMP_DIR": folder,
        }
        os.environ.update(given, FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="0")
        main()
