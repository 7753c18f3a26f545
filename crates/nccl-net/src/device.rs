//! The devices that NCCL is offered: one for each RDMA port, or one that stands for sockets where
//! there is none.
//!
//! NCCL places a communicator's channels on devices by how far they are from its GPUs, so each NIC is
//! one. Several in one share their bytes and stand in for each other: NCCL makes such devices of
//! those that belong together (`makeVDevice`), and `CROWFLY_NET_MERGE=1` makes one of all.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crowfly_machine::verbs::Verbs;
use crowfly_machine::{Options, Root, capture};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings, discover};
use crowfly_mover::fabric::{FabricError, NicFilter, Reachable, reachable};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::topology::Topology;

use crate::comm::locked;
use crate::door::Door;
use crate::error::NetError;
use crate::settings::Settings;

/// Megabits per second of a NIC that does not say, as NCCL assumes for its own sockets.
const ASSUMED_SPEED: c_int = 10_000;
/// The name of the device that stands for sockets.
const SOCKETS: &str = "sockets";
/// The most NICs of one device, as the fabric takes no more rails.
const MAX_MERGED: usize = 16;

/// A device that NCCL is offered.
pub(crate) struct Device {
    pub name: CString,
    /// The first NIC's PCI device below `/sys`.
    pub pci_path: Option<CString>,
    pub guid: u64,
    /// Megabits per second, of all NICs together.
    pub speed: c_int,
    /// Whether no NIC said how fast it is.
    pub speed_assumed: bool,
    pub port: c_int,
    /// The devices it was made of, by number; itself alone for all but virtual ones.
    pub parts: Vec<c_int>,
    /// Which of the fabric's NICs it uses.
    pub filter: NicFilter,
    /// The machine, where it matters which NIC is near which memory.
    pub topology: Option<Arc<Topology>>,
    nics: Vec<Arc<VerbsNic>>,
    door: Mutex<Option<Arc<Door>>>,
}

impl Device {
    /// Its part of the fabric, which begins with the first that needs it.
    pub(crate) fn door(&self, settings: &Settings) -> Result<Arc<Door>, NetError> {
        let mut door = locked(&self.door);
        if let Some(door) = &*door {
            return Ok(Arc::clone(door));
        }
        let opened = Door::open(self, settings)?;
        *door = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Whether all its NICs register what GPUs export as dma-bufs.
    pub(crate) fn takes_dma_bufs(&self) -> bool {
        !self.nics.is_empty() && self.nics.iter().all(|nic| nic.takes_dma_bufs())
    }

    pub(crate) fn providers(&self) -> Vec<Arc<dyn Provider>> {
        let nics = self.nics.iter();
        nics.map(|nic| Arc::clone(nic) as Arc<dyn Provider>)
            .collect()
    }

    /// One device of several.
    pub(crate) fn merged(
        parts: &[(c_int, Arc<Self>)],
        settings: &Settings,
    ) -> Result<Self, NetError> {
        let nics: Vec<Arc<VerbsNic>> = parts
            .iter()
            .flat_map(|(_, part)| part.nics.iter().cloned())
            .collect();
        let senseless = |why: &str| NetError::Argument {
            argument: "props",
            why: why.into(),
        };
        if nics.len() < 2 || nics.len() > MAX_MERGED {
            return Err(senseless(
                "only RDMA ports can be merged, from 2 to 16 of them",
            ));
        }
        let names: Vec<&str> = nics.iter().map(|nic| nic.nic()).collect();
        if names
            .iter()
            .enumerate()
            .any(|(at, name)| names[..at].contains(name))
        {
            return Err(senseless("a NIC is named twice"));
        }
        let facts: Vec<PortFacts> = nics.iter().map(|nic| PortFacts::of(&**nic)).collect();
        let first = parts.first().map(|(_, part)| part);
        Ok(Self {
            name: c_string(names.join("+")),
            pci_path: first.and_then(|first| first.pci_path.clone()),
            guid: first.map_or(0, |first| first.guid),
            speed: facts.iter().map(|f| f.speed.unwrap_or(ASSUMED_SPEED)).sum(),
            speed_assumed: facts.iter().any(|f| f.speed.is_none()),
            port: first.map_or(1, |first| first.port),
            parts: parts.iter().map(|(number, _)| *number).collect(),
            filter: filter(&names, settings)?,
            topology: topology(),
            nics,
            door: Mutex::default(),
        })
    }

    fn of_port(nic: Arc<VerbsNic>, number: c_int, settings: &Settings) -> Result<Self, NetError> {
        let facts = PortFacts::of(&*nic);
        Ok(Self {
            name: c_string(nic.nic().to_owned()),
            pci_path: facts.pci_path,
            guid: facts.guid,
            speed: facts.speed.unwrap_or(ASSUMED_SPEED),
            speed_assumed: facts.speed.is_none(),
            port: facts.port,
            parts: vec![number],
            filter: filter(&[nic.nic()], settings)?,
            topology: None,
            nics: vec![nic],
            door: Mutex::default(),
        })
    }

    fn of_sockets(interfaces: &[Reachable], settings: &Settings) -> Result<Self, NetError> {
        let asked = |known: &&Reachable| settings.nics.says(&known.name) == Some(true);
        let first = interfaces.iter().find(asked).or(interfaces.first());
        let speed = first.and_then(|first| megabits(first.rate));
        let at = first.map(|first| Path::new("/sys/class/net").join(&first.name));
        Ok(Self {
            name: c_string(SOCKETS.to_owned()),
            pci_path: at.and_then(|at| real_path(&at.join("device"))),
            guid: 0,
            speed: speed.unwrap_or(ASSUMED_SPEED),
            speed_assumed: speed.is_none(),
            port: 0,
            parts: vec![0],
            filter: filter(&[], settings)?,
            topology: None,
            nics: Vec::new(),
            door: Mutex::default(),
        })
    }
}

/// The devices of this machine, and why it has no better ones.
pub(crate) fn survey(settings: &Settings) -> Result<(Vec<Arc<Device>>, Vec<Obstacle>), NetError> {
    let (ports, mut obstacles) = match Verbs::load() {
        Ok(verbs) => discover(&verbs, &VerbsSettings::default()),
        Err(error) => {
            let none = Obstacle::blocks(Code::NoVerbsLibrary, "RDMA cannot be used");
            (Vec::new(), vec![none.seen("libibverbs", error.to_string())])
        }
    };
    let interfaces = reachable().map_err(|error| FabricError::Setup {
        what: "listing the interfaces",
        source: Arc::new(error),
    })?;
    let ports_named = ports.iter().map(|nic| nic.nic());
    let named: Vec<&str> = ports_named
        .chain(interfaces.iter().map(|known| known.name.as_str()))
        .collect();
    settings.nics.check(&named)?;
    let is_card = |nic: &Arc<VerbsNic>| nic.class() == Class::Direct;
    let cards = ports.iter().any(is_card);
    let (used, unused): (Vec<_>, Vec<_>) = ports.into_iter().partition(|nic| {
        let says = settings.nics.says(nic.nic());
        says.unwrap_or(is_card(nic) || !cards)
    });
    obstacles.extend(unused.iter().map(|nic| {
        let why = format!("{} is left out", nic.nic());
        let filter = settings.nics.to_string();
        match settings.nics.says(nic.nic()) {
            Some(_) => Obstacle::blocks(Code::AskedFor, why).seen("CROWFLY_NET_NICS", filter),
            None => Obstacle::blocks(Code::SoftwareNic, why).seen("other RDMA devices", "cards"),
        }
    }));
    obstacles.extend(used.iter().filter_map(|nic| nic.detour()));
    if used.is_empty() {
        if interfaces.is_empty() {
            return Err(NetError::NoDevice { obstacles });
        }
        let sockets = Device::of_sockets(&interfaces, settings)?;
        return Ok((vec![Arc::new(sockets)], obstacles));
    }
    let mut devices = Vec::new();
    for (number, nic) in (0..).zip(used) {
        devices.push(Arc::new(Device::of_port(nic, number, settings)?));
    }
    if settings.merge && devices.len() > 1 {
        let parts: Vec<(c_int, Arc<Device>)> = (0..).zip(devices).collect();
        let mut all = Device::merged(&parts, settings)?;
        // To NCCL it is the one device there is.
        all.parts = vec![0];
        devices = vec![Arc::new(all)];
    }
    Ok((devices, obstacles))
}

/// What the fabric of a device may use of what the user asked for: its own ports, and of the
/// interfaces those that were named, or all but those that were ruled out.
fn filter(ports: &[&str], settings: &Settings) -> Result<NicFilter, NetError> {
    let interfaces = reachable().unwrap_or_default();
    let said = |wanted: bool| {
        let interfaces = interfaces.iter().map(|known| known.name.as_str());
        interfaces.filter(move |name| settings.nics.says(name) == Some(wanted))
    };
    let text = if settings.nics.is_empty() {
        return Ok(NicFilter::default());
    } else if settings.nics.to_string().starts_with('^') {
        let ruled_out: Vec<&str> = said(false).collect();
        match ruled_out.as_slice() {
            [] => return Ok(NicFilter::default()),
            _ => format!("^{}", ruled_out.join(",")),
        }
    } else {
        let named: Vec<&str> = ports.iter().copied().chain(said(true)).collect();
        named.join(",")
    };
    text.parse().map_err(|error| NetError::Variable {
        variable: "CROWFLY_NET_NICS".into(),
        value: settings.nics.to_string(),
        why: format!("{error}"),
    })
}

/// What is known of an RDMA port.
struct PortFacts {
    pci_path: Option<CString>,
    guid: u64,
    /// Megabits per second.
    speed: Option<c_int>,
    port: c_int,
}

impl PortFacts {
    fn of(nic: &dyn Provider) -> Self {
        let (device, port) = nic.nic().split_once(':').unwrap_or((nic.nic(), "1"));
        let at = Path::new("/sys/class/infiniband").join(device);
        let guid = std::fs::read_to_string(at.join("node_guid")).ok();
        Self {
            pci_path: real_path(&at.join("device")),
            guid: guid.and_then(|text| guid_of(&text)).unwrap_or(0),
            speed: megabits(nic.line_rate()),
            port: port.parse().unwrap_or(1),
        }
    }
}

/// A GUID as the kernel writes it: `0002:c903:00fa:1234`.
fn guid_of(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.trim().replace(':', ""), 16).ok()
}

fn megabits(bytes_per_second: Option<f64>) -> Option<c_int> {
    let megabits = bytes_per_second? * 8.0 / 1e6;
    (megabits >= 1.0).then_some(megabits.min(f64::from(c_int::MAX)) as c_int)
}

fn real_path(link: &Path) -> Option<CString> {
    let path = std::fs::canonicalize(link).ok()?;
    CString::new(path.into_os_string().into_vec()).ok()
}

fn c_string(text: String) -> CString {
    // Names of devices have no zeros.
    CString::new(text).unwrap_or_default()
}

/// Which NIC is how far from which memory, as far as links say without the devices being asked.
fn topology() -> Option<Arc<Topology>> {
    let root = Root::live().ok()?;
    let mut options = Options::default();
    options.libraries = false;
    options.config_space = false;
    let snapshot = capture(&root, &options);
    Some(Arc::new(Topology::from_snapshot(&snapshot)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(nics: &str) -> Settings {
        let variable = ("CROWFLY_NET_NICS".to_owned(), nics.to_owned());
        Settings::read([variable].into_iter()).expect("a filter")
    }

    #[test]
    fn a_device_uses_its_own_ports_and_the_interfaces_that_were_named() {
        let text = |ports: &[&str], settings: &Settings| {
            filter(ports, settings).expect("a filter").to_string()
        };
        assert_eq!(text(&["mlx5_0:1"], &Settings::default()), "");
        assert_eq!(text(&["mlx5_0:1"], &asking("mlx5_0,mlx5_1")), "mlx5_0:1");
        assert_eq!(text(&["mlx5_0:1"], &asking("mlx5_0,lo")), "mlx5_0:1,lo");
        assert_eq!(text(&["mlx5_0:1"], &asking("^mlx5_1")), "");
        assert_eq!(text(&["mlx5_0:1"], &asking("^mlx5_1,lo")), "^lo");
    }

    #[test]
    fn a_nic_that_does_not_exist_is_an_error_and_no_detour() {
        let error = survey(&asking("mlx5_0,no-such-nic"))
            .err()
            .expect("refused");
        assert_eq!(error.code(), "no-such-nic");
    }

    #[test]
    fn rates_are_told_in_megabits_and_guids_as_numbers() {
        assert_eq!(megabits(Some(50e9)), Some(400_000));
        assert_eq!(megabits(Some(1.0)), None);
        assert_eq!(megabits(None), None);
        assert_eq!(
            guid_of("0002:c903:00fa:1234\n"),
            Some(0x0002_c903_00fa_1234)
        );
        assert_eq!(guid_of("none"), None);
    }
}
