"""Telling how far a transfer is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Generator, Optional, Union

Callback = Callable[[int, int], object]
"""Called with the bytes that have arrived and the bytes in all."""

Progress = Union[bool, Callback, None]
"""``True`` draws a bar where tqdm is installed, on a terminal or in a notebook; a function is called some twenty times a
second."""


@contextmanager
def telling(progress: Progress, what: str) -> Generator[Optional[Callback], None, None]:
    """What to call while a transfer runs."""
    if callable(progress):
        yield progress
        return
    made = _bar(what) if progress else None
    if made is None:
        yield None
        return
    with made as bar:

        def tell(moved: int, total: int) -> None:
            bar.total = total
            bar.update(moved - bar.n)

        yield tell


def _bar(what: str) -> Any:
    try:
        from tqdm import asyncio, auto
    except ImportError:
        return None
    # tqdm takes None for: on a terminal alone. A notebook is none, and draws bars of its own kind.
    in_notebook = auto.tqdm is not asyncio.tqdm
    return auto.tqdm(desc=what, unit="B", unit_scale=True, leave=False, disable=False if in_notebook else None)
