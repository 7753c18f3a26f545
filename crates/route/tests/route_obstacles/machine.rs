//! Machines, and what is asked of them.

use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen4, gen5};
use crowfly_route::hop::Candidate;
use crowfly_route::obstacle::{Code, Effect, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::search::{self, SearchError};
use crowfly_route::snapshot::{Observation, Value};
use crowfly_route::units::PciAddress;

pub fn place(text: &str) -> Place {
    text.parse().expect(text)
}

pub fn search(machine: &Fixture, from: &str, to: &str) -> Result<Vec<Candidate>, SearchError> {
    let (snapshot, topology) = (machine.snapshot(), machine.topology());
    search::candidates(&topology, Some(&snapshot), &place(from), &place(to))
}

pub fn candidate(machine: &Fixture, from: &str, to: &str, name: &str) -> Candidate {
    let found = search(machine, from, to).expect("both exist");
    let names: Vec<String> = found.iter().map(|c| c.route.name.clone()).collect();
    let named = |c: &Candidate| c.route.name == name;
    found
        .into_iter()
        .find(named)
        .unwrap_or_else(|| panic!("no {name} among {names:?}"))
}

pub fn codes(candidate: &Candidate) -> Vec<(&'static str, Effect)> {
    let coded = |o: &Obstacle| (o.code.as_str(), o.effect);
    candidate.obstacles.iter().map(coded).collect()
}

pub fn obstacle(candidate: &Candidate, code: Code) -> &Obstacle {
    let found = candidate.obstacles.iter().find(|o| o.code == code);
    found.unwrap_or_else(|| panic!("no {code} among {:?}", codes(candidate)))
}

/// A Sapphire Rapids or other server with one switch on socket 0: an H100, a ConnectX-7 `mlx5_0`
/// and the drive `nvme0` with xfs on /data behind it, the drive `nvme1` on a root port of its own.
pub struct Server {
    pub machine: Fixture,
    pub gpu: PciAddress,
    pub nic: PciAddress,
    pub drive: PciAddress,
}

impl Server {
    pub fn new(cpu: fn(&mut Fixture)) -> Self {
        let mut machine = Fixture::new();
        cpu(&mut machine);
        let socket = machine.socket();
        let root_port = machine.root_port(socket, gen5(16));
        let switch = machine.switch(root_port, gen5(16));
        let slot = machine.slot(switch, gen5(16));
        let gpu = machine.gpu(slot, &GpuModel::H100);
        let slot = machine.slot(switch, gen5(16));
        let nic = machine.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
        let slot = machine.slot(switch, gen4(4));
        let drive = machine.nvme(slot, "nvme0");
        let slot = machine.root_port(socket, gen4(4));
        machine.nvme(slot, "nvme1");
        machine.mount("nvme0n1", "/data", "xfs");
        Self {
            machine,
            gpu,
            nic,
            drive,
        }
    }

    /// All of NVIDIA's and the kernel's software in order.
    pub fn ready(cpu: fn(&mut Fixture)) -> Self {
        let mut ready = Self::new(cpu);
        let machine = &mut ready.machine;
        for module in ["nvidia_fs", "nvidia_peermem"] {
            let list = Observation::Value(Value::List(vec!["version".into()]));
            machine.observe(format!("/sys/module/{module}"), list);
        }
        machine
            .text("kallsyms:nvme_v2_register_nvfs_dma_ops", "t [nvme]")
            .text("kconfig:CONFIG_PCI_P2PDMA", "y")
            .text("nvml:driver_version", "570.86.10")
            .text(
                "/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10",
            )
            .text(
                "/proc/driver/nvidia/params",
                "ResmanDebugLevel: 4294967295\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"",
            )
            .text("/sys/module/nvme_core/parameters/multipath", "N")
            .text(
                "/etc/cufile.json",
                "{\n  // switches\n  \"properties\": {\n    \"use_pci_p2pdma\": true,\n  }\n}",
            );
        ready
    }
}

pub fn xeon(_: &mut Fixture) {}

pub fn desktop(machine: &mut Fixture) {
    machine.processor(
        "GenuineIntel",
        6,
        183,
        "13th Gen Intel(R) Core(TM) i9-13900K",
    );
}

pub fn epyc(machine: &mut Fixture) {
    machine.processor("AuthenticAMD", 25, 17, "AMD EPYC 9354 32-Core Processor");
}

/// The host bridges of a desktop are on no list.
pub fn unlist_host_bridges(machine: &mut Fixture) {
    for bus in ["10", "18"] {
        machine.text(
            format!("/sys/bus/pci/devices/0000:{bus}:00.0/device"),
            "0xa700",
        );
    }
}
