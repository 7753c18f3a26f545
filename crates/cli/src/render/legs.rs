//! The legs of a copy's way, as a table.

use crowfly_mover::service::{Doing, End, Leg};
use crowfly_route::units::Bytes;

use super::cell::Cell;
use super::receipt::class_cell;
use super::style::{STRONG, paint};
use super::table::Table;
use super::text::seconds;

/// What each leg is called when seen from the one end or from the other.
#[derive(Clone, Copy)]
pub struct Ends {
    /// This process.
    pub here: &'static str,
    /// The other one.
    pub there: &'static str,
    /// The second other one, where the bytes go on to one.
    pub beyond: &'static str,
}

/// The table in at most `columns` columns; empty when nothing moved.
pub fn render(legs: &[Leg], ends: Ends, columns: usize) -> String {
    if legs.iter().all(|leg| leg.bytes() == Bytes(0)) {
        return String::new();
    }
    let mut table = Table::new()
        .text("  leg")
        .text("by")
        .text("path")
        .text("class")
        .number("bytes")
        .number("CPU")
        .flexible("why not better");
    for leg in legs {
        let word = match leg.doing {
            Doing::Reading => "  read",
            Doing::Crossing => "  cross",
            Doing::Onward => "  onward",
            Doing::Within => "  within",
            Doing::Writing => "  write",
        };
        let by = match (leg.end, leg.doing) {
            (End::Here, _) => ends.here,
            (End::There, Doing::Within) => "store",
            (End::There, Doing::Reading | Doing::Crossing) => ends.there,
            (End::There, Doing::Onward | Doing::Writing) => ends.beyond,
        };
        let cpu = seconds(leg.cpu.total());
        if leg.shares.is_empty() {
            let checksums = "checksums".into();
            table.row([
                word.into(),
                by.into(),
                checksums,
                "".into(),
                "".into(),
                cpu.clone().into(),
            ]);
        }
        for (index, share) in leg.shares.iter().enumerate() {
            let cpu = if index == 0 {
                cpu.clone()
            } else {
                String::new()
            };
            table.row([
                Cell::from(word),
                by.into(),
                share.path.to_string().into(),
                class_cell(share.class),
                share.bytes.to_string().into(),
                cpu.into(),
                share.because.clone().unwrap_or_default().into(),
            ]);
        }
    }
    format!("{}\n{}", paint(STRONG, "Legs"), table.render(columns))
}
