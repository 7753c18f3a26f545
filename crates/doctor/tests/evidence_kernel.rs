//! Kernel messages, kernel command lines, environments.

use crowfly_doctor::evidence::environment::{Environment, VariableOrigin};
use crowfly_doctor::evidence::kernel::{CmdlineOrigin, KernelCmdline, KernelLog, Topic};
use crowfly_doctor::evidence::{Artefact, Format, LineNumber, read};

fn artefacts(text: &str) -> Vec<Artefact> {
    read("x", text.as_bytes())
        .sections
        .into_iter()
        .map(|s| s.artefact)
        .collect()
}

fn log(text: &str) -> KernelLog {
    match artefacts(text).as_slice() {
        [Artefact::KernelLog(log)] => log.clone(),
        other => panic!("not one log: {other:?}"),
    }
}

#[test]
fn given_kernel_messages_then_each_topic_is_told_apart() {
    let log = log("\
[   12.345678] usb 1-1: new device
[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  100.000002] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error
[  100.000003] nvme 0000:01:00.0: ACS redirect is set between the client and provider (0000:02:00.0)
[  100.000004] nvme 0000:01:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:02:00.0) do not share an upstream bridge or whitelisted host bridge
[  100.000005] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)
[  100.000006] pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer
[  100.000007] pci 0000:5e:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:5d:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)
[  100.000008] pci 0000:3b:00.0: BAR 1: no space for [mem size 0x1000000000 64bit pref]
[  100.000009] train[77]: segfault at 7f0 ip 7f1 sp 7f2 error 4 in libnccl.so.2[7f0+d3d000]
");
    let topics: Vec<_> = log.messages.iter().map(|m| m.what.topic.clone()).collect();
    assert_eq!(
        topics,
        [
            Topic::Xid(79),
            Topic::SXid(12028),
            Topic::P2pdmaAcsRedirect,
            Topic::P2pdmaRefused,
            Topic::UnknownSymbol("ib_register_peer_memory_client".into()),
            Topic::Aer {
                severity: "Uncorrected (Non-Fatal)".into()
            },
            Topic::LinkDegraded,
            Topic::BarAssignment,
            Topic::Segfault {
                process: "train".into(),
                library: Some("libnccl.so.2".into())
            },
        ]
    );
    assert_eq!(
        log.lines, 9,
        "the first line says nothing yet of being a kernel's"
    );
    let device = |at: usize| log.messages[at].what.device.map(|d| d.to_string());
    assert_eq!(device(0).as_deref(), Some("0000:3b:00.0"));
    assert_eq!(device(3).as_deref(), Some("0000:01:00.0"));
    assert_eq!(device(8), None);
}

#[test]
fn given_every_printer_of_kernel_messages_then_they_read() {
    for line in [
        "6,3973,227996636,-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "kern  :err   : [  227.996636] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "[Jan21 04:41] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "[  +0.000012] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "[Wed Jan 21 04:41:44 2025] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "Jan 21 04:41:44 node1 kernel: nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "2025-01-21T04:41:44.285060+00:00 node1 kernel: [  227.996636] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
    ] {
        let log = log(&format!("{line}\n{line}\n"));
        assert_eq!(
            (log.messages.len(), log.messages[0].count),
            (1, 2),
            "{line}"
        );
        assert_eq!(log.messages[0].what.topic, Topic::PeerMem, "{line}");
        assert!(
            log.messages[0]
                .what
                .text
                .starts_with("nvidia-peermem nv_get"),
            "{line}"
        );
    }
}

#[test]
fn given_a_program_that_mentions_a_driver_then_it_is_no_kernel_message() {
    assert_eq!(
        artefacts("loading libnvidia-fs and mlx5_core tables for amdgpu\n"),
        []
    );
}

#[test]
fn given_a_boot_message_then_the_command_line_is_an_artefact_of_its_own() {
    let found = artefacts(
        "[    0.000000] DMAR: IOMMU enabled\n[    0.000000] Kernel command line: BOOT_IMAGE=/vmlinuz root=UUID=1 iommu=pt ro\n[    0.100000] DMAR: Host address width 46\n",
    );
    let [Artefact::KernelLog(log), Artefact::KernelCmdline(line)] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(log.messages.len(), 2);
    assert_eq!(line.origin, CmdlineOrigin::Running);
    assert_eq!(
        line.values("iommu")
            .map(|v| v.value.to_owned())
            .collect::<Vec<_>>(),
        ["pt"]
    );
}

#[test]
fn given_a_command_line_from_anywhere_then_arguments_read_in_order() {
    let read_one = |text: &str| -> KernelCmdline {
        match artefacts(text).as_slice() {
            [Artefact::KernelCmdline(line)] => line.clone(),
            other => panic!("{other:?}"),
        }
    };
    let grub = read_one("GRUB_CMDLINE_LINUX_DEFAULT=\"amd_iommu=off iommu=pt iommu=off quiet\"\n");
    assert_eq!(grub.origin, CmdlineOrigin::BootLoader);
    let values: Vec<_> = grub.values("iommu").map(|v| v.value.to_owned()).collect();
    assert_eq!(values, ["pt", "off"]);
    assert_eq!(grub.arguments[3].value.value, None);
    let proc = read_one(
        "root=/dev/nvme0n1p2 ro pci=disable_acs_redir=pci:12d8:2308;0000:5d:00.0 dyndbg=\"file a +p\"\n",
    );
    assert_eq!(proc.origin, CmdlineOrigin::Running);
    let pci: Vec<_> = proc.values("pci").map(|v| v.value.to_owned()).collect();
    assert_eq!(pci, ["disable_acs_redir=pci:12d8:2308;0000:5d:00.0"]);
    assert_eq!(
        proc.values("dyndbg")
            .map(|v| v.value.to_owned())
            .collect::<Vec<_>>(),
        ["file a +p"]
    );
    assert_eq!(artefacts("GRUB_CMDLINE_LINUX=\"\"\n"), []);
}

#[test]
fn given_an_environment_then_what_bears_on_data_paths_is_kept_and_secrets_are_not() {
    let found = artefacts(
        "NCCL_DEBUG=INFO\nHF_TOKEN=hf_secret\nUCX_TLS=rc,cuda\nexport NCCL_IB_HCA=\"mlx5_0,mlx5_1\"\n",
    );
    let [Artefact::Environment(Environment { variables, others })] = found.as_slice() else {
        panic!("{found:?}")
    };
    let kept: Vec<_> = variables
        .iter()
        .map(|v| {
            (
                v.value.name.as_str(),
                v.value.value.as_deref(),
                v.value.origin,
            )
        })
        .collect();
    assert_eq!(
        kept,
        [
            ("NCCL_DEBUG", Some("INFO"), VariableOrigin::Dump),
            ("UCX_TLS", Some("rc,cuda"), VariableOrigin::Dump),
            ("NCCL_IB_HCA", Some("mlx5_0,mlx5_1"), VariableOrigin::Export),
        ]
    );
    assert_eq!(*others, 1);
    assert!(!format!("{found:?}").contains("hf_secret"));
}

#[test]
fn given_launch_commands_then_which_ranks_get_a_variable_is_known() {
    let variables = |text: &str| -> Vec<(String, Option<String>, VariableOrigin)> {
        artefacts(text)
            .into_iter()
            .filter_map(|a| match a {
                Artefact::Environment(e) => Some(e.variables),
                _ => None,
            })
            .flatten()
            .map(|v| (v.value.name, v.value.value, v.value.origin))
            .collect()
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        variables("$ mpirun -np 2 -x NCCL_IB_DISABLE=1 -x LD_LIBRARY_PATH -x PATH ./train\n"),
        [
            ("NCCL_IB_DISABLE".into(), some("1"), VariableOrigin::Launch),
            ("LD_LIBRARY_PATH".into(), None, VariableOrigin::Launch),
        ]
    );
    assert_eq!(
        variables("srun --export=ALL,NCCL_NET_GDR_LEVEL=SYS -N 2 ./train\n"),
        [(
            "NCCL_NET_GDR_LEVEL".into(),
            some("SYS"),
            VariableOrigin::Launch
        )]
    );
    assert_eq!(
        variables(
            "        env:\n        - name: NCCL_IB_DISABLE\n          value: \"1\"\n        - name: OTHER\n          value: x\n"
        ),
        [("NCCL_IB_DISABLE".into(), some("1"), VariableOrigin::Launch)]
    );
    assert_eq!(
        variables("NCCL_DEBUG=INFO NCCL_P2P_DISABLE=1 python train.py\n"),
        [
            ("NCCL_DEBUG".into(), some("INFO"), VariableOrigin::Command),
            (
                "NCCL_P2P_DISABLE".into(),
                some("1"),
                VariableOrigin::Command
            ),
        ]
    );
}

#[test]
fn given_a_launched_test_then_the_line_is_both_environment_and_beginning_of_the_run() {
    let document = read(
        "x",
        b"mpirun -x NCCL_IB_HCA=mlx5_0 ./all_reduce_perf -b 8\n   8   2   float   sum   -1   9.0   0.0   0.0   0   9.0   0.0   0.0   0\n",
    );
    let formats: Vec<_> = document
        .sections
        .iter()
        .map(|s| (s.format, s.first))
        .collect();
    assert!(formats.contains(&(Format::Environment, LineNumber(1))));
    assert!(formats.contains(&(Format::NcclTests, LineNumber(1))));
}
