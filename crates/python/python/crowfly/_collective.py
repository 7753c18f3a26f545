"""What can go wrong with a collective, as exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from .errors import CrowflyError

__all__ = ["CollectiveError", "CollectiveLate", "CollectiveMismatch", "RanksLost"]


class CollectiveError(CrowflyError):
    """A collective failed. What is in its tensors is undefined, and the group makes no other call."""


class RanksLost(CollectiveError, ConnectionError):
    """Ranks are gone. Every rank that is left gets the same, and they can go on without those.

    Attributes:
        ranks: the numbers of the ranks that are gone, in the group of the call.
    """

    ranks: list[int]

    def __init__(
        self,
        message: str,
        code: str = "ranks-lost",
        hint: Optional[str] = None,
        obstacles: str = "[]",
        ranks: Sequence[int] = (),
    ) -> None:
        super().__init__(message, code, hint, obstacles)
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.code, self.hint, "[]", self.ranks))


class CollectiveLate(CollectiveError, TimeoutError):
    """Some ranks did not come, or the data did not, within the time of the call."""


class CollectiveMismatch(CollectiveError, ValueError):
    """The ranks called different things at the same time."""


def failure(message: str, code: str, ranks: Sequence[int]) -> CollectiveError:
    """The exception for a code of the library."""
    if code == "ranks-lost":
        return RanksLost(message, code, ranks=ranks)
    classes = {"collective-late": CollectiveLate, "collective-mismatch": CollectiveMismatch}
    return classes.get(code, CollectiveError)(message, code)
