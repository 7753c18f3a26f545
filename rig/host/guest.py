"""One boot of a shape: prepares what the guest reads, runs QEMU, and collects what the guest wrote."""

import random
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from host import initramfs, qemu
from host.outcome import RigError

#: Bytes at the start of each drive that hold known data; the rest reads as zeros.
SEEDED_BYTES = 32 << 20
#: Seconds one boot may take in all, and one test inside it. Only what hangs takes that long: a quiet
#: machine needs a tenth, a busy one a third.
BOOT_LIMIT = 900
TEST_LIMIT = 400
#: What the guest sees as its result folder (`guest/init` mounts it there).
OUT_IN_GUEST = "/run/rig"
#: The processor's own clock is calibrated at start against a host that may be busy, and then runs
#: fast for good; the HPET keeps the host's time. A starved host also misses the ticks the kernel
#: checks at start, upon which it would give up.
CLOCK = "clocksource=hpet tsc=unstable no_timer_check"
CMDLINE = f"console=ttyS0 quiet loglevel=4 panic=-1 {CLOCK} mitigations=off nokaslr"


@dataclass(frozen=True)
class Parts:
    """What every boot needs, made once by `rig/run fetch`."""

    kernel: object
    busybox: Path
    standin: Path
    home: Path


@dataclass(frozen=True)
class Ended:
    """How a boot ended: `rows` of `(test, exit status, seconds, last line)`, and why it is not whole."""

    rows: list
    seconds: float
    broken: str | None


def drive_content(device):
    """The first SEEDED_BYTES of a drive: random in appearance, the same in every run."""
    return random.Random(qemu.serial(device)).randbytes(SEEDED_BYTES)


def boot(shape, parts, tests, out, environment):
    """Boot `shape`, run `tests` in it, leave everything the guest wrote in `out`."""
    _make_folder(out)
    images = qemu.drives(shape, out)
    for device in shape.devices("nvme"):
        with open(images[device.name], "wb") as image:
            image.write(drive_content(device))
            image.truncate(qemu.DRIVE_MIB << 20)
    archive = out / "initramfs"
    archive.write_bytes(initramfs.build(parts.kernel, parts.busybox, parts.home / "guest/init"))
    _write_settings(shape, parts, tests, out, environment)
    cmdline = CMDLINE + (" intel_iommu=on" if shape.iommu else "")
    command = qemu.command(
        shape,
        kernel_image=parts.kernel.image,
        initramfs=archive,
        root=Path("/"),
        modules=parts.kernel.modules_dir,
        out=out,
        images=images,
        cmdline=cmdline,
    )
    (out / "command").write_text(shlex.join(command) + "\n")
    begin = time.monotonic()
    with open(out / "console.log", "wb") as console:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, timeout=BOOT_LIMIT
            ).returncode
            broken = f"QEMU ended with status {status}" if status else None
        except subprocess.TimeoutExpired:
            broken = f"the guest had not ended after {BOOT_LIMIT} s"
    if not (out / "complete").exists():
        broken = broken or "the guest ended before its tests did"
    return Ended(_rows(out), time.monotonic() - begin, broken)


def discard(shape, out):
    """Remove what is large and can be made again; logs and results stay."""
    for path in [*qemu.drives(shape, out).values(), out / "initramfs"]:
        path.unlink(missing_ok=True)


def _make_folder(out):
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
    except OSError as error:
        raise RigError(f"cannot make the result folder {out}: {error.strerror}") from error


def _write_settings(shape, parts, tests, out, environment):
    settings = {
        "RIG_HOME": parts.home,
        "RIG_OUT": OUT_IN_GUEST,
        "RIG_SHAPE": shape.name,
        "RIG_KERNEL": parts.kernel.version,
        "RIG_STANDIN": parts.standin,
        "RIG_GPUS": _names(shape, "gpu"),
        "RIG_DRIVES": _names(shape, "nvme"),
        "RIG_NICS": _names(shape, "nic"),
        "RIG_ACS_REDIRECT": int(shape.acs_redirect),
        "RIG_TESTS": " ".join(tests),
        "RIG_TEST_LIMIT": TEST_LIMIT,
        **environment,
    }
    lines = [f"export {name}={shlex.quote(str(value))}\n" for name, value in settings.items()]
    (out / "settings").write_text("".join(lines))
    places = [f"{place.device.name} {place.guest_path()}\n" for place in qemu.placements(shape)]
    (out / "devices").write_text("".join(places))
    (out / "peer").write_text("".join(f"{pair} {peer.outcome}\n" for pair, peer in shape.peer.items()))


def _names(shape, kind):
    return " ".join(device.name for device in shape.devices(kind))


def _rows(out):
    results = out / "results"
    lines = results.read_text(errors="replace").splitlines() if results.exists() else []
    rows = [line.split("\t", 3) for line in lines]
    return [(name, int(status), float(seconds), last) for name, status, seconds, last in rows]
