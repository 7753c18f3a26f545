"""The native half of the wheel."""

import os
from builtins import bytes as _bytes
from typing import Any, Callable, Optional, Sequence, final

__all__ = [
    "Archive",
    "Restoring",
    "Saver",
    "Saving",
    "latest_step",
    "prune_steps",
    "steps_json",
    "answer_trial",
    "Engine",
    "deserialize",
    "doctor_json",
    "route_json",
    "topology_json",
    "StreamLoad",
    "load_on_stream",
    "Opened",
    "GroupMemory",
    "Ranks",
    "Region",
    "serialize",
    "start_save",
    "Transfer",
    "Tensor",
    "__version__",
]

__version__: str

@final
class Engine:
    """Starts transfers. Its settings are measured while bytes move unless they are given.

    Args:
        depth: requests in flight over all workers.
        workers: threads.
        budget: the most bytes of memory that a transfer which keeps nothing may use.
    """

    def __new__(
        cls, *, depth: Optional[int] = None, workers: Optional[int] = None, budget: Optional[int] = None
    ) -> Engine: ...
    def load(
        self,
        filename: str | os.PathLike[str],
        *,
        tensors: Optional[Sequence[str]] = None,
        shard: Optional[tuple[int, int]] = None,
        device: str = "cpu",
        policy: str = "prefer",
        path: Optional[str] = None,
        verify: bool = False,
    ) -> Transfer:
        """Starts loading a file, an index or a folder; see `crowfly.load_file`."""

@final
class Transfer:
    """Bytes on their way. Waiting returns what arrived; dropping it, or interrupting the wait, cancels."""

    @property
    def total(self) -> int:
        """Bytes asked for."""
    @property
    def moved(self) -> int:
        """Bytes that have arrived so far."""
    @property
    def done(self) -> bool:
        """Whether waiting would return at once."""
    def cancel(self) -> None:
        """Asks it to stop; `wait` then raises `CancelledError`."""
    def wait(
        self, progress: Optional[Callable[[int, int], object]] = None
    ) -> tuple[dict[str, Tensor], list[Region], str, list[str]]:
        """Waits for the end: the tensors by name, the regions they lie in, the receipt as JSON, and notes.

        `progress(moved, total)` is called with bytes, some twenty times a second.
        """

@final
class StreamLoad:
    """Bytes on their way into a GPU's memory, in the order of a stream. Dropping it waits for them."""

    @property
    def done(self) -> bool:
        """Whether waiting would return at once."""
    def ahead(self) -> dict[str, Tensor]:
        """The tensors by name. Until `wait` has returned they are for what is queued on the same stream alone."""
    def regions(self) -> list[Region]:
        """The regions that the tensors lie in."""
    def wait(self) -> str:
        """Waits until the bytes are there: the receipt as JSON."""

def load_on_stream(
    filename: str | os.PathLike[str],
    handle: int,
    keeper: object,
    *,
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[tuple[int, int]] = None,
    device: str = "cuda:0",
) -> StreamLoad:
    """Queues the loading of a file, an index or a folder on a stream; see `crowfly.load_on_stream`."""

@final
class Region:
    """Memory that devices can reach."""

    @staticmethod
    def zeroed(nbytes: int, numa: Optional[int] = None) -> Region:
        """Host memory of `nbytes` zero bytes, on a NUMA node where one is given."""
    @property
    def nbytes(self) -> int:
        """How many bytes."""
    @property
    def place(self) -> str:
        """Where the memory is: `"host"`, `"host:1"`, `"gpu:0"`, `"peer:0000:3b:00.0"`."""
    @property
    def follows_file(self) -> bool:
        """Whether parts are pages of the file they come from; see `Tensor.follows_file`."""
    def bytes(self) -> Tensor:
        """The bytes as a tensor of type `U8` and one dimension. It shares the memory."""
    def __len__(self) -> int: ...

class _TensorBase:
    @property
    def dtype(self) -> str:
        """The element type, as safetensors writes it: `"F32"`, `"BF16"`, `"F8_E4M3"`."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension; empty for a scalar."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one to the next along each dimension."""
    @property
    def ndim(self) -> int:
        """How many dimensions."""
    @property
    def size(self) -> int:
        """How many elements."""
    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
    @property
    def place(self) -> str:
        """Where the memory is: `"host"`, `"host:1"`, `"gpu:0"`, `"peer:0000:3b:00.0"`."""
    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
    @property
    def readonly(self) -> bool:
        """Whether nobody may write into it."""
    @property
    def follows_file(self) -> bool:
        """Whether it is made of pages of the file it comes from.

        Nothing was copied then, and if the file is cut or overwritten in place, the tensor changes with it. What
        is written into the tensor does not reach the file.
        """
    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other without gaps, the last dimension fastest."""
    def contiguous(self) -> Tensor:
        """This tensor, or a copy of it without gaps."""
    def copy(self) -> Tensor:
        """A copy in memory of its own."""
    def bytes(self) -> Tensor:
        """The same memory as plain bytes: a tensor of type `U8` and one dimension."""
    def cpu(self) -> Tensor:
        """This tensor where it is in host memory, or a copy that is."""
    def tobytes(self) -> _bytes:
        """A copy as `bytes`, the last dimension fastest."""
    def numpy(self) -> Any:
        """As `numpy.ndarray`, without a copy where NumPy has the element type."""
    def torch(self) -> Any:
        """As `torch.Tensor`, without a copy."""
    def __getitem__(self, key: Any, /) -> Tensor:
        """The same memory seen through an index of integers, slices of any step, `...` and `None`."""
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A DLPack capsule. The bytes are in place before a tensor is given out, so a consumer's `stream` has nothing
        to wait for; one that makes no sense is refused. `dl_device=(1, 0)` gives host memory, `copy=True` memory of
        its own."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number: `(1, 0)` is host memory."""
    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3."""

@final
class Tensor(_TensorBase):
    """Elements of one type in memory that other libraries take without a copy.

    Through DLPack (`torch.from_dlpack`, `jax.dlpack.from_dlpack`, `cupy.from_dlpack`), the buffer protocol
    (`memoryview`) and NumPy's array interface (`numpy.asarray`). Tensors come from `crowfly.load_file` and
    `crowfly.safe_open`; the memory lives as long as anything made of it.
    """

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Opened:
    """An open checkpoint. Nothing but headers was read."""

    def __new__(cls, filename: str | os.PathLike[str], device: str, policy: str) -> Opened: ...
    def keys(self) -> list[str]: ...
    def offset_keys(self) -> list[str]: ...
    def metadata(self) -> Optional[dict[str, str]]: ...
    def info(self, name: str) -> tuple[str, list[int], int]: ...
    def tensor(self, name: str) -> Tensor: ...
    def slice(self, name: str, key: Any) -> Tensor: ...
    def receipts(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...

_CheckpointEntry = tuple[
    str,
    Any,
    Optional[tuple[str, list[int]]],
    Optional[tuple[list[int], list[int]]],
    bool,
]

@final
class Saver:
    """Saves one rank's part of checkpoints into a folder."""

    def __new__(
        cls,
        folder: str | os.PathLike[str],
        rank: int,
        world: int,
        *,
        staging: int,
        patience: float,
        session: str,
        replace: bool,
        keep: Optional[int],
        keep_every: Optional[int],
        policy: str,
        read_ceiling: Optional[float] = None,
    ) -> Saver: ...
    def save(self, step: int, entries: Sequence[_CheckpointEntry], objects: str) -> Saving:
        """Copies the tensors into staging and returns; the rest happens in the background."""
    def prepare(self, entries: Sequence[_CheckpointEntry]) -> None:
        """Begins to make memory ready for copies of such tensors, in the background."""
    @property
    def ready(self) -> int:
        """Bytes of memory for copies that is there, without what a save in the background holds."""
    def settle(self) -> None:
        """Waits for a save in the background, and raises its error unless somebody has heard of it."""

@final
class Saving:
    """A save that goes on in the background."""

    @property
    def step(self) -> int: ...
    @property
    def stall_seconds(self) -> float:
        """How long the caller waited for the copy, in seconds."""
    @property
    def done(self) -> bool:
        """Whether waiting would return at once."""
    def wait(self) -> str:
        """Waits until the checkpoint is published, and gives the receipt as JSON.

        An interrupt ends the waiting, not the save.
        """

@final
class Archive:
    """A checkpoint whose description was read. While it lives, nothing prunes it away."""

    def __new__(cls, path: str | os.PathLike[str], step: Optional[int] = None) -> Archive: ...
    @property
    def path(self) -> os.PathLike[str]: ...
    @property
    def step(self) -> Optional[int]: ...
    @property
    def world(self) -> Optional[int]: ...
    @property
    def format(self) -> str: ...
    @property
    def notes(self) -> list[str]: ...
    def keys(self) -> list[str]: ...
    def info(self, name: str) -> Optional[tuple[str, list[int]]]: ...
    def parts(self, name: str) -> list[tuple[list[int], list[int]]]: ...
    def objects_json(self, rank: int) -> str: ...
    def paths_json(self) -> str: ...
    def restore(
        self,
        wants: Sequence[
            tuple[str, Optional[tuple[int, int, int]], Optional[tuple[list[int], list[int]]]]
        ],
        check: bool,
        policy: str,
        device: str,
    ) -> Restoring: ...
    def verify(self) -> Restoring: ...

@final
class Restoring:
    """A restore that is under way. Interrupting the wait gives it up."""

    @property
    def total(self) -> int: ...
    def wait(
        self, progress: Optional[Callable[[int, int], object]] = None
    ) -> tuple[list[tuple[str, Tensor, list[int], list[int]]], Optional[str], int, int]: ...
    def verdict(
        self, progress: Optional[Callable[[int, int], object]] = None
    ) -> tuple[list[str], int, int]: ...

@final
class GroupMemory:
    """Memory of a group, which all ranks of a host have mapped."""

    @property
    def address(self) -> int:
        """The address of its first byte."""
    @property
    def bytes(self) -> int:
        """How many bytes there are."""
    @property
    def shared(self) -> bool:
        """Whether other ranks have mapped it."""

@final
class Ranks:
    """The ranks of a job, as one of them. Memory comes as address and length, and is lent for the call."""

    def __new__(
        cls,
        store: object,
        job: str,
        rank: int,
        size: int,
        *,
        key: str,
        address: str,
        shm: bool,
        timeout: float,
    ) -> Ranks: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def origin(self) -> list[int]: ...
    def memory(self, bytes: int, timeout: float) -> GroupMemory: ...
    def all_reduce_in(
        self,
        memory: GroupMemory,
        start: int,
        bytes: int,
        element: str,
        reduction: str,
        timeout: float,
    ) -> str: ...
    def send(self, data: tuple[int, int], to: int, tag: int, timeout: float) -> str: ...
    def receive(
        self, data: tuple[int, int], from_: Optional[int], tag: int, timeout: float
    ) -> str: ...
    def all_reduce(
        self, data: tuple[int, int], element: str, reduction: str, timeout: float
    ) -> str: ...
    def reduce_scatter(
        self,
        input: tuple[int, int],
        output: tuple[int, int],
        element: str,
        reduction: str,
        timeout: float,
    ) -> str: ...
    def all_gather(
        self, input: tuple[int, int], output: tuple[int, int], timeout: float
    ) -> str: ...
    def broadcast(self, data: tuple[int, int], root: int, timeout: float) -> str: ...
    def all_to_all(
        self,
        input: tuple[int, int],
        to: Sequence[int],
        output: tuple[int, int],
        from_: Sequence[int],
        timeout: float,
    ) -> str: ...
    def barrier(self, timeout: float) -> str: ...
    def shrink(self, timeout: float) -> Ranks: ...
    def close(self) -> None: ...

def latest_step(folder: str | os.PathLike[str]) -> Optional[int]: ...
def steps_json(folder: str | os.PathLike[str]) -> str: ...
def prune_steps(
    folder: str | os.PathLike[str],
    keep: int,
    keep_every: Optional[int],
    dry_run: bool,
    patience: float,
) -> tuple[list[int], list[int], list[int], list[int]]: ...
def answer_trial(question: str) -> None: ...
def deserialize(data: bytes) -> list[tuple[str, Tensor]]: ...
def serialize(
    entries: Sequence[tuple[str, Any, Optional[tuple[str, list[int]]]]],
    metadata: Optional[dict[str, str]] = None,
) -> bytes: ...
def start_save(
    engine: Engine,
    entries: Sequence[tuple[str, Any, Optional[tuple[str, list[int]]]]],
    filename: str | os.PathLike[str],
    metadata: Optional[dict[str, str]] = None,
    *,
    policy: str = "prefer",
    path: Optional[str] = None,
) -> Transfer: ...
def topology_json() -> str: ...
def doctor_json() -> str: ...
def route_json(start: str, end: str) -> str: ...
