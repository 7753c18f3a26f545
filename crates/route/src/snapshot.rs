//! All observations of one machine at one time.
//!
//! A snapshot is a flat map from *where was looked* to *what was seen*. Live capture and a file
//! someone mailed are the same type, and everything above this seam sees only a snapshot.
//!
//! Keys are absolute paths of the machine (`/sys/bus/pci/devices/0000:3b:00.0/vendor`) and, for
//! what is not a file, a kind and a name:
//!
//! | key | what it is |
//! |---|---|
//! | `env:NCCL_DEBUG` | an environment variable |
//! | `capture:environment` | the names and prefixes of variables looked for; an unset one of them is absent |
//! | `limit:memlock`, `limit:nofile` | a soft resource limit, in bytes or descriptors, or `unlimited`; `…-hard` the hard one |
//! | `uname:release`, `uname:machine` | the kernel's version and the architecture |
//! | `kconfig:CONFIG_PCI_P2PDMA` | an option of the kernel's configuration: `y`, `m`, `n` (is not set) or its value; absent when not named |
//! | `kconfig:source` | the file the options come from, or why there is none |
//! | `kallsyms:ib_register_peer_memory_client` | type and module of a kernel symbol |
//! | `library:libcuda.so.1` | the file that was loaded; absent when there is none |
//! | `library:libcuda.so.1/version` | what the library says; absent when it has no way to |
//! | `nvml:0/name` | NVML's answer for a GPU; `nvml:0/bus_id` says which PCI function it is |
//! | `nvml:0/memory`, `nvml:0/compute_capability`, `nvml:0/performance_state` | bytes; `9.0`; `0` (fastest) to `15` |
//! | `nvml:0/nvlink/3/state`, `…/remote_bus_id`, `…/remote_type` | `active` or `inactive`; the PCI address at the other end; `gpu`, `switch` or `npu` |
//! | `call:io_uring` | what the kernel answered to a harmless call |
//! | `statfs:/dev/shm/total`, `…/available` | size of a file system in bytes |
//! | `capture:truncated` | an error when there was more than a snapshot may hold |
//!
//! Four files are not recorded whole: of `/proc/cpuinfo` the first processor, of `/proc/modules` all
//! but the addresses, of `/proc/self/status` what the process may do, and of a PCI function's `config`
//! as much as is decoded. A device node is a text such as `char 195:255`, denied when it may not be
//! read and written.
//!
//! A key that is missing was *not looked at*, which is not the same as *absent*.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

mod codec;
mod redact;

pub use codec::{MAX_OBSERVATIONS, MAX_SNAPSHOT_BYTES, MAX_VALUE_BYTES, SnapshotError};

/// The version of the snapshot's JSON form.
pub const SNAPSHOT_SCHEMA: &str = "crowfly.snapshot/1";

/// One thing looked up on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// It was there and said this.
    Value(Value),
    /// It is not there.
    Absent,
    /// It is there, but this user may not look.
    Denied,
    /// Looking failed in another way; the system's words.
    Error(String),
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A file's text or an answer, without trailing white space.
    Text(String),
    /// A symbolic link's target, as written.
    Link(String),
    /// A directory's entries, sorted.
    List(Vec<String>),
    /// A binary file's bytes, such as PCI configuration space.
    Bytes(Vec<u8>),
}

impl Observation {
    /// An observed text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Value(Value::Text(text.into()))
    }

    /// The text, if one was seen.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Value(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The text as a number, decimal or with `0x`.
    pub fn as_number<N: TryFrom<i128>>(&self) -> Option<N> {
        let text = self.as_text()?.trim();
        let value = match text.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16).ok()?,
            None => text.parse().ok()?,
        };
        N::try_from(value).ok()
    }

    /// The link's target, if a link was seen.
    pub fn as_link(&self) -> Option<&str> {
        match self {
            Self::Value(Value::Link(target)) => Some(target),
            _ => None,
        }
    }

    /// The last component of the link's target: a driver's or device's name.
    pub fn link_name(&self) -> Option<&str> {
        self.as_link()?.rsplit('/').find(|part| !part.is_empty())
    }

    /// The bytes, if bytes were seen.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Value(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// How the observation reads as evidence.
    pub fn shows(&self) -> String {
        match self {
            Self::Value(Value::Text(text)) => text.clone(),
            Self::Value(Value::Link(target)) => format!("-> {target}"),
            Self::Value(Value::List(names)) => names.join(" "),
            Self::Value(Value::Bytes(bytes)) => format!("{} bytes", bytes.len()),
            Self::Absent => "absent".into(),
            Self::Denied => "permission denied".into(),
            Self::Error(error) => format!("error: {error}"),
        }
    }
}

/// All observations of one machine at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// [`SNAPSHOT_SCHEMA`].
    pub schema: String,
    /// The program and version that captured it.
    pub tool: String,
    /// When, in UTC, as RFC 3339.
    pub taken: String,
    /// Whether host names, serials, MACs, GUIDs and addresses were replaced by stand-ins.
    pub redacted: bool,
    /// What was seen, by where it was looked for.
    #[serde(with = "codec::observations")]
    observations: BTreeMap<String, Observation>,
}

impl Snapshot {
    /// A snapshot in which nothing was looked at yet.
    pub fn new(tool: impl Into<String>, taken: impl Into<String>) -> Self {
        Self {
            schema: SNAPSHOT_SCHEMA.into(),
            tool: tool.into(),
            taken: taken.into(),
            redacted: false,
            observations: BTreeMap::new(),
        }
    }

    /// Records what was seen at a key, replacing what was there.
    pub fn record(&mut self, key: impl Into<String>, observation: Observation) {
        self.observations.insert(key.into(), observation);
    }

    /// What was seen at a key; `None` when nobody looked.
    pub fn get(&self, key: &str) -> Option<&Observation> {
        self.observations.get(key)
    }

    /// The text seen at a key, if it was there.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_text()
    }

    /// The text at a key as a number, decimal or with `0x`.
    pub fn number<N: TryFrom<i128>>(&self, key: &str) -> Option<N> {
        self.get(key)?.as_number()
    }

    /// The link target seen at a key.
    pub fn link(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_link()
    }

    /// The last component of the link target seen at a key: a driver's or device's name.
    pub fn link_name(&self, key: &str) -> Option<&str> {
        self.get(key)?.link_name()
    }

    /// The bytes seen at a key.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.get(key)?.as_bytes()
    }

    /// The entries of the directory at a key; empty when it was not there or not looked at.
    pub fn list(&self, key: &str) -> &[String] {
        match self.get(key) {
            Some(Observation::Value(Value::List(names))) => names,
            _ => &[],
        }
    }

    /// Every observation in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Observation)> {
        self.observations.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Observations whose key starts with `prefix`, in key order.
    pub fn under<'a, 'p>(
        &'a self,
        prefix: &'p str,
    ) -> impl Iterator<Item = (&'a str, &'a Observation)> + use<'a, 'p> {
        self.observations
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(k, v)| (k.as_str(), v))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// What was seen below a directory, to ask for many of its files.
    pub fn directory(&self, path: &str) -> Directory<'_> {
        let prefix = format!("{path}/");
        let files = self.under(&prefix).filter_map(|(key, seen)| {
            let name = key.get(prefix.len()..)?;
            Some((name, seen))
        });
        Directory {
            files: files.collect(),
        }
    }

    /// How many observations there are.
    pub fn len(&self) -> usize {
        self.observations.len()
    }

    /// Whether nothing was looked at.
    pub fn is_empty(&self) -> bool {
        self.observations.is_empty()
    }
}

/// What was seen below one directory of a [`Snapshot`].
///
/// A machine has hundreds of PCI functions with tens of attributes each: finding the directory
/// once is several times faster than finding every key among all.
pub struct Directory<'a> {
    /// By path below the directory, sorted.
    files: Vec<(&'a str, &'a Observation)>,
}

impl<'a> Directory<'a> {
    /// What was seen at a file; `None` when nobody looked.
    pub fn get(&self, file: &str) -> Option<&'a Observation> {
        let place = self.files.binary_search_by(|(name, _)| (*name).cmp(file));
        self.files.get(place.ok()?).map(|(_, seen)| *seen)
    }
}
