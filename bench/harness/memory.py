"""Free memory that costs every contender the same."""

from __future__ import annotations

import subprocess
import sys

TOUCH = """
import mmap, sys
area = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_HUGEPAGE)
area.madvise(23)  # MADV_POPULATE_WRITE
"""
FACTOR = 2.5
"""How much is touched, in sizes of the input: what a load takes in page cache and memory of its own, and some."""


def level(input_bytes: int) -> None:
    """Has a process touch memory and give it back, so that the next one is given pages that are there.

    The host of a virtual machine may have taken free pages away. Whoever gets one of those first pays for it, and
    whoever runs after a large process does not: without this, a contender's predecessor decides.
    """
    size = int(input_bytes * FACTOR)
    subprocess.run([sys.executable, "-c", TOUCH, str(size)], check=True)
