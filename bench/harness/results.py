"""Dated result files: raw samples as JSON, tables as Markdown. Neither names a path of the machine."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .scenario import Outcome
from .targets import Verdict

SCHEMA = "crowfly-bench/1"


def document(
    date: datetime.date,
    name: str,
    facts: Mapping[str, object],
    options: Mapping[str, object],
    versions: Mapping[str, str],
    outcomes: Sequence[Outcome],
    verdicts: Sequence[Verdict],
) -> dict:
    return {
        "schema": SCHEMA,
        "name": name,
        "date": date.isoformat(),
        "machine": facts,
        "options": options,
        "versions": versions,
        "scenarios": [
            {
                "name": outcome.scenario.name,
                "title": outcome.scenario.title,
                "cache": outcome.scenario.cache,
                "data_bytes": outcome.scenario.arena.data_bytes,
                "rows": [dataclasses.asdict(row) for row in outcome.rows],
                "samples": [dataclasses.asdict(sample) for sample in outcome.samples],
                "tuning": [dataclasses.asdict(sample) for sample in outcome.tuning],
            }
            for outcome in outcomes
        ],
        "targets": [dataclasses.asdict(verdict) for verdict in verdicts],
    }


def write(folder: Path, stem: str, raw: dict, text: str) -> tuple[Path, Path]:
    """Writes STEM.json and STEM.md; an earlier result of the same day is kept and this one numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    free, number = stem, 1
    while (folder / f"{free}.json").exists() or (folder / f"{free}.md").exists():
        number += 1
        free = f"{stem}-{number}"
    data, table = folder / f"{free}.json", folder / f"{free}.md"
    data.write_text(json.dumps(raw, indent=1) + "\n")
    table.write_text(text)
    return data, table
