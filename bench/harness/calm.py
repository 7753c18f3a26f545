"""Waiting until a machine does little else."""

from __future__ import annotations

import time
from pathlib import Path

LOOK_S = 0.25
CALM = 0.1
"""Share of the processors' time that others may take."""


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Of two looks at idle and all ticks: the share that was not idle."""
    idle, everything = after[0] - before[0], after[1] - before[1]
    return 1 - idle / everything if everything > 0 else 0.0


def ticks(text: str) -> tuple[int, int]:
    """Idle and all ticks of the first line of /proc/stat; waiting for a drive counts as idle."""
    numbers = [int(word) for word in text.splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


def await_calm(limit_s: float) -> float:
    """Waits until others take little time, `limit_s` at most; answers the share that they took last."""
    stat = Path("/proc/stat")
    deadline = time.monotonic() + limit_s
    while True:
        before = ticks(stat.read_text())
        time.sleep(LOOK_S)
        share = busy_share(before, ticks(stat.read_text()))
        if share <= CALM or time.monotonic() >= deadline:
            return share
