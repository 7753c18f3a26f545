"""Interleaved rounds: every contender once a round, in an order that changes, so that drift, neighbours and what the
one before leaves behind meet all of them."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import cache, calm, memory, process
from .contenders.contender import Arena, Contender, Failed, Reading, Setting
from .process import Finished

COLD = "cold"
WARM = "warm"
ERROR_CHARACTERS = 400
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Conditions:
    """What is seen to before each run."""

    level: bool = False
    """Memory is touched and given back; see memory.py."""

    calm_s: float = 0
    """How long to wait for a machine that does little else."""


@dataclass(frozen=True)
class Sample:
    """One run of one contender."""

    contender: str
    setting: str
    round: int
    position: int
    """Place in the round, from 0."""

    cache: str
    resident_before: float
    """Share of the input in the page cache when the run began, as the kernel said."""

    load_average: float
    busy_before: float
    """Share of the processors' time that others took just before the run."""

    exit_code: int
    process_wall_s: float
    process_cpu_s: float
    reading: Reading | None
    error: str | None


def play(
    contenders: Sequence[Contender],
    arena: Arena,
    state: str,
    chosen: dict[str, Setting],
    rounds: int,
    progress: Progress,
    conditions: Conditions = Conditions(),
) -> list[Sample]:
    """`rounds` rounds of all contenders at their chosen settings."""
    samples = []
    for number in range(rounds):
        for position, contender in enumerate(shuffled(contenders, number)):
            setting = chosen[contender.name]
            sample = run_once(contender, arena, setting, state, number, position, conditions)
            samples.append(sample)
            progress(f"  round {number + 1}/{rounds} {describe(sample)}")
    return samples


def tune(
    contender: Contender, arena: Arena, state: str, rounds: int, progress: Progress
) -> tuple[Setting, list[Sample]]:
    """The fastest of a contender's settings here, by the median of `rounds` runs, and those runs."""
    if len(contender.settings) == 1 or rounds == 0:
        return contender.settings[0], []
    samples = []
    for number in range(rounds):
        for position, setting in enumerate(rotated(contender.settings, number)):
            sample = run_once(contender, arena, setting, state, number, position)
            samples.append(sample)
            progress(f"  tuning {describe(sample)} [{setting.label}]")
    return min(contender.settings, key=lambda one: _cost(samples, one)), samples


def shuffled(items: Sequence, seed: int) -> list:
    """The items in an order that the seed decides: nobody has the same predecessor in every round."""
    return random.Random(seed).sample(items, len(items))


def rotated(items: Sequence, by: int) -> list:
    """The items, beginning `by` places further on."""
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


def run_once(
    contender: Contender,
    arena: Arena,
    setting: Setting,
    state: str,
    number: int,
    position: int,
    conditions: Conditions = Conditions(),
) -> Sample:
    inputs = contender.inputs(arena)
    busy = calm.await_calm(conditions.calm_s)
    if conditions.level:
        cache.make_cold(inputs)
        memory.level(arena.data_bytes)
    resident = cache.make_cold(inputs) if state == COLD else cache.make_warm(inputs)
    load_average = os.getloadavg()[0]
    finished = process.run(contender.command(arena, setting))
    reading, error = _figures(contender, finished, arena)
    return Sample(
        contender=contender.name,
        setting=setting.label,
        round=number,
        position=position,
        cache=state,
        resident_before=resident,
        load_average=load_average,
        busy_before=busy,
        exit_code=finished.exit_code,
        process_wall_s=finished.wall_s,
        process_cpu_s=finished.cpu_s,
        reading=reading,
        error=error,
    )


def describe(sample: Sample) -> str:
    if sample.reading is None:
        return f"{sample.contender}: failed: {sample.error}"
    figures = f"{sample.reading.wall_s:.4g} s, CPU {sample.reading.cpu_s:.4g} s"
    return f"{sample.contender}: {figures}"


def _figures(
    contender: Contender, finished: Finished, arena: Arena
) -> tuple[Reading | None, str | None]:
    if finished.exit_code != 0:
        last = finished.stderr.strip()[-ERROR_CHARACTERS:].replace(str(arena.target), "INPUT")
        return None, f"exit code {finished.exit_code}: {last or 'no message'}"
    try:
        reading = contender.read(finished, arena)
    except Failed as failure:
        return None, str(failure)
    if reading.verified is False:
        return None, "the tensors do not hold what was written"
    return reading, None


def _cost(samples: list[Sample], setting: Setting) -> float:
    """Median seconds per byte at a setting; infinite where it failed."""
    runs = [sample.reading for sample in samples if sample.setting == setting.label]
    if not runs or any(reading is None for reading in runs):
        return float("inf")
    return statistics.median(reading.wall_s / reading.bytes for reading in runs if reading)
