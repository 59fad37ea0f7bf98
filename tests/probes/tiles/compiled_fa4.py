"""Compiles FlashAttention 4's kernel for Hopper, as it is and rewritten, without a GPU, and prints facts of the PTX.

    python compiled_fa4.py VLLM_FOLDER

A JSON object a form of the arguments and an output (tiles, windows or both): counts of what the PTX has before and
after rewriting.
"""

import importlib
import json
import os
import re
import sys
import tempfile
import types
from pathlib import Path

FORMS = {
    "pages of 16": {},
    "pages of a tile": {"page": 128},
    "split": {"num_splits": 3},
    "sliding window": {"window_size_left": 255, "window_size_right": 0},
    "softcap": {"softcap": 30.0},
}
COUNTED = (
    "%globaltimer_lo", "%globaltimer;", "red.relaxed", "st.global.u8", "atom.relaxed", "redux.sync", "wgmma.mma_async",
    "cp.async.cg", "bra.uni",
)  # fmt: skip
CONTROL, WINDOWS = 0x7F0000000000, 0x7F0000100000
OUTPUTS = {"tiles": (CONTROL, None), "windows": (None, WINDOWS), "both": (CONTROL, WINDOWS)}


def stand_in(folder: Path) -> types.ModuleType:
    """Stand in for a GPU and for the packages around FlashAttention 4; its interface."""
    import torch

    for name in ("vllm", "vllm.vllm_flash_attn"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = module
    properties = types.SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.current_device = lambda: 0
    return importlib.import_module("vllm.vllm_flash_attn.cute.interface")


def compiled(interface: types.ModuleType, form: dict) -> str:
    """The PTX of the one kernel that a launch compiles."""
    import torch

    spec = interface._make_compile_only_tensor_spec
    kind, size = torch.bfloat16, 128
    form = dict(form)
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
            max_seqlen_q=1,
            max_seqlen_k=1024,
            softmax_scale=size**-0.5,
            causal=True,
            out=spec((64, 32, size), kind),
            compile_only=True,
            _arch=90,
            **form,
        )
    finally:
        interface.cute.compile = compile_
    [kernel] = found
    return kernel.__ptx__


def main():
    interface = stand_in(Path(sys.argv[1]))
    from kvtrace.probes.device.tiles.fa4.launch import install
    from kvtrace.probes.device.tiles.launch import Current

    before = {name: compiled(interface, form) for name, form in FORMS.items()}
    for output, addresses in OUTPUTS.items():
        memory = [address and types.SimpleNamespace(data_ptr=lambda address=address: address) for address in addresses]
        current, failures = Current(memory[0], -1, memory[1]), []
        installed = install(current, frozenset(["read"]), failures.append)
        assert installed.kinds == {"read"}, installed.problems
        current.what = 5
        for name, form in FORMS.items() if output != "both" else list(FORMS.items())[:1]:
            after = compiled(interface, form)
            assert not failures, failures
            counts = {text: (before[name].count(text), after.count(text)) for text in COUNTED}
            numbers = {int(number) for number in re.findall(r"\b\d{10,}\b", after)}
            there = [not numbers.isdisjoint(range(first, first + 1024)) for first in (CONTROL, WINDOWS)]
            print(json.dumps({"form": name, "output": output, "memory": there, **counts}), flush=True)
        installed.undo()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        given = {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP_PTX": "1", "CUTE_DSL_DUMP_DIR": folder}
        os.environ.update(given, FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="0")
        main()
