//! A snapshot that can be shown to others.
//!
//! [`Snapshot::redacted`] replaces what identifies a machine, a person or a network by stand-ins of
//! the same form. Equal originals get equal stand-ins, so everything that joins two observations
//! still joins them; snapshots redacted with the same salt can be joined with each other.
//!
//! | original | stand-in |
//! |---|---|
//! | host names: of the machine, of file servers, in URLs, in `user@host` | `host-` and ten hexadecimal digits; a domain becomes `domain-…`; `localhost` stays |
//! | user names: in `/home/NAME`, `/Users/NAME`, `/media/NAME`, `user@host`, mount options | `user-…`; `root` stays |
//! | MAC addresses | locally administered ones; zero and broadcast stay |
//! | GUIDs, EUI-64s | others; one made of a MAC becomes the one made of the stand-in MAC; zero stays |
//! | GIDs and IPv6 addresses | link-local keeps `fe80::`, a mapped IPv4 address keeps `::ffff:`; other prefixes and interface parts are replaced apart from each other; zero, loopback and multicast stay |
//! | IPv4 addresses | others in the same kind of network (private, link-local, …) with the same first octet; addresses with a common prefix keep one of the same length; loopback, multicast, masks stay |
//! | serial numbers of drives, WWIDs, NQNs, IQNs, file-system UUIDs and labels, device-mapper UUIDs, UUIDs of GPUs, hive identifiers, runs of 24 or more hexadecimal digits (container ids) | the same form, other digits |
//! | serial number and vital product data in PCI configuration space | other bytes; zeros |
//! | variables, options and parameters named like a password, token, secret or key; credentials in URLs | `redacted` |
//! | names of interfaces and devices made of a MAC or GUID (`enx…`) or of the host's name | the same form, with the stand-in |
//!
//! What stays: everything that describes hardware, drivers, versions, sizes, states and settings;
//! paths apart from user and host names in them; PCI addresses; job and rank numbers. Host names,
//! user names and serial numbers found in one place are replaced wherever they stand as a whole
//! word in command lines, mounts, variables, files and device-mapper names, but not in the kernel's
//! own vocabulary: a host called `block` does not turn `/sys/block` into something else.

use std::collections::BTreeMap;

use super::{Observation, Snapshot, Value};

mod config_space;
mod known;
mod mounts;
mod places;
mod scan;
mod stand_in;

use known::Known;
use places::{Identity, Place};
use scan::Scanner;
use stand_in::StandIns;

impl Snapshot {
    /// The same observations with stand-ins for what identifies machines, people and networks.
    ///
    /// `salt` decides the stand-ins: a random one makes them of no use to anyone else, a common one
    /// makes the snapshots of several machines fit together. One that is redacted already is
    /// returned as it is.
    pub fn redacted(&self, salt: u64) -> Self {
        if self.redacted {
            return self.clone();
        }
        let stand_ins = StandIns::new(salt);
        let known = Known::collect(self, &stand_ins);
        let redactor = Redactor { stand_ins, known };
        let observations: BTreeMap<String, Observation> = self
            .observations
            .iter()
            .map(|(key, seen)| (redactor.key(key), redactor.observation(key, seen)))
            .collect();
        Self {
            redacted: true,
            observations,
            ..self.clone()
        }
    }
}

/// Replaces the parts of one snapshot.
struct Redactor {
    stand_ins: StandIns,
    known: Known,
}

impl Redactor {
    fn key(&self, key: &str) -> String {
        if !key.starts_with('/') {
            // The name of a variable, a library, a limit or a question.
            return key.to_owned();
        }
        let renamed = self.path(key);
        // Rules look for most keys by name; a path that a user chose is not among them.
        if places::is_looked_for(key) {
            renamed
        } else {
            self.scanner(Place::FREE).text(&renamed)
        }
    }

    fn observation(&self, key: &str, seen: &Observation) -> Observation {
        let place = places::of(key);
        match seen {
            Observation::Value(Value::Text(text)) => Observation::text(self.text(place, text)),
            Observation::Value(Value::Link(target)) => {
                Observation::Value(Value::Link(self.path(target)))
            }
            Observation::Value(Value::List(names)) => {
                let mut names: Vec<String> = names.iter().map(|name| self.name(name)).collect();
                names.sort_unstable();
                Observation::Value(Value::List(names))
            }
            Observation::Value(Value::Bytes(bytes)) => match places::is_config_space(key) {
                true => {
                    Observation::Value(Value::Bytes(config_space::redacted(bytes, &self.stand_ins)))
                }
                false => Observation::Error(format!("{} bytes were left out", bytes.len())),
            },
            Observation::Error(why) => {
                Observation::Error(self.scanner(Place::KERNEL).text(&self.path(why)))
            }
            Observation::Absent => Observation::Absent,
            Observation::Denied => Observation::Denied,
        }
    }

    fn text(&self, place: Place, text: &str) -> String {
        match place {
            Place::Whole(identity) => self.identity(identity, text),
            Place::Mounts => mounts::redacted(text, &self.scanner(Place::FREE)),
            Place::Scanned { .. } => self.scanner(place).text(text),
        }
    }

    fn identity(&self, identity: Identity, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        match identity {
            Identity::Host => self.stand_ins.host(text),
            Identity::Servers => self.scanner(Place::FREE).servers(text),
            Identity::Secret => "redacted".into(),
            Identity::Serial => self.stand_ins.serial(text),
            Identity::HardwareAddress | Identity::Guid | Identity::Gid => {
                let known = match identity {
                    Identity::HardwareAddress => self.stand_ins.hardware_address_text(text),
                    Identity::Guid => self.stand_ins.guid_text(text),
                    _ => self.stand_ins.gid_text(text),
                };
                // Not of the form that the kernel writes: still an identifier.
                known.unwrap_or_else(|| self.stand_ins.digits(text))
            }
            Identity::Tagged => self.stand_ins.tagged(text),
            Identity::DeviceMapper => self.stand_ins.device_mapper(text),
            Identity::Number => self.stand_ins.number(text),
        }
    }

    fn scanner(&self, place: Place) -> Scanner<'_> {
        Scanner::new(&self.stand_ins, &self.known, place)
    }

    /// An entry of a directory.
    fn name(&self, name: &str) -> String {
        self.known.renamed(name).unwrap_or(name).to_owned()
    }

    /// A path, each component of which may be a name that was replaced.
    fn path(&self, path: &str) -> String {
        let parts: Vec<&str> = path
            .split('/')
            .map(|part| self.known.renamed(part).unwrap_or(part))
            .collect();
        parts.join("/")
    }
}
