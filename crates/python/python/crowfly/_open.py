"""Reading one tensor or slice at a time."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Callable, Optional

from ._crowfly import Opened, Tensor
from ._frameworks import conversion
from ._load import Filename, device_word
from ._receipt import Receipt
from .errors import UsageError


class safe_open:  # noqa: N801  (the name that people know)
    """Opens a safetensors file, a model folder or its index, reading nothing but headers.

    A tensor that lies in the page cache, or is small, is made of the file's own pages; a large one that does
    not is brought by the engine into memory of its own, and leaves a receipt.

    Args:
        filename: as for :func:`crowfly.load_file`.
        framework: what tensors become: ``"pt"``, ``"np"``, ``"jax"``, or ``"crowfly"`` for :class:`crowfly.Tensor`.
        device: as for :func:`crowfly.load_file`.
        policy: as for :func:`crowfly.load_file`.

    Example::

        with crowfly.safe_open("model.safetensors", framework="pt") as file:
            part = file.get_slice("embedding")[:, ::8]
    """

    def __init__(
        self, filename: Filename, framework: str = "crowfly", device: Any = "cpu", *, policy: str = "prefer"
    ) -> None:
        self._convert: Callable[[Tensor], Any] = conversion(framework)
        self._name = os.fspath(filename)
        self._file: Optional[Opened] = Opened(self._name, device_word(device), policy)

    def _opened(self) -> Opened:
        if self._file is None:
            raise UsageError("this file was closed", "closed")
        return self._file

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Tensors that were taken from it stay as they are."""
        self._file = None

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return self._opened().keys()

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of files and of the bytes in them."""
        return self._opened().offset_keys()

    def metadata(self) -> Optional[dict[str, str]]:
        """What the header says besides, or ``None``."""
        return self._opened().metadata()

    def get_tensor(self, name: str) -> Any:
        """One tensor, as the framework has them."""
        return self._convert(self._opened().tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, one after the other; :func:`crowfly.load_file` brings them faster."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> Slice:
        """A tensor to be cut before it is read."""
        return Slice(self._opened(), name, self._convert)

    @property
    def receipts(self) -> list[Receipt]:
        """What the engine did so far. What was made of the file's pages needed no transfer."""
        return [Receipt._parse(text) for text in self._opened().receipts()]

    def __repr__(self) -> str:
        if self._file is None:
            return f"crowfly.safe_open({self._name!r}, closed)"
        return f"crowfly.safe_open({self._name!r}, {len(self._file)} tensors)"

    def __len__(self) -> int:
        return len(self._opened())

    def __contains__(self, name: str) -> bool:
        return name in self._opened()


class Slice:
    """A tensor of an open file, of which an index picks a part: ``file.get_slice("weight")[:, 128:256]``."""

    def __init__(self, file: Opened, name: str, convert: Callable[[Tensor], Any]) -> None:
        self._file, self._name, self._convert = file, name, convert
        self._dtype, self._shape, _ = file.info(name)

    def __repr__(self) -> str:
        return f"crowfly.Slice({self._name!r}, {self._dtype}, {list(self._shape)})"

    def get_shape(self) -> list[int]:
        """Elements along each dimension of the whole tensor."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """The element type, as safetensors writes it: ``"F32"``."""
        return self._dtype

    def __getitem__(self, key: Any) -> Any:
        """The part that integers, slices of any step, ``...`` and ``None`` pick, without gaps.

        Indices that lie outside of the tensor are an error, also at the ends of slices.
        """
        return self._convert(self._file.slice(self._name, key))
