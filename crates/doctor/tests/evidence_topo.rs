//! Topology matrices of `nvidia-smi` and tables of `rocm-smi`.

use crowfly_doctor::evidence::rocm::{RocmLink, RocmTopology};
use crowfly_doctor::evidence::topo_matrix::{
    P2pMatrix, P2pStatus, TopoDevice, TopoLink, TopoMatrix,
};
use crowfly_doctor::evidence::{Artefact, LineNumber, read};
use crowfly_route::units::NumaNode;

use TopoDevice::{DataDirect, Gpu, Named, Nic};

fn artefacts(text: &str) -> Vec<Artefact> {
    read("topo.txt", text.as_bytes())
        .sections
        .into_iter()
        .map(|s| s.artefact)
        .collect()
}

fn matrix(text: &str) -> TopoMatrix {
    match artefacts(text).as_slice() {
        [Artefact::TopoMatrix(matrix)] => matrix.clone(),
        other => panic!("not one matrix: {other:?}"),
    }
}

/// Four devices on two sockets, as a recent tool prints them.
const TABBED: &str = "\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPXB\tSYS\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS
NIC1\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
";

#[test]
fn given_a_matrix_then_every_pair_reads_with_its_line() {
    let matrix = matrix(TABBED);
    assert_eq!(matrix.columns, [Gpu(0), Gpu(1), Nic(0), Nic(1)]);
    let link = matrix.link(&Gpu(0), &Gpu(1)).unwrap();
    assert_eq!(
        (link.value, link.cite.line),
        (TopoLink::NvLink(18), LineNumber(2))
    );
    assert_eq!(
        matrix.link(&Gpu(1), &Nic(1)).map(|l| l.value),
        Some(TopoLink::Pix)
    );
    assert_eq!(matrix.name(&Nic(1)), Some("mlx5_bond_1"));
    assert!(!matrix.clipped);
}

#[test]
fn given_blank_affinity_then_blank_is_not_taken_for_the_next_column() {
    let matrix = matrix(TABBED);
    assert_eq!(matrix.rows[0].cpus.as_deref(), Some("0-31"));
    assert_eq!(matrix.rows[0].numa, Some(NumaNode(0)));
    assert_eq!(
        (matrix.rows[1].cpus.as_deref(), matrix.rows[1].numa),
        (None, Some(NumaNode(1)))
    );
    assert_eq!(
        (matrix.rows[2].cpus.as_deref(), matrix.rows[2].numa),
        (None, None)
    );
}

#[test]
fn given_tabs_turned_to_spaces_or_doubled_then_the_cells_stay() {
    let tabbed = matrix(TABBED);
    for text in [
        TABBED.replace('\t', "    "),
        TABBED.replace('\t', "\t\t"),
        TABBED.replace('\n', "\r\n"),
        TABBED
            .replacen("\tGPU0", "\x1b[4m\tGPU0", 1)
            .replacen("NUMA ID", "NUMA ID\x1b[0m", 1),
        TABBED
            .replacen("\tGPU0", "\x1b[4mGPU0", 1)
            .replacen("NUMA ID", "NUMA ID\x1b[0m", 1),
        TABBED.lines().map(|l| format!("> {l}\n")).collect(),
    ] {
        let other = matrix(&text);
        assert_eq!(other.columns, tabbed.columns, "{text:?}");
        let cells = |m: &TopoMatrix| m.rows.iter().map(|r| r.cells.clone()).collect::<Vec<_>>();
        assert_eq!(cells(&other), cells(&tabbed), "{text:?}");
        assert_eq!(other.rows[0].cpus, tabbed.rows[0].cpus, "{text:?}");
        assert_eq!(other.names.len(), 2, "{text:?}");
    }
}

#[test]
fn given_a_data_direct_function_then_the_better_way_counts() {
    let matrix = matrix(
        "\
GPU0\tGPU1\tNIC0\tNIC1\tDD0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tSYS\tSYS\tSYS\t0-71\t0\t\tN/A
GPU1\tSYS\t X \tSYS\tSYS\tPXB\t0-71\t0\t\t1
NIC0\tSYS\tSYS\t X \tPIX\tSYS\t\t\t\t
NIC1\tSYS\tSYS\tPIX\t X \tSYS\t\t\t\t
DD0\tSYS\tPXB\tSYS\tSYS\t X \t\t\t\t
NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
  DD0: mlx5_0 data-direct function
",
    );
    let reach = matrix.nic_reach(&Gpu(1));
    assert_eq!(
        (reach[0].link.clone(), reach[0].through.clone()),
        (TopoLink::Pxb, Some(DataDirect(0)))
    );
    assert_eq!(
        (reach[1].link.clone(), reach[1].through.clone()),
        (TopoLink::Sys, None)
    );
    assert_eq!(
        matrix.nics(),
        [Nic(0), Nic(1)],
        "a data-direct function is not a NIC of its own"
    );
}

#[test]
fn given_nics_named_in_the_header_then_their_names_are_their_labels() {
    let matrix = matrix(
        "\
        GPU0    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NODE    0-23            0
mlx5_0  NODE     X
",
    );
    assert_eq!(
        matrix
            .link(&Gpu(0), &Named("mlx5_0".into()))
            .map(|l| l.value),
        Some(TopoLink::Node)
    );
    assert_eq!(matrix.name(&Named("mlx5_0".into())), Some("mlx5_0"));
}

#[test]
fn given_a_head_clipped_off_then_the_diagonal_shows_the_columns() {
    let matrix = matrix(
        "GPU0     X      PIX     SYS\nGPU1    PIX      X      SYS\nNIC0    SYS     SYS      X\n",
    );
    assert_eq!(matrix.columns, [Gpu(0), Gpu(1), Nic(0)]);
    assert!(matrix.clipped);
    assert_eq!(
        matrix.link(&Gpu(1), &Nic(0)).map(|l| l.value),
        Some(TopoLink::Sys)
    );
}

#[test]
fn given_nic_columns_clipped_off_then_nic_rows_still_tell() {
    let matrix = matrix(
        "\
        GPU0    GPU1  CPU Affinity    NUMA Affinity
GPU0     X      NV8   -31,64-95       0
GPU1    NV8      X    32-63,96-127    1
NIC0    NODE    PIX
NIC Legend:
  NIC0: mlx5_3
",
    );
    assert!(matrix.clipped);
    let reach = matrix.nic_reach(&Gpu(1));
    assert_eq!(
        (reach[0].name.as_deref(), reach[0].link.clone()),
        (Some("mlx5_3"), TopoLink::Pix)
    );
    assert_eq!(matrix.rows[0].cpus.as_deref(), Some("-31,64-95"));
}

#[test]
fn given_the_peer_to_peer_form_then_it_is_kept_apart_from_the_topology() {
    let artefacts = artefacts(
        "\
$ nvidia-smi topo -m
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      PIX     0-11            N/A
GPU1    PIX      X      0-11            N/A
Legend:
  X    = Self
$ nvidia-smi topo -p2p r
        GPU0    GPU1
 GPU0   X       NS
 GPU1   OK      X
Legend:
  NS   = Not supported
",
    );
    let [Artefact::TopoMatrix(topo), Artefact::P2pMatrix(p2p)] = artefacts.as_slice() else {
        panic!("{artefacts:?}")
    };
    assert_eq!(topo.rows.len(), 2);
    assert_eq!(topo.rows[0].numa, None);
    let P2pMatrix {
        capability,
        columns,
        rows,
    } = p2p;
    assert_eq!((*capability, columns.as_slice()), (Some('r'), &[0, 1][..]));
    assert_eq!(
        rows[0].value,
        (
            0,
            vec![Some(P2pStatus::Same), Some(P2pStatus::NotSupported)]
        )
    );
    assert_eq!(
        rows[1].value,
        (1, vec![Some(P2pStatus::Ok), Some(P2pStatus::Same)])
    );
}

#[test]
fn given_rocm_tables_then_links_hops_and_nodes_read() {
    let artefacts = artefacts(
        "\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0
================================= Hops between two GPUs ==================================
       GPU0         GPU1
GPU0   0            1
GPU1   1            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   PCIE         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: -1
================================== End of ROCm SMI Log ===================================
",
    );
    let [
        Artefact::RocmTopology(RocmTopology {
            weights,
            hops,
            links,
            numa,
            ..
        }),
    ] = artefacts.as_slice()
    else {
        panic!("{artefacts:?}")
    };
    assert_eq!(weights[0].cells, [None, Some(15)]);
    assert_eq!(hops[1].cells, [Some(1), None]);
    assert_eq!(links[0].cells, [None, Some(RocmLink::Xgmi)]);
    assert_eq!(links[1].cells, [Some(RocmLink::Pcie), None]);
    assert_eq!(numa[1].value, (1, -1));
}

#[test]
fn given_amd_smi_tables_then_functions_count_as_gpus_in_their_order() {
    let artefacts = artefacts(
        "\
ACCESS TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 ENABLED      ENABLED
0000:26:00.0 ENABLED      DISABLED

WEIGHT TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 0            15
0000:26:00.0 15           0

LINK TYPE TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 SELF         XGMI
0000:26:00.0 PCIE         SELF

NUMA BW TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 N/A          50000-50000
0000:26:00.0 50000-50000  N/A
",
    );
    let [Artefact::RocmTopology(found)] = artefacts.as_slice() else {
        panic!("{artefacts:?}")
    };
    assert_eq!(found.weights[1].cells, [Some(15), None]);
    assert_eq!(found.hops, []);
    assert_eq!(found.links[0].cells, [None, Some(RocmLink::Xgmi)]);
    assert_eq!(
        (found.links[1].gpu, found.links[1].cells.as_slice()),
        (1, &[Some(RocmLink::Pcie), None][..])
    );
}

#[test]
fn given_a_matrix_as_a_markdown_table_then_it_reads_the_same() {
    let artefacts = artefacts(
        "| | GPU0 | GPU1 | NIC0 |\n|---|---|---|---|\n| GPU0 | X | PHB | NODE |\n| GPU1 | PHB | X | PIX |\n| NIC0 | NODE | PIX | X |\n",
    );
    let [Artefact::TopoMatrix(found)] = artefacts.as_slice() else {
        panic!("{artefacts:?}")
    };
    assert!(!found.clipped);
    assert_eq!(
        found.rows[1].cells,
        [
            Some(TopoLink::Phb),
            Some(TopoLink::Same),
            Some(TopoLink::Pix)
        ]
    );
}
