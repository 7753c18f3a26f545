//! What becomes of whole cases: the traps of real files, joined documents, honest silence.

use crowfly_doctor::evidence::read;
use crowfly_doctor::finding::Spot;
use crowfly_doctor::verdict::Basis;
use crowfly_doctor::{Case, DIAGNOSIS_SCHEMA, Diagnosis, PairKind, Verdict, diagnose};
use crowfly_route::fixture::machines;
use proptest::prelude::*;

fn case(texts: &[(&str, &str)]) -> Case {
    texts.iter().fold(Case::new(), |case, (name, text)| {
        case.with_document(read(*name, text.as_bytes()))
    })
}

fn paste(text: &str) -> Diagnosis {
    diagnose(&case(&[("paste.txt", text)]))
}

fn of(diagnosis: &Diagnosis, kind: PairKind) -> Option<Verdict> {
    let found = diagnosis.kinds.iter().find(|k| k.kind == kind)?;
    Some(found.verdict)
}

fn codes(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis.findings.iter().map(|f| f.code).collect()
}

#[test]
fn given_nothing_then_it_says_so_and_asks_for_a_snapshot() {
    let diagnosis = diagnose(&Case::new());
    assert_eq!(diagnosis.schema, DIAGNOSIS_SCHEMA);
    assert_eq!(diagnosis.verdict, Verdict::InsufficientEvidence);
    assert_eq!(diagnosis.missing[0].command, "crowfly capture");
    assert!(diagnosis.findings.is_empty());
}

/// Ranks 0 and 1 are near a NIC, 2 and 3 are not.
const TOPOLOGY: &str = "\
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      PIX     SYS     SYS     PIX     0-31            0
GPU1    PIX      X      SYS     SYS     PIX     0-31            0
GPU2    SYS     SYS      X      PIX     SYS     32-63           1
GPU3    SYS     SYS     PIX      X      SYS     32-63           1
NIC0    PIX     PIX     SYS     SYS      X
";
const RUN: &str = "\
n1:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/0/GDRDMA
n1:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 5[1] [send] via NET/IB/0/GDRDMA
n1:3:3 [2] NCCL INFO Channel 00/0 : 2[2] -> 6[2] [send] via NET/IB/0
n1:4:4 [3] NCCL INFO Channel 00/0 : 3[3] -> 7[3] [send] via NET/IB/0
";

#[test]
fn given_a_log_and_a_matrix_then_they_tell_one_story() {
    let diagnosis = diagnose(&case(&[("nccl.log", RUN), ("topo.txt", TOPOLOGY)]));
    assert_eq!(diagnosis.verdict, Verdict::Staged);
    let far = diagnosis
        .findings
        .iter()
        .find(|f| f.code == "N1")
        .expect("N1");
    assert_eq!(
        far.title,
        "No GPUDirect RDMA on ranks 2–3: the nearest NIC of GPU2, GPU3 is SYS away, and NCCL's default is PXB"
    );
    let sources: Vec<&str> = far.evidence.iter().map(|q| q.source.as_str()).collect();
    assert_eq!(sources, ["nccl.log", "nccl.log", "topo.txt", "topo.txt"]);
    assert!(far.fix.iter().any(|step| {
        step.command
            .as_deref()
            .is_some_and(|c| c.contains("NCCL_NET_GDR_LEVEL=SYS"))
    }));
    assert!(far.fix.iter().any(|step| step.check.is_some()));
    let rank_0 = diagnosis
        .pairs
        .iter()
        .find(|p| p.pair.gpu == "rank 0")
        .expect("rank 0");
    assert_eq!(
        (rank_0.verdict, rank_0.basis),
        (Verdict::Direct, Basis::Observed)
    );
}

#[test]
fn given_a_cause_and_its_symptom_then_the_cause_comes_first() {
    let diagnosis = paste(
        "d:1:2 [0] NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR\n\
         d:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0\n",
    );
    assert_eq!(diagnosis.verdict, Verdict::Staged);
    assert_eq!(codes(&diagnosis)[..2], ["V1", "N8"]);
    assert!(
        diagnosis.headline.contains("GPUDirect RDMA off"),
        "{}",
        diagnosis.headline
    );
}

#[test]
fn given_channels_that_are_direct_then_a_far_matrix_does_not_outweigh_them() {
    let direct = RUN.replace("via NET/IB/0\n", "via NET/IB/0/GDRDMA\n");
    let diagnosis = diagnose(&case(&[("nccl.log", &direct), ("topo.txt", TOPOLOGY)]));
    assert_eq!(of(&diagnosis, PairKind::GpuNic), Some(Verdict::Direct));
    assert!(!codes(&diagnosis).contains(&"N1"));
}

#[test]
fn given_a_raised_level_then_the_same_matrix_is_direct_through_the_host_bridge() {
    let diagnosis = diagnose(&case(&[
        ("topo.txt", TOPOLOGY),
        (
            "job.sh",
            "export NCCL_NET_GDR_LEVEL=SYS\nexport NCCL_DEBUG=INFO\n",
        ),
    ]));
    assert_eq!(
        of(&diagnosis, PairKind::GpuNic),
        Some(Verdict::DirectButSlow)
    );
}

#[test]
fn given_a_cut_suffix_alone_then_nothing_is_concluded() {
    let diagnosis = paste(
        "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/0/GDLoading shards\n",
    );
    assert_eq!(diagnosis.verdict, Verdict::InsufficientEvidence);
    assert!(
        diagnosis
            .findings
            .iter()
            .all(|f| f.severity == crowfly_doctor::Severity::Note)
    );
}

#[test]
fn given_hints_without_channels_then_none_of_them_is_taken_for_proof() {
    for hint in [
        "DMA-BUF is available on GPU device 0",
        "Connected all rings, use ring PXN 0 GDR 1",
        "NET/IB : GPU Direct RDMA (nvidia-peermem) enabled for HCA 0 'mlx5_0'",
        "Using network IB",
    ] {
        let diagnosis = paste(&format!("n1:1:1 [0] NCCL INFO {hint}\n"));
        assert_eq!(diagnosis.verdict, Verdict::InsufficientEvidence, "{hint}");
    }
}

#[test]
fn given_pix_and_a_refusing_driver_then_the_driver_counts() {
    let diagnosis = paste(
        "        GPU0    GPU1    CPU Affinity\nGPU0     X      PIX     0-7\nGPU1    PIX      X      0-7\n\n$ nvidia-smi topo -p2p r\n        GPU0    GPU1\n GPU0   X       NS\n GPU1   NS      X\n",
    );
    assert_eq!(of(&diagnosis, PairKind::GpuGpu), Some(Verdict::Staged));
    assert!(codes(&diagnosis).contains(&"H3"));
}

#[test]
fn given_a_board_in_a_virtual_machine_then_far_cells_are_no_verdict() {
    let mut text = "\t".to_owned();
    let names = |prefix: &str| (0..8).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    let all: Vec<String> = names("GPU").into_iter().chain(names("NIC")).collect();
    text.push_str(&all.join("\t"));
    text.push('\n');
    for row in &all {
        let cells: Vec<&str> = all
            .iter()
            .map(|column| {
                match (
                    row == column,
                    row.starts_with("GPU") && column.starts_with("GPU"),
                ) {
                    (true, _) => "X",
                    (_, true) => "NV18",
                    _ => "SYS",
                }
            })
            .collect();
        text.push_str(&format!("{row}\t{}\n", cells.join("\t")));
    }
    let diagnosis = paste(&text);
    assert_eq!(
        of(&diagnosis, PairKind::GpuNic),
        Some(Verdict::InsufficientEvidence)
    );
    assert_eq!(of(&diagnosis, PairKind::GpuGpu), Some(Verdict::Direct));
    assert!(codes(&diagnosis).contains(&"N21") && !codes(&diagnosis).contains(&"N1"));
}

#[test]
fn given_grace_then_the_chip_to_chip_link_leaves_far_nics_open() {
    let diagnosis = paste(
        "\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tSYS\t0-71\t0\t\t1\nNIC0\tSYS\t X \t\t\t\t\n",
    );
    assert_eq!(diagnosis.verdict, Verdict::InsufficientEvidence);
}

#[test]
fn given_a_supported_driver_and_a_failed_platform_then_it_is_broken() {
    let diagnosis = paste(
        " GDS release version: 1.13.0.11\n nvidia_fs version:  2.24 libcufile version: 2.12\n DRIVER CONFIGURATION:\n NVMe               : Supported\n Platform verification failed\n",
    );
    assert_eq!(diagnosis.verdict, Verdict::Broken);
}

#[test]
fn given_a_whole_server_then_each_pair_has_a_verdict_and_a_ground() {
    let diagnosis =
        diagnose(&Case::new().with_snapshot("node.json", machines::dgx_h100().snapshot()));
    assert_eq!(of(&diagnosis, PairKind::GpuGpu), Some(Verdict::Direct));
    assert_eq!(of(&diagnosis, PairKind::GpuNic), Some(Verdict::Direct));
    // Nobody looked for nvidia-fs.
    assert_eq!(
        of(&diagnosis, PairKind::GpuDrive),
        Some(Verdict::InsufficientEvidence)
    );
    let gpu_gpu = diagnosis
        .pairs
        .iter()
        .filter(|p| p.pair.kind == PairKind::GpuGpu);
    assert_eq!(gpu_gpu.count(), 28);
    assert!(
        diagnosis
            .missing
            .iter()
            .any(|m| m.about == Some(PairKind::GpuDrive))
    );
}

#[test]
fn given_a_laptop_then_nothing_is_claimed_of_gpus_that_are_not_there() {
    let diagnosis =
        diagnose(&Case::new().with_snapshot("laptop.json", machines::laptop().snapshot()));
    assert_eq!(diagnosis.verdict, Verdict::InsufficientEvidence);
    assert!(diagnosis.pairs.is_empty());
}

#[test]
fn given_a_snapshot_pasted_as_text_then_it_is_a_machine() {
    let json = machines::dgx_h100().snapshot().to_json();
    let diagnosis = diagnose(&case(&[("node.json", &json)]));
    assert_eq!(of(&diagnosis, PairKind::GpuNic), Some(Verdict::Direct));
}

/// Every quote of a document is one of its lines.
fn quotes_exist(diagnosis: &Diagnosis, texts: &[(String, String)]) -> Result<(), String> {
    let of_findings = diagnosis.findings.iter().flat_map(|f| &f.evidence);
    let of_pairs = diagnosis.pairs.iter().flat_map(|p| &p.evidence);
    for quote in of_findings.chain(of_pairs) {
        let Spot::Line(line) = &quote.at else {
            continue;
        };
        let Some((_, text)) = texts.iter().find(|(name, _)| name == quote.source.as_str()) else {
            return Err(format!("no source {}", quote.source));
        };
        let lines = text.split('\n').count() as u64;
        if line.0 == 0 || line.0 > lines {
            return Err(format!("{quote}: the source has {lines} lines"));
        }
        // Decoration goes from the front and white space from the ends, nothing from within.
        let raw = text
            .split('\n')
            .nth(line.0 as usize - 1)
            .unwrap_or_default();
        let decorated = raw.contains(['\r', '\u{1b}', '&', '[', '\0']);
        if !decorated && !raw.contains(quote.text.trim_end_matches('…')) {
            return Err(format!("{quote}: the line is {raw:?}"));
        }
    }
    Ok(())
}

/// Pieces of every format, to be mixed and damaged.
const PIECES: &[&str] = &[
    RUN,
    TOPOLOGY,
    "n1:1:1 [0] NCCL INFO GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) GPU/0-43000 (2/480.0/NVL) NET/0-0 (5/12.0/PHB) \n",
    "n1:1:1 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 7 > 4)\n",
    "n1:1:1 [0] net.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)\n",
    "n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n",
    "GPU index 0 NVIDIA L40S bar:1 bar size (MiB):256 supports GDS, IOMMU State: Disabled\n",
    " GDS release version: 1.13\n nvidia_fs version:  2.25 libcufile version: 2.12\n NVMe : Supported\n Platform verification failed\n",
    " 16-06-2024 05:40:20:816 [pid=30 tid=31] ERROR  cufio-fs:152 EXT4 journal options not found\n",
    "Bar1-map             : n=1 ok=1 err=0 free=1\nReads                : err=3 io_state_err=0\nNVFS statistics(ver: 4.0)\n",
    "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Down\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n",
    "c1:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)\n\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s, Width x8\n\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+ EgressCtrl-\n",
    "-[0000:00]-+-01.1-[01]----00.0  NVIDIA Corporation AD102GL [L40S]\n           \\-03.1-[21]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]\n",
    "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\">\n<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\">\n<gpu dev=\"0\" sm=\"90\" gdr=\"1\"/>\n</pci>\n</cpu>\n</system>\n",
    "#  Rank  0 Group  0 Pid 1 on alpha device  0 [0x1b] NVIDIA H100 80GB HBM3\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n     1048576        262144     float     sum      -1    50.00   40.00   40.00      3    50.00   40.00   40.00      0\n",
    "[ 9001.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n",
    "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on\n",
    "export NCCL_NET_GDR_LEVEL=loc\nexport NCCL_IB_GID_INDEX=99999999999\n",
    "============ Link Type between two GPUs ============\n       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n",
    "[1704982674.0] [a:1:0] ucp_worker.c:1903 UCX  INFO    ucp_context_1 inter-node cfg#1 am(tcp/eth0)\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_mix_of_damaged_texts_is_diagnosed_with_quotes_that_exist(
        picks in prop::collection::vec((0..PIECES.len(), any::<prop::sample::Index>(), ".{0,6}", 0..3u8), 1..6),
    ) {
        let mut texts: Vec<(String, String)> = vec![("a.txt".into(), String::new()), ("b.txt".into(), String::new())];
        for (at, (pick, place, junk, how)) in picks.iter().enumerate() {
            let mut piece = PIECES[*pick].to_owned();
            let mut cut = place.index(piece.len());
            while !piece.is_char_boundary(cut) {
                cut -= 1;
            }
            match how {
                0 => piece.truncate(cut),
                1 => piece.insert_str(cut, junk),
                _ => {}
            }
            texts[at % 2].1.push_str(&piece);
        }
        let case = texts.iter().fold(Case::new(), |case, (name, text)| {
            case.with_document(read(name.as_str(), text.as_bytes()))
        });
        let diagnosis = diagnose(&case);
        prop_assert!(quotes_exist(&diagnosis, &texts).is_ok(), "{:?}", quotes_exist(&diagnosis, &texts));
        prop_assert!(serde_json::to_string(&diagnosis).is_ok());
        for finding in &diagnosis.findings {
            prop_assert!(!finding.title.is_empty() && finding.evidence.len() <= crowfly_doctor::Finding::MAX_EVIDENCE);
        }
    }
}

/// What a finding of a machine says of its cost.
fn cost(node: &crowfly_route::fixture::Fixture, code: &str) -> (Option<(f64, f64)>, String) {
    let diagnosis = diagnose(&Case::new().with_snapshot("node", node.snapshot()));
    let found = diagnosis.findings.iter().find(|f| f.code == code);
    let found = found.unwrap_or_else(|| panic!("{code} is not found"));
    let gb = |cost: crowfly_route::obstacle::Cost| (cost.now.0 / 1e9, cost.without.0 / 1e9);
    (found.cost.map(gb), found.cost_basis.clone())
}

#[test]
fn given_a_machine_then_a_finding_costs_what_its_routes_say() {
    use crowfly_route::fixture::gen5;
    let (cost_of_far, basis) = cost(&machines::pcie_box(), "N1");
    // Both ways carry the wire's rate, so no bandwidth is lost but that of the host's memory.
    assert_eq!(cost_of_far, None);
    assert_eq!(
        basis,
        "by its links the way through host memory carries 12.5 GB/s as well; it costs passes through that memory instead, whose rate was not measured (ceilings of the routes gpu:2 to nic:mlx5_0 on node: link rate)"
    );
    let mut narrow = machines::dgx_h100();
    let gpu = narrow.topology().gpus[0].address.expect("a PCI device");
    narrow.degrade(gpu, gen5(8));
    let (Some((now, without)), basis) = cost(&narrow, "K7") else {
        panic!("a narrow link has a price")
    };
    assert!((without / now - 2.0).abs() < 1e-9, "{now} {without}");
    assert_eq!(
        basis,
        "link rates after encoding, as the link is and as both ends could"
    );
}

#[test]
fn given_a_line_rate_then_a_finding_of_its_kind_names_it_and_what_is_open() {
    let rates = "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n";
    let plain = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0\n";
    let alone = diagnose(&case(&[("nccl.log", plain)]));
    let together = diagnose(&case(&[("nccl.log", plain), ("ibstat.txt", rates)]));
    let basis = |diagnosis: &Diagnosis| {
        let found = diagnosis.findings.iter().find(|f| f.code == "N8");
        found.expect("N8").cost_basis.clone()
    };
    assert!(
        basis(&alone).starts_with("not told: neither the NIC's rate"),
        "{}",
        basis(&alone)
    );
    assert!(
        basis(&together).starts_with("at most 50.0 GB/s, the line rate of mlx5_0"),
        "{}",
        basis(&together)
    );
}
