//! What `cp` did: one line, the legs, the receipt.

use super::legs::{self, Ends};
use super::receipt;
use super::text::{count, harmless, wrap};
use crowfly_mover::service::{Doing, Leg};
use crowfly_route::place::Place;

use crate::commands::cp::Cp;

/// The copy in at most `columns` columns; see [`receipt::render`].
pub fn render(cp: &Cp, columns: usize, detailed: bool) -> String {
    let mut text = wrap(&summary(cp), columns, "", "  ");
    text.push_str("\n\n");
    let is_relay = [&cp.from, &cp.to]
        .iter()
        .all(|place| matches!(place, Place::Served(_)));
    let (there, beyond) = match is_relay {
        true => ("source", "destination"),
        false => ("server", "server"),
    };
    let ends = Ends {
        here: "here",
        there,
        beyond,
    };
    let table = legs::render(&cp.legs, ends, columns);
    if !table.is_empty() {
        text.push_str(&table);
        text.push('\n');
    }
    text.push_str(&receipt::render(&cp.receipt, columns, detailed));
    text
}

fn summary(cp: &Cp) -> String {
    let files = count(usize::try_from(cp.files).unwrap_or(usize::MAX), "file");
    let (from, to) = (cp.from.to_string(), cp.to.to_string());
    let to = match cp.kept {
        true => format!("to {}", harmless(&to)),
        false => "into memory, and dropped them there".to_owned(),
    };
    let folders = match cp.folders {
        0 => String::new(),
        folders => {
            let folders = usize::try_from(folders).unwrap_or(usize::MAX);
            format!(" in {}", count(folders, "folder"))
        }
    };
    let mut text = format!(
        "Copied {files}{folders}, {}, from {} {to}",
        cp.receipt.requested,
        harmless(&from)
    );
    let within = |leg: &Leg| leg.doing == Doing::Within && leg.bytes().0 > 0;
    if cp.legs.iter().any(within) {
        text.push_str("; the store did it by itself, and none of it passed this machine");
    }
    if cp.resumed.0 > 0 {
        let whole = match cp.unchanged {
            0 => String::new(),
            files => {
                let files = usize::try_from(files).unwrap_or(usize::MAX);
                format!(", {} of them whole", count(files, "file"))
            }
        };
        text.push_str(&format!("; {} were there already{whole}", cp.resumed));
    }
    if cp.skipped > 0 {
        let left_out = count(usize::try_from(cp.skipped).unwrap_or(usize::MAX), "entry");
        let left_out = left_out.replace("entrys", "entries");
        text.push_str(&format!(
            "; left out {left_out}: links (-L follows them), devices, sockets or pipes"
        ));
    }
    text
}
