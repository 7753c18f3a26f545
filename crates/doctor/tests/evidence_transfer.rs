//! UCX, NIXL and Mooncake output.

use crowfly_doctor::evidence::transfer::{Level, TransferLog};
use crowfly_doctor::evidence::ucx::UcxLog;
use crowfly_doctor::evidence::{Artefact, Format, LineNumber, read};

fn ucx(text: &str) -> UcxLog {
    let sections = read("ucx.log", text.as_bytes()).sections;
    match sections
        .into_iter()
        .map(|s| s.artefact)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [Artefact::UcxLog(log)] => log.clone(),
        other => panic!("not one log: {other:?}"),
    }
}

#[test]
fn given_a_ucx_log_then_version_endpoints_tables_and_problems_read() {
    let log = ucx("\
[1704982673.833459] [alpha:23:0]     ucp_context.c:2137 UCX  INFO  Version 1.16.0 (loaded from /lib/libucp.so.0)
[1704982674.028115] [alpha:23:3]      ucp_worker.c:1903 UCX  INFO    ucp_context_2 inter-node cfg#3 rma(rc_mlx5/mlx5_2:1)  am(rc_mlx5/mlx5_2:1 rc_mlx5/mlx5_7:1)
[1704982674.028116] [alpha:24:3]      ucp_worker.c:1903 UCX  INFO    ucp_context_5 inter-node cfg#3 rma(rc_mlx5/mlx5_2:1)  am(rc_mlx5/mlx5_2:1 rc_mlx5/mlx5_7:1)
[1704982674.111965] [alpha:23:0]   +---------------------------+------------------------------------------------------+
[1704982674.111989] [alpha:23:0]   | perftest inter-node cfg#0 | remote memory write by ucp_put* from cuda/GPU0       |
[1704982674.111993] [alpha:23:0]   +---------------------------+------------------------------------+-----------------+
[1704982674.111994] [alpha:23:0]   |                   0..2039 | short                              | rc_mlx5/mlx5_0:1 |
[1704982674.111995] [alpha:23:0]   |                 2040..inf | zero-copy                          | tcp/eth0        |
[1745994234.385141] [alpha:23:0]     ucp_context.c:1774 UCX  WARN  UCP version is incompatible, required: 1.18, actual: 1.12 (release 1)
");
    assert_eq!(log.version.map(|v| v.value).as_deref(), Some("1.16.0"));
    assert_eq!(
        (log.endpoints.len(), log.endpoints[0].count),
        (1, 2),
        "the name of the context does not matter"
    );
    let endpoint = &log.endpoints[0].what;
    assert_eq!(endpoint.config, "inter-node cfg#3");
    assert_eq!(
        endpoint.lanes[1],
        ("am".into(), "rc_mlx5/mlx5_2:1 rc_mlx5/mlx5_7:1".into())
    );
    let table = &log.protocols[0];
    assert_eq!(
        table.title.value,
        "perftest inter-node cfg#0: remote memory write by ucp_put* from cuda/GPU0"
    );
    assert_eq!(table.title.cite.line, LineNumber(5));
    assert_eq!(
        (
            table.rows[1].value.sizes.as_str(),
            table.rows[1].value.over.as_str()
        ),
        ("2040..inf", "tcp/eth0")
    );
    assert_eq!(
        (
            log.problems[0].what.level.as_str(),
            log.problems[0].what.site.as_str()
        ),
        ("WARN", "ucp_context.c:1774")
    );
}

#[test]
fn given_older_releases_then_endpoints_and_tables_read() {
    let log = ucx("\
[1645019897.519901] [beta:13:0]      ucp_worker.c:1855 UCX  INFO  ep_cfg[1]: tag(rc_mlx5/mlx5_0:1); rma(rc_mlx5/mlx5_0:1);
[1645019897.519920] [beta:13:0]     proto_debug.c:406  UCX  INFO  | mpi ep_cfg[3] | tagged message by ucp_tag_send*() from host memory |
[1645019897.519927] [beta:13:0]     proto_debug.c:406  UCX  INFO  |       0..2007 | eager short               | rc_mlx5/mlx5_0:1 |
");
    assert_eq!(log.endpoints[0].what.config, "ep_cfg[1]");
    assert_eq!(log.endpoints[0].what.lanes[1].0, "rma");
    assert_eq!(log.protocols[0].rows[0].value.protocol, "eager short");
}

#[test]
fn given_a_table_of_something_else_then_it_is_not_a_protocol() {
    assert_eq!(
        read("x", b"| Stage | iterations |\n| a | b | c |\n").sections,
        []
    );
}

fn transfer(format: Format, text: &str) -> TransferLog {
    let sections = read("kv.log", text.as_bytes()).sections;
    let [section] = sections.as_slice() else {
        panic!("{sections:?}")
    };
    assert_eq!(section.format, format);
    match &section.artefact {
        Artefact::TransferLog(log) => log.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn given_nixl_then_errors_and_backends_read() {
    let log = transfer(
        Format::NixlLog,
        "\
INFO 06-12 Backend UCX was instantiated
Initialized NIXL agent: 1a960978
E0421 11:56:59.774282  709103 nixl_agent.cpp:259] getPluginParams: backend 'UCX' not found
",
    );
    let said: Vec<_> = log
        .messages
        .iter()
        .map(|m| (m.what.level, m.what.site.as_deref(), m.what.text.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            (Level::Info, None, "Backend UCX was instantiated"),
            (Level::Info, None, "Initialized NIXL agent: 1a960978"),
            (
                Level::Error,
                Some("nixl_agent.cpp:259"),
                "getPluginParams: backend 'UCX' not found"
            ),
        ]
    );
}

#[test]
fn given_mooncake_then_devices_and_refusals_read_with_or_without_the_year() {
    let log = transfer(
        Format::MooncakeLog,
        "\
I20251205 03:33:19.097743  2021 transfer_engine.cpp:127] Topology discovery complete. Found 2 HCAs.
I1205 03:33:19.123669  2021 rdma_context.cpp:140] RDMA device: mlx5_8, LID: 0, GID: (GID_Index 3) 00:ff
I1205 03:33:19.123670  2021 rdma_context.cpp:140] RDMA device: mlx5_9, LID: 0, GID: (GID_Index 3) 00:fe
E0115 05:20:19.945191   309 rdma_transport.cpp:662] RdmaTransport: No available RNIC
",
    );
    assert_eq!(log.messages.len(), 3);
    assert_eq!(log.messages[1].count, 2);
    assert_eq!(log.messages[2].what.level, Level::Error);
}

#[test]
fn given_both_engines_in_one_log_then_each_keeps_its_own() {
    let sections = read(
        "kv.log",
        b"I0115 05:20:19.945191   309 rdma_transport.cpp:662] a\nI0115 05:20:19.945191   309 nixl_agent.cpp:1] b\nI0115 05:20:19.945191   309 elsewhere.cc:1] c\n",
    )
    .sections;
    let formats: Vec<_> = sections.iter().map(|s| s.format).collect();
    assert_eq!(formats, [Format::MooncakeLog, Format::NixlLog]);
}
