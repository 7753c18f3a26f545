"""What is under way, as PyTorch waits for it."""

# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

__all__ = ["Work"]


class Work(dist._Work):  # type: ignore[misc]  # PyTorch is not looked into
    """A collective that is under way."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._ended: torch.futures.Future[Any] = torch.futures.Future()
        self._error: Optional[BaseException] = None
        # A future of PyTorch has an error of its own, for those who wait for it in C++, only where a callback
        # raised it.
        self._future = self._ended.then(lambda _: self._outcome())
        #: The rank that something was received from.
        self.source = -1

    def _outcome(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def end(self, error: Optional[BaseException]) -> None:
        self._error = error
        self._ended.set_result(None)

    def is_completed(self) -> bool:
        return bool(self._ended.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Waits until it has ended, which the time limit of the call sees to; raises why it failed."""
        del timeout
        self._ended.wait()
        self._outcome()
        return True

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def result(self) -> list[torch.Tensor]:
        return self._outcome()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future
