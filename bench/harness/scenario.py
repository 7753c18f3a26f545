"""A scenario: contenders, an arena and a cache state; running it gives samples and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import rounds
from .contenders.contender import Arena, Contender, Setting
from .rounds import Conditions, Progress, Sample
from .summary import Row, row


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    arena: Arena
    contenders: Sequence[Contender]
    cache: str


@dataclass(frozen=True)
class Outcome:
    scenario: Scenario
    rows: list[Row]
    samples: list[Sample]
    tuning: list[Sample]


def run(
    scenario: Scenario,
    count: int,
    tune_rounds: int,
    progress: Progress,
    conditions: Conditions = Conditions(),
) -> Outcome:
    """Waives who cannot take part, tunes the rest, has them prove their bytes, then plays the rounds."""
    progress(f"{scenario.name}: {scenario.title}")
    waived = {contender.name: contender.waived() for contender in scenario.contenders}
    playing = [contender for contender in scenario.contenders if waived[contender.name] is None]
    chosen: dict[str, Setting] = {}
    tuning: list[Sample] = []
    for contender in playing:
        setting, tried = rounds.tune(
            contender, scenario.arena, scenario.cache, tune_rounds, progress
        )
        chosen[contender.name] = setting
        tuning += tried
    proofs = {contender.name: contender.prove(scenario.arena) for contender in playing}
    samples = rounds.play(
        playing, scenario.arena, scenario.cache, chosen, count, progress, conditions
    )
    rows = [
        _row(contender, waived[contender.name], chosen, samples, proofs)
        for contender in scenario.contenders
    ]
    return Outcome(scenario, rows, samples, tuning)


def _row(
    contender: Contender,
    waived: str | None,
    chosen: dict[str, Setting],
    samples: list[Sample],
    proofs: dict[str, bool | None],
) -> Row:
    if waived is not None:
        return Row(contender.name, contender.role, "", contender.note, 0, f"waived: {waived}")
    own = [sample for sample in samples if sample.contender == contender.name]
    setting = chosen[contender.name].label if len(contender.settings) > 1 else ""
    proof = proofs[contender.name]
    return row(contender.name, contender.role, setting, contender.note, own, proof)
