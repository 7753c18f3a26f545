"""Loading everything at once."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Sequence, TypeVar, Union

from ._crowfly import Engine, Region, Tensor, Transfer, deserialize
from ._progress import Progress, telling
from ._receipt import Receipt

T = TypeVar("T")
U = TypeVar("U")

Filename = Union[str, "os.PathLike[str]"]


class Tensors(Dict[str, T]):
    """Tensors by name, in the order of files and of the bytes in them; a ``dict`` that knows how it came to be."""

    receipt: Receipt
    """What loading them took, and which way each byte went."""
    notes: list[str]
    """What was odd about the files, though no reason to refuse them."""
    regions: list[Region]
    """The memory that they lie in. It lives as long as any tensor in it."""

    def map(self, convert: Callable[[T], U]) -> Tensors[U]:
        """The same with every tensor converted."""
        made: Tensors[U] = Tensors((name, convert(tensor)) for name, tensor in self.items())
        made.receipt, made.notes, made.regions = self.receipt, self.notes, self.regions
        return made


def device_word(device: Any) -> str:
    """A device as crowfly writes it, from a word, a CUDA device's number or a ``torch.device``."""
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def start_load(
    filename: Filename,
    device: Any = "cpu",
    policy: str = "prefer",
    *,
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
    path: Optional[str] = None,
    verify: bool = False,
    engine: Optional[Engine] = None,
) -> Transfer:
    """As :func:`load_file`, but returns once the bytes are on their way; :func:`finish_load` waits for them."""
    return (engine or Engine()).load(
        os.fspath(filename),
        tensors=[tensors] if isinstance(tensors, str) else tensors and list(tensors),
        shard=shard,
        device=device_word(device),
        policy=policy,
        path=path,
        verify=verify,
    )


def finish_load(transfer: Transfer, progress: Progress = None) -> Tensors[Tensor]:
    """Waits for what :func:`start_load` started."""
    with telling(progress, "loading") as tell:
        found, regions, receipt, notes = transfer.wait(tell)
    loaded: Tensors[Tensor] = Tensors(found)
    loaded.receipt = Receipt._parse(receipt)
    loaded.notes, loaded.regions = notes, regions
    return loaded


def load_file(
    filename: Filename,
    device: Any = "cpu",
    policy: str = "prefer",
    *,
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
    path: Optional[str] = None,
    verify: bool = False,
    progress: Progress = None,
    engine: Optional[Engine] = None,
) -> Tensors[Tensor]:
    """Loads a safetensors file, a model folder or its index.

    Python's lock is let go while bytes move, and Ctrl-C cancels.

    Args:
        filename: a safetensors file, a ``*.safetensors.index.json``, or a folder with either.
        device: ``"cpu"``, ``"cpu:1"`` (a NUMA node), ``"cuda:0"`` (the GPU that PyTorch calls so, of NVIDIA or AMD), or
            one of crowfly's places: ``"gpu:0"`` counts the machine's GPUs by PCI address, hidden ones included.
        policy: ``"require"`` (direct, or :class:`~crowfly.errors.RouteRefused` before the first byte),
            ``"prefer"`` (the best way there is, every detour named in the receipt), ``"staged"``.
        tensors: load only tensors whose name matches this glob, or one of these.
        shard: load only one rank's share, as ``(rank, ranks)``: whole tensors, balanced by bytes.
        path: force one engine path, to compare: ``"direct"``, ``"threads"``, ``"mapped"`` or ``"cached"``.
        verify: compare the checksum of what arrived with a second, independent reading of the source.
        progress: ``True`` for a bar where tqdm is installed, on a terminal or in a notebook, or
            ``progress(moved_bytes, total_bytes)``.
        engine: settings other than the default ones.

    Returns:
        The tensors by name, with the ``receipt``. They are writable, and whether they follow their file says
        :attr:`Tensor.follows_file`.

    Raises:
        CrowflyError: with a stable ``code``; see :mod:`crowfly.errors`.
    """
    transfer = start_load(
        filename,
        device,
        policy,
        tensors=tensors,
        shard=shard,
        path=path,
        verify=verify,
        engine=engine,
    )
    return finish_load(transfer, progress)


def load(data: bytes) -> dict[str, Tensor]:
    """Tensors from the bytes of a safetensors file. They are those bytes themselves, so they are read-only."""
    return dict(deserialize(data))
