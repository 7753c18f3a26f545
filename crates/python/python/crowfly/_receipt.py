"""What a transfer did: the receipt, and what it is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional

Json = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """A looked-up fact, quoted as it was seen."""

    at: str
    """Where it was seen: a file, a link, the name of a system call."""
    shows: str
    """What was seen there."""


@dataclass(frozen=True)
class Fix:
    """One step of removing an obstacle."""

    what: str
    command: Optional[str]
    check: Optional[str]
    """The command that shows it worked."""


@dataclass(frozen=True)
class Obstacle:
    """Why a better route was not taken."""

    code: str
    """Which obstacle, in kebab-case; stable across versions."""
    effect: str
    """``blocks``, ``slows`` or ``unproven``."""
    summary: str
    evidence: tuple[Evidence, ...]
    fix: tuple[Fix, ...]
    confidence: str
    """``certain``, ``likely`` or ``possible``."""
    bytes_per_second_now: Optional[float]
    """The ceiling with the obstacle, in bytes per second, where both are known."""
    bytes_per_second_without: Optional[float]
    """The ceiling without it."""
    _json: Json = field(repr=False, compare=False)

    @classmethod
    def _of(cls, found: Json) -> Obstacle:
        cost = found.get("cost") or {}
        return cls(
            code=found["code"],
            effect=found["effect"],
            summary=found["summary"],
            evidence=tuple(Evidence(**one) for one in found["evidence"]),
            fix=tuple(Fix(**one) for one in found["fix"]),
            confidence=found["confidence"],
            bytes_per_second_now=cost.get("now"),
            bytes_per_second_without=cost.get("without"),
            _json=found,
        )


@dataclass(frozen=True)
class Share:
    """The bytes that went one way."""

    path: str
    """The engine path: ``peer``, ``direct``, ``threads``, ``mapped`` or ``cached``."""
    route_class: str
    """``direct``, ``staged`` or ``socket``."""
    bytes: int
    because: Optional[str]
    """Why these bytes went this way and not a better one; ``None`` on the best path."""


@dataclass(frozen=True)
class Ceiling:
    """What a rate is measured against."""

    bytes_per_second: float
    provenance: str
    """``measured``, ``link-rate``, ``catalogue``, ``assumed`` or ``computed``."""
    detail: str

    @classmethod
    def _of(cls, found: Json) -> Ceiling:
        provenance = found["provenance"]
        return cls(found["rate"], provenance["kind"], provenance["from"])


@dataclass(frozen=True)
class Verification:
    """Whether the bytes that arrived were checked."""

    state: str
    """``not-asked``, ``computed`` or ``matched``."""
    algorithm: Optional[str]
    checksum: Optional[str]
    """In hexadecimal."""


@dataclass(frozen=True)
class Receipt:
    """What a transfer did. Bytes are counted where they move, never inferred."""

    source: str
    """Where the bytes came from, ``file:/data/model``."""
    to: str
    """Where they went, ``host``."""
    policy: str
    route: str
    """The name of the route that carried the largest share, ``o-direct``."""
    requested: int
    """Bytes asked for."""
    shares: tuple[Share, ...]
    """Bytes by path; they sum to exactly :attr:`requested`."""
    bounced: int
    """Bytes that passed an intermediate buffer in host RAM."""
    overread: int
    """Bytes that devices moved beyond those asked for."""
    retries: int
    wall_seconds: float
    cpu_user_seconds: float
    cpu_system_seconds: float
    ceiling: Optional[Ceiling]
    obstacles: tuple[Obstacle, ...]
    """What stands in the way of each better route."""
    visibility: str
    """``not-needed``, ``flushed`` or ``unknown``: whether a device that uses the memory sees the bytes."""
    verification: Verification
    _json: Json = field(repr=False, compare=False)

    @classmethod
    def _parse(cls, text: str) -> Receipt:
        return cls._of(json.loads(text))

    @classmethod
    def _of(cls, found: Json) -> Receipt:
        ceiling = found["ceiling"]
        verification = found["verification"]
        return cls(
            source=found["from"],
            to=found["to"],
            policy=found["policy"],
            route=found["route"]["name"],
            requested=found["requested"],
            shares=tuple(
                Share(one["path"], one["class"], one["bytes"], one["because"])
                for one in found["shares"]
            ),
            bounced=found["bounced"],
            overread=found["overread"],
            retries=found["retries"],
            wall_seconds=found["wall_seconds"],
            cpu_user_seconds=found["cpu"]["user"],
            cpu_system_seconds=found["cpu"]["system"],
            ceiling=ceiling and Ceiling._of(ceiling),
            obstacles=tuple(Obstacle._of(one) for one in found["obstacles"]),
            visibility=found["visibility"]["state"],
            verification=Verification(
                verification["state"],
                verification.get("algorithm"),
                verification.get("checksum"),
            ),
            _json=found,
        )

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the threads that did the work, user plus system, in seconds."""
        return self.cpu_user_seconds + self.cpu_system_seconds

    @property
    def bytes_per_second(self) -> Optional[float]:
        """The rate reached; ``None`` when no time passed."""
        return self.requested / self.wall_seconds if self.wall_seconds > 0 else None

    @property
    def share_of_ceiling(self) -> Optional[float]:
        """The rate reached as a fraction of the ceiling, where one is known."""
        rate = self.bytes_per_second
        if rate is None or self.ceiling is None or self.ceiling.bytes_per_second <= 0:
            return None
        return rate / self.ceiling.bytes_per_second

    def by_path(self) -> dict[str, int]:
        """Bytes by engine path, ``{"direct": 1048576}``."""
        found: dict[str, int] = {}
        for share in self.shares:
            found[share.path] = found.get(share.path, 0) + share.bytes
        return found

    def to_dict(self) -> Json:
        """The whole receipt as JSON of schema ``crowfly.receipt/1``."""
        return dict(self._json)

    def __str__(self) -> str:
        rate = self.bytes_per_second
        ways = ", ".join(f"{count} B {path}" for path, count in self.by_path().items())
        speed = f", {rate / 1e9:.3g} GB/s" if rate else ""
        return f"{self.requested} B from {self.source} to {self.to} ({ways}){speed}"
