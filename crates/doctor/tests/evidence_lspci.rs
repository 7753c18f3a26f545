//! Lists and trees of PCI functions.

use crowfly_doctor::evidence::lspci::{Lspci, LspciTree};
use crowfly_doctor::evidence::{Artefact, LineNumber, read};
use crowfly_route::units::{Bytes, PciAddress};

fn artefacts(text: &str) -> Vec<Artefact> {
    read("pci.txt", text.as_bytes())
        .sections
        .into_iter()
        .map(|s| s.artefact)
        .collect()
}

fn list(text: &str) -> Lspci {
    match artefacts(text).as_slice() {
        [Artefact::Lspci(list)] => list.clone(),
        other => panic!("not one list: {other:?}"),
    }
}

fn tree(text: &str) -> LspciTree {
    match artefacts(text).as_slice() {
        [Artefact::LspciTree(tree)] => tree.clone(),
        other => panic!("not one tree: {other:?}"),
    }
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

const VERBOSE: &str = "\
0000:5d:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0) (prog-if 00 [Normal decode])
\tBus: primary=5d, secondary=5e, subordinate=66, sec-latency=0
\tCapabilities: [68] Express (v2) Upstream Port, MSI 00
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 512 bytes, MaxReadReq 4096 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)
\tCapabilities: [170 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport

c1:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
\tNUMA node: 1
\tIOMMU group: 77
\tRegion 0: Memory at b4000000 (32-bit, non-prefetchable) [size=16M]
\tRegion 1: Memory at 13000000000 (64-bit, prefetchable) [size=64G]
\t\tLnkSta:\tSpeed unknown, Width x0
\t\tBAR 1: current size: 64GB, supported: 64MB 128MB 64GB
\tCapabilities: <access denied>
\tKernel driver in use: nvidia
";

#[test]
fn given_verbose_output_then_details_belong_to_their_function() {
    let list = list(VERBOSE);
    let bridge = &list.functions[0];
    assert_eq!(
        (bridge.address, bridge.class.as_str()),
        (at("5d:00.0"), "PCI bridge")
    );
    assert_eq!(
        (bridge.class_code, bridge.ids),
        (Some(0x0604), Some((0x1000, 0xc030)))
    );
    assert_eq!(bridge.name, "Broadcom / LSI PEX890xx PCIe Gen 5 Switch");
    let details = &bridge.details;
    assert_eq!(details.bridges_to[0].value, (0x5e, 0x66));
    let (max, now) = (details.link_max[0].value, details.link_now[0].value);
    assert_eq!(
        (max.gigatransfers, max.lanes, max.downgraded),
        (Some(32.0), Some(16), false)
    );
    assert_eq!(
        (now.gigatransfers, now.lanes, now.downgraded),
        (Some(16.0), Some(8), true)
    );
    assert_eq!(details.link_now[0].cite.line, LineNumber(8));
    assert_eq!(
        (
            details.max_read_request[0].value,
            details.max_payload[0].value
        ),
        (4096, 512)
    );
    assert!(details.relaxed_ordering[0].value);
    assert!(details.acs[0].value.redirects() && details.acs[0].value.source_validation);
    assert_eq!(details.driver[0].value, "pcieport");
    assert_eq!(list.orphans.link_now, []);
}

#[test]
fn given_a_gpu_then_its_windows_node_and_refusals_read() {
    let list = list(VERBOSE);
    let gpu = &list.functions[1];
    assert_eq!(
        (gpu.name.as_str(), gpu.class_code),
        ("NVIDIA Corporation AD102GL [L40S]", None)
    );
    let details = &gpu.details;
    let region = details.regions[1].value;
    assert_eq!(
        (region.bar, region.size, region.wide, region.prefetchable),
        (1, Bytes::gib(64), true, true)
    );
    assert!(!details.regions[0].value.prefetchable);
    assert_eq!(
        (details.numa[0].value, details.iommu_group[0].value),
        (1, 77)
    );
    let link = details.link_now[0].value;
    assert_eq!(
        (link.gigatransfers, link.lanes),
        (None, Some(0)),
        "a virtual function has no link of its own"
    );
    assert_eq!(details.resizable_bars[0].value, (1, Bytes::gib(64)));
    assert!(details.denied.is_some());
}

#[test]
fn given_access_control_that_only_validates_sources_then_nothing_is_redirected() {
    let list = list(
        "\tACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n",
    );
    assert_eq!(list.functions, []);
    assert_eq!(list.orphans.acs.len(), 1, "grep leaves no device to name");
    assert!(!list.orphans.acs[0].value.redirects());
}

#[test]
fn given_the_same_device_twice_then_they_are_two_looks_at_it() {
    let looks = artefacts(&format!("{VERBOSE}{VERBOSE}"));
    assert_eq!(looks.len(), 2);
}

#[test]
fn given_numbers_and_long_domains_then_they_read() {
    let list = list(
        "10000:e1:00.0 0108: 144d:a824 (rev 02)\n0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n",
    );
    assert_eq!(list.functions[0].address.domain, 0x10000);
    assert_eq!(
        (list.functions[0].class_code, list.functions[0].ids),
        (Some(0x0108), Some((0x144d, 0xa824)))
    );
    assert_eq!(
        list.functions[1].name,
        "NVIDIA Corporation GA100 [A100 SXM4 80GB]"
    );
}

const TREE: &str = "\
-+-[0000:e0]-+-00.0  Maker Host Bridge
 |           +-01.1-[e1]----00.0  Maker GPU
 |           \\-03.0  Maker Thing
 +-[0000:60]-+-00.0  Maker Host Bridge
 |           \\-01.1-[61-73]----00.0-[62-73]--+-00.0-[63]----00.0  Maker NIC
 |                                           +-04.0-[64]--+-00.0  Maker GPU
 |                                           |            \\-00.1  Maker Audio
 |                                           \\-08.0-[65]--
 \\-[10000:00]---02.0  Maker NVMe
";

#[test]
fn given_a_tree_then_each_function_knows_the_bridges_above_it() {
    let tree = tree(TREE);
    let above = |address: &str| {
        let function = tree.functions.iter().find(|f| f.address == at(address));
        function.map(|f| f.above.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(above("e0:03.0").as_deref(), Some(&[][..]));
    assert_eq!(above("e1:00.0").unwrap(), ["0000:e0:01.1"]);
    assert_eq!(
        above("63:00.0").unwrap(),
        ["0000:60:01.1", "0000:61:00.0", "0000:62:00.0"]
    );
    assert_eq!(
        above("64:00.1").unwrap(),
        ["0000:60:01.1", "0000:61:00.0", "0000:62:04.0"]
    );
    assert_eq!(above("10000:00:02.0").as_deref(), Some(&[][..]));
    let bridge = tree
        .functions
        .iter()
        .find(|f| f.address == at("61:00.0"))
        .unwrap();
    assert_eq!(
        (bridge.bridges_to, bridge.cite.line),
        (Some((0x62, 0x73)), LineNumber(5))
    );
    assert_eq!(
        tree.functions
            .iter()
            .find(|f| f.address == at("63:00.0"))
            .unwrap()
            .name,
        "Maker NIC"
    );
}

#[test]
fn given_two_functions_then_their_common_bridge_is_the_nearest() {
    let tree = tree(TREE);
    assert_eq!(
        tree.common_bridge(at("63:00.0"), at("64:00.0")),
        Some(at("61:00.0"))
    );
    assert_eq!(tree.common_bridge(at("63:00.0"), at("e1:00.0")), None);
    assert_eq!(tree.common_bridge(at("63:00.0"), at("99:00.0")), None);
}

#[test]
fn given_a_single_root_or_a_quoted_tree_then_it_reads() {
    let single =
        tree("-[0000:00]-+-00.0  Maker Host Bridge\n           \\-01.0-[01]----00.0  Maker GPU\n");
    assert_eq!(single.functions.len(), 3);
    let quoted: String = TREE.lines().map(|l| format!("> {l}\n")).collect();
    assert_eq!(tree(&quoted).functions.len(), tree(TREE).functions.len());
}
