//! Given a file of hwloc, NCCL or crowfly itself, when read, then this topology or this error.

use crowfly_route::fixture::machines;
use crowfly_route::topology::{Device, DriveTransport, GpuLinkKind, GpuVendor, Topology};
use crowfly_route::units::{Bytes, BytesPerSecond, NumaNode};
use proptest::prelude::*;

const HWLOC_2: &str = include_str!("../fixtures/hwloc2.xml");
const HWLOC_3: &str = include_str!("../fixtures/hwloc3.xml");
const NCCL: &str = include_str!("../fixtures/nccl.xml");
const RCCL: &str = include_str!("../fixtures/rccl.xml");

fn read(text: &str) -> Topology {
    Topology::from_any(text.as_bytes()).expect("readable")
}

fn relation(topology: &Topology, a: &str, b: &str) -> String {
    let device = |name| topology.find(name).expect(name);
    topology.distance(device(a), device(b)).relation.to_string()
}

#[test]
fn given_a_snapshot_then_it_is_decoded_like_the_machine_itself() {
    let machine = machines::pcie_box();
    let text = machine.snapshot().to_json();
    assert_eq!(read(&text), machine.topology());
}

#[test]
fn given_an_hwloc_2_file_then_devices_places_and_links_are_those_of_the_machine() {
    let topology = read(HWLOC_2);
    assert_eq!(topology.oddities, []);

    assert_eq!(topology.host.kernel.as_deref(), Some("6.8.0-example"));
    assert_eq!(
        (topology.host.cpu_model, topology.host.sockets),
        (Some(106), Some(2))
    );
    let numa = &topology.numa[1];
    assert_eq!(
        (numa.node, numa.cpus.as_str(), numa.socket),
        (NumaNode(1), "4-7", Some(1))
    );
    assert_eq!(
        (numa.memory, numa.distances.as_slice()),
        (Some(Bytes::gib(128)), &[20, 10][..])
    );

    let gpu = &topology.gpus[0];
    assert_eq!(
        (gpu.name.as_str(), gpu.vendor),
        ("Example A100 80GB", GpuVendor::Nvidia)
    );
    assert_eq!(gpu.memory, Some(Bytes::gib(80)));
    let link = &topology.gpu_links[0];
    assert_eq!(
        (link.a, link.b, link.count, link.kind),
        (0, 1, 12, GpuLinkKind::NvLink)
    );
    assert_eq!(link.rate, Some(BytesPerSecond::gb(300.0)));

    let nic = &topology.nics[0];
    assert_eq!(
        (nic.name.as_str(), nic.interfaces[0].name.as_str()),
        ("mlx5_0", "ib0")
    );
    assert_eq!(nic.ports[0].active, Some(true));

    let drive = &topology.drives[0];
    assert_eq!(
        (drive.name.as_str(), drive.transport),
        ("nvme0", DriveTransport::NvmePcie)
    );
    assert_eq!(
        topology.blocks["nvme0n1"].size,
        Some(Bytes(3_750_738_264 * 1024))
    );

    assert_eq!(relation(&topology, "gpu0", "gpu1"), "NV12");
    assert_eq!(relation(&topology, "gpu0", "mlx5_0"), "PIX");
    assert_eq!(relation(&topology, "nvme0", "mlx5_0"), "SYS");
    let by_pcie = topology.pcie_distance(Device::Gpu(0), Device::Gpu(1));
    let links: Vec<_> = by_pcie
        .path
        .crossings
        .iter()
        .map(|c| c.link.as_str())
        .collect();
    assert_eq!(
        links,
        [
            "0000:3c:00.0–0000:3d:00.0 31.5 GB/s",
            "0000:3c:01.0–0000:3e:00.0 of unknown speed"
        ]
    );
}

#[test]
fn given_an_hwloc_3_file_with_nvswitches_then_pairs_have_the_sum_of_their_links() {
    let topology = read(HWLOC_3);
    assert_eq!(relation(&topology, "gpu0", "gpu1"), "NV6");
    assert_eq!(topology.gpu_links[0].rate, Some(BytesPerSecond::gb(150.0)));
    assert_eq!(relation(&topology, "gpu0", "mlx5_0"), "PHB");
    assert_eq!(topology.numa[0].cpus, "32");
    // One device that is both a network interface and an RDMA device.
    assert_eq!(topology.nics.len(), 1);
    assert_eq!(topology.nics[0].interfaces.len(), 1);
}

#[test]
fn given_an_nccl_file_then_switches_are_whole_and_speeds_are_what_links_could_do() {
    let topology = read(NCCL);
    assert_eq!(topology.oddities.len(), 1, "{:?}", topology.oddities);
    assert_eq!(topology.oddities[0].at, "0000:c3:00.0");
    assert_eq!(topology.host.cpu_family, Some(25));
    assert_eq!(topology.gpus[0].compute_capability.as_deref(), Some("9.0"));

    let link = &topology.gpu_links[0];
    assert_eq!(
        (link.count, link.rate),
        (18, Some(BytesPerSecond::gb(450.0)))
    );

    let names: Vec<_> = topology.nics.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["0000:51:00.0", "eth0", "mlx5_0", "mlx5_1"]);
    assert_eq!(
        topology.nics[2].ports[0].rate,
        Some(BytesPerSecond::from_gbps(400.0))
    );
    assert_eq!(topology.nics[1].address, None);

    assert_eq!(relation(&topology, "gpu0", "mlx5_0"), "PIX");
    assert_eq!(relation(&topology, "mlx5_0", "mlx5_1"), "PIX");
    assert_eq!(relation(&topology, "gpu1", "mlx5_0"), "SYS");
    let near = topology.distance(
        Device::Gpu(0),
        topology.find("0000:51:00.0").expect("there"),
    );
    assert_eq!(near.relation.to_string(), "NODE");
    let doubt = "whether they share a host bridge is not known: NODE, or PHB";
    assert_eq!(near.path.doubts, [doubt]);
    assert_eq!(
        near.path.crossings[0].link,
        "0000:41:00.0–0000:43:00.0 up to Gen5 x16"
    );
}

#[test]
fn given_an_rccl_file_then_xgmi_counts_and_makers_are_not_guessed() {
    let topology = read(RCCL);
    assert_eq!(relation(&topology, "11d1:00:00.0", "3436:00:00.0"), "XG4");
    assert_eq!(topology.gpu_links[0].rate, None);
    let nameless = &topology.gpus[0];
    assert_eq!(
        nameless.address.map(|a| a.to_string()).as_deref(),
        Some("0003:00:00.0")
    );
    assert_eq!(
        (nameless.name.as_str(), nameless.vendor),
        ("GPU of unnamed make", GpuVendor::Other)
    );
    assert_eq!(topology.gpus[1].compute_capability, None);
    assert_eq!(
        topology.oddities[0].what,
        "linked to 9999:00:00.0, which is no GPU of this file"
    );
    assert_eq!(relation(&topology, "gpu0", "0103:00:00.0"), "PIX");
    assert_eq!(relation(&topology, "gpu0", "gpu1"), "NODE");
}

#[test]
fn refusals_have_their_codes_and_say_what_crowfly_reads() {
    let refused = |bytes: &[u8]| {
        let error = Topology::from_any(bytes).expect_err("refused");
        (error.code(), error.to_string())
    };
    let code = |text: &str| refused(text.as_bytes()).0;
    assert_eq!(code(""), "topology-unrecognised");
    assert_eq!(code("GPU0 GPU1"), "topology-unrecognised");
    assert_eq!(code("{}"), "snapshot-malformed");
    assert_eq!(code("<html/>"), "topology-other-xml");
    assert_eq!(code("<system><cpu></system>"), "topology-xml-malformed");
    assert_eq!(
        code(r#"<topology version="1.0"/>"#),
        "topology-hwloc-version"
    );
    assert_eq!(code("<topology/>"), "topology-hwloc-version");
    assert_eq!(refused(b"<system>\xff</system>").0, "topology-unrecognised");
    let (code, text) = refused(b"\xef\xbb\xbf  lstopo 2.10 output");
    assert_eq!(code, "topology-unrecognised");
    assert!(text.contains("begins with `lstopo 2.10 output`"), "{text}");
    assert!(text.contains("`lstopo --of xml`"), "{text}");
}

#[test]
fn files_beyond_the_limits_are_refused_before_they_cost_anything() {
    let code = |text: &str| {
        Topology::from_any(text.as_bytes())
            .expect_err("refused")
            .code()
    };
    let deep = format!(
        "<system>{}{}</system>",
        "<pci>".repeat(70),
        "</pci>".repeat(70)
    );
    assert_eq!(code(&deep), "topology-xml-too-deep");
    let many = format!("<system>{}</system>", "<cpu/>".repeat(400_001));
    assert_eq!(code(&many), "topology-xml-malformed");
    let large = format!("<system>{}</system>", " ".repeat(16 << 20));
    assert_eq!(code(&large), "topology-xml-too-large");
    let entities = (1..12).map(|n| {
        let references = format!("&e{};", n - 1).repeat(10);
        format!("<!ENTITY e{n} \"{references}\">")
    });
    let entities: String = entities.collect();
    let laughs =
        format!("<!DOCTYPE topology [<!ENTITY e0 \"ha\">{entities}]><topology>&e11;</topology>");
    assert_eq!(code(&laughs), "topology-xml-malformed");
}

#[test]
fn given_nothing_but_the_outermost_element_then_the_topology_is_empty() {
    assert_eq!(read("<system/>"), Topology::default());
    assert_eq!(read(r#"<topology version="2.0"/>"#), Topology::default());
}

/// Lines of a file shuffled, doubled and cut: well-formed or not, never a panic.
fn bent(text: &'static str) -> impl Strategy<Value = String> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), "[ -~]{0,6}"), 0..6);
    cuts.prop_map(move |cuts| {
        let mut text = text.to_owned();
        for (at, new) in cuts {
            let mut at = at.index(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let end = (at + new.len()).min(text.len());
            if text.is_char_boundary(end) {
                text.replace_range(at..end, &new);
            }
        }
        text
    })
}

proptest! {
    #[test]
    fn bent_files_never_panic(
        text in prop_oneof![bent(HWLOC_2), bent(HWLOC_3), bent(NCCL), bent(RCCL)]
    ) {
        if let Ok(topology) = Topology::from_any(text.as_bytes()) {
            for a in topology.devices() {
                for b in topology.devices() {
                    topology.distance(a, b);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = Topology::from_any(&bytes);
    }
}
