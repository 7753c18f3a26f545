//! K1 to K14.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};
use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5, machines};
use crowfly_route::snapshot::Observation;

use super::given::{Example, example, info, machine, paste};

/// The bits that a kernel with an IOMMU sets at every port.
const REDIRECT: u16 = 0x1d;
/// Source validation, which does no harm.
const VALIDATE: u16 = 0x01;

/// The standard server, changed at the downstream port above its first GPU.
fn server(change: impl Fn(&mut Fixture, crowfly_route::units::PciAddress)) -> Case {
    let mut node = machines::dgx_h100();
    let gpu = node.topology().gpus[0].address.expect("a PCI device");
    change(&mut node, gpu);
    machine(&node)
}

fn with(key: &str, text: &str) -> Case {
    server(|node, _| {
        node.text(key, text);
    })
}

pub fn examples() -> Vec<Example> {
    let mut all = access();
    all.extend(links_and_memory());
    all.extend(settings());
    all.extend(events());
    all
}

const VERBOSE: &str = "\
0000:5d:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=5d, secondary=5e, subordinate=60, sec-latency=0
0000:5e:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=5e, secondary=5f, subordinate=5f, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
0000:5f:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
";
const NOT_VERBOSE: &str = "\
0000:5d:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=5d, secondary=5e, subordinate=60, sec-latency=0
0000:5e:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=5e, secondary=5f, subordinate=5f, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
0000:5f:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
";

/// A GPU and a NIC on ports of their own.
fn apart(vendor: &'static str, family: u32, model: u32) -> Case {
    let mut node = Fixture::new();
    node.processor(vendor, family, model, "a processor");
    let socket = node.socket();
    let slot = node.root_port(socket, gen5(16));
    node.gpu(slot, &GpuModel::L40S);
    let slot = node.root_port(socket, gen5(16));
    node.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
    machine(&node)
}

fn access() -> Vec<Example> {
    vec![
        example(
            "K1",
            Fault,
            || {
                server(|node, gpu| {
                    let port = node.port_above(gpu);
                    node.access_control(port, REDIRECT);
                })
            },
            || {
                server(|node, gpu| {
                    let port = node.port_above(gpu);
                    node.access_control(port, VALIDATE);
                })
            },
        ),
        // What an unprivileged user cannot read is no redirect.
        example(
            "K1",
            Fault,
            || paste(VERBOSE),
            || {
                server(|node, _| {
                    node.as_plain_user();
                })
            },
        ),
        example("K1", Fault, || paste(VERBOSE), || paste(NOT_VERBOSE)),
        example(
            "K1",
            Note,
            || {
                paste(
                    "$ sudo lspci -vvv | grep ACSCtl\n\t\tACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n\t\tACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n",
                )
            },
            || paste(NOT_VERBOSE),
        ),
        example(
            "K2",
            Warning,
            || apart("CentaurHauls", 7, 59),
            || apart("AuthenticAMD", 0x19, 1),
        ),
        example(
            "K3",
            Fault,
            || {
                paste(
                    "[   71.123456] nvme 0000:5f:00.0: ACS redirect is set between the client and provider (0000:61:00.0)\n",
                )
            },
            || {
                paste(
                    "[   71.123456] nvme 0000:5f:00.0: 32/0/0 default/read/poll queues\n[   71.2] mlx5_core 0000:61:00.0: Port module event: module 0, Cable plugged\n",
                )
            },
        ),
        example(
            "K4",
            Warning,
            || with("kconfig:CONFIG_PCI_P2PDMA", "n"),
            || with("kconfig:CONFIG_PCI_P2PDMA", "y"),
        ),
    ]
}

const SLOW_NIC: &str = "\
c1:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)
";
const VIRTUAL_NIC: &str = "\
c1:00.1 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7 Virtual Function]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed unknown, Width x0
";
const RESTING_GPU: &str = "\
c1:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
\tRegion 1: Memory at 13000000000 (64-bit, prefetchable) [size=64G]
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
";
const WORKING_GPU: &str = "\
c1:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
\tRegion 1: Memory at 13000000000 (64-bit, prefetchable) [size=64G]
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 16GT/s, Width x16
";
const SMALL_WINDOW: &str = "\
c1:00.0 3D controller: NVIDIA Corporation GA102GL [A10] (rev a1)
\tRegion 1: Memory at 13000000000 (64-bit, prefetchable) [size=256M]
";

fn nic_reads(bytes: u32) -> Case {
    paste(&format!(
        "c1:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n\t\t\tMaxPayload 256 bytes, MaxReadReq {bytes} bytes\n"
    ))
}

fn links_and_memory() -> Vec<Example> {
    vec![
        example("K6", Warning, || paste(SMALL_WINDOW), || paste(WORKING_GPU)),
        example(
            "K6",
            Fault,
            || {
                paste(
                    "[    2.000001] pci 0000:3b:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space\n",
                )
            },
            || {
                paste(
                    "[    2.000001] pci 0000:3b:00.0: BAR 1 [mem 0x2000000000-0x3fffffffff 64bit pref]: assigned\n",
                )
            },
        ),
        example("K7", Fault, || paste(SLOW_NIC), || paste(VIRTUAL_NIC)),
        example("K7", Note, || paste(RESTING_GPU), || paste(VIRTUAL_NIC)),
        example("K7", Note, || paste(WORKING_GPU), || paste(VIRTUAL_NIC)),
        example(
            "K7",
            Fault,
            || {
                server(|node, gpu| {
                    node.degrade(gpu, gen4(8));
                })
            },
            // Gen1 at full width is a GPU that rests.
            || {
                server(|node, gpu| {
                    node.degrade(gpu, crowfly_route::fixture::speed(1, 16));
                })
            },
        ),
        example("K8", Warning, || nic_reads(512), || nic_reads(4096)),
    ]
}

fn iommu(kind: &str) -> Case {
    let kind = kind.to_owned();
    server(move |node, gpu| {
        node.link(
            format!("/sys/bus/pci/devices/{gpu}/iommu_group"),
            "../../../../kernel/iommu_groups/7",
        );
        node.text("/sys/kernel/iommu_groups/7/type", kind.as_str());
    })
}

fn settings() -> Vec<Example> {
    vec![
        example("K5", Fault, || iommu("DMA-FQ"), || iommu("identity")),
        example(
            "K5",
            Warning,
            || paste("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on\n"),
            || paste("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n"),
        ),
        // `off` wins over `pt`.
        example(
            "K5",
            Note,
            || paste("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro amd_iommu=off iommu=pt\n"),
            || paste("[    1.000000] DMAR: Intel(R) Virtualization Technology for Directed I/O\n"),
        ),
        example(
            "K5",
            Note,
            || paste("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro nosplash\n"),
            || paste("[    1.000000] DMAR: Intel(R) Virtualization Technology for Directed I/O\n"),
        ),
        // The IOMMU refused an access.
        example(
            "K5",
            Fault,
            || {
                paste(
                    "[   61.000001] DMAR: [DMA Read NO_PASID] Request device [18:00.0] fault addr 0x4a00000000 [fault reason 0x06] PTE Read access is not set\n",
                )
            },
            || paste("[    1.000000] DMAR: Intel(R) Virtualization Technology for Directed I/O\n"),
        ),
        example("K9", Warning, lost_node, || machine(&machines::dgx_h100())),
        example(
            "K10",
            Warning,
            || with("/proc/sys/kernel/numa_balancing", "1"),
            || with("/proc/sys/kernel/numa_balancing", "0"),
        ),
        example(
            "K10",
            Warning,
            || {
                info(&[
                    "WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance",
                ])
            },
            || machine(&machines::laptop()),
        ),
    ]
}

/// A server whose firmware names the node of nothing.
fn lost_node() -> Case {
    let mut node = machines::dgx_h100();
    let keys: Vec<String> = node
        .snapshot()
        .iter()
        .filter(|(key, _)| key.ends_with("/numa_node"))
        .map(|(key, _)| key.to_owned())
        .collect();
    for key in keys {
        node.observe(key, Observation::text("-1"));
    }
    machine(&node)
}

fn events() -> Vec<Example> {
    vec![
        example(
            "K11",
            Broken,
            || {
                paste(
                    "[ 9001.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n",
                )
            },
            || paste("[ 9001.000001] NVRM: loading NVIDIA UNIX Open Kernel Module  570.86\n"),
        ),
        // Most often the application's own fault.
        example(
            "K11",
            Warning,
            || {
                paste(
                    "[ 9001.000001] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=train, MMU Fault\n",
                )
            },
            || {
                paste(
                    "[ 9001.000001] mlx5_core 0000:61:00.0: Port module event: module 0, Cable plugged\n",
                )
            },
        ),
        example(
            "K12",
            Broken,
            || {
                paste(
                    "[ 9001.000001] worker[77]: segfault at 7f79 ip 7f7c sp 7f7d error 4 in libnccl.so.2[7f7c+d3d]\n",
                )
            },
            || {
                paste(
                    "[ 9001.000001] browser[77]: segfault at 7f79 ip 7f7c sp 7f7d error 4 in libgtk-4.so[7f7c+d3d]\n",
                )
            },
        ),
        example(
            "K13",
            Fault,
            || {
                paste(
                    "[ 9001.000001] pcieport 0000:5d:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n",
                )
            },
            || paste("[ 9001.000001] pcieport 0000:5d:00.0: pciehp: Slot(5): Link Up\n"),
        ),
        example(
            "K14",
            Warning,
            || {
                paste(
                    "[ 9001.000001] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing\n",
                )
            },
            || paste("[ 9001.000001] nvidia-peermem loaded\n"),
        ),
    ]
}
