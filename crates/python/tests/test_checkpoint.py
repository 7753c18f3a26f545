"""Checkpoints: what is restored is what was saved, whoever saved it, and a kill leaves the last good one."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import crowfly
from crowfly import checkpoint
from crowfly.checkpoint import Checkpointer, Own, Part

np = pytest.importorskip("numpy", reason="waived: NumPy is not installed")


def same(a, b):
    """Whether two states are alike, in values, types and keys."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def test_a_nested_state_comes_back_as_it_was(tmp_path):
    state = {
        "model": {"layer.weight": np.arange(6, dtype="f4").reshape(2, 3), "empty": np.zeros((0, 2), "i8")},
        "optimizer": {
            "state": {0: {"step": np.array(3.0), "exp_avg": np.ones(4, "f2")}, 1: {}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None}],
        },
        "rng": (3, (1, 2, 1 << 70), b"\x00\xff"),
        "odd": {"$key": [True, -0.0, math.inf, math.nan], (1, "a"): "text"},
        "step": 12,
    }
    receipt = checkpoint.save(state, tmp_path)
    assert (receipt.step, receipt.rank, receipt.world) == (12, 0, 1)
    restored = checkpoint.restore(tmp_path)
    assert same(state, restored.state) and restored.step == 12
    assert restored.checked_bytes >= 24 + 8 + 8 and restored.unchecked_bytes == 0
    verified = checkpoint.verify(tmp_path)
    assert (verified.state, verified.faults, verified.unchecked_bytes) == ("whole", (), 0)
    assert verified.checked_bytes == restored.checked_bytes


def test_what_a_notebook_shows_is_a_line_and_no_tensor(tmp_path):
    state = {"a": np.zeros(4096, "u1")}
    saver = Checkpointer(tmp_path, 0, 1)
    assert repr(saver) == f"crowfly.checkpoint.Checkpointer({str(tmp_path)!r}, rank 0 of 1)"
    pending = saver.save_async(3, state)
    assert repr(pending).startswith("crowfly.checkpoint.Pending(step 3, ")
    text = str(pending.wait())
    assert text.startswith("step 3, rank 0 of 1: 4096 B to ") and "\n" not in text
    assert repr(pending) == "crowfly.checkpoint.Pending(step 3, done)"
    restored = saver.restore()
    assert "array" not in repr(restored) and "step=3" in repr(restored)


def test_the_receipt_tells_stall_and_rest_apart_and_what_a_restore_would_cost(tmp_path):
    state = {"a": np.zeros(1 << 20, "u1")}
    pending = checkpoint.save_async(state, tmp_path, step=1)
    receipt = pending.wait()
    assert receipt.stall_seconds == pending.stall_seconds
    assert receipt.background_seconds >= receipt.write_seconds > 0
    assert receipt.tensor_bytes == 1 << 20
    assert receipt.restore.bytes >= 1 << 20 and receipt.restore.seconds > 0
    assert sum(receipt.receipt.by_path().values()) == receipt.receipt.requested
    assert receipt.to_dict()["schema"] == "crowfly.save/1"
    told = checkpoint.save(state, tmp_path, step=2, read_ceiling=2e9).restore
    assert told.seconds == told.bytes / 2e9 and told.ceiling.provenance == "measured"
    with pytest.raises(crowfly.errors.UsageError):
        Checkpointer(tmp_path, read_ceiling=-1.0)


def test_a_save_can_be_awaited(tmp_path):
    async def saved():
        return await checkpoint.save_async({"a": np.zeros(9)}, tmp_path, step=4)

    assert asyncio.run(saved()).step == 4 == checkpoint.latest(tmp_path)


def test_training_may_change_its_tensors_as_soon_as_they_are_copied(tmp_path):
    array = np.full(8 << 20, 7, "u1")
    pending = checkpoint.save_async({"a": array}, tmp_path, step=1)
    array[:] = 9
    pending.wait()
    assert (checkpoint.restore(tmp_path).state["a"] == 7).all()


def test_the_latest_stay_and_every_so_many(tmp_path):
    with Checkpointer(tmp_path, keep=2, keep_every=4) as saver:
        assert saver.restore_latest() is None
        receipts = [saver.save(step, {"a": np.array([step])}) for step in range(1, 8)]
    assert [found.step for found in checkpoint.steps(tmp_path)] == [4, 6, 7]
    assert receipts[-1].pruned == (5,)
    assert checkpoint.latest(tmp_path) == 7
    assert checkpoint.restore(tmp_path, step=4).state["a"].tolist() == [4]
    dry = checkpoint.prune(tmp_path, keep=1, dry_run=True)
    assert (dry.removed, dry.kept) == ((4, 6), (7,))
    with pytest.raises(FileNotFoundError) as error:
        checkpoint.restore(tmp_path, step=5)
    assert error.value.code == "no-such-step"


def save_by_ranks(folder, step, states):
    """Each rank in a thread of its own, as each would be in a process."""
    receipts, errors = {}, []

    def save(rank):
        try:
            receipts[rank] = checkpoint.save(states[rank], folder, rank, len(states), step=step, patience=60)
        except Exception as error:  # noqa: BLE001 (it is raised below)
            errors.append(error)

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return receipts


def chunk(whole, dim, rank, world):
    """As torch.chunk cuts."""
    size = -(-whole.shape[dim] // world)
    index = [slice(None)] * whole.ndim
    begin = min(rank * size, whole.shape[dim])
    index[dim] = slice(begin, min(begin + size, whole.shape[dim]))
    offset = [0] * whole.ndim
    offset[dim] = begin
    return Part(np.ascontiguousarray(whole[tuple(index)]), whole.shape, tuple(offset), dim)


@pytest.mark.parametrize("now", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_are_cut_anew_for_another_number_of_ranks(tmp_path, dim, now):
    whole = np.arange(7 * 5, dtype="i4").reshape(7, 5)
    shared = np.arange(9, dtype="f8")
    saved = [
        {"w": chunk(whole, dim, rank, 3), "shared": shared, "seed": Own(np.array([rank])), "rank": rank}
        for rank in range(3)
    ]
    receipts = save_by_ranks(tmp_path, 1, saved)
    # What all ranks hold alike is written once.
    assert sum(receipt.tensor_bytes for receipt in receipts.values()) == whole.nbytes + shared.nbytes + 3 * 8
    for rank in range(now):
        state = checkpoint.restore(tmp_path, rank, now).state
        expected = chunk(whole, dim, rank, now)
        assert np.array_equal(state["w"].tensor, expected.tensor)
        assert (state["w"].global_shape, state["w"].offset) == (expected.global_shape, expected.offset)
        assert np.array_equal(state["shared"], shared)
        known = rank if rank < 3 else 0
        assert state["seed"].tensor.tolist() == [known] and state["rank"] == known


def box(whole, offset, shape):
    cut = tuple(slice(begin, begin + length) for begin, length in zip(offset, shape))
    return Part(np.ascontiguousarray(whole[cut]), whole.shape, tuple(offset))


def boxes(whole, rows, columns):
    """Parts of a grid that need not be even: where the cuts are along the first two dimensions."""
    rows, columns = [0, *rows, whole.shape[0]], [0, *columns, whole.shape[1]]
    return [
        box(whole, (top, left, *[0] * (whole.ndim - 2)), (bottom - top, right - left, *whole.shape[2:]))
        for top, bottom in zip(rows, rows[1:])
        for left, right in zip(columns, columns[1:])
    ]


def test_parts_cut_along_two_dimensions_come_back_and_are_cut_anew_for_other_ranks(tmp_path):
    whole = np.arange(6 * 8 * 3, dtype="i4").reshape(6, 8, 3)
    saved = boxes(whole, [1], [5])
    save_by_ranks(tmp_path, 1, [{"w": part} for part in saved])
    for rank, expected in enumerate(saved):
        found = checkpoint.restore(tmp_path, rank, 4).state["w"]
        assert (found.offset, found.global_shape, found.dim) == (expected.offset, whole.shape, None)
        assert np.array_equal(found.tensor, expected.tensor)
    # The second dimension stays cut in two where that divides the ranks.
    for now, rows, columns in ((1, 1, 1), (2, 1, 2), (3, 3, 1), (6, 3, 2), (8, 4, 2)):
        covered = np.full(whole.shape, -1, "i4")
        for rank in range(now):
            found = checkpoint.restore(tmp_path, rank, now).state["w"]
            top, left, _ = found.offset
            assert top == min(rank // columns * -(-6 // rows), 6) and left == rank % columns * (8 // columns)
            height, width, _ = found.tensor.shape
            covered[top : top + height, left : left + width] = found.tensor
        assert np.array_equal(covered, whole), now


def test_a_part_of_another_state_says_which_box_comes_back(tmp_path):
    whole = np.arange(5 * 7, dtype="f4").reshape(5, 7)
    save_by_ranks(tmp_path, 1, [{"deep": [{"w": part}]} for part in boxes(whole, [2], [3])])
    wanted = box(whole, (1, 2), (3, 4))
    empty = Part(np.zeros((3, 4), "f4"), (5, 7), (1, 2))
    found = checkpoint.restore(tmp_path, 0, 3, like={"deep": [{"w": empty}]}).state["deep"][0]["w"]
    assert np.array_equal(found.tensor, wanted.tensor) and found.offset == (1, 2)
    with pytest.raises(crowfly.errors.LayoutError) as error:
        checkpoint.restore(tmp_path, 0, 3, like={"deep": [{"w": Part(np.zeros(3, "f4"), (5,), (1,))}]})
    assert error.value.code == "other-shape"


def test_memory_that_was_made_ready_before_the_first_save_is_not_waited_for(tmp_path):
    state = {"w": np.zeros(40 << 20, "u1")}
    unprepared = Checkpointer(tmp_path / "a")
    assert unprepared.save(1, state).fresh_bytes >= 40 << 20
    assert unprepared.save(2, state).fresh_bytes == 0, "the memory of the first save is used again"
    saver = Checkpointer(tmp_path / "b")
    assert saver.ready_bytes == 0
    saver.prepare(state)
    deadline = time.monotonic() + 60
    while saver.ready_bytes < 40 << 20:
        assert time.monotonic() < deadline, saver.ready_bytes
        time.sleep(0.01)
    assert saver.save_async(1, state).wait().fresh_bytes == 0
    assert not (tmp_path / "c").exists() and Checkpointer(tmp_path / "c").prepare(state) is None
    assert not (tmp_path / "c").exists(), "nothing is saved"


def test_torchruns_variables_name_the_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    saver = Checkpointer(tmp_path)
    assert (saver.rank, saver.world) == (1, 2)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(crowfly.errors.UsageError, match="RANK"):
        Checkpointer(tmp_path)


def test_a_rank_that_does_not_save_leaves_nothing_published(tmp_path):
    with pytest.raises(crowfly.errors.TransferError) as error:
        checkpoint.save({"a": np.zeros(3)}, tmp_path, 0, 2, step=1, patience=0.3)
    assert error.value.code == "ranks-missing"
    assert checkpoint.latest(tmp_path) is None


def test_a_damaged_byte_is_found_and_no_tensor_is_given_out(tmp_path):
    receipt = checkpoint.save({"a": np.arange(5000, dtype="i4")}, tmp_path, step=1)
    file = next(name for name in os.listdir(receipt.path) if name.endswith(".safetensors"))
    file = os.path.join(receipt.path, file)
    with open(file, "r+b") as opened:
        opened.seek(-9, os.SEEK_END)
        opened.write(b"\xff")
    with pytest.raises(crowfly.errors.DataDiffersError) as error:
        checkpoint.restore(tmp_path)
    assert error.value.code == "data-differs" and "`a`" in error.value.message.replace('"', "`")
    verified = checkpoint.verify(tmp_path)
    assert verified.state == "damaged" and len(verified.faults) == 1
    assert checkpoint.restore(tmp_path, check=False).state["a"].shape == (5000,)


def test_what_only_pickle_could_save_is_refused_by_name(tmp_path):
    class Thing:
        pass

    with pytest.raises(crowfly.errors.LayoutError) as error:
        checkpoint.save({"deep": [{"thing": Thing()}]}, tmp_path, step=1)
    assert "deep.0.thing" in error.value.message and error.value.code == "not-a-value"
    with pytest.raises(crowfly.errors.LayoutError) as error:
        checkpoint.save({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}}, tmp_path, step=1)
    assert error.value.code == "ambiguous-name"
    circle = []
    circle.append(circle)
    with pytest.raises(crowfly.errors.LayoutError) as error:
        checkpoint.save(circle, tmp_path, step=1)
    assert error.value.code == "too-deep"
    with pytest.raises(crowfly.errors.UsageError) as error:
        checkpoint.save({"a": np.zeros(1)}, tmp_path)
    assert error.value.code == "no-step"
    assert not list(tmp_path.iterdir())


def test_safetensors_files_and_model_folders_are_checkpoints_too(small, tmp_path):
    restored = checkpoint.restore(small, framework="np")
    assert sorted(restored.state) == ["bias", "scale", "weight"] and restored.step is None
    assert restored.state["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    part = checkpoint.restore(small, 1, 2, tensors=["weight"], shard={"weight": 1}, framework="np").state
    assert part["weight"].tensor.tolist() == [[2], [5]] and part["weight"].offset == (0, 2)
    with pytest.raises(KeyError):
        checkpoint.restore(small, tensors=["nothing"])
    verified = checkpoint.verify(small)
    assert (verified.state, verified.checked_bytes, verified.unchecked_bytes) == ("unsure", 0, 42)


def test_a_model_folder_with_an_index_is_a_checkpoint_too(tmp_path):
    names = {"a": "one.safetensors", "b": "two.safetensors"}
    for name, file in names.items():
        crowfly.save_file({name: np.full(3, ord(name), "u1")}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 6}, "weight_map": names}))
    for path in (tmp_path, index):
        state = checkpoint.restore(path, framework="np").state
        assert {name: array.tolist() for name, array in state.items()} == {"a": [97] * 3, "b": [98] * 3}


SAVES_FOREVER = """
import sys
import numpy as np
from crowfly import checkpoint
saver = checkpoint.Checkpointer(sys.argv[1], keep=2)
found = saver.restore_latest()
step = 0 if found is None else found.step
assert found is None or (found.state["a"] == step % 251).all(), "torn"
print("ready", flush=True)
while True:
    step += 1
    # A save waits for the one before, which is therefore published when the next one's line is printed.
    saver.save_async(step, {"a": np.full(1 << 20, step % 251, "u1"), "step": step})
    print("saving", flush=True)
"""


def test_a_kill_at_any_instant_leaves_the_last_good_checkpoint(tmp_path):
    """Killed again and again at ever other instants; each start restores what the one before left."""
    last = 0
    for lines, delay in ((0, 0.0), (1, 0.004), (2, 0.0), (3, 0.011), (2, 0.002), (4, 0.023)):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "ready\n", "the one before left a torn checkpoint"
        for _ in range(lines):
            child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        found = checkpoint.latest(tmp_path) or 0
        assert found >= last + max(lines - 1, 0)
        if found:
            state = checkpoint.restore(tmp_path).state
            assert state["step"] == found and (state["a"] == found % 251).all()
        last = found


def test_a_model_and_its_optimizer_train_on_as_if_nothing_had_been(tmp_path):
    torch = pytest.importorskip("torch", reason="waived: PyTorch is not installed")

    def start():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).bfloat16()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model, optimizer, steps):
        for _ in range(steps):
            loss = model(torch.randn(16, 4, dtype=torch.bfloat16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model, optimizer = start()
    train(model, optimizer, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    checkpoint.save(state, tmp_path, step=3)
    train(model, optimizer, 3)
    again, optimizer_again = start()
    restored = checkpoint.restore(tmp_path).state
    again.load_state_dict(restored["model"])
    optimizer_again.load_state_dict(restored["optimizer"])
    torch.set_rng_state(restored["rng"])
    train(again, optimizer_again, 3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
