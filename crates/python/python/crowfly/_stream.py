"""Loading in the order of a stream, so that kernels follow without anybody waiting."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from . import _crowfly
from ._crowfly import Tensor
from ._load import Filename, Tensors, device_word
from ._receipt import Receipt
from .errors import UsageError


class StreamLoad:
    """Bytes on their way into a GPU's memory; see :func:`load_on_stream`. Dropping it waits for them."""

    ahead: dict[str, Tensor]
    """The tensors by name, for work that is queued on the same stream. Before :meth:`wait` has returned, whoever
    else looks at them (the host, another stream) may see what was in that memory before."""

    def __init__(self, queued: _crowfly.StreamLoad) -> None:
        self._queued = queued
        self.ahead = queued.ahead()

    @property
    def done(self) -> bool:
        """Whether :meth:`wait` returns at once."""
        return self._queued.done

    def wait(self) -> Tensors[Tensor]:
        """Waits until the bytes are there: the tensors, for everybody, with the ``receipt``.

        Raises:
            CrowflyError: when a request failed, or the library took a detour through host memory all the same. What
                followed on the stream has then worked with wrong bytes, or with ones that came another way.
        """
        receipt = self._queued.wait()
        arrived: Tensors[Tensor] = Tensors(self.ahead)
        arrived.receipt = Receipt._parse(receipt)
        arrived.notes, arrived.regions = [], self._queued.regions()
        return arrived


def load_on_stream(
    filename: Filename,
    stream: Any,
    device: Any = "cuda:0",
    *,
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
) -> StreamLoad:
    """Queues a load of safetensors on a stream of a GPU and returns at once.

    Kernels that are queued on that stream afterwards find the tensors in place; the host waits for nothing in
    between (cuFile's and hipFile's stream-ordered reads). Nothing is done in another way in its place: where the storage
    library does not go straight for this file, or its version has no such reads, it is refused with the reason, and
    ``load_file`` is the way. So far this has run with stand-ins alone, and on no GPU.

    Args:
        filename: as for :func:`load_file`. Its tensors must begin where their types want it, as writers that pad see to.
        stream: a stream of the device: PyTorch's, CuPy's, one with ``__cuda_stream__``, or the handle itself, 0 for
            the default one. It is taken at its word: a number that is no stream ends the process.
        device: ``"cuda:0"`` or ``"gpu:0"``, as for :func:`load_file`.
        tensors: load only tensors whose name matches one of these globs.
        shard: load only one rank's share, as ``(rank, ranks)``.

    Raises:
        RouteRefused: where it would not go straight, with what stands in the way.
        LayoutError: of a file whose tensors would have to be moved first.
    """
    queued = _crowfly.load_on_stream(
        os.fspath(filename),
        handle_of(stream),
        stream,
        tensors=None if tensors is None else list(tensors),
        shard=shard,
        device=device_word(device),
    )
    return StreamLoad(queued)


def handle_of(stream: Any) -> int:
    """The handle of a stream in its runtime."""
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        version, handle = stream.__cuda_stream__()
        if version != 0:
            raise UsageError(f"version {version} of __cuda_stream__ is not known")
    for name in ("cuda_stream", "ptr"):
        handle = getattr(handle, name, handle)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise UsageError(f"{stream!r} is no stream", hint="pass torch.cuda.current_stream()")
    return handle
