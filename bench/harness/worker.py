"""Runs in the venv of the peers: one load by one library, timed inside the interpreter.

Usage: worker.py probe | worker.py tensorize FOLDER FILE | worker.py ACTION PATH
Prints one line of JSON. Imports and a warm-up on one tiny tensor are done before the clock starts.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "safetensors": "safetensors",
    "fastsafetensors": "fastsafetensors",
    "tensorizer": "tensorizer",
    "runai-model-streamer": "runai_model_streamer",
    "crowfly": "crowfly",
}
EDGE_BYTES = 4096
"""As harness.checkpoint defines it for the fingerprints."""

PAGE_BYTES = 4096
MANIFEST = "manifest.json"


def shards(path: Path) -> list[str]:
    """The safetensors files of a model folder, or the one file."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sorted(map(str, files))


def as_bytes(tensor):
    """A tensor's data as a flat view of bytes, for numpy and for torch."""
    flat = tensor.reshape(-1)
    if hasattr(flat, "numpy"):
        import torch

        return flat.view(torch.uint8)
    return flat.view("uint8")


def touch(tensors: dict) -> None:
    """Brings every page of mapped tensors into memory, as their first use would."""
    for tensor in tensors.values():
        flat = as_bytes(tensor)
        int(flat[::PAGE_BYTES].sum())
        int(flat[-1])


# Each action imports what it needs, then answers the function that loads a path; only that is timed.
Load = Callable[[Path], dict]


def safetensors_numpy() -> Load:
    from safetensors.numpy import load_file

    return lambda path: load_files(load_file, path, touched=True)


def safetensors_torch(touched: bool) -> Load:
    from safetensors.torch import load_file

    return lambda path: load_files(load_file, path, touched)


def load_files(load_file, path: Path, touched: bool) -> dict:
    tensors = {}
    for shard in shards(path):
        tensors.update(load_file(shard))
    if touched:
        touch(tensors)
    return tensors


def crowfly_torch() -> Load:
    from crowfly.torch import load_file

    def load(path: Path) -> dict:
        # Its own folder reader; pages are touched as those of the other mappings are.
        tensors = load_file(path)
        touch(tensors)
        return tensors

    return load


def crowfly_listing() -> Load:
    from crowfly import safe_open

    def load(path: Path) -> dict:
        with safe_open(shards(path)[0]) as file:
            return dict.fromkeys(file.keys())

    return load


def fastsafetensors() -> Load:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load(path: Path) -> dict:
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: shards(path)})
        buffers = loader.copy_files_to_device()
        return {key: buffers.get_tensor(key) for key in loader.get_keys()}

    return load


def tensorizer() -> Load:
    from tensorizer import TensorDeserializer

    return lambda path: dict(TensorDeserializer(str(path), device="cpu"))


def streamer(keep: bool) -> Load:
    from runai_model_streamer import SafetensorsStreamer

    def load(path: Path) -> dict:
        with SafetensorsStreamer() as stream:
            stream.stream_files(shards(path), owned=keep)
            if keep:
                return dict(stream.get_tensors())
            return {name: tensor.nbytes for name, tensor in stream.get_tensors()}

    return load


def list_safe_open(shapes: bool) -> Load:
    from safetensors import safe_open

    def load(path: Path) -> dict:
        with safe_open(shards(path)[0], framework="numpy") as file:
            if shapes:
                return {key: file.get_slice(key).get_shape() for key in file.keys()}
            return dict.fromkeys(file.keys())

    return load


def list_fastsafetensors() -> Load:
    from fastsafetensors import SafeTensorsMetadata
    from fastsafetensors.frameworks import get_framework_op

    framework = get_framework_op("pytorch")
    return lambda path: SafeTensorsMetadata.from_file(shards(path)[0], framework).tensors


ACTIONS: dict[str, Callable[[], Load]] = {
    "safetensors-numpy": safetensors_numpy,
    "safetensors-torch": lambda: safetensors_torch(touched=True),
    "safetensors-untouched": lambda: safetensors_torch(touched=False),
    "fastsafetensors": fastsafetensors,
    "tensorizer": tensorizer,
    "streamer-resident": lambda: streamer(keep=True),
    "streamer-transit": lambda: streamer(keep=False),
    "crowfly-torch": crowfly_torch,
    "list-crowfly": crowfly_listing,
    "list-keys": lambda: list_safe_open(shapes=False),
    "list-shapes": lambda: list_safe_open(shapes=True),
    "list-fastsafetensors": list_fastsafetensors,
}


def warm_up(action: str, load: Load) -> None:
    """Loads one tiny tensor first: lazy imports and first-call set-up are not the load's fault."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        entry = {"tiny": {"dtype": "F16", "shape": [8, 4], "data_offsets": [0, 64]}}
        text = json.dumps(entry).encode()
        text += b" " * (-len(text) % 8)
        content = struct.pack("<Q", len(text)) + text + bytes(64)
        (path / "tiny.safetensors").write_bytes(content)
        if action == "tensorizer":
            path /= "tiny.tensors"
            tensorize(path.parent, path)
        load(path)


def rss(field: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def forget_peak_rss() -> None:
    """Starts VmHWM anew at what is resident now, so that the peak is that of the load."""
    Path("/proc/self/clear_refs").write_text("5")


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def size_of(value) -> int:
    """Bytes of a tensor, or a byte count taken while it was there."""
    if isinstance(value, int):
        return value
    return int(value.nbytes) if hasattr(value, "nbytes") else 0


def verify(tensors: dict, path: Path) -> bool | None:
    """Whether every tensor's ends are those of the manifest; None where the run kept no tensors."""
    manifest = path.parent / MANIFEST
    if not manifest.exists() or any(isinstance(value, int) for value in tensors.values()):
        return None
    expected = json.loads(manifest.read_text())["fingerprints"]
    return expected.keys() == tensors.keys() and all(
        fingerprint(tensors[name]) == value for name, value in expected.items()
    )


def fingerprint(tensor) -> int:
    flat = as_bytes(tensor)
    head, tail = flat[:EDGE_BYTES], flat[-EDGE_BYTES:]
    if hasattr(flat, "numpy"):
        head, tail = head.numpy(), tail.numpy()
    return zlib.crc32(tail.tobytes(), zlib.crc32(head.tobytes()))


def measure(action: str, path: Path) -> dict:
    load = ACTIONS[action]()
    warm_up(action, load)
    forget_peak_rss()
    before = rss("VmRSS")
    cpu, start = cpu_seconds(), time.perf_counter()
    loaded = load(path)
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    peak = rss("VmHWM")
    listing = action.startswith("list-")
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_rss": peak,
        "rss_before": before,
        "tensors": len(loaded),
        "bytes": 0 if listing else sum(map(size_of, loaded.values())),
        "verified": None if listing else verify(loaded, path),
    }


def probe() -> dict:
    found = {}
    for package, module in PACKAGES.items():
        try:
            import_module(module)
            found[package] = {"version": metadata.version(package)}
        except Exception as error:  # An import may fail in any way; each is the reason to report.
            found[package] = {"error": f"{type(error).__name__}: {error}"}
    return found


def tensorize(folder: Path, target: Path) -> dict:
    from safetensors.torch import load_file
    from tensorizer import TensorSerializer

    draft = target.with_suffix(".partial")
    serializer = TensorSerializer(str(draft))
    serializer.write_state_dict(load_files(load_file, folder, touched=False))
    serializer.close()
    draft.rename(target)
    return {"bytes": target.stat().st_size}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["probe"]:
            answer = probe()
        case ["tensorize", folder, target]:
            answer = tensorize(Path(folder), Path(target))
        case [action, path] if action in ACTIONS:
            answer = measure(action, Path(path))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
