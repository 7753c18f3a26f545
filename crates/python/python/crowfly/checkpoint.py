"""Checkpoints of training: sharded, asynchronous, published at one instant, checked when they are restored.

A *state* is what a training script has at hand: dicts, lists and tuples, nested, of tensors and small values; what
``state_dict()`` of models, optimizers, schedulers and data loaders gives. Tensors become safetensors files, one
for each rank; the rest becomes JSON. Nothing is pickled, neither on the way out nor on the way in.

::

    from crowfly import checkpoint

    saver = checkpoint.Checkpointer("checkpoints", keep=3)
    restored = saver.restore_latest()
    ...
    saver.save_async(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

With several ranks (``RANK`` and ``WORLD_SIZE`` of torchrun, unless given), a plain tensor is one that every rank
holds alike: the ranks divide the writing. :class:`Part` marks one rank's part of a tensor that is cut along one
dimension or several, :class:`Own` a tensor that each rank has its own of. A kill at any instant leaves the last good one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Generator, Mapping, Optional, Sequence

from . import _structure
from ._crowfly import Archive, Saver, Saving, latest_step, prune_steps, steps_json
from ._frameworks import conversion
from ._load import Filename, device_word
from ._progress import Progress, telling
from ._receipt import Ceiling, Json, Receipt
from ._structure import Leaf, Own, Part
from .errors import NotFoundError, UsageError

__all__ = [
    "Checkpointer",
    "Own",
    "Part",
    "Pending",
    "Pruned",
    "Restored",
    "RestoreCost",
    "SaveReceipt",
    "Step",
    "Verified",
    "latest",
    "prune",
    "restore",
    "save",
    "save_async",
    "steps",
    "verify",
]

PATIENCE = 600.0
"""Seconds that ranks wait for each other, and for whoever holds the folder."""

STAGING = 1 << 30
"""Bytes of memory for copies of tensors that are not yet on the drive."""


@dataclass(frozen=True)
class RestoreCost:
    """What reading one rank's file back would take at the drive's ceiling."""

    bytes: int
    seconds: float
    ceiling: Ceiling


@dataclass(frozen=True)
class SaveReceipt:
    """What one rank's save did."""

    step: int
    rank: int
    world: int
    path: str
    """The checkpoint's folder."""
    tensor_bytes: int
    file_bytes: int
    stall_seconds: float
    """How long training stood still: the copy into staging, or, of :func:`save`, everything."""
    fresh_bytes: int
    """Memory for the copy that was not there yet when the save began, so that training waited for it too: none after
    :meth:`Checkpointer.prepare` has had its time, or after a save as large."""
    waited_seconds: float
    """How long somebody waited later on for the end."""
    background_seconds: float
    """From the call until the checkpoint was published."""
    write_seconds: float
    sync_seconds: float
    publish_seconds: float
    pruned: tuple[int, ...]
    """Older steps that were removed afterwards."""
    restore: Optional[RestoreCost]
    receipt: Receipt
    """Which way the bytes went to the drive."""
    _json: Json = field(repr=False, compare=False)

    @classmethod
    def _parse(cls, text: str) -> SaveReceipt:
        found: Json = json.loads(text)
        cost = found["restore"]
        names = (
            "step rank world path tensor_bytes file_bytes stall_seconds fresh_bytes waited_seconds"
            " background_seconds write_seconds sync_seconds publish_seconds"
        ).split()
        return cls(
            **{name: found[name] for name in names},
            pruned=tuple(found["pruned"]),
            restore=cost and RestoreCost(cost["bytes"], cost["seconds"], Ceiling._of(cost["ceiling"])),
            receipt=Receipt._of(found["receipt"]),
            _json=found,
        )

    def to_dict(self) -> Json:
        """All of it, as JSON of schema ``crowfly.save/1``."""
        return dict(self._json)

    def __str__(self) -> str:
        cost = f", a restore {self.restore.seconds:.3g} s" if self.restore else ""
        return (
            f"step {self.step}, rank {self.rank} of {self.world}: {self.tensor_bytes} B to {self.path}; training waited "
            f"{self.stall_seconds:.3g} s, all of it took {self.background_seconds:.3g} s{cost}"
        )


class Pending:
    """A save that goes on in the background.

    An error that nobody waits for comes out of the next save.
    """

    def __init__(self, saving: Saving, saver: Saver) -> None:
        # The saver keeps its thread; without it, nothing would wait for the save at the end of the program.
        self._saving, self._saver = saving, saver

    @property
    def step(self) -> int:
        """The step."""
        return self._saving.step

    @property
    def stall_seconds(self) -> float:
        """How long training stood still for the copy into staging."""
        return self._saving.stall_seconds

    @property
    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._saving.done

    def __repr__(self) -> str:
        return f"crowfly.checkpoint.Pending(step {self.step}, {'done' if self.done else 'under way'})"

    def wait(self) -> SaveReceipt:
        """Waits until the checkpoint is published, durable, and visible to every rank.

        Ctrl-C ends the waiting; the save goes on.
        """
        return SaveReceipt._parse(self._saving.wait())

    def __await__(self) -> Generator[Any, None, SaveReceipt]:
        """Waits without holding up the event loop."""
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint."""

    state: Any = field(repr=False)
    """The state as it was saved. Of a checkpoint that crowfly did not save: a dict of its tensors; of PyTorch's
    distributed checkpoints nested as the state was, with its plain values."""
    step: Optional[int]
    path: str
    receipt: Optional[Receipt]
    """Which way the bytes came; none where none had to."""
    checked_bytes: int
    """Bytes that match the checksums that were saved."""
    unchecked_bytes: int
    """Bytes without a checksum."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Verified:
    """What a verification found."""

    faults: tuple[str, ...]
    """Everything that is missing, cannot be read, or is not what was saved."""
    checked_bytes: int
    """Bytes that match the checksums that were saved."""
    unchecked_bytes: int
    """Bytes that could be read but have no checksum, as those of safetensors files and of PyTorch's checkpoints."""
    notes: tuple[str, ...]
    """What was odd, though no fault."""

    @property
    def state(self) -> str:
        """``"whole"`` when every byte matches, ``"damaged"``, or ``"unsure"`` when checksums are missing."""
        if self.faults:
            return "damaged"
        return "unsure" if self.unchecked_bytes else "whole"


@dataclass(frozen=True)
class Step:
    """A checkpoint in a folder."""

    step: int
    path: str
    world: Optional[int]
    """How many ranks saved it; none where it is damaged, as are the next two."""
    created: Optional[int]
    """Seconds since 1970."""
    bytes: Optional[int]
    damage: Optional[str]
    """Why it cannot be used, where it cannot."""


@dataclass(frozen=True)
class Pruned:
    """What a pruning did, or would do: numbers of steps."""

    removed: tuple[int, ...]
    kept: tuple[int, ...]
    in_use: tuple[int, ...]
    """Those that would be gone if nobody were reading them."""
    damaged: tuple[int, ...]
    """Those that stay because whether to give them up is not for this to decide."""


class Checkpointer:
    """Saves one rank's part of checkpoints into a folder, and restores them.

    Args:
        folder: where the checkpoints are; made by the first save.
        rank: this rank; ``RANK`` of the environment, or else 0.
        world: how many ranks; ``WORLD_SIZE`` of the environment, or else 1.
        keep: how many of the latest checkpoints stay after each save; all of them unless given.
        keep_every: also those whose step is a multiple of this stay.
        replace: whether a step that is there already is replaced, at one instant.
        staging: bytes of memory for copies of tensors that are not yet on the drive. A state that fits into it
            stalls training no longer than a copy in memory takes.
        patience: seconds that ranks wait for each other.
        session: names this job, the same on all its ranks; jobs that may save into one folder at the same time
            need different ones. ``TORCHELASTIC_RUN_ID`` of the environment unless given.
        policy: as for :func:`crowfly.load_file`.
        read_ceiling: bytes per second at which the drive can be read, where you know: what the receipts price a restore
            at. Otherwise it is what the machine's links allow, or, where they do not say, the rate of the save.
    """

    def __init__(
        self,
        folder: Filename,
        rank: Optional[int] = None,
        world: Optional[int] = None,
        *,
        keep: Optional[int] = None,
        keep_every: Optional[int] = None,
        replace: bool = False,
        staging: int = STAGING,
        patience: float = PATIENCE,
        session: Optional[str] = None,
        policy: str = "prefer",
        read_ceiling: Optional[float] = None,
    ) -> None:
        if keep_every is not None and keep is None:
            raise UsageError("keep_every says what stays besides the latest ones; give keep too")
        self.folder = os.fspath(folder)
        self.rank = _from_environment("RANK", 0) if rank is None else rank
        self.world = _from_environment("WORLD_SIZE", 1) if world is None else world
        self._policy = policy
        self._saver = Saver(
            self.folder,
            self.rank,
            self.world,
            staging=staging,
            patience=patience,
            session=session or os.environ.get("TORCHELASTIC_RUN_ID") or "default",
            replace=replace,
            keep=keep,
            keep_every=keep_every,
            policy=policy,
            read_ceiling=read_ceiling,
        )

    def prepare(self, state: Any) -> None:
        """Begins to make memory ready for copies of a state like this one, and returns; nothing is saved.

        Fresh memory can cost many times the copy into it, most of all in virtual machines. Called before the first
        steps of training, this lets the first save stall it no longer than the next ones do.
        """
        self._saver.prepare(_structure.taken_apart(state, self.rank)[0])

    @property
    def ready_bytes(self) -> int:
        """Bytes of memory for copies that is there, without what a save in the background holds."""
        return self._saver.ready

    def save_async(self, step: int, state: Any) -> Pending:
        """Copies the tensors into staging and returns; the rest happens in the background.

        When a save is still under way, waits for it first.

        Raises:
            LayoutError: when the state holds something that is neither a tensor nor a small value.
            CrowflyError: what became of an earlier save that nobody waited for.
        """
        entries, objects = _structure.taken_apart(state, self.rank)
        saving = self._saver.save(step, entries, json.dumps(objects, allow_nan=False))
        return Pending(saving, self._saver)

    def save(self, step: int, state: Any) -> SaveReceipt:
        """Saves, and waits until the checkpoint is published."""
        return self.save_async(step, state).wait()

    def settle(self) -> None:
        """Waits for a save in the background, and raises its error unless somebody has heard of it."""
        self._saver.settle()

    def restore(self, step: Optional[int] = None, **options: Any) -> Restored:
        """As :func:`restore`, of this folder, rank and world."""
        self.settle()
        return restore(self.folder, self.rank, self.world, step=step, policy=self._policy, **options)

    def restore_latest(self, **options: Any) -> Optional[Restored]:
        """The latest complete checkpoint, or ``None`` where there is none: the first start of a job."""
        self.settle()
        try:
            found = latest(self.folder)
        except NotFoundError:
            return None
        return None if found is None else self.restore(found, **options)

    def __repr__(self) -> str:
        return f"crowfly.checkpoint.Checkpointer({self.folder!r}, rank {self.rank} of {self.world})"

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.settle()


def save(
    state: Any,
    folder: Filename,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    *,
    step: Optional[int] = None,
    **settings: Any,
) -> SaveReceipt:
    """Saves one checkpoint and waits until it is published; ``settings`` are those of :class:`Checkpointer`.

    The step is ``state["step"]`` unless given.
    """
    return Checkpointer(folder, rank, world, **settings).save(_step(state, step), state)


def save_async(
    state: Any,
    folder: Filename,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    *,
    step: Optional[int] = None,
    **settings: Any,
) -> Pending:
    """As :func:`save`, but returns once the tensors are copied. A :class:`Checkpointer` reuses that memory."""
    return Checkpointer(folder, rank, world, **settings).save_async(_step(state, step), state)


def restore(
    path: Filename,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    *,
    step: Optional[int] = None,
    tensors: Optional[Sequence[str]] = None,
    shard: Optional[Mapping[str, int]] = None,
    like: Any = None,
    framework: Optional[str] = None,
    device: Any = "cpu",
    check: bool = True,
    policy: str = "prefer",
    progress: Progress = None,
) -> Restored:
    """Restores a state, by any number of ranks.

    Args:
        path: a folder of checkpoints (the latest complete one), one of them, a safetensors file, a model folder or
            its index, or a folder that ``torch.distributed.checkpoint`` wrote, whose pickles are read and never
            executed: a value that only executing could make is left out, and the ``notes`` name it.
        rank: this rank; as for :class:`Checkpointer`.
        world: how many ranks there are now, whatever number saved it. Of a tensor that was saved in parts, each
            rank gets a :class:`Part` cut along the same dimension, as ``torch.chunk`` cuts; of the others all of it. Of one
            that was cut along several, each of as many ranks gets back the part that it saved; other numbers of ranks
            get a grid of parts, numbered row by row, that keeps as many cuts along the last dimensions as divide them.
        step: which checkpoint of a folder.
        tensors: of a checkpoint that crowfly did not save, only those of these names.
        shard: of a checkpoint that crowfly did not save, the dimension along which tensors of these names are cut.
        like: a state of the same structure, such as that of a model that FSDP has just sharded: what is a DTensor there
            comes back as one with its mesh and placements, of which each rank reads its own part, however many
            ranks saved it and however they had cut it; give the mesh's ``device`` too, or the part passes host memory. What is a :class:`Part` there comes back as the same part, of
            whichever box of the tensor.
        device: where the tensors go, as for :func:`crowfly.load_file`. In a GPU's memory, the checksums are held
            against what that memory holds; tensors that were saved in several parts are put together there.
        framework: what tensors become, as for :class:`crowfly.safe_open`; what they were unless given.
        check: hold the bytes against the checksums that were saved, where there are any.
        policy: as for :func:`crowfly.load_file`.
        progress: as for :func:`crowfly.load_file`.

    Raises:
        DataDiffersError: when a byte is not what was saved. No tensor is given out then.
    """
    rank = _from_environment("RANK", 0) if rank is None else rank
    world = _from_environment("WORLD_SIZE", 1) if world is None else world
    archive = Archive(os.fspath(path), step)
    objects = json.loads(archive.objects_json(rank))
    skeleton = _structure.of_objects(objects)
    if skeleton is None:
        chosen = [tensors] if isinstance(tensors, str) else tensors
        names = archive.keys() if chosen is None else list(chosen)
        leaves = [Leaf(name, framework or "crowfly", (shard or {}).get(name)) for name in names]
    elif tensors is not None or shard is not None:
        raise UsageError("this checkpoint knows its own structure; `tensors` and `shard` are for others")
    else:
        leaves = list(_structure.leaves(skeleton))
    placed = _structure.Placed(like)
    wants = {leaf.name: _wanted(leaf, archive, placed, rank, world) for leaf in leaves}
    reading = archive.restore(list(wants.values()), check, policy, device_word(device))
    with telling(progress, "restoring") as tell:
        parts, receipt, checked, unchecked = reading.wait(tell)
    found = dict(zip(wants, parts))

    def made(leaf: Leaf) -> Any:
        _, tensor, whole, offset = found[leaf.name]
        if placed.is_distributed(leaf.name):
            return placed.made(leaf.name, conversion("pt")(tensor))
        made = conversion(framework or leaf.framework)(tensor)
        if leaf.own:
            return Own(made)
        _, cut, part = wants[leaf.name]
        return made if cut is None and part is None else Part(made, tuple(whole), tuple(offset), leaf.dim)

    if skeleton is not None:
        state = _structure.put_together(skeleton, made)
    else:
        named: dict[str, Any] = {leaf.name: made(leaf) for leaf in leaves}
        if archive.format == "dcp" and tensors is None:
            named.update(objects)
        state = _structure.nested(named, json.loads(archive.paths_json()))
    return Restored(
        state=state,
        step=archive.step,
        path=os.fspath(archive.path),
        receipt=None if receipt is None else Receipt._parse(receipt),
        checked_bytes=checked,
        unchecked_bytes=unchecked,
        notes=tuple(archive.notes),
    )


Wanted = tuple[str, "Optional[tuple[int, int, int]]", "Optional[tuple[list[int], list[int]]]"]


def _wanted(leaf: Leaf, archive: Archive, placed: _structure.Placed, rank: int, world: int) -> Wanted:
    """A tensor's name; dimension, rank and ranks where it is cut along one; place and shape of another part."""
    info = archive.info(leaf.name)
    part = None if info is None else placed.part(leaf.name, info[1])
    if part is None and info is not None and leaf.box is not None:
        offset, shape = leaf.box
        if archive.world == world:
            part = list(offset), list(shape)
        else:
            begins = [place for place, _ in archive.parts(leaf.name)]
            part = _structure.grid_part(info[1], begins, rank, world)
    return leaf.name, None if leaf.dim is None else (leaf.dim, rank, world), part


def verify(path: Filename, *, step: Optional[int] = None, progress: Progress = None) -> Verified:
    """Reads a checkpoint, and holds every byte that has a checksum against it."""
    archive = Archive(os.fspath(path), step)
    reading = archive.verify()
    with telling(progress, "verifying") as tell:
        faults, checked, unchecked = reading.verdict(tell)
    return Verified(tuple(faults), checked, unchecked, tuple(archive.notes))


def latest(folder: Filename) -> Optional[int]:
    """The latest complete step of a folder; ``None`` where there is none."""
    return latest_step(os.fspath(folder))


def steps(folder: Filename) -> list[Step]:
    """The checkpoints of a folder, ascending, the damaged ones included."""
    return [Step(**found) for found in json.loads(steps_json(os.fspath(folder)))]


def prune(
    folder: Filename,
    keep: int,
    *,
    keep_every: Optional[int] = None,
    dry_run: bool = False,
    patience: float = PATIENCE,
) -> Pruned:
    """Removes all but the latest ``keep`` checkpoints, and those whose step is a multiple of ``keep_every``."""
    found = prune_steps(os.fspath(folder), keep, keep_every, dry_run, patience)
    return Pruned(*(tuple(numbers) for numbers in found))


def _step(state: Any, step: Optional[int]) -> int:
    if step is None and isinstance(state, Mapping):
        step = state.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise UsageError("which step is this?", "no-step", 'give step=, or have state["step"]')
    return step


def _from_environment(name: str, otherwise: int) -> int:
    value = os.environ.get(name)
    if not value:
        return otherwise
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name}={value!r} is no number") from None
