"""Telling how far a transfer is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Generator, Optional, Union

Callback = Callable[[int, int], object]
"""Called with the bytes that have arrived and the bytes in all."""

Progress = Union[bool, Callback, None]
"""``True`` draws a bar where tqdm is installed; a function is called some twenty times a second."""


@contextmanager
def telling(progress: Progress, what: str) -> Generator[Optional[Callback], None, None]:
    """What to call while a transfer runs."""
    if callable(progress):
        yield progress
        return
    bar_class = _tqdm() if progress else None
    if bar_class is None:
        yield None
        return
    with bar_class(desc=what, unit="B", unit_scale=True, leave=False) as bar:

        def tell(moved: int, total: int) -> None:
            bar.total = total
            bar.update(moved - bar.n)

        yield tell


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
