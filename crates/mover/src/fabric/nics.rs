//! Which NICs a fabric uses, and why it does not use the others.
//!
//! A [`NicFilter`] is what the user asked for. `choice` decides by what is known of each NIC, `near`
//! by where memory is.

use std::sync::Arc;

use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::receipt::Path;
use crowfly_route::topology::Topology;

use super::error::FabricError;
use super::interfaces::{self, Interface};
use super::provider::Provider;
use super::rail::{Missing, NicLoad};
use super::settings::Settings;
use super::tcp::{Sockets, Tcp};

mod choice;
mod filter;
mod near;

pub use filter::{BadFilter, MAX_FILTER, NicFilter};
pub(crate) use near::{Near, Nearness};

use choice::{Candidate, Kind, sift};

/// The "NIC" of a rail whose interface the kernel chooses.
pub(crate) const ANY: &str = "any";

/// A NIC that a fabric uses.
#[derive(Clone)]
pub(crate) struct Nic {
    pub provider: Arc<dyn Provider>,
    /// What it has in flight to all peers.
    pub load: Arc<NicLoad>,
}

impl Nic {
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Self {
        Self {
            provider,
            load: Arc::default(),
        }
    }
}

/// The NICs to use, and why others are not used.
pub(crate) struct Chosen {
    pub nics: Vec<Nic>,
    pub left_out: Vec<Missing>,
}

/// What a NIC can carry: what its port does, and its slot in the machine.
pub(crate) fn rate(
    provider: &dyn Provider,
    topology: Option<&Topology>,
    device: &str,
) -> Option<f64> {
    let slot = topology.and_then(|topology| near::slot_rate(topology, device));
    match (provider.line_rate(), slot) {
        (Some(port), Some(slot)) => Some(port.min(slot)),
        (port, slot) => port.or(slot),
    }
}

/// Chooses among the providers that were handed in and the interfaces of this machine.
///
/// # Errors
/// When the filter names a NIC that does not exist or that cannot be used.
pub(crate) fn choose(settings: &Settings, sockets: &Arc<Sockets>) -> Result<Chosen, FabricError> {
    let interfaces = interfaces::survey()
        .map_err(|error| FabricError::setup("listing the interfaces", error))?;
    let handed = settings.providers.iter();
    let mut candidates: Vec<Candidate> = handed.map(|provider| of_provider(&**provider)).collect();
    candidates.extend(interfaces.iter().map(of_interface));
    let verdicts = sift(&candidates, &settings.nics)?;
    let mut chosen = Chosen {
        nics: Vec::new(),
        left_out: Vec::new(),
    };
    let mut sockets_by: Vec<&Interface> = Vec::new();
    for (at, verdict) in verdicts.into_iter().enumerate() {
        let path = candidates.get(at).map_or(Path::Tcp, |c| c.path);
        match (verdict, settings.providers.get(at)) {
            (Err(obstacle), _) => chosen.left_out.push(Missing::new(path, obstacle)),
            (Ok(()), Some(provider)) => chosen.nics.push(Nic::new(Arc::clone(provider))),
            (Ok(()), None) => {
                let interface = interfaces.get(at.wrapping_sub(settings.providers.len()));
                let times = |interface: &Interface| settings.nics.times(&interface.name);
                let again = interface.map_or(1, times);
                sockets_by.extend(std::iter::repeat_n(interface, again).flatten());
            }
        }
    }
    let asked = !settings.nics.is_empty();
    let tcp = |interface: Option<&Interface>| {
        Nic::new(Arc::new(Tcp {
            sockets: Arc::clone(sockets),
            nic: interface.map_or_else(|| ANY.to_owned(), |i| i.name.clone()),
            source: interface.and_then(Interface::usable),
            asked,
            everywhere: settings.listen.ip().is_unspecified(),
            line_rate: interface.and_then(|i| i.rate),
            streams: settings.streams,
        }))
    };
    if !asked {
        chosen.nics.push(tcp(None));
        // One interface more than the kernel's choice is needed for a second rail to exist.
        if sockets_by.len() < 2 {
            sockets_by.clear();
        }
    }
    // Fast ones with large packets first: they stay when a peer takes only so many rails.
    sockets_by.sort_by(|a, b| {
        let rates = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
        rates.then(b.mtu.cmp(&a.mtu)).then(a.name.cmp(&b.name))
    });
    chosen
        .nics
        .extend(sockets_by.into_iter().map(Some).map(tcp));
    Ok(chosen)
}

fn of_provider(provider: &dyn Provider) -> Candidate {
    let software = provider.path() == Path::Verbs && provider.line_rate().is_none();
    Candidate {
        path: provider.path(),
        name: provider.nic().to_owned(),
        down: None,
        rate: provider.line_rate(),
        kind: match software && provider.class() == crowfly_route::hop::Class::Socket {
            true => Kind::Software,
            false => Kind::Card,
        },
        virtual_function: provider.is_virtual_function(),
    }
}

fn of_interface(interface: &Interface) -> Candidate {
    let (name, rate) = (interface.name.clone(), interface.rate);
    let down = if !interface.up {
        Some("it is down")
    } else if interface.usable().is_none() {
        Some("it has no address that can be reached from elsewhere")
    } else {
        None
    };
    let kind = match &interface.kind {
        interfaces::Kind::Card => Kind::Card,
        interfaces::Kind::Loopback => Kind::Loopback,
        interfaces::Kind::Virtual(what) => Kind::Virtual(what.clone()),
    };
    Candidate {
        path: Path::Tcp,
        name,
        down,
        rate,
        kind,
        virtual_function: interface.virtual_function,
    }
}

/// Two ports, one of which is the peer's, that cannot be joined.
pub(crate) fn no_meeting(path: Path, nic: &str, why: &str) -> Missing {
    let obstacle = Obstacle::blocks(
        Code::PortsDoNotMeet,
        format!("no NIC of the peer could be joined with {path} of {nic}: {why}"),
    )
    .seen(format!("{path}:{nic}"), why);
    Missing::new(path, obstacle)
}
