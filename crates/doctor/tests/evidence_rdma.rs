//! Listings of RDMA devices, of five tools.

use crowfly_doctor::evidence::rdma::{LinkLayer, PortState, RdmaDevices};
use crowfly_doctor::evidence::{Artefact, Format, LineNumber, read};

fn devices(format: Format, text: &str) -> RdmaDevices {
    let sections = read("rdma.txt", text.as_bytes()).sections;
    let [section] = sections.as_slice() else {
        panic!("not one listing: {sections:?}")
    };
    assert_eq!(section.format, format);
    match &section.artefact {
        Artefact::RdmaDevices(devices) => devices.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn given_ibv_devinfo_then_devices_ports_and_addresses_read() {
    let found = devices(
        Format::IbvDevinfo,
        "\
hca_id: mlx5_0
        transport:                      InfiniBand (0)
        fw_ver:                         28.41.1000
        vendor_part_id:                 4129
        board_id:                       MT_0000000834
        max_mr_size:                    0xffffffffffffffff
        device_cap_flags:               0xed721c36
                                        BAD_PKEY_CNTR
        phys_port_cnt:                  1
                port:   1
                        state:                  PORT_ACTIVE (4)
                        max_mtu:                4096 (5)
                        active_mtu:             1024 (3)
                        link_layer:             Ethernet
                        active_width:           4X (2)
                        active_speed:           100.0 Gbps (128)
                        phys_state:             LINK_UP (5)
                        GID[  0]:               fe80:0000:0000:0000:ba59:9fff:fe1a:e3ea, RoCE v1
                        GID[  3]:               0000:0000:0000:0000:0000:ffff:0a0a:0a01, RoCE v2

hca_id: mlx5_1
        fw_ver:                         28.43.2566
                port:   1
                        state:                  PORT_DOWN (1)
",
    );
    let device = &found.devices[0];
    assert_eq!(
        (device.name.as_str(), device.cite.line),
        ("mlx5_0", LineNumber(1))
    );
    assert_eq!(
        device.firmware.as_ref().map(|f| f.value.as_str()),
        Some("28.41.1000")
    );
    assert_eq!(
        device.model.as_ref().map(|m| m.value.as_str()),
        Some("MT_0000000834")
    );
    assert_eq!(device.part.as_ref().map(|p| p.value), Some(4129));
    assert_eq!(device.attributes["transport"].value, "InfiniBand (0)");
    let port = &device.ports[0];
    assert_eq!(
        port.state.as_ref().map(|s| s.value.clone()),
        Some(PortState::Active)
    );
    assert_eq!(port.layer.as_ref().map(|l| l.value), Some(LinkLayer::RoCe));
    assert_eq!(
        (
            port.active_mtu.as_ref().map(|m| m.value),
            port.max_mtu.as_ref().map(|m| m.value)
        ),
        (Some(1024), Some(4096))
    );
    assert_eq!(port.rate_gbps.as_ref().map(|r| r.value), Some(400.0));
    assert_eq!(
        port.physical.as_ref().map(|p| p.value.as_str()),
        Some("LINK_UP")
    );
    assert_eq!(
        (port.gids[0].value.roce, port.gids[0].value.ipv4.as_deref()),
        (Some(1), None)
    );
    let gid = &port.gids[1].value;
    assert_eq!(
        (gid.index, gid.roce, gid.ipv4.as_deref()),
        (3, Some(2), Some("10.10.10.1"))
    );
    assert_eq!(
        found.devices[1].ports[0]
            .state
            .as_ref()
            .map(|s| s.value.clone()),
        Some(PortState::Down)
    );
}

#[test]
fn given_ibstat_then_state_rate_and_firmware_read() {
    let found = devices(
        Format::Ibstat,
        "\
CA 'mlx5_2'
        CA type: MT4123
        Number of ports: 1
        Firmware version: 20.43.1014
        Port 1:
                State: Active
                Physical state: LinkUp
                Rate: 200
                Base lid: 37
                Link layer: InfiniBand
CA 'mlx5_3'
        Port 1:
                State: Down
                Physical state: Disabled
                Rate: 10
                Link layer: InfiniBand
",
    );
    let port = &found.devices[0].ports[0];
    assert_eq!(
        port.state.as_ref().map(|s| s.value.clone()),
        Some(PortState::Active)
    );
    assert_eq!(
        port.rate_gbps.as_ref().map(|r| (r.value, r.cite.line)),
        Some((200.0, LineNumber(8)))
    );
    assert_eq!(
        port.layer.as_ref().map(|l| l.value),
        Some(LinkLayer::InfiniBand)
    );
    assert_eq!(
        found.devices[0].model.as_ref().map(|m| m.value.as_str()),
        Some("MT4123")
    );
    assert_eq!(
        found.devices[1].ports[0]
            .physical
            .as_ref()
            .map(|p| p.value.as_str()),
        Some("Disabled")
    );
}

#[test]
fn given_ibstatus_then_state_and_rate_read() {
    let found = devices(
        Format::Ibstatus,
        "\
Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0001
\tbase lid:\t 0x5
\tstate:\t\t 2: INIT
\tphys state:\t 5: LinkUp
\trate:\t\t 200 Gb/sec (4X HDR)
\tlink_layer:\t InfiniBand
",
    );
    let port = &found.devices[0].ports[0];
    assert_eq!(
        port.state.as_ref().map(|s| s.value.clone()),
        Some(PortState::Init)
    );
    assert_eq!(port.rate_gbps.as_ref().map(|r| r.value), Some(200.0));
    assert_eq!(
        port.physical.as_ref().map(|p| p.value.as_str()),
        Some("LinkUp")
    );
}

#[test]
fn given_show_gids_then_blank_columns_do_not_shift_the_others() {
    let found = devices(
        Format::ShowGids,
        "\
DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
mlx5_0  1       0       fe80:0000:0000:0000:ba59:9fff:fe1a:e3ea                 v1      eth2
mlx5_0  1       3       0000:0000:0000:0000:0000:ffff:0a0a:0a01 10.10.10.1      v2      eth2
mlx5_1  1       0       fe80:0000:0000:0000:ba59:9fff:fe1a:e3eb                 v1
n_gids_found=3
",
    );
    assert_eq!(found.devices.len(), 2);
    let port = &found.devices[0].ports[0];
    assert_eq!(port.netdev.as_ref().map(|n| n.value.as_str()), Some("eth2"));
    let gids: Vec<_> = port
        .gids
        .iter()
        .map(|g| (g.value.index, g.value.roce, g.value.ipv4.clone()))
        .collect();
    assert_eq!(
        gids,
        [(0, Some(1), None), (3, Some(2), Some("10.10.10.1".into()))]
    );
    assert_eq!(found.devices[1].ports[0].netdev, None);
}

#[test]
fn given_rdma_link_then_every_age_of_it_reads() {
    let found = devices(
        Format::RdmaLink,
        "\
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1np0
1/1: mlx5_1/1: state DOWN physical_state DISABLED netdev ens2np0
link mlx5_2/1 subnet_prefix fe80:0000:0000:0000 lid 37 sm_lid 26 lmc 0 state ACTIVE physical_state LINK_UP
mlx5_3 port 1 ==> ens4np0 (Up)
",
    );
    let states: Vec<_> = found
        .devices
        .iter()
        .map(|d| {
            (
                d.name.as_str(),
                d.ports[0].state.as_ref().map(|s| s.value.clone()),
            )
        })
        .collect();
    assert_eq!(
        states,
        [
            ("mlx5_0", Some(PortState::Active)),
            ("mlx5_1", Some(PortState::Down)),
            ("mlx5_2", Some(PortState::Active)),
            ("mlx5_3", Some(PortState::Active)),
        ]
    );
    assert_eq!(
        found.devices[0].ports[0]
            .netdev
            .as_ref()
            .map(|n| n.value.as_str()),
        Some("ens1np0")
    );
    assert_eq!(found.devices[2].ports[0].netdev, None);
}
