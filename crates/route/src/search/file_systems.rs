//! What file systems and block layers let through: O_DIRECT, and memory of other devices.

use super::World;
use super::peer::list;
use super::store::{Holder, Store};
use crate::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};

/// File systems known to serve O_DIRECT from the drive itself.
const DIRECT: [&str; 16] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "ocfs2", "gfs2", "vfat", "exfat",
    "ntfs3", "nfs", "nfs4", "lustre", "gpfs",
];
/// File systems known to have none.
const NEVER_DIRECT: [&str; 3] = ["squashfs", "iso9660", "cramfs"];
/// File systems on which the kernel's peer-to-peer DMA was seen to work.
const PEER_TESTED: [&str; 2] = ["ext4", "xfs"];

impl World<'_> {
    /// Whether the file system takes O_DIRECT.
    pub(super) fn direct_io(&self, store: &Store<'_>) -> Option<Obstacle> {
        let mount = store.mount?;
        let fs = mount.fs_type.as_str();
        let stacked = fs == "overlay" && matches!(store.holder, Holder::Drives(_));
        if DIRECT.contains(&fs) || stacked {
            return None;
        }
        let obstacle = if NEVER_DIRECT.contains(&fs) {
            Obstacle::blocks(
                Code::NoDirectIo,
                format!("{fs} at {} does not take O_DIRECT.", mount.point),
            )
        } else {
            Obstacle::unproven(
                Code::NoDirectIo,
                format!(
                    "Whether {fs} at {} takes O_DIRECT shows when a file is opened.",
                    mount.point
                ),
            )
        };
        Some(
            obstacle
                .proved_by([self.mount_evidence(store)?])
                .fixed_by(Fix::by_hand("Keep the data on xfs or ext4.")),
        )
    }

    /// Whether the kernel itself places file data in peer memory.
    pub(super) fn placed_by_kernel(&self, store: &Store<'_>) -> Option<Obstacle> {
        let mount = store.mount?;
        let fs = mount.fs_type.as_str();
        (!PEER_TESTED.contains(&fs) && matches!(store.holder, Holder::Drives(_) | Holder::Unknown(_)))
            .then(|| {
                Obstacle::unproven(
                    Code::FileSystemUnsupported,
                    format!(
                        "Whether {fs} at {} passes peer memory down to the drive is not known; ext4 and xfs do.",
                        mount.point
                    ),
                )
                .proved_by(self.mount_evidence(store))
                .fixed_by(Fix::by_hand("Keep the data on xfs or ext4."))
            })
    }

    /// Block layers that do not take peer-to-peer pages of the kernel.
    pub(super) fn layers_for_kernel(&self, store: &Store<'_>) -> Vec<Obstacle> {
        let verdict = |name: &str, kind: &str, multipath: bool| {
            if kind == "dm crypt" {
                return Some(encrypted(name));
            }
            if multipath || kind.starts_with("md ") || kind == "loop" || kind == "virtual" {
                let what = if multipath { "several paths" } else { kind };
                return Some(
                    Obstacle::blocks(
                        Code::LayeredBlockDevice,
                        format!(
                            "{name} ({what}) does not take requests with peer-to-peer pages: the kernel's \
                             stacked queues do not inherit that ability from the drives below."
                        ),
                    )
                    .with_confidence(Confidence::Likely),
                );
            }
            Some(Obstacle::unproven(
                Code::LayeredBlockDevice,
                format!(
                    "Whether this kernel's {kind} passes peer-to-peer pages through {name} is not known."
                ),
            ))
        };
        self.layered(store, verdict)
    }

    /// Block layers that nvidia-fs does not see through: everything but RAID 0.
    pub(super) fn layers_for_nvidia_fs(&self, store: &Store<'_>) -> Vec<Obstacle> {
        let verdict = |name: &str, kind: &str, multipath: bool| {
            if kind == "md raid0" && !multipath {
                return None;
            }
            if kind == "dm crypt" {
                return Some(encrypted(name));
            }
            if kind == "disk" {
                return Some(Obstacle::unproven(
                    Code::LayeredBlockDevice,
                    format!(
                        "Whether GPUDirect Storage sees through {name}, which joins several paths to a drive, is not known."
                    ),
                ));
            }
            Some(
                Obstacle::blocks(
                    Code::LayeredBlockDevice,
                    format!("{name} ({kind}) lies between the file and the drive; GPUDirect Storage sees through RAID 0 only."),
                )
                .with_confidence(Confidence::Likely),
            )
        };
        self.layered(store, verdict)
    }

    fn layered(
        &self,
        store: &Store<'_>,
        verdict: impl Fn(&str, &str, bool) -> Option<Obstacle>,
    ) -> Vec<Obstacle> {
        let judged = store.layers().filter_map(|(name, block)| {
            let obstacle = verdict(name, &block.kind, block.multipath)?;
            let below = format!("{}, over {}", block.kind, list(&block.below));
            let fix = if block.multipath {
                Fix::by_hand(
                    "With one path to the drive, start the kernel with nvme_core.multipath=N.",
                )
                .checked_by("cat /sys/module/nvme_core/parameters/multipath")
            } else {
                Fix::by_hand("Put the file system directly on a partition of the drive.")
            };
            Some(
                obstacle
                    .seen(format!("/sys/block/{name}"), below)
                    .fixed_by(fix),
            )
        });
        judged.collect()
    }

    pub(super) fn mount_evidence(&self, store: &Store<'_>) -> Option<Evidence> {
        let mount = store.mount?;
        Some(Evidence::new(
            "/proc/self/mountinfo",
            format!("{} on {} type {}", mount.source, mount.point, mount.fs_type),
        ))
    }
}

fn encrypted(name: &str) -> Obstacle {
    Obstacle::blocks(
        Code::LayeredBlockDevice,
        format!("{name} is encrypted: a CPU core has to decrypt every byte in host RAM."),
    )
}
