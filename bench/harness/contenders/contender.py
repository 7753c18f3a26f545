"""The shape of every contender: how to start it on an arena, and how to read what it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..process import Command, Finished

SUBJECT = "subject"
"""crowfly: what is judged."""

PEER = "peer"
"""What it is judged against."""

REMARK = "remark"
"""Shown, but no peer: it does less than the others do."""


@dataclass(frozen=True)
class Arena:
    """The input of one scenario."""

    target: Path
    """What is loaded: a model folder, or one file."""

    files: tuple[Path, ...]
    tensorized: Path | None
    """The same tensors in tensorizer's own format, where it was prepared."""

    data_bytes: int
    """Bytes of tensor data, without headers."""


@dataclass(frozen=True)
class Setting:
    """One way of configuring a contender; the first of a contender's settings is its default."""

    label: str
    values: Mapping[str, object] = field(default_factory=dict)


DEFAULT = Setting("default")


@dataclass(frozen=True)
class Reading:
    """What one run comes to: the figures that are compared."""

    wall_s: float
    cpu_s: float
    bytes: int
    peak_rss: int
    """Bytes of the process at its largest."""

    peak_rss_is_floor: bool = False
    rss_before: int = 0
    """Bytes it held before the load began: an interpreter and its libraries."""

    verified: bool | None = None
    """Whether the tensors held what the manifest says; None where the run keeps no data."""

    own: Mapping[str, object] = field(default_factory=dict)
    """What the contender says about itself."""


class Failed(RuntimeError):
    """A run that gave no figures."""


class Contender(ABC):
    name: str
    role: str = PEER
    settings: tuple[Setting, ...] = (DEFAULT,)
    note: str = ""

    @abstractmethod
    def waived(self) -> str | None:
        """Why it cannot take part on this machine, or None."""

    @abstractmethod
    def command(self, arena: Arena, setting: Setting) -> Command: ...

    @abstractmethod
    def read(self, finished: Finished, arena: Arena) -> Reading:
        """The figures of a run that exited with 0; raises Failed when there are none."""

    def inputs(self, arena: Arena) -> tuple[Path, ...]:
        """The files whose cache state matters to it."""
        return arena.files

    def prove(self, arena: Arena) -> bool | None:
        """Whether an untimed run shows that the right bytes arrive; None where no such run exists."""
        return None


def whole_process(finished: Finished, size: int, **own: object) -> Reading:
    """Figures of a program that is all load: start, work and exit are counted."""
    return Reading(
        wall_s=finished.wall_s,
        cpu_s=finished.cpu_s,
        bytes=size,
        peak_rss=finished.peak_rss,
        peak_rss_is_floor=finished.rss_is_floor,
        own=own,
    )
