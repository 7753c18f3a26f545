//! The planner on machines that nobody would build: it never panics, and what it says of a route
//! is what its hops say.

use crowfly_route::fixture::{Fixture, GpuModel, NicModel, Slot, machines, speed};
use crowfly_route::hop::{Candidate, Carrier, Class, LinkKind, Standing, Stop};
use crowfly_route::obstacle::Confidence;
use crowfly_route::place::Place;
use crowfly_route::search::{self, Calibration, Measured, Search};
use crowfly_route::snapshot::Observation;
use crowfly_route::topology::Topology;
use crowfly_route::units::BytesPerSecond;
use proptest::prelude::*;
use proptest::sample::Index;

/// What is plugged in next, and where.
#[derive(Clone, Debug)]
enum Step {
    Socket,
    RootPort,
    Switch(Index),
    Slot(Index),
    Gpu(Index),
    Amd(Index),
    Nic(Index),
    Drive(Index),
    Disk(Index),
    StandIn(Index),
    Redirect(Index),
    Degrade(Index, u8, u8),
    Stripe,
    Encrypt,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        1 => Just(Step::Socket),
        3 => Just(Step::RootPort),
        2 => index().prop_map(Step::Switch),
        3 => index().prop_map(Step::Slot),
        3 => index().prop_map(Step::Gpu),
        1 => index().prop_map(Step::Amd),
        3 => index().prop_map(Step::Nic),
        3 => index().prop_map(Step::Drive),
        1 => index().prop_map(Step::Disk),
        1 => index().prop_map(Step::StandIn),
        1 => index().prop_map(Step::Redirect),
        1 => (index(), 1u8..6, 0u8..17).prop_map(|(at, generation, width)| Step::Degrade(at, generation, width)),
        1 => Just(Step::Stripe),
        1 => Just(Step::Encrypt),
    ]
}

/// Plugs everything in; what does not fit is left out.
fn build(steps: &[Step], user: bool) -> Fixture {
    let mut machine = Fixture::new();
    let mut sockets = vec![machine.socket()];
    let mut slots: Vec<Slot> = Vec::new();
    let mut switches = Vec::new();
    let mut devices = Vec::new();
    let mut drives: Vec<String> = Vec::new();
    let mut stacked = 0;
    let slot = |slots: &mut Vec<Slot>, at: &Index| {
        (!slots.is_empty()).then(|| slots.swap_remove(at.index(slots.len())))
    };
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Socket if sockets.len() < 4 => sockets.push(machine.socket()),
            Step::RootPort => {
                let socket = sockets[number % sockets.len()];
                slots.push(machine.root_port(socket, speed(5, 16)));
            }
            Step::Switch(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    switches.push(machine.switch(slot, speed(5, 16)));
                }
            }
            Step::Slot(at) if !switches.is_empty() => {
                let switch = switches[at.index(switches.len())];
                slots.push(machine.slot(switch, speed(4, 16)));
            }
            Step::Gpu(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    devices.push(machine.gpu(slot, &GpuModel::H100));
                }
            }
            Step::Amd(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    devices.push(machine.gpu(slot, &GpuModel::MI300X));
                }
            }
            Step::Nic(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    devices.push(machine.nic(
                        slot,
                        &format!("mlx5_{number}"),
                        &NicModel::CONNECTX7,
                    ));
                }
            }
            Step::Drive(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    let name = format!("nvme{number}");
                    devices.push(machine.nvme(slot, &name));
                    machine.mount(&format!("{name}n1"), &format!("/m{number}"), "xfs");
                    drives.push(format!("{name}n1"));
                }
            }
            Step::Disk(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    machine.virtio_disk(slot, &format!("vd{number}"));
                }
            }
            Step::StandIn(at) => {
                if let Some(slot) = slot(&mut slots, at) {
                    devices.push(machine.stand_in(slot, crowfly_route::units::Bytes::mib(256)));
                }
            }
            Step::Redirect(at) if !devices.is_empty() => {
                let port = machine.port_above(devices[at.index(devices.len())]);
                machine.access_control(port, 0x1d);
            }
            Step::Degrade(at, generation, width) if !devices.is_empty() => {
                let device = devices[at.index(devices.len())];
                machine.degrade(device, speed(*generation, *width));
            }
            Step::Stripe if drives.len() > 1 => {
                let members: Vec<&str> = drives.iter().map(String::as_str).collect();
                machine.md("md0", "raid0", &members);
                machine.mount("md0", "/stripe", "xfs");
            }
            Step::Encrypt if !drives.is_empty() => {
                let name = format!("dm-{stacked}");
                stacked += 1;
                machine.mapping(&name, &format!("luks{stacked}"), "CRYPT", &[&drives[0]]);
                machine.mount(&name, &format!("/crypt{stacked}"), "ext4");
            }
            _ => {}
        }
    }
    if user {
        machine.as_plain_user();
    }
    machine
}

/// Every place of a machine that commands can name, and some that it may not have.
fn places(topology: &Topology) -> Vec<Place> {
    let mut texts: Vec<String> = [
        "host",
        "host:0",
        "host:1",
        "gpu:0",
        "gpu:3",
        "remote:host",
        "remote:gpu:0",
        "nic:nowhere",
        "drive:nothing",
        "s3://bucket/key",
        "http://host/x",
        "file:relative",
        "/nowhere/m",
        "/stripe/m",
        "/crypt1/m",
        "peer:0000:00:00.0",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.extend(
        topology
            .nics
            .iter()
            .take(3)
            .map(|nic| format!("nic:{}", nic.name)),
    );
    texts.extend(
        topology
            .drives
            .iter()
            .take(3)
            .map(|drive| format!("drive:{}", drive.name)),
    );
    texts.extend(
        topology
            .mounts
            .iter()
            .take(3)
            .map(|mount| format!("file:{}/m", mount.point)),
    );
    let peers = topology.pci.values().filter(|f| f.peer_memory.is_some());
    texts.extend(peers.take(2).map(|f| format!("peer:{}", f.address)));
    let read = |text: &String| text.parse().expect(text);
    texts.iter().map(read).collect()
}

/// What has to hold of any candidate, whatever the machine.
fn consistent(candidate: &Candidate) -> Result<(), TestCaseError> {
    let route = &candidate.route;
    let hops = &route.hops;
    let counters = route.counters();
    let sum = |count: fn(&crowfly_route::hop::Hop) -> usize| hops.iter().map(count).sum::<usize>();
    let links = sum(|hop| {
        hop.crosses
            .iter()
            .filter(|c| c.kind == LinkKind::Pcie)
            .count()
    });
    let touches = sum(|hop| usize::from(matches!(hop.carrier, Carrier::Cpu { .. })));
    prop_assert_eq!(counters.pcie_hops as usize, links);
    prop_assert_eq!(counters.cpu_touches as usize, touches);
    prop_assert_eq!(
        counters.host_ram_passes,
        hops.iter().map(|hop| hop.host_ram_passes()).sum::<u32>()
    );
    for pair in hops.windows(2) {
        prop_assert_eq!(&pair[0].to, &pair[1].from, "{}: the hops join", route.name);
    }
    if let Some(ceiling) = route.ceiling() {
        for hop in hops {
            if let Some(capacity) = &hop.capacity {
                prop_assert!(capacity.rate.0 >= ceiling.capacity.rate.0);
                prop_assert!(!capacity.provenance.detail().is_empty());
            }
        }
    }
    // Up and down is the most that a way through RAM crosses a link.
    for link in route.shared_links() {
        let times = hops
            .iter()
            .flat_map(|h| &h.crosses)
            .filter(|c| c.link == link.link)
            .count();
        prop_assert!(
            times <= 2,
            "{}: {} crossed {times} times",
            route.name,
            link.link
        );
    }
    if route.class() == Class::Direct && !hops.is_empty() {
        let memories = hops
            .iter()
            .filter(|hop| hop.to.is_memory() && !matches!(hop.to, Stop::Network));
        prop_assert!(memories.count() <= 1);
    }
    for obstacle in &candidate.obstacles {
        let proved = !obstacle.evidence.is_empty() || obstacle.confidence != Confidence::Certain;
        prop_assert!(proved, "{}: {} without proof", route.name, obstacle.code);
        prop_assert!(obstacle.summary.ends_with('.'), "{}", obstacle.summary);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_machine_any_two_places(
        steps in prop::collection::vec(step(), 0..40),
        user in any::<bool>(),
        measured in any::<bool>(),
    ) {
        let machine = build(&steps, user);
        let (topology, snapshot) = (machine.topology(), machine.snapshot());
        let rate = |gb| Some(Calibration { rate: BytesPerSecond::gb(gb), how: "a probe".into() });
        let rates = Measured { copy: rate(9.0), memory: rate(200.0), ..Measured::default() };
        let rates = if measured { rates } else { Measured::default() };
        let search = Search { topology: &topology, snapshot: Some(&snapshot), measured: &rates };
        let places = places(&topology);
        for from in &places {
            for to in &places {
                let Ok(found) = search.candidates(from, to) else { continue };
                prop_assert!(!found.is_empty(), "{from} to {to}");
                let standings: Vec<Standing> = found.iter().map(Candidate::standing).collect();
                prop_assert!(standings.is_sorted(), "{from} to {to}: {standings:?}");
                for candidate in &found {
                    consistent(candidate)?;
                }
                let json = serde_json::to_string(&found).expect("serialises");
                let back: Vec<Candidate> = serde_json::from_str(&json).expect("reads back");
                prop_assert_eq!(back.len(), found.len());
            }
        }
    }

    /// The other way takes the same hops: whoever writes a checkpoint pays what reading it costs.
    #[test]
    fn there_and_back_have_the_same_counters(steps in prop::collection::vec(step(), 0..40)) {
        let machine = build(&steps, false);
        let topology = machine.topology();
        let places = places(&topology);
        for from in &places {
            for to in &places {
                let there = search::candidates(&topology, None, from, to);
                let back = search::candidates(&topology, None, to, from);
                let (Ok(there), Ok(back)) = (there, back) else { continue };
                for candidate in &there {
                    let route = &candidate.route;
                    let same = |c: &&Candidate| {
                        (c.route.name == route.name) && c.route.hops.len() == route.hops.len()
                    };
                    let Some(other) = back.iter().find(same) else { continue };
                    let (a, b) = (route.counters(), other.route.counters());
                    prop_assert_eq!(a.pcie_hops, b.pcie_hops);
                    prop_assert_eq!(a.cpu_touches, b.cpu_touches);
                    prop_assert_eq!(a.host_ram_passes, b.host_ram_passes);
                }
            }
        }
    }

    /// Snapshots can be mailed by anyone: arbitrary texts at the keys that the planner reads.
    #[test]
    fn hostile_texts_never_panic(texts in prop::collection::vec(".{0,40}", 14)) {
        let mut machine = machines::pcie_box();
        let keys = [
            "uname:release", "nvml:driver_version", "/etc/cufile.json", "/proc/driver/nvidia/params",
            "/proc/driver/nvidia/version", "env:CUFILE_ENV_PATH_JSON", "kconfig:CONFIG_PCI_P2PDMA",
            "limit:memlock", "/proc/self/mountinfo", "/proc/cpuinfo", "/sys/class/dmi/id/sys_vendor",
            "/sys/module/nvme_core/parameters/multipath", "nvml:0/bus_id", "nvml:0/p2p/1/read",
        ];
        for (key, text) in keys.iter().zip(&texts) {
            machine.observe(*key, Observation::text(text.as_str()));
        }
        let (topology, snapshot) = (machine.topology(), machine.snapshot());
        for from in places(&topology) {
            for to in places(&topology) {
                let _ = search::candidates(&topology, Some(&snapshot), &from, &to);
            }
        }
    }
}
