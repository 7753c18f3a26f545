//! From a file, a drive or a block device to what holds its bytes.

use super::World;
use crate::place::Place;
use crate::topology::{BlockDevice, Device, DriveTransport, Mount};

/// File systems that live in host RAM.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];
/// File systems whose bytes a hypervisor brings.
const FROM_HYPERVISOR: [&str; 3] = ["9p", "virtiofs", "vboxsf"];

/// What holds some bytes.
#[derive(Clone, Debug)]
pub(super) struct Store<'a> {
    /// What was asked for, for a person.
    pub name: String,
    pub holder: Holder<'a>,
    /// The file system, when a file was asked for.
    pub mount: Option<&'a Mount>,
    /// The block devices from the file system down to the disks.
    pub stack: Vec<(&'a str, &'a BlockDevice)>,
}

#[derive(Clone, Debug)]
pub(super) enum Holder<'a> {
    /// Drives of this machine, at least one.
    Drives(Vec<Device>),
    /// Host RAM itself.
    Ram,
    /// Servers reached over the network.
    Servers(Network<'a>),
    /// The hypervisor.
    Hypervisor,
    /// A program in user space.
    Daemon,
    /// Nobody can say; why.
    Unknown(String),
}

/// Servers that hold the bytes, and who talks to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network<'a> {
    /// What the servers are called in the mount table, or the drive's name.
    pub source: &'a str,
    pub client: Client<'a>,
    pub transport: Transport,
}

/// The part of the kernel that talks to the servers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Client<'a> {
    /// That of this network file system.
    FileSystem(&'a str),
    /// The NVMe driver, for a drive reached over the network.
    Nvme,
}

/// How a client talks to its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Rdma,
    Sockets,
    /// The mount table does not say.
    Unsaid,
}

impl<'a> World<'a> {
    pub(super) fn store(&self, place: &Place) -> Option<Store<'a>> {
        match place {
            Place::File(path) => Some(self.file(path)),
            Place::Drive(name) => self.drive(name),
            _ => None,
        }
    }

    fn file(&self, path: &str) -> Store<'a> {
        let unknown = |why: String| Store {
            name: path.to_owned(),
            holder: Holder::Unknown(why),
            mount: None,
            stack: Vec::new(),
        };
        if !path.starts_with('/') {
            return unknown(format!("{path} is not an absolute path"));
        }
        match self.topology.mount_of(path) {
            Some(mount) => self.mounted(path, mount),
            None => unknown("the mount table was not looked at".into()),
        }
    }

    fn mounted(&self, path: &str, mount: &'a Mount) -> Store<'a> {
        let fs = mount.fs_type.as_str();
        let store = |holder| Store {
            name: path.to_owned(),
            holder,
            mount: Some(mount),
            stack: Vec::new(),
        };
        if IN_MEMORY.contains(&fs) {
            return store(Holder::Ram);
        }
        if FROM_HYPERVISOR.contains(&fs) {
            return store(Holder::Hypervisor);
        }
        if let Some(transport) = transport(mount) {
            let source = mount.source.as_str();
            return store(Holder::Servers(Network {
                source,
                client: Client::FileSystem(fs),
                transport,
            }));
        }
        let blocks = self.topology.blocks_of(mount);
        if blocks.is_empty() {
            if fs.starts_with("fuse") {
                return store(Holder::Daemon);
            }
            return store(Holder::Unknown(format!(
                "the {fs} file system at {} lies on {}, which is no block device that was seen",
                mount.point, mount.source
            )));
        }
        let bearers = self.topology.bearers(mount);
        if bearers
            .iter()
            .any(|one| self.topology.blocks_of(one) != blocks)
        {
            let points: Vec<&str> = bearers.iter().map(|bearer| bearer.point.as_str()).collect();
            return store(Holder::Unknown(format!(
                "the layers of the {fs} at {} lie on the file systems at {}, and which of them holds the file was not looked at",
                mount.point,
                points.join(" and "),
            )));
        }
        Store {
            mount: Some(mount),
            ..self.on_blocks(path, blocks)
        }
    }

    fn on_blocks(&self, name: &str, blocks: Vec<&'a str>) -> Store<'a> {
        let below = blocks.join(", ");
        let stack = self.topology.stacks_under(blocks);
        let under = self.topology.drives_in(&stack);
        let drives: Vec<Device> = under
            .iter()
            .filter_map(|drive| {
                self.topology
                    .drives
                    .iter()
                    .position(|d| d.name == drive.name)
            })
            .map(Device::Drive)
            .collect();
        Store {
            name: name.to_owned(),
            holder: if drives.is_empty() {
                Holder::Unknown(format!("no drive below {below} was seen"))
            } else {
                self.held_by(drives)
            },
            mount: None,
            stack,
        }
    }

    /// Drives, or where they are reached over the network, the servers that have them.
    fn held_by(&self, drives: Vec<Device>) -> Holder<'a> {
        let over_fabrics =
            |drive: &Device| self.transport_of(*drive) == DriveTransport::NvmeFabrics;
        let first = match drives.first() {
            Some(Device::Drive(index)) if drives.iter().all(over_fabrics) => {
                self.topology.drives.get(*index)
            }
            _ => None,
        };
        let Some(drive) = first else {
            return Holder::Drives(drives);
        };
        let key = format!("/sys/class/nvme/{}/transport", drive.name);
        Holder::Servers(Network {
            source: &drive.name,
            client: Client::Nvme,
            transport: match self.seen.text(&key) {
                Some("rdma") => Transport::Rdma,
                Some("tcp") => Transport::Sockets,
                _ => Transport::Unsaid,
            },
        })
    }

    fn drive(&self, name: &str) -> Option<Store<'a>> {
        if let Some((block, _)) = self.topology.blocks.get_key_value(name) {
            return Some(self.on_blocks(name, vec![block]));
        }
        match self.topology.find(name)? {
            device @ Device::Drive(index) => {
                let block = self.topology.drives.get(index)?.blocks.first();
                let stack = block.map(|block| self.topology.stack_under(block));
                Some(Store {
                    name: name.to_owned(),
                    holder: self.held_by(vec![device]),
                    mount: None,
                    stack: stack.unwrap_or_default(),
                })
            }
            _ => None,
        }
    }

    pub(super) fn transport_of(&self, drive: Device) -> DriveTransport {
        match drive {
            Device::Drive(index) => self
                .topology
                .drives
                .get(index)
                .map_or(DriveTransport::Other, |drive| drive.transport),
            _ => DriveTransport::Other,
        }
    }
}

impl Store<'_> {
    /// Block layers between the file system and the disks that are more than a partition.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&str, &BlockDevice)> {
        self.stack.iter().copied().filter(|(_, block)| {
            block.multipath || !matches!(block.kind.as_str(), "disk" | "partition")
        })
    }

    /// Whether the drives carry the sum of what each does.
    pub(super) fn striped(&self) -> bool {
        self.stack.iter().any(|(_, block)| block.kind == "md raid0")
    }
}

/// How a network file system reaches its servers; `None` for file systems of another kind.
fn transport(mount: &Mount) -> Option<Transport> {
    let option = |wanted: &str| mount.options.iter().any(|option| option == wanted);
    let source = mount.source.as_str();
    Some(match mount.fs_type.as_str() {
        "nfs" | "nfs4" if option("proto=rdma") || option("rdma") => Transport::Rdma,
        "nfs" | "nfs4" => Transport::Sockets,
        // A network identifier follows each server's address: `10.0.0.1@o2ib:/fs`.
        "lustre" if source.contains("@o2ib") || source.contains("@kfi") => Transport::Rdma,
        "lustre" if source.contains("@tcp") => Transport::Sockets,
        "lustre" | "gpfs" | "beegfs" | "beegfs_nodev" => Transport::Unsaid,
        "wekafs" if option("net=udp") => Transport::Sockets,
        "wekafs" => Transport::Unsaid,
        "cifs" | "smb3" | "ceph" | "afs" => Transport::Sockets,
        _ => return None,
    })
}
