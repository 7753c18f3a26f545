"""What crowfly's `load` is to reach, and whether a run reached it. A miss is a finding, not a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .contenders.contender import PEER, SUBJECT, Reading
from .contenders.fio import Ceiling
from .contenders.wheels import MAPPING, STREAMER
from .rounds import Sample
from .summary import Row, Spread, cpu, paired, rate, wall

TRANSIT_RATE = 0.97
TRANSIT_CPU = 0.5
TRANSIT_RSS_BYTES = 256_000_000
RESIDENT_CPU = 1.0
WARM_WALL = 1.2
LISTING_SMALL = 10_000
LISTING_LARGE = 100_000
LINEAR_SLACK = 1.25
"""How much more than ten times as long ten times as many tensors may take and still be called linear."""


@dataclass(frozen=True)
class Goals:
    """What differs between the subjects."""

    resident_wall: float
    """Seconds of a cold load, as a share of the fastest peer's."""

    listing_seconds: float
    """Of the small listing."""


COMMAND = Goals(resident_wall=1.0, listing_seconds=0.010)
WHEEL = Goals(resident_wall=1 / 1.2, listing_seconds=0.015)

MET = "met"
MISSED = "missed"
WAIVED = "waived"
FOR_SCALE = "for scale"
"""No target, but what a target is to be seen against."""


@dataclass(frozen=True)
class Verdict:
    scenario: str
    target: str
    state: str
    found: str


def transit(scenario: str, rows: Sequence[Row], samples: Sequence[Sample]) -> list[Verdict]:
    ours, fastest = subject(rows), best(rows, lambda row: row.gb_per_s, highest=True)
    streamer = named(rows, STREAMER)
    goal_rate = f"rate ≥ {TRANSIT_RATE} × the best peer's"
    goal_cpu = f"CPU ≤ {TRANSIT_CPU} × the streamer's"
    goal_rss = f"peak memory ≤ {TRANSIT_RSS_BYTES // 1_000_000} MB"
    return [
        _ratio(scenario, goal_rate, ours, fastest, samples, rate, at_least=TRANSIT_RATE),
        _ratio(scenario, goal_cpu, ours, streamer, samples, cpu, at_most=TRANSIT_CPU),
        _memory(scenario, goal_rss, ours),
    ]


def resident_cold(
    scenario: str, rows: Sequence[Row], samples: Sequence[Sample], goals: Goals = COMMAND
) -> list[Verdict]:
    ours = subject(rows)
    fastest = best(rows, lambda row: row.wall_s)
    thriftiest = best(rows, lambda row: row.cpu_s)
    goal_cpu = f"CPU ≤ {RESIDENT_CPU} ×"
    drive = named(rows, Ceiling.name)
    return [
        *_beside_the_drive(scenario, ours, drive, samples),
        *_beside_the_drive(scenario, fastest, drive, samples),
        _ratio(
            scenario,
            f"wall ≤ {goals.resident_wall:.2f} × the best peer's",
            ours,
            fastest,
            samples,
            wall,
            at_most=goals.resident_wall,
        ),
        _ratio(
            scenario,
            f"{goal_cpu} the fastest peer's",
            ours,
            fastest,
            samples,
            cpu,
            at_most=RESIDENT_CPU,
        ),
        _ratio(
            scenario,
            f"{goal_cpu} the thriftiest peer's",
            ours,
            thriftiest,
            samples,
            cpu,
            at_most=RESIDENT_CPU,
        ),
    ]


def _beside_the_drive(
    scenario: str, one: Row | None, drive: Row | None, samples: Sequence[Sample]
) -> list[Verdict]:
    """How many times as long as the drive alone somebody takes."""
    if one is None or drive is None or _missing(one) or _missing(drive):
        return []
    spread = paired(samples, one.name, drive.name, wall)
    if spread is None:
        return []
    found = f"{spread.median:.2f} × the drive's [{spread.low:.2f}–{spread.high:.2f}]"
    return [Verdict(scenario, f"{one.name}: wall beside the drive's own", FOR_SCALE, found)]


def resident_warm(scenario: str, rows: Sequence[Row], samples: Sequence[Sample]) -> list[Verdict]:
    mapping = named(rows, MAPPING)
    goal = f"wall ≤ {WARM_WALL} × the mapping's"
    return [_ratio(scenario, goal, subject(rows), mapping, samples, wall, at_most=WARM_WALL)]


def listing(small: Sequence[Row], large: Sequence[Row], goals: Goals = COMMAND) -> list[Verdict]:
    """From the rows of the small and of the large file."""
    one, ten = subject(small), subject(large)
    fast = f"{LISTING_SMALL:,} tensors listed in ≤ {goals.listing_seconds * 1000:.0f} ms"
    factor = LISTING_LARGE / LISTING_SMALL * LINEAR_SLACK
    linear = f"{LISTING_LARGE:,} tensors in ≤ {factor:.1f} × that"
    reason = _missing(one) or _missing(ten)
    if reason or not (one and ten and one.wall_s and ten.wall_s):
        return [Verdict("listing", goal, WAIVED, reason or "not run") for goal in (fast, linear)]
    seconds = one.wall_s.median
    ratio = ten.wall_s.median / seconds
    return [
        Verdict("listing", fast, _state(seconds <= goals.listing_seconds), f"{seconds * 1000:.1f} ms"),
        Verdict("listing", linear, _state(ratio <= factor), f"{ratio:.1f} ×"),
    ]


def named(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.name == name), None)


def subject(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.role == SUBJECT), None)


def best(
    rows: Sequence[Row], figure: Callable[[Row], Spread | None], highest: bool = False
) -> Row | None:
    """The peer whose figure has the lowest (or highest) median, among those that have one."""
    medians = [
        (spread.median, row)
        for row in rows
        if row.role == PEER and row.problem is None and (spread := figure(row)) is not None
    ]
    choose = max if highest else min
    return choose(medians, key=lambda pair: pair[0])[1] if medians else None


def _ratio(
    scenario: str,
    goal: str,
    ours: Row | None,
    theirs: Row | None,
    samples: Sequence[Sample],
    figure: Callable[[Reading], float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Verdict:
    reason = _missing(ours) or _missing(theirs)
    if reason or ours is None or theirs is None:
        return Verdict(scenario, goal, WAIVED, reason or "no peer ran")
    spread = paired(samples, ours.name, theirs.name, figure)
    if spread is None:
        return Verdict(scenario, goal, WAIVED, f"no round has both it and {theirs.name}")
    met = (at_least is None or spread.median >= at_least) and (
        at_most is None or spread.median <= at_most
    )
    found = f"{spread.median:.2f} × {theirs.name} [{spread.low:.2f}–{spread.high:.2f}]"
    return Verdict(scenario, goal, _state(met), found)


def _memory(scenario: str, goal: str, ours: Row | None) -> Verdict:
    reason = _missing(ours)
    if reason or ours is None or ours.peak_rss is None:
        return Verdict(scenario, goal, WAIVED, reason or "not run")
    found = f"{ours.peak_rss / 1e6:.0f} MB"
    return Verdict(scenario, goal, _state(ours.peak_rss <= TRANSIT_RSS_BYTES), found)


def _missing(row: Row | None) -> str | None:
    if row is None:
        return "did not take part"
    return f"{row.name}: {row.problem}" if row.problem else None


def _state(met: bool) -> str:
    return MET if met else MISSED
