"""What the samples of a scenario come to: medians with their ranges, and ratios paired by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .contenders.contender import Reading
from .rounds import Sample


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        values = list(values)
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One contender over all rounds of a scenario; without figures when it was waived or failed."""

    name: str
    role: str
    setting: str
    note: str
    runs: int
    problem: str | None
    wall_s: Spread | None = None
    cpu_s: Spread | None = None
    gb_per_s: Spread | None = None
    process_wall_s: Spread | None = None
    process_cpu_s: Spread | None = None
    peak_rss: int | None = None
    peak_rss_is_floor: bool = False
    rss_before: int = 0
    verified: bool | None = None
    receipt_wall_s: Spread | None = None
    receipt_cpu_s: Spread | None = None
    receipt_says: str = ""
    """The ways the bytes went in the last round, and why."""


def row(
    name: str,
    role: str,
    setting: str,
    note: str,
    samples: Sequence[Sample],
    proof: bool | None = None,
) -> Row:
    """Sums up a contender's samples and its proof that the right bytes arrive. One failed run makes
    the row a failure, as a median of the rest would flatter it."""
    failed = next((sample.error for sample in samples if sample.reading is None), None)
    if proof is False:
        failed = failed or "its verification did not find the right bytes"
    if failed is not None or not samples:
        return Row(name, role, setting, note, len(samples), f"failed: {failed or 'no run'}")
    readings = [sample.reading for sample in samples if sample.reading is not None]
    highest = max(readings, key=lambda reading: reading.peak_rss)
    return Row(
        name=name,
        role=role,
        setting=setting,
        note=note,
        runs=len(samples),
        problem=None,
        wall_s=Spread.of(reading.wall_s for reading in readings),
        cpu_s=Spread.of(reading.cpu_s for reading in readings),
        gb_per_s=Spread.of(rate(reading) for reading in readings if reading.bytes),
        process_wall_s=Spread.of(sample.process_wall_s for sample in samples),
        process_cpu_s=Spread.of(sample.process_cpu_s for sample in samples),
        peak_rss=highest.peak_rss,
        peak_rss_is_floor=highest.peak_rss_is_floor,
        rss_before=highest.rss_before,
        verified=proof or _all_verified(readings),
        receipt_wall_s=_own(readings, "receipt_wall_s"),
        receipt_cpu_s=_own(readings, "receipt_cpu_s"),
        receipt_says=str(readings[-1].own.get("says", "")),
    )


def rate(reading: Reading) -> float:
    """Decimal GB/s."""
    return reading.bytes / reading.wall_s / 1e9


def wall(reading: Reading) -> float:
    return reading.wall_s


def cpu(reading: Reading) -> float:
    return reading.cpu_s


def paired(
    samples: Sequence[Sample], one: str, other: str, figure: Callable[[Reading], float]
) -> Spread | None:
    """The ratio of a figure of `one` to that of `other`, taken within each round."""
    theirs = _by_round(samples, other, figure)
    ours = _by_round(samples, one, figure)
    shared = [number for number in ours if theirs.get(number, 0) > 0]
    return Spread.of(ours[number] / theirs[number] for number in shared)


def _by_round(
    samples: Sequence[Sample], name: str, figure: Callable[[Reading], float]
) -> dict[int, float]:
    return {
        sample.round: figure(sample.reading)
        for sample in samples
        if sample.contender == name and sample.reading is not None
    }


def _all_verified(readings: Sequence[Reading]) -> bool | None:
    answers = {reading.verified for reading in readings}
    return None if None in answers else answers == {True}


def _own(readings: Sequence[Reading], figure: str) -> Spread | None:
    values = (reading.own.get(figure) for reading in readings)
    return Spread.of(float(str(value)) for value in values if value is not None)
