//! A receipt on one screen: what was asked, what happened, which way the bytes went, and why.

use crowfly_route::hop::{Class, Counters};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::{Receipt, Share, Verification, Visibility};
use crowfly_route::units::Bytes;

use super::block::Block;
use super::cell::Cell;
use super::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use super::text::{count, seconds};
use super::{hop, obstacle};

const INDENT: usize = 2;

/// The receipt in at most `columns` columns, with every hop of its route if `detailed`.
pub fn render(receipt: &Receipt, columns: usize, detailed: bool) -> String {
    let mut text = format!("{}\n", paint(STRONG, "Receipt"));
    text.push_str(&lines(receipt, detailed).render(columns));
    text.push_str(&standing_in_the_way(&receipt.obstacles, columns));
    text
}

/// The section on obstacles; empty when there are none.
pub fn standing_in_the_way(obstacles: &[Obstacle], columns: usize) -> String {
    if obstacles.is_empty() {
        return String::new();
    }
    let title = paint(STRONG, "Why no other way");
    format!("\n{title}\n{}", obstacle::render_all(obstacles, columns))
}

fn lines(receipt: &Receipt, detailed: bool) -> Block {
    let mut block = Block::indented(INDENT);
    let (from, to) = (receipt.from.to_string(), receipt.to.to_string());
    block.line(
        "asked",
        [format!("{from} → {to}, policy {}", receipt.policy).into()],
    );
    let class = receipt.route.class();
    block.line(
        "took",
        [
            Cell::from(format!("{}, ", receipt.route.name)),
            class_cell(class),
            format!(": {}", counters(receipt.route.counters())).into(),
        ],
    );
    if detailed {
        for (index, hop) in receipt.route.hops.iter().enumerate() {
            let label = if index == 0 { "hops" } else { "" };
            block.line(label, hop::line(hop));
        }
    }
    block.line("moved", [moved(receipt).into()]);
    if let Some(ceiling) = &receipt.ceiling {
        let share = receipt.share_of_ceiling();
        let share = share.map_or(String::new(), |share| format!("{} of ", percent(share)));
        let word = ceiling.provenance.word();
        block.line(
            "ceiling",
            [
                format!("{share}{} ", ceiling.rate).into(),
                Cell::styled(FAINT, format!("({word}: {})", ceiling.provenance.detail())),
            ],
        );
    }
    for (index, share) in receipt.shares.iter().enumerate() {
        let label = if index == 0 { "bytes" } else { "" };
        block.line(label, share_line(share, receipt.requested));
    }
    let extra = format!(
        "{} bounced, {} read beyond the request, {} retries",
        receipt.bounced, receipt.overread, receipt.retries
    );
    block.line("besides", [extra.into()]);
    block.line("cpu", [cpu(receipt).into()]);
    block.line("visible", [visibility(&receipt.visibility)]);
    block.line("verified", verification(&receipt.verification));
    block
}

/// A class in the colour of its merit.
pub fn class_cell(class: Class) -> Cell {
    let style = match class {
        Class::Direct => GOOD,
        Class::Staged => WARN,
        Class::Socket => BAD,
    };
    Cell::styled(style, class.as_str())
}

/// The four counters in words.
pub fn counters(c: Counters) -> String {
    let plural = |n: u32| if n == 1 { "" } else { "es" };
    let copies = if c.copies == 1 { "copy" } else { "copies" };
    format!(
        "{} {copies}, {} CPU touch{}, {}, {} host-RAM pass{}",
        c.copies,
        c.cpu_touches,
        plural(c.cpu_touches),
        count(c.pcie_hops as usize, "PCIe hop"),
        c.host_ram_passes,
        plural(c.host_ram_passes),
    )
}

/// A fraction in percent with at most one decimal.
pub fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent < 9.95 && percent > 0.0 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

fn moved(receipt: &Receipt) -> String {
    let rate = receipt
        .rate()
        .map_or(String::new(), |rate| format!(": {rate}"));
    format!(
        "{} in {}{rate}",
        receipt.requested,
        seconds(receipt.wall_seconds)
    )
}

fn share_line(share: &Share, requested: Bytes) -> Vec<Cell> {
    let part = match requested.0 {
        0 => String::new(),
        all => format!(" ({})", percent(share.bytes.0 as f64 / all as f64)),
    };
    let mut cells = vec![
        Cell::from(format!(
            "{}{part}, path {}, class ",
            share.bytes, share.path
        )),
        class_cell(share.class),
    ];
    if let Some(because) = &share.because {
        cells.push(Cell::styled(FAINT, format!(": {because}")));
    }
    cells
}

fn cpu(receipt: &Receipt) -> String {
    let per_gb = receipt
        .cpu_per_gb()
        .map_or(String::new(), |s| format!(": {} per GB", seconds(s)));
    format!(
        "{} ({} user + {} system){per_gb}",
        seconds(receipt.cpu.total()),
        seconds(receipt.cpu.user),
        seconds(receipt.cpu.system)
    )
}

fn visibility(visibility: &Visibility) -> Cell {
    match visibility {
        Visibility::NotNeeded(why) => Cell::from(format!("yes, nothing to flush: {why}")),
        Visibility::Flushed(how) => Cell::from(format!("yes, flushed: {how}")),
        Visibility::Unknown(why) => Cell::styled(WARN, format!("unknown: {why}")),
    }
}

fn verification(verification: &Verification) -> Vec<Cell> {
    match verification {
        Verification::NotAsked => vec![Cell::styled(FAINT, "not asked for")],
        Verification::Computed {
            algorithm,
            checksum,
        } => vec![format!("{algorithm} {checksum}, nothing to compare it with").into()],
        Verification::Matched {
            algorithm,
            checksum,
        } => vec![
            Cell::styled(GOOD, "matches"),
            format!(" a second reading of the source: {algorithm} {checksum}").into(),
        ],
        Verification::Agreed {
            algorithm,
            checksum,
        } => vec![
            Cell::styled(GOOD, "matches"),
            format!(" where the bytes arrived what it was where they left: {algorithm} {checksum}")
                .into(),
        ],
        Verification::Differs {
            algorithm,
            expected,
            found,
        } => vec![
            Cell::styled(BAD, "differs, do not use the data"),
            format!(": {algorithm} {expected} expected, {found} found").into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::hop::{
        Capacity, Carrier, CpuWork, Crossing, Hop, HostUse, LinkKind, Provenance, Route, Stop,
    };
    use crowfly_route::place::Place;
    use crowfly_route::policy::Policy;
    use crowfly_route::receipt::{CpuSeconds, Path, RECEIPT_SCHEMA};
    use crowfly_route::units::BytesPerSecond;

    use super::super::obstacle::tests::{across_sockets, no_storage_driver};
    use super::*;

    fn receipt() -> Receipt {
        let host = |use_| Stop::Host { use_, numa: None };
        let link = Crossing {
            link: "0000:3a:00.0–0000:3b:00.0 Gen4 x4".into(),
            kind: LinkKind::Pcie,
            rate: Some(BytesPerSecond::gb(7.88)),
            degraded: false,
        };
        let dma = Hop {
            from: Stop::Drive {
                name: "nvme0".into(),
            },
            to: host(HostUse::PageCache),
            carrier: Carrier::Dma {
                device: "nvme0".into(),
            },
            crosses: vec![link],
            capacity: None,
        };
        let copy = Hop {
            from: host(HostUse::PageCache),
            to: host(HostUse::Application),
            carrier: Carrier::Cpu {
                work: CpuWork::KernelCopy,
            },
            crosses: vec![],
            capacity: None,
        };
        Receipt {
            schema: RECEIPT_SCHEMA.into(),
            from: Place::File("/data/llama/model-00001-of-00004.safetensors".into()),
            to: Place::Host(None),
            policy: Policy::Prefer,
            route: Route {
                name: "page-cache".into(),
                from: Place::File("/data".into()),
                to: Place::Host(None),
                hops: vec![dma, copy],
            },
            requested: Bytes(4_294_967_296),
            shares: vec![
                Share {
                    path: Path::Cached,
                    class: Class::Staged,
                    bytes: Bytes(4_000_000_000),
                    because: Some("already-cached: the page cache held these bytes".into()),
                },
                Share {
                    path: Path::Direct,
                    class: Class::Direct,
                    bytes: Bytes(294_967_296),
                    because: None,
                },
            ],
            bounced: Bytes(4_000_000_000),
            overread: Bytes(4096),
            retries: 3,
            wall_seconds: 4.0,
            cpu: CpuSeconds {
                user: 0.1,
                system: 0.9,
            },
            ceiling: Some(Capacity {
                rate: BytesPerSecond::gb(7.88),
                provenance: Provenance::LinkRate("nvme0, Gen4 x4".into()),
            }),
            obstacles: vec![no_storage_driver(), across_sockets()],
            visibility: Visibility::NotNeeded("host memory is coherent".into()),
            verification: Verification::NotAsked,
        }
    }

    #[test]
    fn a_receipt_fits_one_screen_and_says_which_way_the_bytes_went() {
        insta::assert_snapshot!(crate::render::plain(&render(&receipt(), 100, true)));
    }

    #[test]
    fn given_an_empty_transfer_nothing_is_divided_by_zero() {
        let empty = Receipt {
            requested: Bytes(0),
            wall_seconds: 0.0,
            ceiling: None,
            obstacles: vec![],
            shares: vec![],
            verification: Verification::Differs {
                algorithm: "xxh3-64".into(),
                expected: "00ff".into(),
                found: "ff00".into(),
            },
            ..receipt()
        };
        insta::assert_snapshot!(crate::render::plain(&render(&empty, 100, false)));
    }

    #[test]
    fn no_line_is_wider_than_asked_for_whatever_the_names_are() {
        let mut long = receipt();
        long.from = Place::File(format!("/data/{}", "very-long-name/".repeat(20)));
        for columns in [60, 80, 100] {
            for line in crate::render::plain(&render(&long, columns, true)).lines() {
                assert!(textwrap::core::display_width(line) <= columns, "{line}");
            }
        }
    }
}
