"""The rounds as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .judgement import AT_MOST, Rounds, Verdict

WHAT = {
    "rate": "rate over the best peer's",
    "latency": "latency over Open MPI's",
    "share": "share of what memory allows",
    "cpu": "CPU time over the best peer's",
}
WORDS = {True: "met", False: "missed", None: "too few rounds"}


def size_text(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def figures(rounds: Rounds, sizes: Sequence[int], ranks: int) -> list[str]:
    """One line a size, one column a contender: microseconds, GB/s of one rank's buffer, CPU seconds a GB of all."""
    lines = ["| size | " + " | ".join(rounds) + " |", "|---|" + "---|" * len(rounds)]
    for size in sizes:
        cells = []
        for turns in rounds.values():
            found = [turn[size] for turn in turns if size in turn]
            if not found:
                cells.append("–")
                continue
            seconds = statistics.median(f.seconds for f in found)
            low, high = min(f.seconds for f in found), max(f.seconds for f in found)
            cpu = statistics.median(f.cpu_seconds for f in found) / (size * ranks / 1e9)
            rate = f"{size / seconds / 1e9:.2f} GB/s, " if size >= 1 << 10 else ""
            wrong = sum(f.wrong for f in found)
            note = f", {wrong} wrong" if wrong else ""
            cells.append(f"{_us(seconds)} ({_us(low)}–{_us(high)}) µs, {rate}{cpu:.3g} s/GB{note}")
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return lines


def verdicts(found: Sequence[Verdict]) -> list[str]:
    lines = ["| by | size | what | median | asked | |", "|---|---|---|---|---|---|"]
    for one in found:
        sign = "≤" if one.what in AT_MOST else "≥"
        cells = (one.way, size_text(one.bytes), WHAT[one.what], f"{one.value:.2f}", f"{sign} {one.asked}", WORDS[one.met])
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"
