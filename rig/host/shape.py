"""Machine shapes: what a virtual server looks like, read from a small TOML file and checked.

A shape says which devices hang where, and what the kernel is expected to make of a read from each
drive into each stand-in. `README.md` has the whole format.
"""

import re
import tomllib
from dataclasses import dataclass, field

#: Limits of one shape. The bus layout in `qemu.py` has room for these and no more.
MAX_ROOTS = 8
MAX_DEVICES_PER_SWITCH = 8
MAX_NODES = 2

SWITCHES = ("plain", "acs")
CPUS = ("generic", "zen")
#: What becomes of a drive's DMA into a BAR: it arrives; the kernel refuses it, for a reason that has
#: one of crowfly's codes; the call succeeds but the data does not arrive.
PEER_OUTCOMES = ("direct", "refused", "corrupt")

_DEVICE = re.compile(r"^(gpu|nvme|nic)([0-9])$")
_PAIR = re.compile(r"^(nvme[0-9])-(gpu[0-9])$")
_CODE = re.compile(r"^[a-z]+(-[a-z]+)*$")
_TOP_KEYS = {"about", "cpu", "iommu", "acs_redirect", "nodes", "drive_mib_per_s", "root", "peer"}
_ROOT_KEYS = {"node", "switch", "devices"}


class ShapeError(Exception):
    """A shape file that says something impossible; the message names the file, the key and the value."""


@dataclass(frozen=True)
class Device:
    """One endpoint. `number` counts within its kind."""

    name: str
    kind: str
    number: int


@dataclass(frozen=True)
class Peer:
    """What the kernel makes of a pair; `code` is the obstacle's where it is refused, else None."""

    outcome: str
    code: str | None = None


@dataclass(frozen=True)
class Root:
    """A root port on NUMA node `node`, with one device or a switch below it."""

    node: int
    switch: str | None
    devices: tuple


@dataclass(frozen=True)
class Shape:
    name: str
    about: str
    cpu: str
    iommu: bool
    acs_redirect: bool
    nodes: int
    drive_mib_per_s: int | None
    roots: tuple
    peer: dict = field(default_factory=dict)

    def relations(self, one, other):
        """What may be said to lie between two of its devices, in the usual names: PIX within a switch,
        PHB across root ports of one host bridge, SYS across nodes. The ports of an `acs` switch claim
        to be root ports (QEMU has no other model with ACS), which may be read as several switches."""
        if self._root_of(one) == self._root_of(other):
            return ("PIX", "PXB") if self.roots[self._root_of(one)].switch == "acs" else ("PIX",)
        return ("PHB",) if self.node_of(one) == self.node_of(other) else ("SYS",)

    def node_of(self, device):
        return self.roots[self._root_of(device)].node

    def _root_of(self, device):
        return next(index for index, root in enumerate(self.roots) if device in root.devices)

    def devices(self, kind=None):
        found = [device for root in self.roots for device in root.devices if kind in (None, device.kind)]
        return sorted(found, key=lambda device: (device.kind, device.number))


def load(path):
    try:
        text = path.read_text()
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.toml")))
        raise ShapeError(f"no shape {path.stem}; there are: {known}") from None
    return parse(path.stem, text)


def parse(name, text):
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeError(f"shape {name}: {error}") from None
    _only(name, "the shape", table, _TOP_KEYS)
    shape = Shape(
        name=name,
        about=_typed(name, table, "about", str, None),
        cpu=_one_of(name, "cpu", table.get("cpu", "generic"), CPUS),
        iommu=_typed(name, table, "iommu", bool, False),
        acs_redirect=_typed(name, table, "acs_redirect", bool, False),
        nodes=_typed(name, table, "nodes", int, 1),
        drive_mib_per_s=_typed(name, table, "drive_mib_per_s", int, 0) or None,
        roots=tuple(_root(name, root) for root in _typed(name, table, "root", list, None)),
        peer={pair: _peer(name, pair, text) for pair, text in _typed(name, table, "peer", dict, {}).items()},
    )
    _check(shape)
    return shape


def _root(name, table):
    if not isinstance(table, dict):
        raise ShapeError(f"shape {name}: root is {table!r}; write [[root]] tables")
    _only(name, "[[root]]", table, _ROOT_KEYS)
    switch = table.get("switch")
    if switch is not None:
        _one_of(name, "switch", switch, SWITCHES)
    devices = []
    for device in _typed(name, table, "devices", list, None):
        match = _DEVICE.match(device) if isinstance(device, str) else None
        if not match:
            raise ShapeError(f"shape {name}: device {device!r} is not gpuN, nvmeN or nicN")
        devices.append(Device(device, match[1], int(match[2])))
    return Root(_typed(name, table, "node", int, 0), switch, tuple(devices))


def _peer(name, pair, text):
    outcome, _, code = text.partition(" ") if isinstance(text, str) else (text, "", "")
    _one_of(name, f"peer.{pair}", outcome, PEER_OUTCOMES)
    if (outcome == "refused") != bool(_CODE.match(code)):
        raise ShapeError(f"shape {name}: peer.{pair} = {text!r}; write 'refused CODE', and a code only there")
    return Peer(outcome, code or None)


def _check(shape):
    name = shape.name
    if not 1 <= shape.nodes <= MAX_NODES:
        raise ShapeError(f"shape {name}: nodes = {shape.nodes}; 1 to {MAX_NODES} can be built")
    if not 1 <= len(shape.roots) <= MAX_ROOTS:
        raise ShapeError(f"shape {name}: {len(shape.roots)} roots; 1 to {MAX_ROOTS} can be built")
    if shape.drive_mib_per_s is not None and shape.drive_mib_per_s < 1:
        raise ShapeError(f"shape {name}: drive_mib_per_s = {shape.drive_mib_per_s}; 1 or more, or leave it out")
    for root in shape.roots:
        if not 0 <= root.node < shape.nodes:
            raise ShapeError(f"shape {name}: a root on node {root.node}, but nodes = {shape.nodes}")
        most = MAX_DEVICES_PER_SWITCH if root.switch else 1
        if not 1 <= len(root.devices) <= most:
            below = f"a {root.switch} switch" if root.switch else "a root port without a switch"
            raise ShapeError(f"shape {name}: {len(root.devices)} devices below {below}; 1 to {most} fit")
    names = [device.name for device in shape.devices()]
    for device in names:
        if names.count(device) > 1:
            raise ShapeError(f"shape {name}: {device} is placed {names.count(device)} times")
    for pair in shape.peer:
        match = _PAIR.match(pair)
        if not match or match[1] not in names or match[2] not in names:
            raise ShapeError(f"shape {name}: peer {pair!r} does not name a drive and a stand-in of this shape")
    for drive in shape.devices("nvme"):
        for gpu in shape.devices("gpu"):
            if f"{drive.name}-{gpu.name}" not in shape.peer:
                raise ShapeError(f"shape {name}: peer says nothing of {drive.name}-{gpu.name}")


def _only(name, what, table, keys):
    unknown = sorted(set(table) - keys)
    if unknown:
        raise ShapeError(f"shape {name}: {what} has unknown {', '.join(unknown)}; known are {', '.join(sorted(keys))}")


def _typed(name, table, key, kind, default):
    value = table.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ShapeError(f"shape {name}: {key} = {value!r}; expected {kind.__name__}")
    return value


def _one_of(name, key, value, accepted):
    if value not in accepted:
        raise ShapeError(f"shape {name}: {key} = {value!r}; one of {', '.join(accepted)}")
    return value
