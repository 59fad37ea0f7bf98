"""Takes the Python sources out of a vLLM wheel: python unpack.py WHEEL FOLDER."""

import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        if name.startswith("vllm/") and name.endswith(".py"):
            wheel.extract(name, sys.argv[2])
