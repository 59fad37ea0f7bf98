"""Coverage-guided fuzzing of a reader: `python -m bench.fuzz READER --count 100000 --seed 1`, or `all`.

Needs the extra `fuzz` (atheris: libFuzzer for Python). Every input is read by kvtrace's own code; one in `--real` that
was read goes into DuckDB's tables, too, and one in `--finish` through the joins. Each kind of fault is kept once,
under `--keep`, as the input and what it led to; those that were mended are tests, in tests/hostile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvtrace"], enable_loader_override=False):
    from tests.hostile.judge import Finding, Judge
    from tests.hostile.readers import Reader, readers

from bench.fuzz.mutations import mutate

LARGEST_INPUT = 1 << 17


class Campaign:
    """One reader's inputs, and what was found among them."""

    def __init__(self, reader: Reader, options: argparse.Namespace, scratch: Path) -> None:
        self.reader = reader
        self.options = options
        self.judge = Judge(scratch, limited=True)
        self.found: dict[str, int] = {}
        self.inputs = self.real = self.finished = 0
        self.slowest_s = 0.0
        self.started = time.monotonic()

    def one(self, data: bytes) -> None:
        """Judge an input: the number of a file, and its bytes."""
        path, content = split(self.reader, data)
        before = time.monotonic()
        accepted = self.judge.accepted
        self._take(self.judge.judge(self.reader, path, content, "dry"), path, content)
        nth = self.judge.accepted
        if nth > accepted and nth % self.options.real == 0:
            finish = nth % self.options.finish == 0
            self._take(self.judge.judge(self.reader, path, content, "finish" if finish else "read"), path, content)
            self.judge.accepted = nth
            self.real += 1
            self.finished += finish
        self.slowest_s = max(self.slowest_s, time.monotonic() - before)
        self.inputs += 1
        if self.inputs % 10_000 == 0 and self.inputs < self.options.count:
            self.tell("...")

    def _take(self, finding: Finding | None, path: str, content: bytes) -> None:
        if finding is None:
            return
        self.found[finding.where] = self.found.get(finding.where, 0) + 1
        if self.found[finding.where] > 1:
            return
        folder = self.options.keep / self.reader.name / f"{len(self.found):03}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.replace("/", "__")).write_bytes(content)
        (folder / "what.txt").write_text(f"{path}\n{finding.where}\n\n{finding.text}\n")

    def tell(self, done: str) -> None:
        """Say what was done so far, as one line of JSON."""
        told = {
            "reader": self.reader.name, "seed": self.options.seed, "inputs": self.inputs,
            "read": self.judge.accepted, "into_tables": self.real, "joined": self.finished,
            "seconds": round(time.monotonic() - self.started), "cpu_s": round(time.process_time()),
            "slowest_s": round(self.slowest_s, 2), "found": self.found,
        }  # fmt: skip
        sys.stdout.write(f"{done} {json.dumps(told)}\n")
        sys.stdout.flush()


def split(reader: Reader, data: bytes) -> tuple[str, bytes]:
    """An input's file and content."""
    paths = reader.paths
    return paths[(data[0] if data else 0) % len(paths)], data[1:]


def fuzz(reader: Reader, options: argparse.Namespace) -> None:
    """Run a campaign in this process, which libFuzzer ends."""
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, path in enumerate(reader.paths):
        (corpus / f"{number:03}").write_bytes(bytes([number]) + reader.files[path])
    campaign = Campaign(reader, options, scratch)

    def one(data: bytes) -> None:
        campaign.one(data)
        if campaign.inputs == options.count:  # libFuzzer would end the process without a word
            campaign.tell("done")
            shutil.rmtree(scratch)
            os._exit(0)

    def change(data: bytes, largest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.1:
            return bytes(atheris.Mutate(data, largest))
        path, content = split(reader, data)
        return data[:1] + mutate(path, content, rng, largest - 1)

    limits = [f"-max_len={LARGEST_INPUT}", f"-seed={options.seed}", "-timeout=0"]
    quiet = ["-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0", "-len_control=0", "-handle_int=0"]
    prefix = f"-artifact_prefix={options.keep}/{reader.name}-"
    atheris.Setup(["fuzz", *limits, *quiet, prefix, str(corpus)], one, custom_mutator=change)
    try:
        atheris.Fuzz()
    finally:  # a fault of ours: threads of DuckDB's would keep the process
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=[*readers(), "all"])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", type=int, default=20, metavar="N")
    parser.add_argument("--finish", type=int, default=200, metavar="N")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"))
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.reader != "all":
        return fuzz(readers()[options.reader], options)
    arguments = [f"--{name}={getattr(options, name)}" for name in ("count", "seed", "real", "finish", "keep")]
    ended = {
        name: subprocess.run([sys.executable, "-m", "bench.fuzz", name, *arguments], check=False).returncode
        for name in readers()
    }
    sys.exit(max(ended.values()))


if __name__ == "__main__":
    main()
