//! The catalogue, the validation, the claims and the shapes of clouds.

use crowfly_plan::catalog::{Catalog, Listed};
use crowfly_plan::claims::Claim;
use crowfly_plan::figure::half_up;
use crowfly_plan::validate::{Use, Validation};

use super::amounts::{Amount, ratio};
use super::{Column, Sheet, SheetTable};
use crate::commands::plan::Shape;
use Column::{Flexible, Number, Text};

/// The answer to `crowfly plan catalog`.
pub fn catalog(catalog: &Catalog, listed: &[Listed<'_>], sources: bool) -> Sheet {
    let columns = [Text("kind"), Text("id"), Flexible("facts"), Text("sure")];
    let with = sources.then_some(Flexible("from"));
    let mut table = SheetTable::new("Entries", columns.into_iter().chain(with));
    for entry in listed {
        let sure = if entry.verified {
            entry.basis.confidence.as_str().to_owned()
        } else {
            "unverified".to_owned()
        };
        let note = entry
            .basis
            .note
            .as_ref()
            .map_or(String::new(), |note| format!(". {note}"));
        let mut row = vec![
            entry.kind.to_string(),
            entry.id.to_owned(),
            format!("{}{note}", entry.summary),
            sure,
        ];
        if sources {
            let keys = entry.basis.sources.iter();
            let spelled: Vec<&str> = keys.map(|key| catalog.source(key)).collect();
            row.push(spelled.join("; "));
        }
        table.row(row.into_iter().map(Amount::from));
    }
    let unverified = listed.iter().filter(|entry| !entry.verified).count();
    let many = if listed.len() == 1 {
        "entry"
    } else {
        "entries"
    };
    Sheet {
        verdict: format!("{} {many}, {unverified} of them unverified.", listed.len()),
        tables: vec![table],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan validate`.
pub fn validation(answer: &Validation) -> Sheet {
    let columns = [
        Text("point"),
        Flexible("what was measured"),
        Number("measured"),
        Number("predicted"),
        Text("unit"),
        Number("error"),
        Text("use"),
    ];
    let mut table = SheetTable::new("Published measurements", columns);
    for row in &answer.rows {
        let percent = half_up(row.error * 100.0, 1);
        let none = percent.trim_start_matches('-') == "0.0";
        let percent = match (none, row.error > 0.0) {
            (true, _) => "0.0".to_owned(),
            (false, true) => format!("+{percent}"),
            (false, false) => percent,
        };
        table.row(cells![
            row.id.to_owned(),
            row.setup.to_owned(),
            ratio(row.measured),
            ratio(row.predicted),
            row.unit.to_owned(),
            format!("{percent} %"),
            match row.usage {
                Use::Calibrate => "calibrate",
                Use::Check => "check",
            }
            .to_owned(),
        ]);
    }
    let percent = |fraction: f64| half_up(fraction * 100.0, 1);
    Sheet {
        verdict: format!(
            "Half of the predicted rates are within {} % on large messages, {} % on small ones, {} % of steps.",
            percent(answer.median_large),
            percent(answer.median_small),
            percent(answer.median_step)
        ),
        tables: vec![table],
        notes: vec![
            "Points marked `calibrate` set constants; those marked `check` are predicted.".into(),
        ],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan claims`.
pub fn claims(claims: &[Claim]) -> Sheet {
    let mut table = SheetTable::new("Claims", [Flexible("said"), Flexible("right")]);
    for claim in claims {
        table.row(cells![claim.said, claim.right]);
    }
    Sheet {
        verdict: format!(
            "{} claims that go round about GPUDirect are wrong; this is right.",
            claims.len()
        ),
        tables: vec![table],
        ..Sheet::default()
    }
}

/// The answer to `crowfly plan shapes`.
pub fn shapes(shapes: &[Shape]) -> Sheet {
    let columns = [
        Text("cloud"),
        Text("shape"),
        Text("GPUs"),
        Number("GB/s a GPU"),
        Flexible("direct path"),
        Flexible("note"),
    ];
    let mut table = SheetTable::new("Shapes", columns);
    for shape in shapes {
        let doubt = if shape.verified { "" } else { "unverified. " };
        table.row(cells![
            shape.cloud.as_str().to_owned(),
            shape.id.clone(),
            format!("{} x {}", shape.gpus, shape.gpu),
            shape.gbs_per_gpu.map(ratio).unwrap_or_default(),
            shape.direct_path.unwrap_or("none").to_owned(),
            format!("{doubt}{}", shape.note.as_deref().unwrap_or_default()),
        ]);
    }
    let direct = shapes
        .iter()
        .filter(|shape| shape.direct_path.is_some())
        .count();
    Sheet {
        verdict: format!(
            "{direct} of {} shapes have a direct path between GPU memory and the network.",
            shapes.len()
        ),
        tables: vec![table],
        ..Sheet::default()
    }
}
