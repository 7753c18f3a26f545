//! What a printed distance number means in the release that printed it.
//!
//! NCCL prints the distance between a GPU and a NIC as a bare number whose meaning changed six
//! times. The tables are those of `src/graph/topo.h` (`src/include/topo.h` before 2.6) at the tags
//! named. An unknown release decodes to nothing: the raw number is then all that can be said.

use std::fmt;

use serde::Serialize;

use super::version::Release;

/// How two devices reach each other, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PathType {
    /// The same device.
    Loc,
    /// NVLink (RCCL: xGMI).
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// Chip-to-chip link to the CPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// Chip-to-chip to the CPU and PCIe from there.
    P2c,
    /// Through another GPU's NIC.
    Pxn,
    /// A PCIe host bridge.
    Phb,
    /// Several host bridges of one NUMA node; before 2.6 only.
    Node,
    /// The link between CPU sockets.
    Sys,
    /// The network.
    Net,
    /// Not connected.
    Dis,
}

impl PathType {
    /// The type of this name, as in path listings and in `NCCL_NET_GDR_LEVEL`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "LOC" => Self::Loc,
            "NVL" | "XGMI" => Self::Nvl,
            "NVB" => Self::Nvb,
            "C2C" => Self::C2c,
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "P2C" => Self::P2c,
            "PXN" => Self::Pxn,
            "PHB" => Self::Phb,
            "NODE" => Self::Node,
            "SYS" => Self::Sys,
            "NET" => Self::Net,
            "DIS" => Self::Dis,
            _ => return None,
        })
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Net => "NET",
            Self::Dis => "DIS",
        })
    }
}

/// How a limit compares with a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitRule {
    /// A distance equal to the limit is still near enough; since 2.6.
    Inclusive,
    /// A distance equal to the limit is too far; before 2.6.
    Exclusive,
}

/// A printed distance and the limit it was held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Reach {
    /// The distance, as printed.
    pub distance: u32,
    /// The limit, as printed.
    pub limit: u32,
    /// Whether the limit itself is near enough, from the sign printed between the two.
    pub rule: LimitRule,
}

impl Reach {
    /// The distance by name, in the release that printed it.
    pub fn distance_name(&self, release: Release) -> Option<PathType> {
        path_type(release, self.distance)
    }

    /// The limit by name, in the release that printed it.
    pub fn limit_name(&self, release: Release) -> Option<PathType> {
        path_type(release, self.limit)
    }
}

/// What one span of releases does about distances.
#[derive(Clone, Copy, Debug)]
pub struct DistanceEra {
    /// First release of the span.
    pub since: Release,
    /// Distance names; the place in the list is the number.
    pub names: &'static [PathType],
    /// The farthest GPU and NIC that use GPUDirect RDMA unless `NCCL_NET_GDR_LEVEL` says otherwise.
    pub default_gdr_level: PathType,
    /// Whether the default level itself is near enough.
    pub rule: LimitRule,
    /// Whether the decision for each GPU and NIC is an INFO line; otherwise its absence says nothing.
    pub pair_lines: bool,
    /// Whether `Connected all rings` says `use ring PXN a GDR b`.
    pub ring_summary: bool,
    /// Kernel modules whose presence makes NCCL believe in peer memory.
    pub peer_memory_modules: &'static [&'static str],
}

use PathType::{C2c, Dis, Loc, Net, Node, Nvb, Nvl, P2c, Phb, Pix, Pxb, Pxn, Sys};

const NV_MEM: &[&str] = &["nv_mem"];
const NV_MEM_NC: &[&str] = &["nv_mem", "nv_mem_nc"];
const PEERMEM: &[&str] = &["nv_mem", "nv_mem_nc", "nvidia_peermem"];

const fn era(since: Release, names: &'static [PathType]) -> DistanceEra {
    DistanceEra {
        since,
        names,
        default_gdr_level: Pxb,
        rule: LimitRule::Inclusive,
        pair_lines: true,
        ring_summary: false,
        peer_memory_modules: NV_MEM,
    }
}

const V2_18: &[PathType] = &[Loc, Nvl, Nvb, Pix, Pxb, Pxn, Phb, Sys, Net, Dis];
const V2_27_5: &[PathType] = &[Loc, Nvl, Nvb, C2c, Pix, Pxb, P2c, Pxn, Phb, Sys, Net, Dis];

/// The spans, oldest first.
pub const ERAS: &[DistanceEra] = &[
    DistanceEra {
        default_gdr_level: Phb,
        rule: LimitRule::Exclusive,
        ..era(Release::new(2, 4, 0), &[Pix, Pxb, Phb, Node, Sys])
    },
    era(Release::new(2, 6, 4), &[Loc, Nvl, Pix, Pxb, Phb, Sys, Net]),
    era(Release::new(2, 8, 3), &[Loc, Nvl, Nvb, Pix, Pxb, Phb, Sys]),
    // DIS shared the number of SYS until 2.18.
    era(
        Release::new(2, 12, 7),
        &[Loc, Nvl, Nvb, Pix, Pxb, Pxn, Phb, Sys],
    ),
    era(Release::new(2, 18, 1), V2_18),
    DistanceEra {
        peer_memory_modules: NV_MEM_NC,
        ..era(Release::new(2, 22, 3), V2_18)
    },
    DistanceEra {
        peer_memory_modules: PEERMEM,
        ..era(Release::new(2, 23, 4), V2_18)
    },
    DistanceEra {
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(Release::new(2, 24, 3), V2_18)
    },
    DistanceEra {
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(
            Release::new(2, 26, 2),
            &[Loc, Nvl, Nvb, C2c, Pix, Pxb, Pxn, Phb, Sys, Net, Dis],
        )
    },
    DistanceEra {
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(
            Release::new(2, 27, 3),
            &[Loc, Nvl, Nvb, C2c, Pix, Pxb, Pxn, P2c, Phb, Sys, Net, Dis],
        )
    },
    DistanceEra {
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(Release::new(2, 27, 5), V2_27_5)
    },
    DistanceEra {
        default_gdr_level: P2c,
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(Release::new(2, 29, 2), V2_27_5)
    },
    DistanceEra {
        default_gdr_level: P2c,
        pair_lines: false,
        ring_summary: true,
        peer_memory_modules: PEERMEM,
        ..era(Release::new(2, 30, 3), V2_27_5)
    },
];

/// The last minor release whose numbers were checked; later ones decode to nothing.
pub const NEWEST_KNOWN: (u32, u32) = (2, 30);

/// The span that a release belongs to; `None` when it is older or newer than any checked.
pub fn era_of(release: Release) -> Option<&'static DistanceEra> {
    if (release.major, release.minor) > NEWEST_KNOWN {
        return None;
    }
    ERAS.iter().rev().find(|era| era.since <= release)
}

/// What a distance number means in a release.
pub fn path_type(release: Release, number: u32) -> Option<PathType> {
    era_of(release)?
        .names
        .get(usize::try_from(number).ok()?)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_means_what_its_release_says() {
        let name = |release: (u32, u32, u32), number| {
            path_type(Release::new(release.0, release.1, release.2), number)
        };
        assert_eq!(name((2, 4, 8), 2), Some(Phb));
        assert_eq!(name((2, 5, 7), 4), Some(Sys));
        assert_eq!(name((2, 7, 8), 2), Some(Pix));
        assert_eq!(name((2, 10, 3), 2), Some(Nvb));
        assert_eq!(name((2, 10, 3), 3), Some(Pix));
        assert_eq!(name((2, 12, 10), 5), Some(Pxn));
        assert_eq!(name((2, 25, 1), 4), Some(Pxb));
        assert_eq!(name((2, 26, 2), 4), Some(Pix));
        assert_eq!(name((2, 27, 3), 6), Some(Pxn));
        assert_eq!(name((2, 27, 5), 6), Some(P2c));
        assert_eq!(name((2, 30, 7), 11), Some(Dis));
    }

    #[test]
    fn a_number_or_release_outside_the_tables_decodes_to_nothing() {
        assert_eq!(path_type(Release::new(2, 27, 5), 12), None);
        assert_eq!(path_type(Release::new(2, 31, 0), 4), None);
        assert_eq!(path_type(Release::new(2, 3, 7), 1), None);
        assert_eq!(path_type(Release::new(3, 0, 0), 1), None);
    }

    #[test]
    fn the_defaults_and_messages_follow_the_release() {
        let era = |a, b, c| era_of(Release::new(a, b, c)).unwrap();
        assert_eq!(era(2, 4, 8).default_gdr_level, Phb);
        assert_eq!(era(2, 4, 8).rule, LimitRule::Exclusive);
        assert_eq!(era(2, 28, 3).default_gdr_level, Pxb);
        assert_eq!(era(2, 29, 2).default_gdr_level, P2c);
        assert!(era(2, 29, 7).pair_lines && !era(2, 30, 3).pair_lines);
        assert!(!era(2, 23, 4).ring_summary && era(2, 24, 3).ring_summary);
        assert_eq!(era(2, 21, 5).peer_memory_modules, ["nv_mem"]);
        assert_eq!(era(2, 22, 3).peer_memory_modules.len(), 2);
        assert_eq!(era(2, 23, 4).peer_memory_modules.len(), 3);
    }

    #[test]
    fn every_name_reads_back() {
        for era in ERAS {
            for path in era.names {
                assert_eq!(PathType::named(&path.to_string()), Some(*path));
            }
        }
        assert_eq!(PathType::named("XGMI"), Some(Nvl));
        assert_eq!(PathType::named("pix"), None);
    }

    #[test]
    fn the_spans_are_in_order() {
        assert!(ERAS.windows(2).all(|w| w[0].since < w[1].since));
    }
}
