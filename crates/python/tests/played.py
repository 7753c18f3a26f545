"""Processes with GPUs that are not there: a runtime, and a storage library, that stand in for NVIDIA's. See fake_cuda.c
and fake_cufile.c."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LIBRARIES = {"cuda": "libcuda.so.1", "cufile": "libcufile.so.0"}

# What the code of a child begins with.
CHILD = """
import ctypes, gc, struct, sys
import crowfly
from crowfly import errors
fake = ctypes.CDLL("libcuda.so.1")

def held(tensor):
    # What the GPU's memory holds where the tensor says that it lies.
    out = ctypes.create_string_buffer(max(tensor.nbytes, 1))
    at = ctypes.c_uint64(tensor.data_ptr)
    assert fake.fake_read(out, at, ctypes.c_size_t(tensor.nbytes)) == 0, "not a GPU's memory"
    return out.raw[: tensor.nbytes]

class Raised:
    def __init__(self, kind): self.kind = kind
    def __enter__(self): return self
    def __exit__(self, kind, value, traceback):
        assert kind is not None and issubclass(kind, self.kind), (kind, value)
        self.value = value
        return True
"""


def built(folder, *names):
    """Builds stand-ins into a folder, which it gives back."""
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("waived: NVIDIA's own runtime is here")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("waived: no C compiler builds the stand-in")
    for name in names:
        command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", str(folder / LIBRARIES[name])]
        subprocess.run([*command, str(HERE / f"fake_{name}.c"), "-ldl"], check=True)
    return folder


def environment(folder):
    """That of a process which finds the stand-ins."""
    folders = filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


def run(folder, code, *arguments):
    """Runs code in a process that has the two GPUs; what it asserts is told when it fails."""
    command = [sys.executable, "-c", CHILD + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(folder))
    assert done.returncode == 0, done.stdout + done.stderr
