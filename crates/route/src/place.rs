//! Where bytes can live.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{NumaNode, PciAddress};

/// Where bytes can live. Written as a short locator in commands, JSON and receipts:
///
/// | locator | place |
/// |---|---|
/// | `host`, `host:1` | host memory, anywhere or on NUMA node 1 |
/// | `gpu:0` | memory of GPU 0, numbered in PCI address order |
/// | `peer:0000:3b:00.0` | memory that a device publishes for peer-to-peer DMA |
/// | `nic:mlx5_0` | the wire behind an RDMA device or network interface |
/// | `drive:nvme0` | a drive, its blocks |
/// | `file:/data/m.safetensors`, or a path with a `/` | a file on a mounted file system |
/// | `s3://bucket/key`, `gs://…`, `az://…`, `https://…` | an object in a store |
/// | `crowfly://host:7878/models/m.bin` | a file, folder or memory region that `crowfly serve` exposes |
/// | `remote:host:0`, `remote:gpu:0` | the same kind of memory on a peer of the same shape |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Host RAM, on a NUMA node if it matters.
    Host(Option<NumaNode>),
    /// Device memory of a GPU, by index in PCI address order.
    Gpu(u32),
    /// A PCIe BAR published for peer-to-peer DMA by this function.
    Peer(PciAddress),
    /// The wire behind an RDMA device or network interface, by name.
    Nic(String),
    /// The blocks of a drive, by its controller or block device name.
    Drive(String),
    /// A file, by path.
    File(String),
    /// An object in a store, by URL.
    Object(String),
    /// What a `crowfly serve` elsewhere exposes under a name, by URL.
    Served(String),
    /// Memory of a peer server with the same shape as this one.
    Remote(Memory),
}

/// The memories that a peer can expose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The peer's host RAM.
    Host(Option<NumaNode>),
    /// The peer's GPU memory.
    Gpu(u32),
}

/// How the URL of something that a `crowfly serve` exposes begins.
pub const SERVED_SCHEME: &str = "crowfly://";

const OBJECT_SCHEMES: [&str; 6] = ["s3://", "gs://", "az://", "abfs://", "http://", "https://"];

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(None) => f.write_str("host"),
            Self::Host(Some(node)) => write!(f, "host:{}", node.0),
            Self::Gpu(index) => write!(f, "gpu:{index}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(node) => Memory::Host(*node).fmt(f),
            Self::Gpu(index) => Memory::Gpu(*index).fmt(f),
            Self::Peer(address) => write!(f, "peer:{address}"),
            Self::Nic(name) => write!(f, "nic:{name}"),
            Self::Drive(name) => write!(f, "drive:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Object(url) | Self::Served(url) => f.write_str(url),
            Self::Remote(memory) => write!(f, "remote:{memory}"),
        }
    }
}

/// The text is not a locator of a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a place ({why}); write one of host, host:N, gpu:N, peer:ADDRESS, nic:NAME, drive:NAME, file:PATH, s3://…, crowfly://HOST:PORT/NAME, remote:gpu:N"
)]
pub struct BadPlace {
    /// What was written.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let bad = |why| BadPlace {
            text: text.to_owned(),
            why,
        };
        let rest = |scheme: &&str| text.strip_prefix(scheme);
        if let Some(object) = OBJECT_SCHEMES.iter().find_map(rest) {
            let holder = object.split(['/', '?', '#']).next().unwrap_or_default();
            return match holder.chars().any(|c| c.is_alphanumeric()) {
                true => Ok(Self::Object(text.to_owned())),
                false => Err(bad("no bucket or host after ://")),
            };
        }
        if let Some(served) = text.strip_prefix(SERVED_SCHEME) {
            return match served.chars().next() {
                Some(first) if first != '/' => Ok(Self::Served(text.to_owned())),
                _ => Err(bad("no host after ://")),
            };
        }
        if let Some(rest) = text.strip_prefix("remote:") {
            return match memory(rest) {
                Some(memory) => Ok(Self::Remote(memory)),
                None => Err(bad("remote: takes host, host:N or gpu:N")),
            };
        }
        match memory(text) {
            Some(Memory::Host(node)) => return Ok(Self::Host(node)),
            Some(Memory::Gpu(index)) => return Ok(Self::Gpu(index)),
            None => {}
        }
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        match text.split_once(':') {
            Some(("peer", address)) => address
                .parse()
                .map(Self::Peer)
                .map_err(|_| bad("peer: takes a PCI address such as 0000:3b:00.0")),
            Some(("nic", name)) => named(name).map(Self::Nic).ok_or_else(|| bad("no name")),
            Some(("drive", name)) => named(name).map(Self::Drive).ok_or_else(|| bad("no name")),
            Some(("file", path)) => named(path).map(Self::File).ok_or_else(|| bad("no path")),
            Some(("host" | "gpu", _)) => Err(bad("the number must be a plain integer")),
            _ if text.contains('/') || text.starts_with('.') => Ok(Self::File(text.to_owned())),
            _ => Err(bad("unknown kind")),
        }
    }
}

fn memory(text: &str) -> Option<Memory> {
    let number = |t: &str| t.parse::<u32>().ok();
    match text.split_once(':') {
        None if text == "host" => Some(Memory::Host(None)),
        Some(("host", node)) => number(node).map(|n| Memory::Host(Some(NumaNode(n)))),
        Some(("gpu", index)) => number(index).map(Memory::Gpu),
        _ => None,
    }
}

impl Serialize for Place {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_locator_reads_back_as_it_is_printed() {
        for text in [
            "host",
            "host:1",
            "gpu:0",
            "peer:0000:3b:00.0",
            "nic:mlx5_0",
            "drive:nvme0",
            "file:/data/a b",
            "s3://bucket/key",
            "s3://bucket",
            "https://[::1]:9000/key",
            "crowfly://[::1]:7878/models/a b",
            "remote:gpu:7",
            "remote:host",
        ] {
            assert_eq!(
                text.parse::<Place>().map(|p| p.to_string()).as_deref(),
                Ok(text)
            );
        }
        assert_eq!("./m".parse(), Ok(Place::File("./m".into())));
        for bad in [
            "",
            "gpu",
            "gpu:x",
            "gpu:-1",
            "host:",
            "peer:zz",
            "nic:",
            "remote:file:/x",
            "tpu:0",
            "s3://",
            "s3:///key",
            "crowfly://",
            "crowfly:///models",
            "gs://?",
            "az://..",
            "https://",
            "https:///index.html",
        ] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
