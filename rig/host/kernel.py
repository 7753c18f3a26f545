"""The guest's kernel: found in a Debian archive, checked for what the rig needs, unpacked, cached.

The newest `linux-image-*` of the derived suite is taken, whatever its version, and refused unless
its configuration has what the rig is there to exercise. A kernel built by `kernel/build` has the
same layout and can be used in its place.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from host import apt
from host.outcome import RigError, Waived

#: Suites offered to apt, first the one the kernel is taken from; the second holds the libraries
#: its build programs are linked against.
SUITES = ("trixie-backports", "trixie")
#: What the guest needs of a kernel: peer-to-peer DMA, soft-RoCE, NVMe, and a root over virtio-9p.
REQUIRED_CONFIG = {
    "PCI_P2PDMA": "y",
    "RDMA_RXE": "ym",
    "BLK_DEV_NVME": "ym",
    "NET_9P_VIRTIO": "ym",
    "9P_FS": "ym",
    "OVERLAY_FS": "ym",
}
#: Programs of the kernel's build are linked for the kernel's own suite; these are their libraries.
KBUILD_LIBRARIES = ("libc6", "libelf1t64", "libssl3t64", "zlib1g", "libzstd1")
_IMAGE = re.compile(r"^linux-image-(\d[\d.]*\d)(\+[a-z0-9]+)?-amd64$")


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel.

    `modules` is the folder that holds `VERSION/`; `source` and `build` are its build system's two
    trees; `libraries` is a root with the shared libraries of the build programs (None: the machine's).
    """

    version: str
    image: Path
    modules: Path
    source: Path
    build: Path
    libraries: Path | None

    @property
    def modules_dir(self):
        return self.modules / self.version

    def config(self):
        return (self.modules_dir / "config").read_text()


_PATHS = ("image", "modules", "source", "build", "libraries")


def version_key(name):
    """Sort key of a kernel image package, None for other flavours and meta packages."""
    match = _IMAGE.match(name)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def newest_image(names):
    images = [name for name in names if version_key(name)]
    return max(images, key=version_key) if images else None


def missing_options(config):
    """The options of REQUIRED_CONFIG that a kernel's configuration text lacks, as `NAME=have`."""
    have = dict(re.findall(r"^CONFIG_(\w+)=(\w+)$", config, re.MULTILINE))
    return [
        f"{name}={have.get(name, 'n')}"
        for name, accepted in REQUIRED_CONFIG.items()
        if have.get(name, "n") not in tuple(accepted)
    ]


def load(home):
    """The kernel cached under `home`, or None."""
    record = home / "kernel.json"
    if not record.is_file():
        return None
    known = json.loads(record.read_text())
    paths = {name: home / known[name] if known[name] else None for name in _PATHS}
    return Kernel(version=known["version"], **paths)


def save(home, kernel):
    """Check `kernel` and record it as the cached one; the record is written last, so it is whole or absent."""
    lacking = missing_options(kernel.config())
    if lacking:
        raise Waived(f"kernel {kernel.version} lacks {', '.join(lacking)}; build one with rig/kernel/build")
    subprocess.run(["depmod", "-b", kernel.modules.parent.parent, kernel.version], check=True)
    record = {name: _recorded(getattr(kernel, name), home) for name in _PATHS}
    (home / "kernel.json").write_text(json.dumps({"version": kernel.version, **record}, indent=2) + "\n")


def _recorded(path, home):
    """As a string: relative to the cache, so that it can be moved, where the path is in it."""
    return str(path.relative_to(home) if path.is_relative_to(home) else path) if path else None


def adopt(home, version, source):
    """Make the kernel that `kernel/build` built from `source` the cached one."""
    modules = home / "own-kernel/usr/lib/modules"
    build = home / "own-kernel/build"
    if not (modules / version / "vmlinuz").is_file():
        raise RigError(f"no kernel {version} in {modules}; rig/kernel/build puts one there")
    kernel = Kernel(version, modules / version / "vmlinuz", modules, source.resolve(), build, None)
    save(home, kernel)
    return kernel


def fetch(home, archive):
    """Download, unpack and check the newest kernel of `archive` under `home`."""
    image = newest_image(archive.names("linux-image-"))
    if image is None:
        raise Waived(f"no linux-image-*-amd64 in {' '.join(archive.suites)}")
    version = image.removeprefix("linux-image-")
    headers = f"linux-headers-{version}"
    downloads = home / "debs"
    shutil.rmtree(downloads, ignore_errors=True)
    archive.download(sorted(_closure(archive, image) | _closure(archive, headers)), downloads / "kernel")
    archive.download(KBUILD_LIBRARIES, downloads / "libraries")
    root, libraries = home / "kernel", home / "libraries"
    shutil.rmtree(root, ignore_errors=True)
    apt.unpack(sorted((downloads / "kernel").glob("*.deb")), root)
    apt.unpack(sorted((downloads / "libraries").glob("*.deb")), libraries)
    shutil.rmtree(downloads)
    kernel = _settle(root, version, libraries)
    save(home, kernel)
    return kernel


def _closure(archive, package):
    """`package` and the kernel packages it depends on (those that carry its version)."""
    number = re.search(r"\d[\d.]*\d", package)[0]
    wanted, pending = set(), [package]
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        pending += [need for need in apt.depends(archive.show(name)[0], "linux-") if number in need]
    return wanted


def _settle(root, version, libraries):
    """Bring both package layouts to one: image and configuration beside the modules."""
    modules = root / "usr/lib/modules" if (root / "usr/lib/modules").is_dir() else root / "lib/modules"
    image = modules / version / "vmlinuz"
    for name, inside in (("vmlinuz", image), ("config", modules / version / "config")):
        outside = root / f"boot/{name}-{version}"
        if not inside.exists() and outside.exists():
            shutil.copy(outside, inside)
    if not image.exists():
        raise RigError(f"no kernel image for {version} in its packages (looked at {image})")
    headers = root / f"usr/src/linux-headers-{version}"
    source = root / f"usr/src/linux-headers-{version.removesuffix('-amd64')}-common"
    return Kernel(version, image, modules, source, headers, libraries)
