"""The guest's first file system: busybox, `guest/init`, and the modules that reach the real root."""

import lzma
import subprocess

from host.outcome import RigError

#: What the kernel needs before it can mount the machine's own root over virtio-9p.
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
FOLDERS = ("bin", "dev", "proc", "sys", "modules", "root", "lower", "upper")


def build(kernel, busybox, init):
    """The whole archive as bytes (cpio, new ASCII format, uncompressed)."""
    entries = [(folder, 0o040755, b"") for folder in FOLDERS]
    entries.append(("bin/busybox", 0o100755, busybox.read_bytes()))
    entries.append(("init", 0o100755, init.read_bytes()))
    for index, path in enumerate(_module_files(kernel)):
        name = path.name.removesuffix(".xz").removesuffix(".zst")
        entries.append((f"modules/{index:02d}-{name}", 0o100644, _uncompressed(path)))
    return cpio(entries)


def cpio(entries):
    """Pack `(name, mode, data)` entries; the format is the kernel's buffer-format document."""
    archive = bytearray()
    for inode, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        encoded = name.encode() + b"\0"
        numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        archive += b"070701" + b"".join(b"%08x" % number for number in numbers) + encoded
        archive += b"\0" * (-len(archive) % 4)
        archive += data
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def _module_files(kernel):
    """Paths of FIRST_MODULES and what they depend on, in loading order, each once."""
    root = kernel.modules.parent.parent
    files = {}
    for module in FIRST_MODULES:
        command = ["modprobe", "-d", root, "-S", kernel.version, "--show-depends", module]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"module {module} of kernel {kernel.version}: {done.stderr.strip()}")
        for line in done.stdout.splitlines():
            action, _, path = line.strip().partition(" ")
            if action == "insmod":
                files[path.strip()] = None
    return [kernel.modules / path.split("/lib/modules/", 1)[1] for path in files]


def _uncompressed(path):
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
    return path.read_bytes()
