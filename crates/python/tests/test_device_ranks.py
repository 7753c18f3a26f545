"""DTensors that are restored through a GPU's memory: ranks over gloo, and the stand-in for NVIDIA's runtime."""

import pytest
from played import environment
from test_dcp import run_ranks, torch  # noqa: F401  (a fixture)
from test_device import runtime  # noqa: F401  (a fixture)

TAKING = """
import ctypes
from crowfly import _frameworks

fake = ctypes.CDLL("libcuda.so.1")
taken = []

def take(tensor):
    # As PyTorch with CUDA would, without which it refuses such capsules: the bytes from where the tensor says they lie.
    assert tensor.place == "gpu:1" and tensor.__dlpack_device__() == (2, 0), tensor
    into = torch.empty(tensor.shape, dtype=getattr(torch, _frameworks.TORCH_TYPES[tensor.dtype]))
    size = ctypes.c_size_t(tensor.nbytes)
    assert fake.fake_read(ctypes.c_void_p(into.data_ptr()), ctypes.c_uint64(tensor.data_ptr), size) == 0
    taken.append(tensor.nbytes)
    return into

_frameworks._CONVERSIONS["pt"] = take

def restored(kind):
    like = state(torch.zeros_like)
    found = checkpoint.restore(f"{folder}/{kind}", rank, world, like=like, framework="pt", device="cuda:0")
    same(found.state)
    assert found.receipt.to == "gpu:1", found.receipt
    # This rank's rows, its columns, and all of what each has.
    parts = like["model"]
    assert sum(taken) == sum(part.to_local().nbytes for part in parts.values()), taken
    taken.clear()
    return found
"""


@pytest.fixture
def with_runtime(runtime):  # noqa: F811
    return environment(runtime)


def test_each_rank_reads_its_part_of_a_dtensor_into_the_memory_of_its_gpu(torch, with_runtime, tmp_path):  # noqa: F811
    save = """
checkpoint.save(state(torch.Tensor.clone), folder + "/ours", rank, world, patience=120)
dcp.save(state(torch.Tensor.clone), checkpoint_id=folder + "/theirs")
"""
    restore = """
found = restored("ours")
assert found.unchecked_bytes == 0 or world != 2, "the parts that were saved have checksums"
restored("theirs")
"""
    run_ranks(2, tmp_path, save + TAKING + restore, with_runtime)
    run_ranks(3, tmp_path, TAKING + restore, with_runtime)


def test_a_numa_node_is_a_device_for_dtensors_too(torch, tmp_path):  # noqa: F811
    run_ranks(
        2,
        tmp_path,
        """
checkpoint.save(state(torch.Tensor.clone), folder, rank, world, patience=120)
found = checkpoint.restore(folder, rank, world, like=state(torch.zeros_like), device="cpu:0")
same(found.state)
""",
    )
