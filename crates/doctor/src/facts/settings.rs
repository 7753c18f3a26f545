//! Settings of a job, from logs, environments and snapshots.

use crate::case::Case;
use crate::evidence::nccl_log::SettingOrigin;
use crate::finding::Quote;

/// A variable that is set.
#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) value: &'a str,
    pub(crate) quote: Quote,
}

/// Everywhere a variable is set by the user, in the order of the evidence. What a plugin set for
/// its own process is left out.
pub(crate) fn settings<'a>(case: &'a Case, name: &'a str) -> Vec<Setting<'a>> {
    let mut found = Vec::new();
    for log in case.nccl_logs() {
        for sighting in &log.settings {
            if sighting.what.name == name && sighting.what.origin == SettingOrigin::Environment {
                found.push(Setting {
                    value: &sighting.what.value,
                    quote: Quote::from(&sighting.first),
                });
            }
        }
    }
    for environment in case.environments() {
        for variable in &environment.variables {
            if let Some(value) = &variable.value.value
                && variable.value.name == name
            {
                found.push(Setting {
                    value,
                    quote: Quote::from(&variable.cite),
                });
            }
        }
    }
    let key = format!("env:{name}");
    for machine in &case.machines {
        if let (Some(value), Some(quote)) = (machine.text(&key), machine.quote(&key)) {
            found.push(Setting { value, quote });
        }
    }
    found
}

/// Whether a value of a switch means on. NCCL reads numbers; other words read as 0.
pub(crate) fn is_on(value: &str) -> bool {
    value
        .trim()
        .parse::<i64>()
        .map_or(value.eq_ignore_ascii_case("true"), |number| number != 0)
}
