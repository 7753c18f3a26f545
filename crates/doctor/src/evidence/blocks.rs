//! `lsblk`: drives, the arrays built of them, and where they are mounted.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::LsblkReader;
use super::cite::Cite;

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BlockDevices {
    /// Devices in the order listed.
    pub devices: Vec<BlockDevice>,
}

/// One block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockDevice {
    /// Its name.
    pub name: String,
    /// The device that it is built on, as the tree shows.
    pub on: Option<String>,
    /// Its type (`disk`, `part`, `raid0`, `lvm`, `crypt`).
    pub kind: String,
    /// Size as printed.
    pub size: Option<String>,
    /// Where it is mounted.
    pub mounts: Vec<String>,
    /// The line.
    pub cite: Cite,
}
