"""What the rounds come to, and whether that is what was asked for.

A ratio is taken within rounds, crowfly against the best peer of that round, and its median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contenders import Contender, Figure

#: Sizes from this one on are judged by rate, and those below by latency.
LEAST_LARGE = 64 << 10
#: From this size on memory is what limits.
LEAST_BOUND = 64 << 20
#: Fewer rounds than this judge nothing.
LEAST_ROUNDS = 3

RATE, LATENCY, SHARE, CPU = "rate", "latency", "share", "cpu"
#: At least so many times the best peer's rate, at most so many times Open MPI's latency by shared memory, at least so
#: much of what memory allows, and at most the best peer's CPU time.
TARGETS = {RATE: 1.3, LATENCY: 1.2, SHARE: 0.7, CPU: 1.0}
AT_MOST = {LATENCY, CPU}

Rounds = Mapping[str, Sequence[Mapping[int, Figure]]]
"""By contender and round: the figures by size."""


@dataclass(frozen=True)
class Verdict:
    way: str
    """Which of crowfly's ways."""

    bytes: int
    what: str
    value: float
    """The median over rounds."""

    asked: float
    rounds: int
    met: bool | None
    """`None` where there were too few rounds."""


def verdict(way: str, size: int, what: str, values: Sequence[float]) -> Verdict | None:
    if not values:
        return None
    middle, asked = statistics.median(values), TARGETS[what]
    good = middle <= asked if what in AT_MOST else middle >= asked
    return Verdict(way, size, what, middle, asked, len(values), good if len(values) >= LEAST_ROUNDS else None)


def ratios(rounds: Rounds, own: str, peers: Sequence[str], size: int, figure) -> list[float]:
    """The best peer's figure over crowfly's, the less the better, in each round that has both."""
    found = []
    for turn, figures in enumerate(rounds.get(own, ())):
        theirs = [rounds[peer][turn][size] for peer in peers if turn < len(rounds[peer]) and size in rounds[peer][turn]]
        if size in figures and theirs and figure(figures[size]) > 0:
            found.append(min(map(figure, theirs)) / figure(figures[size]))
    return found


def judge(contenders: Sequence[Contender], rounds: Rounds, sizes: Sequence[int]) -> list[Verdict]:
    verdicts: list[Verdict | None] = []
    for own in (c for c in contenders if c.kind == "crowfly"):
        way = own.name.removeprefix("crowfly ")
        # Gloo has TCP alone, and is a peer of both ways.
        peers = [c.name for c in contenders if c.is_peer and (c.path == own.path or c.kind == "Gloo")]
        mpi = [c.name for c in contenders if c.kind == "Open MPI" and c.path == own.path]
        for size in sizes:
            if size >= LEAST_LARGE:
                rate = ratios(rounds, own.name, peers, size, lambda f: f.seconds)
                verdicts.append(verdict(way, size, RATE, rate))
            elif own.path == "shm":
                late = [1 / r for r in ratios(rounds, own.name, mpi, size, lambda f: f.seconds)]
                verdicts.append(verdict(way, size, LATENCY, late))
            cpu = ratios(rounds, own.name, peers, size, lambda f: f.cpu_seconds)
            if size >= LEAST_LARGE:
                verdicts.append(verdict(way, size, CPU, [1 / r for r in cpu if r > 0]))
            if size >= LEAST_BOUND and own.path == "shm":
                figures = [turn[size] for turn in rounds.get(own.name, ()) if size in turn]
                shares = [f.bytes / f.seconds / f.bound for f in figures if f.bound]
                verdicts.append(verdict(way, size, SHARE, shares))
    return [one for one in verdicts if one is not None]
