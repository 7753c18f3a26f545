//! Topologies and graphs that NCCL and RCCL write, and XML kept for other readers.

use crowfly_doctor::evidence::nccl_xml::{LinkKind, NcclGraph, NcclTopology};
use crowfly_doctor::evidence::{Artefact, Format, LineNumber, read};
use crowfly_route::units::NumaNode;

fn topology(text: &str) -> NcclTopology {
    let sections = read("topo.xml", text.as_bytes()).sections;
    match sections
        .into_iter()
        .map(|s| s.artefact)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [Artefact::NcclTopology(topology)] => topology.clone(),
        other => panic!("not one topology: {other:?}"),
    }
}

const TOPOLOGY: &str = r#"<!-- made up
     for this test -->
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:08:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0f:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:1c:00.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci> <!-- the GPU -->
      <pci busid="0000:0c:00.0" class="0x020700" link_speed="" link_width="0">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1" coll="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="10000" port="0" gdr="0"/>
    </nic>
  </cpu>
</system>
"#;

#[test]
fn given_a_topology_then_each_element_knows_what_is_above_it() {
    let topology = topology(TOPOLOGY);
    assert!(!topology.clipped);
    assert_eq!(topology.cpus[0].numa, Some(NumaNode(0)));
    assert_eq!(
        (topology.cpus[0].vendor.as_str(), topology.cpus[0].model),
        ("GenuineIntel", Some(143))
    );
    let gpu = &topology.gpus[0];
    assert_eq!(
        (gpu.device, gpu.sm, gpu.rank, gpu.gdr),
        (0, Some(90), Some(0), Some(true))
    );
    assert_eq!(gpu.cite.line, LineNumber(7));
    let function = gpu.function.unwrap();
    assert_eq!(
        topology.functions[function].address.unwrap().to_string(),
        "0000:0f:00.0"
    );
    assert_eq!(topology.functions[function].ids, Some((0x10de, 0x2330)));
    assert_eq!(topology.functions[function].gigatransfers, Some(32.0));
    assert_eq!(topology.above(function), [0]);
    let link = &gpu.links[0];
    assert_eq!(
        (link.kind, link.count, link.target_class),
        (LinkKind::NvLink, 18, Some(0x068000))
    );
}

#[test]
fn given_virtual_pci_then_its_link_is_absent_and_not_zero() {
    let topology = topology(TOPOLOGY);
    let nic = topology.nets[0].function.unwrap();
    assert_eq!(
        (
            topology.functions[nic].gigatransfers,
            topology.functions[nic].lanes
        ),
        (None, None)
    );
    assert_eq!(
        (topology.nets[0].speed_mbps, topology.nets[0].coll),
        (Some(400_000), Some(true))
    );
    let ethernet = &topology.nets[1];
    assert_eq!(
        (ethernet.function, ethernet.cpu, ethernet.gdr),
        (None, Some(0), Some(false))
    );
}

#[test]
fn given_xgmi_then_the_gpu_is_amds() {
    let topology = topology(
        r#"<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:23:00.0" class="0x038000" vendor="0x1002" device="0x740f" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="104" gcn="910" arch="38911" rank="0" gdr="1"><xgmi target="0000:43:00.0" count="2" tclass="0x038000"/></gpu>
    </pci>
  </cpu>
</system>"#,
    );
    let gpu = &topology.gpus[0];
    assert_eq!((gpu.sm, gpu.gcn.as_deref()), (None, Some("910")));
    assert_eq!((gpu.links[0].kind, gpu.links[0].count), (LinkKind::Xgmi, 2));
}

#[test]
fn given_a_clipped_topology_then_what_is_there_reads_and_is_marked() {
    for lines in [4..10, 6..20, 0..9] {
        let text: String = TOPOLOGY
            .lines()
            .skip(lines.start)
            .take(lines.len())
            .map(|l| format!("{l}\n"))
            .collect();
        let topology = topology(&text);
        assert!(topology.clipped, "{text}");
        assert_eq!(topology.gpus.len(), 1, "{text}");
    }
}

#[test]
fn given_a_topology_all_on_one_line_or_quoted_then_it_reads_the_same() {
    let count = |t: &NcclTopology| {
        (
            t.cpus.len(),
            t.functions.len(),
            t.gpus.len(),
            t.nets.len(),
            t.clipped,
        )
    };
    let expected = count(&topology(TOPOLOGY));
    assert_eq!(expected, (1, 3, 1, 2, false));
    assert_eq!(count(&topology(&TOPOLOGY.replace('\n', " "))), expected);
    let quoted: String = TOPOLOGY.lines().map(|l| format!("> {l}\r\n")).collect();
    assert_eq!(count(&topology(&quoted)), expected);
}

#[test]
fn given_a_graph_then_types_speeds_and_devices_read() {
    let sections = read(
        "graph.xml",
        br#"<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="12.5" typeintra="NVL" typeinter="PHB" samechannels="1">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
  </graph>
</graphs>
"#,
    )
    .sections;
    let [section] = sections.as_slice() else {
        panic!("{sections:?}")
    };
    assert_eq!(section.format, Format::NcclGraph);
    let Artefact::NcclGraph(NcclGraph { graphs, clipped }) = &section.artefact else {
        panic!("{section:?}")
    };
    let graph = &graphs[0].value;
    assert_eq!(
        (graph.channels, graph.speed_inter, graph.cross_nic),
        (2, Some(12.5), Some(false))
    );
    assert_eq!(
        (graph.type_intra.as_deref(), graph.type_inter.as_deref()),
        (Some("NVL"), Some("PHB"))
    );
    assert_eq!(
        (graph.nets.len(), graph.gpus.len(), *clipped),
        (1, 2, false)
    );
}

#[test]
fn given_hwloc_xml_then_it_is_kept_whole_for_its_reader() {
    let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n  <object type=\"Machine\">\n  <info name=\"a\" value=\"x &lt; y\"/>\n  </object>\n</topology>\n";
    let sections = read("machine.xml", text.as_bytes()).sections;
    let [section] = sections.as_slice() else {
        panic!("{sections:?}")
    };
    let Artefact::Kept(kept) = &section.artefact else {
        panic!("{section:?}")
    };
    assert_eq!(
        (section.format, kept.complete, kept.cite.line),
        (Format::Lstopo, true, LineNumber(3))
    );
    assert!(kept.text.starts_with("<topology version") && kept.text.ends_with("</topology>\n"));
    assert!(kept.text.contains("x &lt; y"));
    let cut = read("machine.xml", &text.as_bytes()[..130]).sections;
    assert!(matches!(&cut[0].artefact, Artefact::Kept(kept) if !kept.complete));
}

#[test]
fn given_a_snapshot_then_it_is_kept_whole_however_it_is_laid_out() {
    for text in [
        "{\n  \"schema\": \"crowfly.snapshot/1\",\n  \"files\": {\n    \"a\": \"NCCL INFO } {\"\n  }\n}\n",
        "{\"schema\":\"crowfly.snapshot/1\",\"files\":{\"a\":\"}\"}}",
    ] {
        let sections = read("node.json", text.as_bytes()).sections;
        let [section] = sections.as_slice() else {
            panic!("{sections:?}")
        };
        let Artefact::Kept(kept) = &section.artefact else {
            panic!("{section:?}")
        };
        assert_eq!(
            (section.format, kept.complete),
            (Format::Snapshot, true),
            "{text}"
        );
        assert_eq!(kept.text.trim_end(), text.trim_end());
    }
}
