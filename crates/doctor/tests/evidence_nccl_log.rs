//! NCCL and RCCL logs as people paste them, and what may and may not be read out of them.

use crowfly_doctor::evidence::nccl_log::{
    CompletionError, Direction, Library, NcclLog, Note, PluginNote, Release, SettingOrigin,
    Transport,
};
use crowfly_doctor::evidence::{Artefact, Format, Intake, LineNumber, ProcessId, read};

fn log(text: &str) -> NcclLog {
    let document = read("job.log", text.as_bytes());
    let logs: Vec<_> = document
        .sections
        .into_iter()
        .filter_map(|s| match s.artefact {
            Artefact::NcclLog(log) => Some(*log),
            _ => None,
        })
        .collect();
    assert_eq!(logs.len(), 1, "{text}");
    logs.into_iter().next().unwrap()
}

/// A way to print or paste a line.
type Way = (&'static str, fn(&str) -> String);

const TWO_RANKS: &str = "\
alpha:100:100 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1
alpha:100:100 [0] NCCL INFO Bootstrap : Using eno1:10.1.0.1<0>
alpha:100:100 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eno1:10.1.0.1<0>
alpha:100:100 [0] NCCL INFO Using network IB
NCCL version 2.21.5+cuda12.4
beta:200:200 [0] NCCL INFO Bootstrap : Using eno1:10.1.0.2<0>
beta:200:200 [0] NCCL INFO Using network IB
alpha:100:110 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xfeed - Init START
beta:200:210 [0] NCCL INFO ncclCommInitRank comm 0xb0 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 43000 commId 0xfeed - Init START
alpha:100:110 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 7 > 4)
alpha:100:110 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
alpha:100:110 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/0
alpha:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
beta:200:210 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/1/GDRDMA
beta:200:210 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/1(1)/GDRDMA
alpha:100:110 [0] NCCL INFO Connected all rings
";

#[test]
fn given_two_ranks_then_each_fact_is_theirs_and_quotable() {
    let log = log(TWO_RANKS);
    assert_eq!(log.release(), Some(Release::new(2, 21, 5)));
    assert_eq!(log.versions[0].what.library, Library::Nccl);
    assert_eq!(log.versions[0].by, [], "a bare version line is nobody's");
    assert_eq!(
        log.processes
            .iter()
            .map(|p| (p.host.as_deref(), p.pid, p.device, p.rank))
            .collect::<Vec<_>>(),
        [
            (Some("alpha"), Some(100), Some(0), Some(0)),
            (Some("beta"), Some(200), Some(0), Some(1)),
        ]
    );
    let setting = &log.settings[0];
    assert_eq!(
        (
            setting.what.name.as_str(),
            setting.what.value.as_str(),
            setting.what.origin
        ),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", SettingOrigin::Environment)
    );
    assert_eq!(setting.by, [ProcessId(0)], "rank 1 never said it");
    assert_eq!(
        setting.first.to_string(),
        "job.log:1: alpha:100:100 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1"
    );
    assert_eq!(
        (log.networks[0].what.as_str(), log.networks[0].count),
        ("IB", 2)
    );
    assert_eq!(log.ib[0].what.devices.len(), 2);
    assert!(log.ib[0].what.relaxed_ordering);
}

#[test]
fn given_channels_then_they_gather_into_connections_with_exact_totals() {
    let log = log(TWO_RANKS);
    assert_eq!(
        (
            log.totals.net_channels(true),
            log.totals.net_channels(false)
        ),
        (2, 3)
    );
    let receive = &log.connections[0];
    assert_eq!(
        (receive.what.from, receive.what.to, receive.count),
        (1, Some(0), 2)
    );
    assert_eq!(receive.what.direction, Some(Direction::Receive));
    assert_eq!(receive.first.line, LineNumber(11));
    let proxied = log.connections.iter().find(|c| {
        matches!(
            &c.what.transport,
            Transport::Net {
                proxy: Some(1),
                gdr: true,
                ..
            }
        )
    });
    assert_eq!(proxied.map(|c| c.what.by), Some(ProcessId(1)));
    assert_eq!(log.cut, None);
}

#[test]
fn given_path_listings_then_distances_read_by_name_without_a_release() {
    let log = log("\
alpha:1:2 [0] NCCL INFO GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) CPU/0-0 (3/24.0/PHB) NET/0-0 (5/12.0/SYS)
beta:1:2 [0] NCCL INFO GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) CPU/0-0 (3/24.0/PHB) NET/0-0 (5/12.0/SYS)
");
    assert_eq!((log.paths.len(), log.paths[0].by.len()), (1, 2));
    let path = &log.paths[0].what;
    assert_eq!(
        (path.to.as_str(), path.kind.to_string().as_str()),
        ("NET/0-0", "SYS")
    );
}

#[test]
fn given_a_distance_then_it_decodes_by_the_release_of_the_log() {
    let log = log(TWO_RANKS);
    let pair = &log.gdr_pairs[0].what;
    let release = log.release().unwrap();
    assert!(!pair.enabled);
    assert_eq!(
        pair.reach
            .distance_name(release)
            .map(|p| p.to_string())
            .as_deref(),
        Some("SYS")
    );
    assert_eq!(
        pair.reach
            .limit_name(release)
            .map(|p| p.to_string())
            .as_deref(),
        Some("PXB")
    );
}

#[test]
fn given_every_launcher_then_the_facts_are_the_same() {
    let plain = log(TWO_RANKS);
    let decorate: &[Way] = &[
        ("srun -l", |l| format!(" 3: {l}")),
        ("mpirun", |l| format!("[1,3]<stdout>:{l}")),
        ("mail", |l| format!("> > {l}")),
        ("kubectl", |l| {
            format!("[pod/job-0/main] 2025-06-01T10:00:00.123456Z {l}")
        }),
        ("ray", |l| format!("(Worker pid=7, ip=10.0.0.9) {l}")),
        ("colour", |l| format!("\x1b[36m{l}\x1b[0m")),
        ("windows", |l| format!("{l}\r")),
    ];
    for (launcher, decorate) in decorate {
        let text: String = TWO_RANKS.lines().map(|l| decorate(l) + "\n").collect();
        let log = log(&text);
        assert_eq!(log.totals, plain.totals, "{launcher}");
        assert_eq!(log.release(), plain.release(), "{launcher}");
        let ranks = |log: &NcclLog| {
            log.processes
                .iter()
                .map(|p| (p.host.clone(), p.rank))
                .collect::<Vec<_>>()
        };
        assert_eq!(ranks(&log), ranks(&plain), "{launcher}");
        assert_eq!(log.settings[0].what, plain.settings[0].what, "{launcher}");
    }
}

#[test]
fn given_text_cut_by_another_writer_then_the_suffix_is_no_evidence() {
    let log = log("\
alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext/6/GDloading weights 10%
alpha:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IBext/6/GDRDMA
");
    assert_eq!(
        (
            log.totals.net_channels(true),
            log.totals.net_channels(false)
        ),
        (1, 0)
    );
    let cut = log.cut.unwrap();
    assert_eq!((cut.count, cut.first.line), (1, LineNumber(1)));
}

#[test]
fn given_two_messages_on_one_line_then_both_are_read_and_the_first_is_cut() {
    let log = log("\
alpha:1:2 [0] NCCL INFO Using network IB
beta:5:6 [0] NCCL INFO Using network IB
alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0beta:5:6 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA
");
    assert_eq!(
        log.processes.len(),
        2,
        "a name glued to other text is not a new process"
    );
    assert_eq!(
        (
            log.totals.net_channels(true),
            log.totals.net_channels(false)
        ),
        (1, 0)
    );
    assert_eq!(log.cut.map(|c| c.count), Some(1));
}

#[test]
fn given_a_terminal_that_wrapped_lines_then_the_halves_are_no_evidence() {
    let log = log("\
alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1
3/GDRDMA
alpha:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/13
/GDRDMA
alpha:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[0] [send] via NET/IB/13
unrelated
");
    assert_eq!(
        (
            log.totals.net_channels(true),
            log.totals.net_channels(false)
        ),
        (0, 1)
    );
    assert_eq!(log.cut.map(|c| c.count), Some(2));
}

#[test]
fn given_a_log_that_ends_inside_a_line_then_its_last_suffix_is_no_evidence() {
    let cut = "alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1";
    assert_eq!(log(cut).totals.net_channels(false), 0);
    assert_eq!(log(&format!("{cut}\n")).totals.net_channels(false), 1);
}

#[test]
fn given_no_prefix_at_all_then_the_facts_still_read() {
    let log = log("\
NCCL INFO NCCL_IB_HCA set to mlx5_9
NCCL INFO NET/IB : No device found.
NCCL INFO NET/Socket : Using [0]net1:10.0.0.19<0> [1]docker0:172.17.0.1<0>
");
    assert_eq!(log.settings[0].what.value, "mlx5_9");
    assert_eq!(log.notes[0].what, Note::NoIbDevice);
    assert_eq!(log.sockets[0].what.interfaces[1].name, "docker0");
}

#[test]
fn given_rccl_then_its_version_and_remarks_read() {
    let log = log("\
gamma:7:7 [0] NCCL INFO Kernel version: 6.8.0-45-generic
gamma:7:7 [0] NCCL INFO Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1
gamma:7:7 [0] NCCL INFO RCCL version : 2.22.3-HEAD:abcdef0
HIP version  : 6.4.1
ROCm version : 6.4.1
gamma:7:8 [0] NCCL INFO GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol
gamma:7:8 [0] init.cc:163 NCCL WARN Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!
gamma:7:8 [0] NCCL INFO Channel 00/0 : 0[77000] -> 1[7000] via P2P/IPC comm 0x3d1e3b60 nRanks 16
");
    assert_eq!(log.versions[0].what.library, Library::Rccl);
    assert_eq!(log.lines, 8, "the banner belongs to the log");
    let notes: Vec<_> = log.notes.iter().map(|n| &n.what).collect();
    assert!(notes.contains(&&Note::DmaBufDisabled));
    assert!(notes.contains(&&Note::GdrModuleMissing));
    assert!(notes.contains(&&Note::IommuPtMissing));
    assert_eq!(log.warnings[0].what.site.as_deref(), Some("init.cc:163"));
    assert_eq!(log.totals.p2p, 1);
}

#[test]
fn given_failed_completions_then_they_and_the_hints_read() {
    let log = log("\
alpha:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4444> with status=12 opcode=129 len=0 vendor err 129 (Send) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_1
alpha:1:2 [0] NCCL INFO HINT: To confirm, try increasing the value of NCCL_IB_TIMEOUT and see if the error persists.
alpha:1:2 [0] NCCL INFO transport/net.cc:1298 -> 6
");
    let CompletionError::Ib {
        status,
        vendor_error,
        hca,
        ..
    } = &log.completions[0].what
    else {
        panic!("not a completion of a NIC")
    };
    assert_eq!(
        (*status, *vendor_error, hca.as_deref()),
        (12, Some(129), Some("mlx5_1"))
    );
    assert!(log.notes.iter().any(|n| n.what == Note::ErrorTrace(6)));
    assert!(log.notes.iter().any(|n| matches!(n.what, Note::Hint(_))));
}

#[test]
fn given_a_collective_that_never_ended_then_the_watchdog_is_a_warning() {
    let log = log("\
[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
[rank4]:[E ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
[rank4]:[W ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called
");
    assert_eq!(
        (log.warnings.len(), log.warnings[0].count, log.lines),
        (1, 2, 2)
    );
    assert_eq!(
        log.warnings[0].what.site.as_deref(),
        Some("ProcessGroupNCCL")
    );
}

#[test]
fn given_libfabric_then_plugin_provider_and_its_refusal_read() {
    let log = log("\
d:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
d:1:2 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.2
d:1:2 [0] NCCL INFO NET/OFI Using Libfabric version 2.1
d:1:2 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
d:1:2 [0] NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR
d:1:2 [0] NCCL INFO NET/OFI Support for DMA-BUF registrations: false
d:1:2 [0] NCCL INFO NET/OFI Adding NCCL_PROTO=simple to environment
d:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0
");
    let plugins: Vec<_> = log.plugins.iter().map(|p| &p.what).collect();
    assert!(plugins.contains(&&PluginNote::OfiPlugin("1.16.2".into())));
    assert!(plugins.contains(&&PluginNote::Libfabric("2.1".into())));
    assert!(plugins.contains(&&PluginNote::OfiProvider {
        provider: "efa".into(),
        nics: Some(4)
    }));
    assert!(
        log.notes
            .iter()
            .any(|n| matches!(&n.what, Note::PluginDisablesGdr(words) if words.contains("HMEM")))
    );
    assert!(
        log.notes
            .iter()
            .any(|n| n.what == Note::PluginDmaBuf(false))
    );
    assert_eq!(log.settings[0].what.origin, SettingOrigin::Plugin);
    assert_eq!(log.totals.net[0].network, "AWS Libfabric");
}

#[test]
fn given_a_summary_of_rings_then_its_flags_are_kept_apart_from_the_channels() {
    let log = log("\
e:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
e:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
");
    assert_eq!(
        (log.rings[0].what.pxn, log.rings[0].what.gdr),
        (Some(false), Some(true))
    );
    assert_eq!(
        log.totals.net_channels(true),
        0,
        "GDR 1 is printed without any network channel"
    );
}

#[test]
fn given_bytes_cut_anywhere_then_the_reading_is_the_same() {
    let whole = read("job.log", TWO_RANKS.as_bytes());
    for step in [1, 7, 64, 1000] {
        let mut intake = Intake::new("job.log");
        for piece in TWO_RANKS.as_bytes().chunks(step) {
            intake.feed(piece);
        }
        assert_eq!(intake.finish(), whole, "{step}");
    }
    assert_eq!(whole.sections[0].format, Format::NcclLog);
    assert_eq!(
        (whole.sections[0].first, whole.sections[0].last),
        (LineNumber(1), LineNumber(16))
    );
}
