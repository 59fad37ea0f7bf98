"""Takes the attention kernels out of a vLLM wheel: python unpack.py WHEEL FOLDER."""

import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        if name.startswith("vllm/v1/attention/ops/triton_"):
            wheel.extract(name, sys.argv[2])
