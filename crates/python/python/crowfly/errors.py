"""What can go wrong, as exceptions.

Every one is a :class:`CrowflyError` with a stable ``code`` in kebab-case, the ``message``, a ``hint`` where
there is one, and the ``obstacles`` that stand in the way where a route was refused. Those that have a
counterpart in Python are of that class too, so ``except FileNotFoundError`` works.
"""

from __future__ import annotations

import json
from typing import Optional

from ._receipt import Obstacle

__all__ = [
    "AccessDeniedError",
    "CancelledError",
    "CrowflyError",
    "DataDiffersError",
    "FormatError",
    "LayoutError",
    "NotFoundError",
    "OutOfMemoryError",
    "RouteRefused",
    "SharedMemoryError",
    "TensorIndexError",
    "TensorNotFoundError",
    "TransferError",
    "UsageError",
]


class CrowflyError(Exception):
    """Why something could not be done.

    Attributes:
        code: which failure it is, in kebab-case; stable across versions.
        message: one sentence that names the object, the operation and the values.
        hint: what to do about it, where something is known.
        obstacles: what stands in the way of the routes that the policy would have allowed.
    """

    code: str
    message: str
    hint: Optional[str]
    obstacles: list[Obstacle]

    _code = "failed"
    """The code where none is given."""

    def __init__(
        self, message: str, code: Optional[str] = None, hint: Optional[str] = None, obstacles: str = "[]"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self._code
        self.hint = hint
        self.obstacles = [Obstacle._of(found) for found in json.loads(obstacles or "[]")]

    def __str__(self) -> str:
        lines = [self.message]
        lines += [f"  {found.effect}: {found.code}: {found.summary}" for found in self.obstacles]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        obstacles = json.dumps([found._json for found in self.obstacles])
        return (type(self), (self.message, self.code, self.hint, obstacles))


class RouteRefused(CrowflyError):
    """No open route satisfies the policy, or nothing reaches the device; ``obstacles`` say why."""


class FormatError(CrowflyError, ValueError):
    """A file or an index is malformed or contradicts itself."""


class NotFoundError(CrowflyError, FileNotFoundError):
    """What was asked for is not there."""


class AccessDeniedError(CrowflyError, PermissionError):
    """What was asked for may not be read or written."""


class TransferError(CrowflyError, OSError):
    """Reading or writing failed on the way."""


class OutOfMemoryError(CrowflyError, MemoryError):
    """There is not enough memory, found out before any was filled."""


class DataDiffersError(CrowflyError, ValueError):
    """The bytes that arrived are not those of the source, or not those that were once saved."""


class CancelledError(CrowflyError):
    """The transfer was cancelled."""


class UsageError(CrowflyError, ValueError):
    """The call makes no sense."""

    _code = "usage"


class LayoutError(CrowflyError, ValueError, TypeError):
    """A tensor's element type or memory layout cannot be had in the form asked for."""


class SharedMemoryError(LayoutError, RuntimeError):
    """Several of the tensors to be saved share memory."""


class TensorIndexError(CrowflyError, IndexError):
    """An index lies outside of a tensor."""


class TensorNotFoundError(CrowflyError, KeyError):
    """There is no tensor of that name."""
