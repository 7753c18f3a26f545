//! What a machine shows besides findings: what exists, what could not be looked at, and, without a
//! GPU, what it would allow one.

use std::collections::BTreeMap;

use crowfly_doctor::Machine;
use crowfly_route::snapshot::{Observation, Snapshot};
use crowfly_route::topology::{AcsState, PciDevice, Topology};
use serde::Serialize;

use super::slots::{self, Slots};
use crate::render;

/// A machine that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// `no GPU, 2 network adapters, 1 drive`.
    pub devices: String,
    /// The processor, memory and kernel.
    pub machine: String,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
    /// What a GPU would find in each slot; absent where there is a GPU, or where no PCI function
    /// was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<Slots>,
}

/// Something that could not be looked at, and what is unknown because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// What it is.
    pub what: String,
    /// How often.
    pub places: usize,
    /// One of the places.
    pub example: String,
    /// Why not, in the system's words.
    pub why: String,
    /// How to look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

const AS_ROOT: &str = "run as root: `sudo crowfly doctor`";

/// Libraries without which a vendor's device, if there were one, would stay unasked.
const VENDORS: [(&[&str], &str); 4] = [
    (&["libcuda.so.1"], "NVIDIA's driver"),
    (&["libnvidia-ml.so.1"], "NVIDIA's NVML"),
    (&["libamdhip64.so.7", "libamdhip64.so.6"], "AMD's HIP"),
    (&["libibverbs.so.1"], "RDMA verbs"),
];

impl Host {
    /// What a captured machine shows; `None` where only its topology is known.
    pub fn of(machine: &Machine) -> Option<Self> {
        let snapshot = machine.snapshot.as_deref()?;
        let topology = &machine.topology;
        let guess = topology.gpus.is_empty() && !topology.pci.is_empty();
        Some(Self {
            devices: render::map::devices(topology),
            machine: render::map::host(topology),
            unseen: unseen(topology, snapshot),
            slots: guess.then(|| slots::look(topology, snapshot)),
        })
    }
}

/// What was refused or failed, together by what it is about, and what nobody could be asked about.
fn unseen(topology: &Topology, snapshot: &Snapshot) -> Vec<Unseen> {
    let mut groups: BTreeMap<(Topic, String), Unseen> = BTreeMap::new();
    for (key, seen) in snapshot.iter() {
        let (why, hint) = match seen {
            Observation::Denied => ("permission denied".to_owned(), Some(AS_ROOT)),
            Observation::Error(why) if !says_nothing_is_there(key, why) => (why.clone(), None),
            Observation::Error(_) | Observation::Absent | Observation::Value(_) => continue,
        };
        let topic = Topic::of(key);
        groups
            .entry((topic, why.clone()))
            .and_modify(|group| group.places += 1)
            .or_insert_with(|| Unseen {
                what: topic.words().into(),
                places: 1,
                example: key.to_owned(),
                why,
                hint,
            });
    }
    let mut unseen: Vec<Unseen> = access_control(topology).into_iter().collect();
    unseen.extend(groups.into_values());
    for (libraries, whose) in VENDORS {
        let keys = libraries.iter().map(|name| format!("library:{name}"));
        let absent = |key: &String| snapshot.get(key) == Some(&Observation::Absent);
        if let Some(example) = keys
            .clone()
            .next()
            .filter(|_| keys.clone().all(|k| absent(&k)))
        {
            unseen.push(Unseen {
                what: format!("what {whose} would say"),
                places: 1,
                example,
                why: "its library is not installed".into(),
                hint: None,
            });
        }
    }
    unseen
}

/// Whether a kernel's refusal is its way to say that there is nothing to tell: an interface without a
/// link has neither speed nor carrier, and most have no name for their port.
fn says_nothing_is_there(key: &str, why: &str) -> bool {
    const INVALID: &str = "(os error 22)";
    const UNSUPPORTED: &str = "(os error 95)";
    key.starts_with("/sys/class/net/") && (why.ends_with(INVALID) || why.ends_with(UNSUPPORTED))
}

/// What a key is about, in the order of how much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Gpus,
    Pci,
    Rdma,
    Storage,
    Kernel,
    Limits,
    Network,
    Libraries,
    Rest,
}

impl Topic {
    fn of(key: &str) -> Self {
        const BY_START: [(&str, Topic); 22] = [
            ("nvml:", Topic::Gpus),
            ("/proc/driver/nvidia/", Topic::Gpus),
            ("/dev/nvidia", Topic::Gpus),
            ("/dev/kfd", Topic::Gpus),
            ("/dev/dri", Topic::Gpus),
            ("/sys/class/kfd", Topic::Gpus),
            ("/sys/bus/pci/", Topic::Pci),
            ("/sys/kernel/iommu_groups", Topic::Pci),
            ("/sys/class/infiniband", Topic::Rdma),
            ("/dev/infiniband", Topic::Rdma),
            ("/proc/driver/nvidia-fs", Topic::Storage),
            ("/sys/block", Topic::Storage),
            ("/sys/class/nvme", Topic::Storage),
            ("/sys/class/block", Topic::Storage),
            ("kallsyms:", Topic::Kernel),
            ("kconfig:", Topic::Kernel),
            ("/proc/sys/", Topic::Kernel),
            ("call:", Topic::Kernel),
            ("/sys/fs/cgroup", Topic::Limits),
            ("limit:", Topic::Limits),
            ("/sys/class/net", Topic::Network),
            ("library:", Topic::Libraries),
        ];
        let of = |(start, _): &&(&str, Self)| key.starts_with(start);
        BY_START
            .iter()
            .find(of)
            .map_or(Self::Rest, |(_, topic)| *topic)
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Gpus => "GPUs and their drivers",
            Self::Pci => "PCI functions",
            Self::Rdma => "RDMA devices",
            Self::Storage => "drives and their drivers",
            Self::Kernel => "the kernel's symbols and settings",
            Self::Limits => "limits of this process",
            Self::Network => "network interfaces",
            Self::Libraries => "vendors' libraries",
            Self::Rest => "the rest of the machine",
        }
    }
}

/// Of the ports' configuration space the kernel shows other users the first 64 bytes, which is no
/// refusal but ends before access control.
fn access_control(topology: &Topology) -> Option<Unseen> {
    let hidden = |f: &&PciDevice| f.port.is_some() && f.acs == AcsState::Unreadable;
    let mut ports = topology.pci.values().filter(hidden);
    let first = ports.next()?.address;
    Some(Unseen {
        what: "access control (ACS) of PCIe ports".into(),
        places: 1 + ports.count(),
        example: format!("/sys/bus/pci/devices/{first}/config"),
        why: "configuration space beyond the first 64 bytes was not shown".into(),
        hint: Some(AS_ROOT),
    })
}
