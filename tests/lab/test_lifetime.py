"""A child ends with its parent, whenever that ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvtrace.lab.lifetime import dies_with_us

LATE = """
import os, sys, time
from kvtrace.lab.lifetime import dies_with_us
die_with_us, parent = dies_with_us(), os.getpid()
if os.fork():
    sys.exit()
while os.getppid() == parent:  # it comes to run when its parent is gone
    time.sleep(0.01)
die_with_us()
time.sleep(600)
"""
ASKED = """
import os, sys, time
from kvtrace.lab.lifetime import dies_with_us
die_with_us, (seen, told) = dies_with_us(), os.pipe()
if os.fork():
    os.read(seen, 1)
    sys.exit()
die_with_us()
os.write(told, b"1")
time.sleep(600)
"""


@pytest.mark.parametrize("program", [LATE, ASKED], ids=["before the child ran", "after it asked"])
def test_a_child_ends_with_its_parent(program: str) -> None:
    """The child holds the stream that is read to its end."""
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=20)


def test_a_child_lives_while_its_parent_does() -> None:
    command = [sys.executable, "-c", "print('lives')"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=dies_with_us()).stdout == b"lives\n"
