"""From a shape to QEMU's command line, and to the addresses its devices have in the guest.

Every device gets a fixed place, so a device is found in the guest by its path of device.function
numbers from the root bus, which no renumbering of buses changes.
"""

from dataclasses import dataclass

QEMU = "qemu-system-x86_64"
#: Memory of the guest, and of each stand-in's BAR, in MiB.
MEMORY_MIB = 1536
BAR_MIB = 256
DRIVE_MIB = 512
CPUS = 2

#: One thread for all virtual CPUs. With a thread each, a CPU now and then runs an instruction that
#: another has just patched, and the kernel stops with an int3 it no longer knows. The tests take
#: no longer this way.
ACCELERATOR = "tcg,thread=single"

#: Device numbers on the first root bus (q35 keeps 0x1f for itself, 0 is the host bridge).
SLOT_ROOT_FILES, SLOT_OUT_FILES, SLOT_MODULE_FILES, SLOT_EXPANDER, SLOT_ROOT_PORT = 0x4, 0x5, 0x6, 0x8, 0x10
#: Bus numbers of the host bridges of nodes 0 and 1 in a machine with two nodes.
EXPANDER_BUSES = (0x40, 0x80)

#: Without "fast strings": where the CPU claims them, everything copies by `rep movsb`, which the
#: emulator carries out byte by byte.
_CPU = "max,-la57,-erms,-fsrm"
#: Peer DMA through a root complex is allowed by the kernel on AMD Zen and refused on an unknown CPU.
CPU_MODELS = {"generic": _CPU, "zen": f"{_CPU},vendor=AuthenticAMD,family=25,model=1"}

#: QEMU's own record of what its drives do: commands, the addresses of their data, and how the
#: IOMMU translated them. This is what `trace.py` reads.
TRACE_EVENTS = ("pci_nvme_read", "pci_nvme_write", "pci_nvme_map_addr", "vtd_dmar_translate")


@dataclass(frozen=True)
class Placement:
    """Where a device is in the guest: the root bus, and device.function at each step below it."""

    device: object
    root_bus: int
    path: tuple

    def guest_path(self):
        return f"{self.root_bus:02x}/" + "/".join(self.path)


def serial(device):
    """A drive's serial number; drives are found by it because their names swap between boots."""
    return f"rig-{device.name}"


def namespace_id(device):
    """Each drive has its own namespace number, by which QEMU's trace tells drives apart."""
    return device.number + 1


def drives(shape, folder):
    return {device.name: folder / f"{device.name}.img" for device in shape.devices("nvme")}


def placements(shape):
    found = []
    for index, root in enumerate(shape.roots):
        bus, port = _root_port_place(shape, index)
        for slot, device in enumerate(root.devices):
            below = ("00.0", f"{slot:02x}.0", "00.0") if root.switch else ("00.0",)
            found.append(Placement(device, bus, (f"{port:02x}.0", *below)))
    return found


def command(shape, *, kernel_image, initramfs, root, modules, out, images, cmdline):
    """The whole command. `root`, `modules` (its kernel's) and `out` are the folders the guest sees,
    `images` from `drives()`."""
    machine = "q35,kernel-irqchip=split" if shape.iommu else "q35"
    arguments = [QEMU, "-machine", machine, "-accel", ACCELERATOR, "-cpu", CPU_MODELS[shape.cpu]]
    arguments += ["-smp", f"{CPUS},sockets={shape.nodes},cores={CPUS // shape.nodes},threads=1"]
    arguments += ["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]
    arguments += _memory(shape)
    arguments += ["-kernel", kernel_image, "-initrd", initramfs, "-append", cmdline]
    if shape.iommu:
        arguments += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
    arguments += _shared_folder("root", root, SLOT_ROOT_FILES, ",readonly=on,multidevs=remap")
    arguments += _shared_folder("modules", modules, SLOT_MODULE_FILES, ",readonly=on")
    arguments += _shared_folder("out", out, SLOT_OUT_FILES, "")
    arguments += _expanders(shape)
    for index, root_port in enumerate(shape.roots):
        arguments += _below_root_port(shape, index, root_port, images)
    for event in TRACE_EVENTS:
        arguments += ["-trace", event]
    arguments += ["-D", out / "trace.log"]
    return [str(argument) for argument in arguments]


def _memory(shape):
    arguments = ["-m", f"{MEMORY_MIB}M"]
    if shape.nodes > 1:
        for node in range(shape.nodes):
            size = f"{MEMORY_MIB // shape.nodes}M"
            arguments += ["-object", f"memory-backend-ram,id=ram{node},size={size}"]
            arguments += ["-numa", f"node,nodeid={node},cpus={node},memdev=ram{node}"]
        arguments += ["-numa", "dist,src=0,dst=1,val=21"]
    return arguments


def _shared_folder(tag, path, slot, options):
    return [
        "-fsdev",
        f"local,id={tag},path={_escape(path)},security_model=none{options}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0,addr={slot:#x}",
    ]


def _expanders(shape):
    if shape.nodes == 1:
        return []
    arguments = []
    for node in range(shape.nodes):
        bus, slot = EXPANDER_BUSES[node], SLOT_EXPANDER + node
        place = f"bus=pcie.0,addr={slot:#x}"
        arguments += ["-device", f"pxb-pcie,id=node{node},bus_nr={bus:#x},numa_node={node},{place}"]
    return arguments


def _root_port_place(shape, index):
    """Bus and device number of root port `index`: on its node's own host bridge if there are nodes."""
    if shape.nodes == 1:
        return 0, SLOT_ROOT_PORT + index
    node = shape.roots[index].node
    return EXPANDER_BUSES[node], sum(1 for root in shape.roots[:index] if root.node == node)


def _below_root_port(shape, index, root, images):
    _, port = _root_port_place(shape, index)
    bus = "pcie.0" if shape.nodes == 1 else f"node{root.node}"
    chassis = 1 + index * 16
    arguments = ["-device", f"ioh3420,id=root{index},bus={bus},addr={port:#x},chassis={chassis},slot={index}"]
    if root.switch is None:
        return arguments + _endpoint(shape, root.devices[0], f"root{index}", images)
    arguments += ["-device", f"x3130-upstream,id=up{index},bus=root{index}"]
    # xio3130 ports have no ACS capability; QEMU's root-port model has, and also works below a switch.
    model = {"plain": "xio3130-downstream", "acs": "pcie-root-port"}[root.switch]
    for slot, device in enumerate(root.devices):
        name, place = f"down{index}-{slot}", f"bus=up{index},addr={slot:#x}"
        arguments += ["-device", f"{model},id={name},{place},chassis={chassis + 1 + slot},slot={slot}"]
        arguments += _endpoint(shape, device, name, images)
    return arguments


def _endpoint(shape, device, bus, images):
    name, number = device.name, device.number
    if device.kind == "gpu":
        memory = f"memory-backend-memfd,id={name}-memory,size={BAR_MIB}M,share=on"
        return ["-object", memory, "-device", f"ivshmem-plain,id={name},memdev={name}-memory,bus={bus}"]
    if device.kind == "nvme":
        pace = f",throttling.bps-read={shape.drive_mib_per_s << 20}" if shape.drive_mib_per_s else ""
        return [
            "-drive",
            f"file={_escape(images[name])},format=raw,if=none,id={name}-image,cache=unsafe{pace}",
            "-device",
            f"nvme,id={name},serial={serial(device)},bus={bus}",
            "-device",
            f"nvme-ns,drive={name}-image,bus={name},nsid={namespace_id(device)}",
        ]
    return [
        "-netdev",
        f"hubport,id={name}-wire,hubid=0",
        "-device",
        f"e1000e,id={name},netdev={name}-wire,mac=52:54:00:00:00:{number:02x},romfile=,bus={bus}",
    ]


def _escape(path):
    """A comma ends an option's value; QEMU reads a doubled one as itself."""
    return str(path).replace(",", ",,")
