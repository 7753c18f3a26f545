"""A backend of ``torch.distributed`` for tensors in host memory, with typed failures and receipts.

Importing this module registers it::

    import crowfly.distributed
    torch.distributed.init_process_group("crowfly")

Ranks of one host share memory, others reach each other by TCP; see ``receipt()`` for what the last collective of
a group did. The key by which ranks know each other goes through PyTorch's store: whoever can read the store can
join the job, as with PyTorch's own backends.

When a rank dies, every other rank gets the same :class:`RanksLost` from ``wait()`` within the time limit, and so
does every later call; :func:`failure` gives it where PyTorch has made another exception of it, as
``DistributedDataParallel`` does.
"""

# PyTorch calls these methods by position; what its stubs call the arguments differs between versions.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from ._collective import CollectiveError, CollectiveLate, CollectiveMismatch, RanksLost
from ._crowfly import GroupMemory, Ranks
from ._kinds import element, reduction_of, refuse_what_is_none
from ._work import Work
from .errors import UsageError

__all__ = [
    "CollectiveError",
    "CollectiveLate",
    "CollectiveMismatch",
    "Options",
    "ProcessGroup",
    "RanksLost",
    "empty",
    "failure",
    "receipt",
]

#: What PyTorch may call that this backend has nothing for: refused by name, so that nobody looks for the reason in
#: PyTorch.
NOT_BUILT = ("merge_remote_group", "monitored_barrier", "new_window", "reconfigure", "split_group")
#: Sends and receives of one group that wait at the same time; what is more waits for its turn.
MOST_COURIERS = 64
#: Where tensors of a group's memory may begin.
ALIGNMENT = 64
KEY = "crowfly-key"
LOOPBACK = "127.0.0.1"


class Options:
    """How ranks reach each other; ``init_process_group(..., pg_options=Options(address="10.0.0.5"))``.

    Attributes:
        address: the IP address that other hosts reach this rank at. Left out, it is the one by which this host
            reaches the store, or loopback where the store is on this host.
        shm: whether ranks of one host share memory.
    """

    def __init__(self, address: Optional[str] = None, *, shm: bool = True) -> None:
        self.address = address
        self.shm = shm


class _Directory:
    """PyTorch's store, as the library asks for it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, name: str, entry: str) -> None:
        self._store.set(name, entry)

    def get(self, name: str) -> Optional[str]:
        if not self._store.check([name]):
            return None
        entry: bytes = self._store.get(name)
        return entry.decode()


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # PyTorch is not looked into
    """The ranks of a job or of a part of it, for PyTorch.

    Calls are carried out one after the other by a thread of the group, so they may be waited for later.
    """

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        super().__init__(ranks.rank, ranks.size)
        self._ranks = ranks
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, "crowfly-collectives")
        # What goes between two ranks waits for one of them, and nothing else is to wait for that.
        self._couriers = ThreadPoolExecutor(MOST_COURIERS, "crowfly-courier")
        # Memory of the group: nothing of it goes away while the group is there.
        self._memory: list[GroupMemory] = []
        self._receipt: Optional[str] = None
        self._failure: Optional[CollectiveError] = None

    def getBackendName(self) -> str:
        return "crowfly"

    def name(self) -> str:
        return "crowfly"

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        # PyTorch asks for what does the work under a group; here that is the group.
        if device.type != "cpu":
            raise UsageError(f"the backend crowfly takes tensors in host memory, not on {device}", "not-host-memory")
        return self

    def rank(self) -> int:
        return self._ranks.rank

    def size(self) -> int:
        return self._ranks.size

    @property
    def failure(self) -> Optional[CollectiveError]:
        """Why the group makes no call any more, if it does not."""
        return self._failure

    def receipt(self) -> Optional[dict[str, Any]]:
        """What the last collective that ended well did."""
        return None if self._receipt is None else json.loads(self._receipt)

    def shrink(self, timeout: Optional[float] = None) -> ProcessGroup:
        """The ranks that are left after a failure, as a group of its own; all of them call it."""
        seconds = self._timeout if timeout is None else timeout
        return ProcessGroup(self._ranks.shrink(seconds), self._timeout)

    def empty(self, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A zeroed tensor in memory of the group, which the ranks of a host have mapped: an all-reduce of it, or of
        a part that begins at a multiple of 64 bytes, copies nothing. All ranks call it, with the same arguments.

        The memory goes when the group does; the tensor must not be used after that.
        """
        work = Work([])
        made: list[GroupMemory] = []
        count, each = math.prod(size), torch.empty(0, dtype=dtype).element_size()

        def call(seconds: float) -> None:
            made.append(self._ranks.memory(max(1, count * each), seconds))

        self._run(self._thread, work, call, self._timeout)
        work.wait()
        [memory] = made
        self._memory.append(memory)
        lent = (ctypes.c_uint8 * (count * each)).from_address(memory.address)
        # Whoever holds the array holds what its bytes lie in; its type, which is made here, declares no such name.
        setattr(lent, "owner", memory)
        whole = torch.frombuffer(lent, dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
        return whole.view(dtype).view(size)

    def _in_memory(self, tensor: torch.Tensor) -> Optional[tuple[GroupMemory, int]]:
        """The group's memory that a tensor lies in, and where."""
        if not self._memory or not tensor.is_contiguous():
            return None
        start, length = _memory(tensor)
        for memory in self._memory:
            at = start - memory.address
            if memory.shared and 0 <= at and at + length <= memory.bytes and at % ALIGNMENT == 0:
                return memory, at
        return None

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._couriers.shutdown()
        self._ranks.close()

    def abort(self) -> None:
        self.shutdown()

    def _start(
        self, opts: Any, tensors: list[torch.Tensor], call: Callable[[float], Optional[str]]
    ) -> Work:
        """Has the group's thread make a call; ``call`` gets its time in seconds and answers the receipt."""
        _refuse_other_places(tensors)
        work = Work(tensors)
        self._run(self._thread, work, call, self._limit(opts))
        return work

    def _limit(self, opts: Any) -> float:
        """The seconds that a call may take."""
        limit = getattr(opts, "timeout", None)
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else 0.0
        # PyTorch says a negative or no time where the group's own holds.
        return min(seconds, self._timeout) if seconds > 0 else self._timeout

    def _run(
        self,
        threads: ThreadPoolExecutor,
        work: Work,
        call: Callable[[float], Optional[str]],
        seconds: float,
    ) -> None:
        def run() -> None:
            error: Optional[BaseException] = None
            try:
                receipt = call(seconds)
                if threads is self._thread:
                    self._receipt = receipt or self._receipt
            except CollectiveError as failed:
                error = failed
                # What goes between two ranks breaks nothing of the group's.
                if threads is self._thread:
                    self._failure = failed
            except BaseException as other:  # noqa: BLE001  # whoever waits is to hear of it
                error = other
            work.end(error)

        threads.submit(run)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        reduction = reduction_of(opts)
        for tensor in tensors:
            refuse_what_is_none(tensor, reduction)

        def call(seconds: float) -> Optional[str]:
            receipt = None
            for tensor in tensors:
                place = self._in_memory(tensor)
                if place is not None:
                    memory, at = place
                    how = (element(tensor), reduction, seconds)
                    receipt = self._ranks.all_reduce_in(memory, at, _bytes(tensor), *how)
                    continue
                with _compact(tensor) as data:
                    receipt = self._ranks.all_reduce(
                        _memory(data), element(data), reduction, seconds
                    )
            return receipt

        return self._start(opts, tensors, call)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        # Everyone has the result, and all but the root forget it.
        reduction, root = reduction_of(opts), opts.rootRank
        for tensor in tensors:
            refuse_what_is_none(tensor, reduction)

        def call(seconds: float) -> Optional[str]:
            receipt = None
            for tensor in tensors:
                data = tensor.detach().clone(memory_format=torch.contiguous_format)
                receipt = self._ranks.all_reduce(_memory(data), element(data), reduction, seconds)
                if self._ranks.rank == root:
                    tensor.detach().copy_(data)
            return receipt

        return self._start(opts, tensors, call)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        root = opts.rootRank

        def call(seconds: float) -> Optional[str]:
            receipt = None
            for tensor in tensors:
                with _compact(tensor) as data:
                    receipt = self._ranks.broadcast(_memory(data), root, seconds)
            return receipt

        return self._start(opts, tensors, call)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        def call(seconds: float) -> Optional[str]:
            receipt = None
            for out, own in zip(outputs, inputs):
                own = own.detach().contiguous()
                whole = own.new_empty((len(out), *own.shape))
                receipt = self._ranks.all_gather(_memory(own), _memory(whole), seconds)
                for tensor, part in zip(out, whole):
                    tensor.detach().copy_(part.view(tensor.shape))
            return receipt

        return self._start(opts, [tensor for out in outputs for tensor in out], call)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        def call(seconds: float) -> Optional[str]:
            with _compact(output) as whole:
                own_part = own.detach().contiguous()
                if _overlap(own_part, whole):
                    own_part = own_part.clone()
                return self._ranks.all_gather(_memory(own_part), _memory(whole), seconds)

        return self._start(opts, [output], call)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        reduction = reduction_of(opts)

        def call(seconds: float) -> Optional[str]:
            receipt = None
            for output, parts in zip(outputs, inputs):
                whole = torch.cat([part.detach().reshape(-1) for part in parts])
                receipt = self._scatter_reduced(output, whole, reduction, seconds)
            return receipt

        return self._start(opts, outputs, call)

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
    ) -> Work:
        reduction = reduction_of(opts)

        def call(seconds: float) -> Optional[str]:
            return self._scatter_reduced(output, whole.detach().contiguous(), reduction, seconds)

        return self._start(opts, [output], call)

    def _scatter_reduced(
        self, output: torch.Tensor, whole: torch.Tensor, reduction: str, seconds: float
    ) -> str:
        refuse_what_is_none(output, reduction)
        with _compact(output) as own:
            if _overlap(own, whole):
                whole = whole.clone()
            memory = (_memory(whole), _memory(own))
            return self._ranks.reduce_scatter(*memory, element(own), reduction, seconds)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_split_sizes: Optional[list[int]] = None,
        input_split_sizes: Optional[list[int]] = None,
        opts: Any = None,
    ) -> Work:
        to = self._splits(source, input_split_sizes)
        from_each = self._splits(output, output_split_sizes)

        def call(seconds: float) -> Optional[str]:
            with _compact(output) as into:
                data = source.detach().contiguous()
                return self._ranks.all_to_all(
                    _memory(data), to, _memory(into), from_each, seconds
                )

        return self._start(opts, [output], call)

    def _splits(self, tensor: torch.Tensor, sizes: Optional[Sequence[int]]) -> list[int]:
        """Bytes for each rank of a tensor that is split along its first dimension."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % self.size():
                raise UsageError(f"{rows} rows cannot be split evenly among {self.size()} ranks")
            sizes = [rows // self.size()] * self.size()
        row = tensor.numel() // max(1, rows) * tensor.element_size()
        return [size * row for size in sizes]

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._exchange(opts, inputs, outputs)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        sent: list[Optional[torch.Tensor]] = [None] * self.size()
        sent[opts.rootRank] = inputs[0]
        received = outputs[0] if outputs else [None] * self.size()
        return self._exchange(opts, sent, received)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        sent = inputs[0] if inputs else [None] * self.size()
        received: list[Optional[torch.Tensor]] = [None] * self.size()
        received[opts.rootRank] = outputs[0]
        return self._exchange(opts, sent, received)

    def _exchange(
        self,
        opts: Any,
        sent: Sequence[Optional[torch.Tensor]],
        received: Sequence[Optional[torch.Tensor]],
    ) -> Work:
        """Sends each rank a tensor, or nothing, and receives one from each."""

        def call(seconds: float) -> Optional[str]:
            to = [0 if part is None else _bytes(part) for part in sent]
            from_each = [0 if part is None else _bytes(part) for part in received]
            parts = [_flat(part) for part in sent if part is not None]
            source = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
            into = torch.empty(sum(from_each), dtype=torch.uint8)
            memory = (_memory(source), to, _memory(into), from_each)
            receipt = self._ranks.all_to_all(*memory, seconds)
            at = 0
            for tensor, length in zip(received, from_each):
                if tensor is not None:
                    part = into[at : at + length].view(tensor.dtype).view(tensor.shape)
                    tensor.detach().copy_(part)
                at += length
            return receipt

        return self._start(opts, [tensor for tensor in received if tensor is not None], call)

    def barrier(self, opts: Any = None) -> Work:
        return self._start(opts, [], self._ranks.barrier)

    # Names that other versions of PyTorch call the same by.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        works = [self.all_gather_single(out, own, opts) for out, own in zip(outputs, inputs)]
        return works[-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        works = [self.reduce_scatter_single(out, all_, opts) for out, all_ in zip(outputs, inputs)]
        return works[-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        # There, the outputs come by rank and then by input; here, the other way round.
        return self.allgather([list(of_input) for of_input in zip(*outputs)], inputs, opts)

    def gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> Work:
        # Only the number of elements is given: one may be as long as all, or have a row for each rank.
        gathers = self.rank() == opts.rootRank
        parts = list(output.view(-1).tensor_split(self.size())) if gathers else []
        return self.gather([parts] if parts else [], [own], opts)

    gather_into_tensor = gather_single

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        def call(seconds: float) -> None:
            for tensor in tensors:
                data = tensor.detach().contiguous()
                self._ranks.send(_memory(data), dst, tag, seconds)

        return self._carry(Work(tensors), tensors, call)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    recvAnysource = recv_anysource

    def _receive(self, tensors: list[torch.Tensor], src: Optional[int], tag: int) -> Work:
        work = Work(tensors)

        def call(seconds: float) -> None:
            for tensor in tensors:
                with _compact(tensor) as data:
                    receipt = self._ranks.receive(_memory(data), src, tag, seconds)
                work.source = int(json.loads(receipt)["from"])

        return self._carry(work, tensors, call)

    def _carry(self, work: Work, tensors: list[torch.Tensor], call: Callable[[float], None]) -> Work:
        """Has a thread of its own do what goes between this rank and one other."""
        _refuse_other_places(tensors)
        self._run(self._couriers, work, call, self._timeout)
        return work


def _not_built(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(f"the backend crowfly has no {name}", "not-built", "use another backend for it")

    return refuse


for _name in NOT_BUILT:
    setattr(ProcessGroup, _name, _not_built(_name))


def _refuse_other_places(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise UsageError(
                f"the backend crowfly takes dense tensors in host memory, not a {tensor.layout} tensor"
                f" on {tensor.device}",
                "not-host-memory",
            )


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), _bytes(tensor)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (a, a_len), (b, b_len) = _memory(one), _memory(other)
    return a < b + b_len and b < a + a_len


@contextlib.contextmanager
def _compact(tensor: torch.Tensor) -> Any:
    """The tensor's own memory where it has no gaps, or else a copy that is copied back."""
    detached = tensor.detach()
    if detached.is_contiguous():
        yield detached
        return
    copy = detached.contiguous()
    yield copy
    detached.copy_(copy)


def _address(options: Optional[Options], store: Any) -> str:
    """The address that others reach this rank at."""
    if options is not None and options.address:
        return options.address
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if not host or host in ("localhost", LOOPBACK, "::1"):
        return LOOPBACK
    # Nothing is sent: this asks the kernel which way it would go.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, store.port))
        own: str = probe.getsockname()[0]
        return own


def _create(given: Any, options: Any) -> ProcessGroup:
    options = options if isinstance(options, Options) else None
    store, rank, size = given.store, given.group_rank, given.group_size
    seconds = given.timeout.total_seconds()
    if rank == 0:
        store.set(KEY, secrets.token_hex(32))
    key: bytes = store.get(KEY)
    ranks = Ranks(
        _Directory(store),
        "torch",
        rank,
        size,
        key=key.decode(),
        address=_address(options, store),
        shm=options is None or options.shm,
        timeout=seconds,
    )
    return ProcessGroup(ranks, seconds)


def _of(group: Optional[dist.ProcessGroup]) -> ProcessGroup:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ProcessGroup):
        raise UsageError("the group has another backend than crowfly")
    return found


def empty(
    *size: int, dtype: torch.dtype = torch.float32, group: Optional[dist.ProcessGroup] = None
) -> torch.Tensor:
    """A zeroed tensor in a group's own memory, whose all-reduce copies nothing; see :meth:`ProcessGroup.empty`."""
    return _of(group).empty(*size, dtype=dtype)


def failure(group: Optional[dist.ProcessGroup] = None) -> Optional[CollectiveError]:
    """Why a group, the default one unless given, makes no call any more; ``None`` while it does."""
    return _of(group).failure


def receipt(group: Optional[dist.ProcessGroup] = None) -> Optional[dict[str, Any]]:
    """What the last collective of a group did: algorithm and why, bytes by the way they went, time and waiting."""
    return _of(group).receipt()


if "CROWFLY" not in dist.Backend._plugins:
    dist.Backend.register_backend("crowfly", _create, extended_api=True, devices=["cpu"])
