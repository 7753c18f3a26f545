//! Path listings, which name the distance of each pair of devices outright.
//!
//! Printed with `NCCL_DEBUG_SUBSYS=GRAPH`; NCCL cuts the line at 1,023 bytes, so the last entries of
//! a large machine can be missing.

use super::GraphPath;
use super::distance::PathType;

/// Reads `GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) NET/0-0 (5/12.0/PHB) …`; paths to CPUs are left out.
pub(super) fn parse(text: &str) -> Vec<GraphPath> {
    let Some((from, entries)) = text.split_once(" :") else {
        return Vec::new();
    };
    if !from.starts_with("GPU/") || from.contains(' ') {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut rest = entries;
    // What is not closed was cut.
    while let Some((entry, after)) = rest
        .split_once(") ")
        .or_else(|| Some((rest.strip_suffix(')')?, "")))
    {
        rest = after;
        let Some(path) = path(from, entry.trim_start()) else {
            continue;
        };
        found.push(path);
    }
    found
}

/// `NET/0-0 (5/12.0/PHB`.
fn path(from: &str, entry: &str) -> Option<GraphPath> {
    let (to, inside) = entry.split_once(" (")?;
    (to.starts_with("GPU/") || to.starts_with("NET/")).then_some(())?;
    let mut parts = inside.split('/');
    let hops = parts.next()?.parse().ok()?;
    let kind = PathType::named(parts.nth(1)?)?;
    (parts.next().is_none() && to != from).then(|| GraphPath {
        from: from.to_owned(),
        to: to.to_owned(),
        hops,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, u32, PathType)> {
        parse(text)
            .into_iter()
            .map(|p| (p.to, p.hops, p.kind))
            .collect()
    }

    #[test]
    fn listings_of_every_age_read() {
        assert_eq!(
            read(
                "GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) GPU/0-43000 (2/480.0/NVL) CPU/0-0 (3/24.0/PHB) NET/0-0 (5/12.0/PHB) "
            ),
            [
                ("GPU/0-43000".into(), 2, PathType::Nvl),
                ("NET/0-0".into(), 5, PathType::Phb)
            ]
        );
        assert_eq!(
            read("GPU/1B000 :GPU/1B000 (0/5000.000000/LOC) NET/2 (4/24.000000/PXB)"),
            [("NET/2".into(), 4, PathType::Pxb)]
        );
    }

    #[test]
    fn a_listing_that_was_cut_gives_what_is_whole() {
        assert_eq!(
            read("GPU/1B000 :NET/2 (4/24.0/PXB) NET/3 (4/24.0/PX"),
            [("NET/2".into(), 4, PathType::Pxb)]
        );
        assert_eq!(read("GPU/1B000 :NET/2 (4/24.0"), []);
        assert_eq!(read("GPU Direct RDMA : x (1/2/PIX)"), []);
    }
}
