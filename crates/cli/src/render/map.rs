//! A machine's map for people: a head line, the tree, the links between GPUs, the matrix, and what
//! is odd.

use std::borrow::Cow;

use crowfly_route::topology::{Device, LinkState, Topology};
use unicode_width::UnicodeWidthStr;

use super::map_matrix;
use super::map_tree;
use super::style::{FAINT, STRONG, WARN, paint};
use super::text::{count, harmless, middle_out, wrap};
use crate::commands::map::MAX_DEVICES;
use crate::commands::map::outline::Outline;

/// The most oddities that are told without being asked for all.
const FEW_ODDITIES: usize = 5;

/// The most columns of a device's name. The kernel's own names of interfaces have fifteen; files in
/// which other programs describe a machine give any.
const MAX_NAME: usize = 20;

/// The map in at most `columns` columns; `verbose` tells every oddity.
pub fn render(topology: &Topology, columns: usize, verbose: bool) -> String {
    let topology = &*with_short_names(topology);
    let outline = Outline::new(topology);
    let mut text = head(topology, columns);
    let tree = map_tree::render(topology, &outline, columns);
    if !tree.is_empty() {
        text.push('\n');
        text.push_str(&tree);
    }
    text.push_str(&slow_links(topology, columns));
    let devices: Vec<Device> = topology
        .devices()
        .filter(|device| topology.address_of(*device).is_some())
        .collect();
    if devices.len() > MAX_DEVICES {
        let why = format!(
            "{} devices are more than the {MAX_DEVICES} between which distances are told.",
            devices.len()
        );
        text.push_str(&paragraph(&why, columns));
    } else if devices.len() > 1 {
        text.push('\n');
        text.push_str(&map_matrix::render(topology, &devices, columns));
    }
    text.push_str(&oddities(topology, columns, verbose));
    text
}

/// The same machine, its devices' names short enough for the columns of a map.
fn with_short_names(topology: &Topology) -> Cow<'_, Topology> {
    let nics = topology.nics.iter().map(|nic| &nic.name);
    let drives = topology.drives.iter().map(|drive| &drive.name);
    if nics
        .chain(drives)
        .all(|name| harmless(name).width() <= MAX_NAME)
    {
        return Cow::Borrowed(topology);
    }
    let mut named = topology.clone();
    // An interface that is called as its adapter stays so.
    let nics = named.nics.iter_mut().flat_map(|nic| {
        let interfaces = nic.interfaces.iter_mut();
        interfaces.map(|it| &mut it.name).chain([&mut nic.name])
    });
    let drives = named.drives.iter_mut().map(|drive| &mut drive.name);
    for name in nics.chain(drives) {
        *name = middle_out(&harmless(name), MAX_NAME).into_owned();
    }
    Cow::Owned(named)
}

/// `8 GPUs, 9 network adapters, 9 drives`
pub fn devices(topology: &Topology) -> String {
    let rdma = topology.nics.iter().filter(|nic| !nic.ports.is_empty());
    let adapters = match (topology.nics.len(), rdma.count()) {
        (all, 0) => some(all, "network adapter"),
        (all, rdma) if all == rdma => count(all, "RDMA adapter"),
        (all, rdma) => format!("{} ({rdma} with RDMA)", count(all, "network adapter")),
    };
    format!(
        "{}, {adapters}, {}",
        some(topology.gpus.len(), "GPU"),
        some(topology.drives.len(), "drive")
    )
}

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => String::new(),
    }
}

/// The devices, the machine around them, and what it is left with where some are missing.
fn head(topology: &Topology, columns: usize) -> String {
    let devices = capitalised(&devices(topology));
    let mut text = paint(STRONG, wrap(&devices, columns, "", ""));
    text.push('\n');
    let host = host(topology);
    if !host.is_empty() {
        let host = wrap(&harmless(&host), columns, "", "");
        text.push_str(&paint(FAINT, host));
        text.push('\n');
    }
    if let Some(what) = shortcomings(topology) {
        text.push_str(&wrap(what, columns, "", ""));
        text.push('\n');
    }
    text
}

/// What a machine without GPU or RDMA is left with.
fn shortcomings(topology: &Topology) -> Option<&'static str> {
    let rdma = topology.nics.iter().any(|nic| !nic.ports.is_empty());
    match (topology.gpus.is_empty(), rdma) {
        _ if topology.pci.is_empty() => Some(
            "No PCI function was seen, and so neither GPU nor RDMA adapter: data goes into host memory \
             here.",
        ),
        (true, true) => Some("No GPU was found: data goes into host memory here."),
        (true, false) => Some(
            "Neither GPU nor RDMA adapter was found: data goes into host memory here, and other \
             machines are reached through the kernel's network stack.",
        ),
        (false, _) => None,
    }
}

/// `no GPU`, `1 GPU`, `2 GPUs`.
fn some(n: usize, one: &str) -> String {
    match n {
        0 => format!("no {one}"),
        n => count(n, one),
    }
}

/// The machine around the devices, as far as it is known.
pub fn host(topology: &Topology) -> String {
    let host = &topology.host;
    // Processors without a name have the number of their maker alone, which tells people nothing.
    let cpu = host.cpu_name.as_ref().or(host.cpu_vendor.as_ref());
    let cpu = cpu.filter(|name| !name.starts_with("0x"));
    let sockets = host.sockets.filter(|sockets| *sockets > 1);
    let memory = topology.numa.iter().map(|node| node.memory);
    let memory = memory.collect::<Option<Vec<_>>>().filter(|m| !m.is_empty());
    let parts = [
        cpu.map(|name| match sockets {
            Some(sockets) => format!("{sockets} × {name}"),
            None => name.clone(),
        }),
        memory.map(|all| {
            let all: crowfly_route::units::Bytes = all.into_iter().sum();
            format!("{all} of memory")
        }),
        host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        host.hypervisor
            .as_ref()
            .map(|name| format!("virtual machine ({name})")),
        host.container
            .as_ref()
            .map(|name| format!("inside a container ({name})")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Links below their maximum, once more in one place: in a large tree they are easy to miss.
fn slow_links(topology: &Topology, columns: usize) -> String {
    let degraded = topology
        .pci
        .keys()
        .filter(|address| topology.link_state(**address) == Some(LinkState::Degraded))
        .count();
    match degraded {
        0 => String::new(),
        1 => paragraph("1 link runs below what both its ends can do.", columns),
        n => paragraph(
            &format!("{n} links run below what both their ends can do."),
            columns,
        ),
    }
}

fn oddities(topology: &Topology, columns: usize, verbose: bool) -> String {
    let all = &topology.oddities;
    let told = if verbose { all.len() } else { FEW_ODDITIES };
    let mut text = String::new();
    for oddity in all.iter().take(told) {
        let line = format!("{}: {}", oddity.at, oddity.what);
        let line = wrap(&harmless(&line), columns, "odd: ", "     ");
        text.push_str(&paint(WARN, line));
        text.push('\n');
    }
    if all.len() > told {
        let more = format!("odd: {} more; --verbose tells them", all.len() - told);
        text.push_str(&paint(WARN, more));
        text.push('\n');
    }
    match text.is_empty() {
        true => text,
        false => format!("\n{text}"),
    }
}

fn paragraph(text: &str, columns: usize) -> String {
    format!("\n{}\n", paint(WARN, wrap(text, columns, "", "")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::MAX_COLUMNS;
    use crate::render::plain;
    use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen5, machines, speed};
    use crowfly_route::snapshot::Observation;

    fn map(machine: &Fixture) -> String {
        let text = plain(&render(&machine.topology(), MAX_COLUMNS, false));
        for line in text.lines() {
            assert!(line.width() <= MAX_COLUMNS, "{line}");
            assert_eq!(line, line.trim_end());
        }
        text
    }

    #[test]
    fn given_a_dgx_h100() {
        insta::assert_snapshot!(map(&machines::dgx_h100()));
    }

    #[test]
    fn given_a_box_without_nvlink() {
        insta::assert_snapshot!(map(&machines::pcie_box()));
    }

    #[test]
    fn given_a_laptop_without_gpu_or_rdma() {
        insta::assert_snapshot!(map(&machines::laptop()));
    }

    #[test]
    fn given_sixteen_gpus_adapters_and_drives() {
        insta::assert_snapshot!(map(&machines::sixteen_gpus()));
    }

    #[test]
    fn given_faults_they_are_marked_and_what_is_unknown_is_said() {
        let mut machine = machines::pcie_box();
        let topology = machine.topology();
        let at = |name: &str| {
            let device = topology.find(name).expect(name);
            topology.address_of(device).expect(name)
        };
        machine.degrade(at("mlx5_0"), speed(3, 8));
        machine.degrade(at("gpu0"), speed(1, 16));
        let port = machine.port_above(at("gpu3"));
        for function in [at("gpu3"), port] {
            machine.text(format!("/sys/bus/pci/devices/{function}/numa_node"), "-1");
        }
        machine.link(
            "/sys/class/infiniband/rxe0",
            "../../devices/virtual/infiniband/rxe0",
        );
        machine.text("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
        insta::assert_snapshot!(map(&machine));
    }

    /// The distances alone, of a machine with this many switches, each with a GPU and a second
    /// switch that carries two adapters.
    fn distances_with_nested_switches(switches: usize) -> String {
        let mut machine = Fixture::new();
        let sockets = [machine.socket(), machine.socket()];
        for number in 0..switches {
            let socket = sockets[2 * number / switches];
            let port = machine.root_port(socket, gen5(16));
            let outer = machine.switch(port, gen5(16));
            let slot = machine.slot(outer, gen5(16));
            machine.gpu(slot, &GpuModel::L40S);
            let slot = machine.slot(outer, gen5(16));
            let inner = machine.switch(slot, gen5(16));
            for nic in [2 * number, 2 * number + 1] {
                let slot = machine.slot(inner, gen5(16));
                machine.nic(slot, &format!("mlx5_{nic}"), &NicModel::CONNECTX7);
            }
        }
        let text = map(&machine);
        let (_, distances) = text.rsplit_once("\n\n").expect("distances come last");
        distances.to_owned()
    }

    #[test]
    fn given_nested_switches_clusters_share_a_row_and_nearer_pairs_are_told_below() {
        insta::assert_snapshot!(distances_with_nested_switches(8));
    }

    #[test]
    fn given_more_places_than_columns_the_distances_are_sentences() {
        insta::assert_snapshot!(distances_with_nested_switches(14));
    }

    #[test]
    fn given_names_longer_than_a_screen_is_wide_their_middles_are_left_out() {
        for length in [21, 100, 250, 1000] {
            for nics in [1, 2, 12] {
                let mut machine = Fixture::new();
                let socket = machine.socket();
                let long = "x".repeat(length);
                for number in 0..nics {
                    let port = machine.root_port(socket, gen5(16));
                    let name = format!("mlx5_{long}_{number}");
                    let nic = machine.nic(port, &name, &NicModel::CONNECTX7);
                    machine.degrade(nic, speed(3, 8));
                }
                let port = machine.root_port(socket, gen5(16));
                machine.nvme(port, &format!("nvme{long}大"));
                let text = map(&machine);
                assert!(text.contains("mlx5_xxxxx…xxxxxxx_0"), "{text}");
                assert!(text.contains("nvmexxxxxx…xxxxxxx大"), "{text}");
            }
        }
    }

    #[test]
    fn given_pci_functions_that_nobody_could_look_at() {
        let mut machine = Fixture::new();
        machine.observe("/sys/bus/pci/devices", Observation::Denied);
        insta::assert_snapshot!(map(&machine));
    }
}
