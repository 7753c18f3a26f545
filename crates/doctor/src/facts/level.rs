//! How far a GPU and a NIC may be apart for NCCL to use GPUDirect RDMA.

use super::settings::settings;
use crate::case::Case;
use crate::evidence::nccl_log::distance::era_of;
use crate::evidence::nccl_log::{PathType, Release};
use crate::finding::Quote;

/// The farthest path that is still near enough.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) path: PathType,
    /// Where it was set; absent for the library's default.
    pub(crate) set: Option<Quote>,
}

/// The level in force: the one that was set, else the default of the release, else of the
/// releases since 2.6.
pub(crate) fn gdr_level(case: &Case) -> Level {
    let set = settings(case, "NCCL_NET_GDR_LEVEL")
        .into_iter()
        .find_map(|setting| Some((parse(setting.value)?, setting.quote)));
    match set {
        Some((path, quote)) => Level {
            path,
            set: Some(quote),
        },
        None => Level {
            path: release(case)
                .and_then(era_of)
                .map_or(PathType::Pxb, |era| era.default_gdr_level),
            set: None,
        },
    }
}

/// The one NCCL release of the case.
pub(crate) fn release(case: &Case) -> Option<Release> {
    let mut releases = case.nccl_logs().filter_map(|log| log.release());
    let of_tests = case
        .tests()
        .filter_map(|t| Some(t.library.as_ref()?.value.release));
    let first = releases.next();
    match first {
        Some(first) => releases.all(|other| other == first).then_some(first),
        None => of_tests.into_iter().next(),
    }
}

/// Reads a level: a path's name, or the numbers of old releases (`ncclGetLevel`): 0 LOC, 1 PIX,
/// 2 PXB, 3 PHB, 4 and more SYS.
pub(crate) fn parse(value: &str) -> Option<PathType> {
    let value = value.trim();
    if let Ok(number) = value.parse::<i64>() {
        return Some(match number {
            i64::MIN..=0 => PathType::Loc,
            1 => PathType::Pix,
            2 => PathType::Pxb,
            3 => PathType::Phb,
            _ => PathType::Sys,
        });
    }
    let names = [
        ("LOC", PathType::Loc),
        ("NVL", PathType::Nvl),
        ("NVB", PathType::Nvb),
        ("C2C", PathType::C2c),
        ("PIX", PathType::Pix),
        ("PXB", PathType::Pxb),
        ("P2C", PathType::P2c),
        ("PXN", PathType::Pxn),
        ("PHB", PathType::Phb),
        ("SYS", PathType::Sys),
    ];
    names
        .iter()
        .find(|(name, _)| value == *name)
        .map(|(_, path)| *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_read_by_name_and_by_the_old_numbers() {
        assert_eq!(parse("SYS"), Some(PathType::Sys));
        // NCCL compares the letters as they are, and ignores what it does not know.
        assert_eq!(parse("phb"), None);
        assert_eq!(parse("0"), Some(PathType::Loc));
        assert_eq!(parse("3"), Some(PathType::Phb));
        assert_eq!(parse("5"), Some(PathType::Sys));
        assert_eq!(parse("NODE"), None);
    }
}
