"""Everything a boot needs, fetched or built once and cached: QEMU, the guest's tools, the kernel,
busybox, and the stand-in module."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from host import apt, kbuild, kernel, qemu
from host.guest import Parts
from host.outcome import Waived

#: Programs the rig and its tests use, and the Debian package each comes in.
PROGRAMS = {
    qemu.QEMU: "qemu-system-x86",
    "modprobe": "kmod",
    "depmod": "kmod",
    "setpci": "pciutils",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "wipefs": "util-linux",
    "gcc": "gcc",
    "make": "make",
    "ib_write_bw": "perftest",
    "ibv_rc_pingpong": "ibverbs-utils",
}
#: Packages that bring no program of their own: the verbs library's driver for soft-RoCE.
ALSO = {"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so": "ibverbs-providers"}

#: System programs live in folders that an ordinary user's PATH may lack.
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def cache_home():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crowfly" / "rig"


def missing_packages():
    absent = [package for program, package in PROGRAMS.items() if not shutil.which(program, path=SYSTEM_PATH)]
    absent += [package for file, package in ALSO.items() if not Path(file).exists()]
    return sorted(set(absent))


def install_packages(say):
    absent = missing_packages()
    if not absent:
        return
    if os.geteuid() != 0:
        raise Waived(f"missing {', '.join(absent)}, and installing them needs root")
    if not shutil.which("apt-get"):
        raise Waived(f"missing {', '.join(absent)}, and no apt-get here to install them with")
    say(f"installing {', '.join(absent)}")
    quiet = {"capture_output": True, "text": True, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", "update"], **quiet)
    done = subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *absent], **quiet)
    still = missing_packages()
    if done.returncode or still:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Waived(f"could not install {', '.join(still or absent)}: {told}")


def ready(home, say, refresh=False):
    """The parts, from the cache where it is whole, else fetched and built now."""
    os.environ["PATH"] = SYSTEM_PATH
    install_packages(say)
    cache = cache_home()
    archive = apt.Archive(cache / "apt", kernel.SUITES)
    updated = False
    booted = None if refresh else kernel.load(cache)
    if booted is None:
        say(f"looking for a kernel in {', '.join(kernel.SUITES)}")
        archive.update()
        updated = True
        booted = kernel.fetch(cache, archive)
        say(f"kernel {booted.version}")
    busybox = cache / "busybox/usr/bin/busybox"
    if not busybox.exists():
        if not updated:
            archive.update()
        apt.unpack(archive.download(["busybox-static"], cache / "debs"), cache / "busybox")
        shutil.rmtree(cache / "debs")
    return Parts(booted, busybox, _standin(home / "module", booted, cache, say), home)


def _standin(sources, booted, cache, say):
    """The stand-in module for this kernel and these sources."""
    text = b"".join(path.read_bytes() for path in sorted(sources.iterdir()))
    built = cache / "standin" / f"{booted.version}-{hashlib.sha256(text).hexdigest()[:16]}.ko"
    if not built.exists():
        say("building the stand-in module")
        built.parent.mkdir(parents=True, exist_ok=True)
        module = kbuild.build_module(booted, sources, cache / "build")
        shutil.copy(module, built)
        shutil.rmtree(cache / "build")
    return built
