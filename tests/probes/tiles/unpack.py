"""Takes vLLM's Python sources or FlashInfer's headers out of a wheel: python unpack.py WHEEL FOLDER."""

import re
import sys
import zipfile

WANTED = re.compile(r"vllm/.*\.py|flashinfer/data/(include|cutlass/include|cutlass/tools/util/include|cccl)/.*")

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        if WANTED.fullmatch(name):
            wheel.extract(name, sys.argv[2])
