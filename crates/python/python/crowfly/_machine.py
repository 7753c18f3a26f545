"""Questions about this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional

from ._crowfly import doctor_json, route_json, topology_json
from ._receipt import Fix, Json, Obstacle


@dataclass(frozen=True)
class Topology:
    """The graph of a machine's devices, as JSON objects in crowfly's words."""

    numa: list[Json]
    gpus: list[Json]
    """In PCI address order; the position is the index in ``gpu:N``."""
    nics: list[Json]
    drives: list[Json]
    mounts: list[Json]
    _json: Json = field(repr=False, compare=False)

    @classmethod
    def here(cls) -> Topology:
        """This machine's."""
        found: Json = json.loads(topology_json())
        return cls(
            found["numa"], found["gpus"], found["nics"], found["drives"], found["mounts"], found
        )

    def to_dict(self) -> Json:
        """All of it."""
        return dict(self._json)


@dataclass(frozen=True)
class Way:
    """One way between two places, and what stands in it."""

    name: str
    """``o-direct``, ``gpudirect-storage``, …"""
    standing: str
    """``open``, ``unproven`` or ``blocked``."""
    route_class: Optional[str]
    """``direct``, ``staged`` or ``socket``; ``None`` where a device that the way needs does not exist."""
    copies: Optional[int]
    cpu_touches: Optional[int]
    pcie_hops: Optional[int]
    host_ram_passes: Optional[int]
    ceiling_bytes_per_second: Optional[float]
    obstacles: tuple[Obstacle, ...]
    _json: Json = field(repr=False, compare=False)

    @classmethod
    def _of(cls, found: Json) -> Way:
        counters: dict[str, Any] = found["counters"] or {}
        return cls(
            name=found["route"]["name"],
            standing=found["standing"],
            route_class=found["class"],
            copies=counters.get("copies"),
            cpu_touches=counters.get("cpu_touches"),
            pcie_hops=counters.get("pcie_hops"),
            host_ram_passes=counters.get("host_ram_passes"),
            ceiling_bytes_per_second=found["ceiling_bytes_per_second"],
            obstacles=tuple(Obstacle._of(one) for one in found["obstacles"]),
            _json=found,
        )


def route(start: str, end: str) -> list[Way]:
    """Every way between two places of this machine, those one would take first in front.

    Places are written as for ``crowfly route``: a path, ``host``, ``gpu:0``, ``nic:mlx5_0``, ``remote:gpu:0``.
    """
    return [Way._of(found) for found in json.loads(route_json(start, end))]


@dataclass(frozen=True)
class Finding:
    """Something that the doctor found."""

    code: str
    """The rule's stable id, ``N1``."""
    name: str
    severity: str
    title: str
    fix: tuple[Fix, ...]
    doubts: tuple[str, ...]
    _json: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Diagnosis:
    """Whether data goes the straight way on this machine, and if not, why."""

    verdict: str
    headline: str
    findings: tuple[Finding, ...]
    """Gravest first."""
    _json: Json = field(repr=False, compare=False)

    def to_dict(self) -> Json:
        """All of it, as JSON of schema ``crowfly.diagnosis/1``."""
        return dict(self._json)


def doctor() -> Diagnosis:
    """Looks at this machine, as ``crowfly doctor`` does."""
    found: Json = json.loads(doctor_json())
    findings = tuple(
        Finding(
            code=one["code"],
            name=one["name"],
            severity=one["severity"],
            title=one["title"],
            fix=tuple(Fix(**step) for step in one["fix"]),
            doubts=tuple(one["doubts"]),
            _json=one,
        )
        for one in found["findings"]
    )
    return Diagnosis(found["verdict"], found["headline"], findings, found)
