"""PyTorch's distributed checkpoints: read as the state that was saved, and nothing in them is executed."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import crowfly
from crowfly import checkpoint

FIXTURES = Path(__file__).resolve().parents[2] / "mover" / "tests" / "fixtures" / "dcp"
"""Written by PyTorch 2.15; see make.py there."""


@pytest.fixture
def np():
    return pytest.importorskip("numpy", reason="waived: NumPy is not installed")


@pytest.fixture
def torch():
    found = pytest.importorskip("torch", reason="waived: PyTorch is not installed")
    if not found.distributed.is_available():
        pytest.skip("waived: this PyTorch has no torch.distributed")
    return found


def test_the_state_comes_back_nested_with_its_plain_values(np):
    restored = checkpoint.restore(FIXTURES / "plain")
    state = restored.state
    assert sorted(state) == ["model", "name", "schedule", "step"]
    assert (state["step"], state["name"]) == (12, "run")
    assert state["schedule"] == {"lr": [0.5, 0.25], "warm": None}
    model = state["model"]
    assert np.array_equal(model["weight"].numpy(), np.arange(24, dtype="f4").reshape(4, 6))
    assert np.array_equal(model["turned"].numpy(), np.arange(20, 32, dtype="f4").reshape(3, 4).T)
    assert model["flags"].numpy().tolist() == [True, False, True] and model["scalar"].numpy() == 7
    assert (model["bias"].dtype, model["bias"].shape, model["empty"].shape) == ("BF16", (6,), (0, 3))
    assert restored.step is None and restored.unchecked_bytes > 0 == restored.checked_bytes


def test_what_two_ranks_saved_is_put_together_or_cut_anew(np):
    whole = checkpoint.restore(FIXTURES / "sharded", framework="np").state
    assert np.array_equal(whole["rows"], np.arange(100, 120, dtype="f4").reshape(5, 4))
    columns = np.arange(200, 224, dtype="f4").reshape(4, 6)
    for rank in range(3):
        state = checkpoint.restore(FIXTURES / "sharded", rank, 3, shard={"columns": 1}, framework="np").state
        assert np.array_equal(state["columns"].tensor, columns[:, 2 * rank : 2 * rank + 2])
        assert np.array_equal(state["both"], np.arange(300, 303, dtype="f8"))
    some = checkpoint.restore(FIXTURES / "sharded", tensors=["both"], framework="np").state
    assert list(some) == ["both"]


def test_a_verification_is_unsure_as_there_are_no_checksums():
    verified = checkpoint.verify(FIXTURES / "plain")
    assert (verified.state, verified.faults, verified.checked_bytes) == ("unsure", (), 0)
    assert verified.unchecked_bytes > 0


class Executed:
    """What unpickling would do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_pickle_is_executed(tmp_path):
    folder, trap = tmp_path / "checkpoint", tmp_path / "trap"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": Executed(str(trap))}))
    with pytest.raises(crowfly.errors.FormatError) as error:
        checkpoint.restore(folder)
    assert error.value.code == "pickle-forbidden" and "mkdir" in error.value.message
    assert not trap.exists()
    pickle.loads((folder / ".metadata").read_bytes())
    assert trap.exists(), "a reader that executes would have made it"


def test_what_this_pytorch_saves_is_what_comes_back(torch, tmp_path):
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(2, 7, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "losses": [0.5, 2.0]}
    dcp.save(saved, checkpoint_id=str(tmp_path / "dcp"))
    restored = checkpoint.restore(tmp_path / "dcp", framework="pt")
    state = restored.state
    assert (state["step"], state["losses"], restored.notes) == (3, [0.5, 2.0], ())
    again = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5)).to(torch.bfloat16)
    again.load_state_dict(state["model"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    for number, moments in optimizer.state_dict()["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(state["optimizer"]["state"][str(number)][name], tensor), (number, name)


RANK = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from crowfly import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

rank, world, meeting, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
rows = torch.arange(35, dtype=torch.float32).reshape(7, 5)
columns = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)

def state(of):
    return {
        "model": {
            "rows": distribute_tensor(of(rows), mesh, [Shard(0)]),
            "columns": distribute_tensor(of(columns), mesh, [Shard(1)]),
            "both": distribute_tensor(of(rows), mesh, [Replicate()]),
        },
        "step": 6,
    }

def same(found):
    found, expected = found["model"], state(torch.Tensor.clone)["model"]
    for name, tensor in expected.items():
        assert isinstance(found[name], DTensor) and found[name].placements == tensor.placements, name
        assert torch.equal(found[name].to_local(), tensor.to_local()), name
        assert torch.equal(found[name].full_tensor(), tensor.full_tensor()), name
"""


def run_ranks(world, folder, code, env=None):
    """Each rank in a process of its own, over gloo."""
    command = [sys.executable, "-c", RANK + code + "\ndist.barrier()\ndist.destroy_process_group()\n"]
    # By a file and not by a port, which somebody else may have.
    with tempfile.TemporaryDirectory() as apart:
        end_well([[*command, str(rank), str(world), f"{apart}/meeting", str(folder)] for rank in range(world)], env)


def end_well(commands, env):
    ranks = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) for command in commands]
    try:
        told = [rank.communicate(timeout=180)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(told)


def test_dtensors_come_back_as_dtensors_whatever_the_number_of_ranks(torch, tmp_path):
    run_ranks(
        2,
        tmp_path,
        """
receipt = checkpoint.save(state(torch.Tensor.clone), folder + "/ours", rank, world, patience=120)
assert receipt.step == 6
dcp.save(state(torch.Tensor.clone), checkpoint_id=folder + "/theirs")
for kind in ("ours", "theirs"):
    found = checkpoint.restore(f"{folder}/{kind}", rank, world, like=state(torch.zeros_like), framework="pt")
    same(found.state)
    assert found.state["step"] == 6
""",
    )
    whole = checkpoint.restore(tmp_path / "ours", 0, 1).state["model"]
    assert torch.equal(whole["rows"].tensor, torch.arange(35, dtype=torch.float32).reshape(7, 5))
    assert whole["rows"].dim == 0 and whole["columns"].dim == 1
    run_ranks(
        3,
        tmp_path,
        """
for kind in ("ours", "theirs"):
    same(checkpoint.restore(f"{folder}/{kind}", rank, world, like=state(torch.zeros_like), framework="pt").state)
try:
    like = {"model": {"rows": distribute_tensor(columns, mesh, [Shard(0)])}}
    checkpoint.restore(folder + "/ours", rank, world, like=like)
    raise AssertionError("other shapes are refused")
except ValueError as error:
    assert error.code == "other-shape" and "model.rows" in error.message
""",
    )


def test_a_model_that_fsdp_shards_goes_on_from_where_it_was(torch, tmp_path):
    pytest.importorskip("torch.distributed.fsdp", reason="waived: this PyTorch has no FSDP")
    run_ranks(
        2,
        tmp_path,
        """
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    sys.exit(0)

def start():
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 2))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)

def train(model, optimizer, seed):
    torch.manual_seed(seed)
    for _ in range(3):
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def states(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

model, optimizer = start()
train(model, optimizer, 1)
checkpoint.save(states(model, optimizer), folder, rank, world, step=3, patience=120)
train(model, optimizer, 2)
again, optimizer_again = start()
train(again, optimizer_again, 9)
found = checkpoint.restore(folder, rank, world, like=states(again, optimizer_again)).state
again.load_state_dict(found["model"])
optimizer_again.load_state_dict(found["optimizer"])
train(again, optimizer_again, 2)
for name, tensor in model.state_dict().items():
    assert torch.equal(again.state_dict()[name].to_local(), tensor.to_local()), name
""",
    )
