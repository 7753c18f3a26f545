//! How a connection comes about, by a key or by certificates.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_route::policy::Policy;

use super::{Auth, Channel, Dialing, Location, ServiceError};
use crate::fabric::lookup;
use crate::fabric::{Fabric, FabricError, Incarnation, Options, Peer, Settings, SharedKey};
use crate::service::tls::TlsChannel;
use crate::service::welcome::{Join, Welcome};

/// Connects with certificates: first the channel that they protect, then the fabric that it tells of.
pub(super) fn certified(
    location: &Location,
    dialing: &Dialing,
    policy: Policy,
    until: Instant,
) -> Result<(Fabric, Box<dyn Channel>, Peer), ServiceError> {
    let Auth::Certificates(identity) = &dialing.auth else {
        return Err(ServiceError::Stopping);
    };
    let server = location.server.as_str();
    let left = || until.saturating_duration_since(Instant::now());
    let unreachable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::TimedOut => ServiceError::Deadline {
            what: "the connection",
            after: dialing.patience,
        },
        _ => FabricError::Unreachable {
            address: server.to_owned(),
            source: Arc::new(error),
        }
        .into(),
    };
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    let mut found = None;
    let addresses = lookup::addresses(server, until).map_err(|error| match error {
        FabricError::Unreachable { source, .. }
            if source.kind() == std::io::ErrorKind::TimedOut =>
        {
            unreachable(std::io::ErrorKind::TimedOut.into())
        }
        other => other.into(),
    })?;
    for address in addresses {
        match TcpStream::connect_timeout(&address, left().max(Duration::from_millis(1))) {
            Ok(stream) => {
                found = Some((stream, address));
                break;
            }
            Err(error) => last = error,
        }
    }
    let (stream, mut address) = found.ok_or(last).map_err(unreachable)?;
    let channel = TlsChannel::dial(stream, location.host(), server, identity)?;
    channel.handshake(until)?;
    // What the server thinks of this end's certificate comes only with its first word.
    let message = channel.receive(left())?.ok_or(ServiceError::Deadline {
        what: "the welcome",
        after: dialing.patience,
    })?;
    let welcome = Welcome::decode(&message).map_err(|what| ServiceError::Protocol {
        peer: server.to_owned(),
        what,
    })?;
    if let Some(announced) = dialing.life().filter(|life| *life != welcome.incarnation) {
        return Err(FabricError::Replaced {
            address: server.to_owned(),
            announced,
            found: welcome.incarnation,
        }
        .into());
    }
    let fabric = Fabric::new(Settings {
        key: SharedKey::from_bytes(welcome.key),
        ..dialing.fabric.clone()
    })?;
    channel.send(&join(&fabric).encode(), left())?;
    address.set_port(welcome.port);
    let met = fabric.connect(&address.to_string(), rails(policy, left()));
    let peer = met.map_err(|error| late(error, dialing.patience))?;
    expected(server, &peer, welcome.incarnation)?;
    Ok((fabric, Box::new(channel), peer))
}

/// A connection that was not there in time, told by the time that there was for all of it.
pub(super) fn late(error: FabricError, after: Duration) -> ServiceError {
    match error {
        FabricError::Deadline { what, .. } => ServiceError::Deadline { what, after },
        other => other.into(),
    }
}

/// How the fabric is to be reached: where only a direct path will do, that shows here, before a byte is
/// read anywhere.
pub(super) fn rails(policy: Policy, time: Duration) -> Options {
    let options = Options::within(time);
    match policy {
        Policy::Require => options.by(Policy::Require),
        _ => options,
    }
}

fn join(fabric: &Fabric) -> Join {
    Join {
        incarnation: fabric.incarnation(),
    }
}

fn expected(server: &str, peer: &Peer, announced: Incarnation) -> Result<(), ServiceError> {
    match peer.incarnation() == announced {
        true => Ok(()),
        false => Err(ServiceError::Protocol {
            peer: server.to_owned(),
            what: "someone else answers on its fabric",
        }),
    }
}
