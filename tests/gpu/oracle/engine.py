"""A few steps of an engine whose attention kernels are watched. Writes the accesses as a NumPy file.

Run as `python engine.py CONFIG_JSON OUTPUT`, under `kvtrace record`, with the environment of `oracle.build`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

CAPACITY = 16 << 20


def main(config: dict[str, Any], output: str) -> None:
    library = ctypes.CDLL(os.environ["ORACLE_LIBRARY"])  # before anything starts CUDA
    library.oracle_name.restype = ctypes.c_char_p
    library.oracle_end.restype = ctypes.c_int64

    import numpy as np
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(**config["engine"])
    context = llm.llm_engine.vllm_config.compilation_config.static_forward_context
    layers = [layer for layer in context.values() if getattr(layer, "impl", None) is not None]
    shapes = []
    for layer in layers:
        cache = layer.kv_cache
        tensor = cache[0] if isinstance(cache, list | tuple) else cache
        bytes_each = tensor.element_size()
        span = (1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))) * bytes_each
        assert library.oracle_add(ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint64(span)) == 0
        shapes.append([list(tensor.shape), [stride * bytes_each for stride in tensor.stride()]])
    assert library.oracle_begin(ctypes.c_uint32(CAPACITY), ctypes.c_uint32(config["granule_bytes"])) == 0

    parameters = SamplingParams(max_tokens=config["output_tokens"], ignore_eos=True, detokenize=False, temperature=0)
    shared = [7] * config["shared_tokens"]
    for turn in range(config["turns"]):
        prompts = [
            {"prompt_token_ids": [*shared, *[20 + 50 * turn + session] * (30 + 41 * session)]}
            for session in range(config["sessions"])
        ]
        llm.generate(prompts, parameters, use_tqdm=False)
    torch.cuda.synchronize()

    kind = np.dtype(
        [("clock", "u8"), ("offset", "u8"), ("program", "u4"), ("launch", "u4"), ("layer", "u4"), ("how", "u4")]
    )
    accesses = np.zeros(CAPACITY, kind)
    count = library.oracle_end(ctypes.c_void_p(accesses.ctypes.data), ctypes.c_uint32(CAPACITY))
    names = [library.oracle_name(launch).decode() for launch in range(library.oracle_launches())]
    print(f"{library.oracle_modules()} modules patched, {len(names)} launches, {count} accesses", file=sys.stderr)
    assert 0 < count <= CAPACITY, count
    np.savez_compressed(output, accesses=accesses[:count], names=np.array(names), shapes=json.dumps(shapes))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
