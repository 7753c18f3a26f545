//! What NICs the user wants, as a list of names.

use std::fmt;
use std::str::FromStr;

use crate::fabric::error::FabricError;

/// The longest list of names.
pub const MAX_FILTER: usize = 4096;
/// How alike a name must be to be suggested instead of a mistyped one.
const SIMILAR: f64 = 0.7;

/// Which NICs to use: all that are fit, only those named, or all but those named.
///
/// Written as names with commas in between, after a `^` to leave them out: `mlx5_0,mlx5_1:1`,
/// `eth0`, `mlx5_*`, `^eth1,docker*`. A name stands for all ports of a device, `NAME:PORT` for one,
/// and a `*` at the end for every name that begins so. An interface that is named twice makes two
/// rails. Each must fit a NIC that exists: a name that
/// was mistyped is an error and never a detour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicFilter {
    names: Vec<String>,
    except: bool,
}

/// The text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` does not name NICs ({why}); write names such as mlx5_0,mlx5_1:1, mlx5_* or ^eth0"
)]
pub struct BadFilter {
    /// What was written, cut short.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for NicFilter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Self, BadFilter> {
        const SHOWN: usize = 80;
        let bad = |why| BadFilter {
            text: text.chars().take(SHOWN).collect(),
            why,
        };
        if text.len() > MAX_FILTER {
            return Err(bad("it is too long"));
        }
        let (except, list) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut names = Vec::new();
        for name in list.split(',').map(str::trim) {
            let stem = name.strip_suffix('*').unwrap_or(name);
            if name.is_empty() {
                return Err(bad("a name is missing"));
            }
            if stem.contains(['*', '^', '=']) || stem.contains(char::is_whitespace) {
                return Err(bad(
                    "`^` only comes first, `*` only last, and there is no `=`",
                ));
            }
            names.push(name.to_owned());
        }
        Ok(Self { names, except })
    }
}

impl fmt::Display for NicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.except { "^" } else { "" };
        write!(f, "{sign}{}", self.names.join(","))
    }
}

impl NicFilter {
    /// Only the NIC of this name.
    pub fn only(name: impl Into<String>) -> Self {
        Self {
            names: vec![name.into()],
            except: false,
        }
    }

    /// Whether it asks for nothing in particular.
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// What it says of a NIC: asked for, ruled out, or nothing.
    pub fn says(&self, nic: &str) -> Option<bool> {
        let named = self.names.iter().any(|pattern| fits(pattern, nic));
        match (self.is_empty(), self.except, named) {
            (true, ..) | (false, true, false) => None,
            (false, false, named) => Some(named),
            (false, true, true) => Some(false),
        }
    }

    /// How many rails are wanted by a NIC: one, or as often as it is named.
    pub(crate) fn times(&self, nic: &str) -> usize {
        let named = self.names.iter().filter(|pattern| fits(pattern, nic));
        if self.except { 1 } else { named.count().max(1) }
    }

    /// That each of its names fits one of these NICs.
    ///
    /// # Errors
    /// [`FabricError::NoSuchNic`], with the nearest name there is.
    pub fn check(&self, known: &[&str]) -> Result<(), FabricError> {
        let stray = |pattern: &&String| !known.iter().any(|nic| fits(pattern, nic));
        let Some(stray) = self.names.iter().find(stray) else {
            return Ok(());
        };
        let likeness = |nic: &&str| {
            let device = nic.split_once(':').map_or(*nic, |(device, _)| device);
            strsim::jaro_winkler(stray, nic).max(strsim::jaro_winkler(stray, device))
        };
        let suggestion = known
            .iter()
            .copied()
            .rev()
            .filter(|nic| likeness(nic) >= SIMILAR)
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        Err(FabricError::NoSuchNic {
            name: stray.clone(),
            known: known.iter().map(|&nic| nic.to_owned()).collect(),
            suggestion: suggestion.map(str::to_owned),
        })
    }
}

fn fits(pattern: &str, nic: &str) -> bool {
    if let Some(stem) = pattern.strip_suffix('*') {
        return nic.starts_with(stem);
    }
    let device = nic.split_once(':').map_or(nic, |(device, _)| device);
    pattern == nic || pattern == device
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KNOWN: [&str; 4] = ["mlx5_0:1", "mlx5_0:2", "mlx5_10:1", "eth0"];

    fn filter(text: &str) -> NicFilter {
        text.parse().expect("a filter")
    }

    fn taken(text: &str) -> Vec<&'static str> {
        let filter = filter(text);
        let mut known = KNOWN.to_vec();
        known.retain(|nic| filter.says(nic) != Some(false));
        known
    }

    #[test]
    fn a_name_takes_its_ports_a_port_only_itself_and_a_star_what_begins_so() {
        assert_eq!(taken("mlx5_0"), ["mlx5_0:1", "mlx5_0:2"]);
        assert_eq!(taken("mlx5_0:2,eth0"), ["mlx5_0:2", "eth0"]);
        assert_eq!(taken("mlx5_*"), ["mlx5_0:1", "mlx5_0:2", "mlx5_10:1"]);
        assert_eq!(taken("^mlx5_0,eth0"), ["mlx5_10:1"]);
        assert_eq!(NicFilter::default().says("eth0"), None);
        assert_eq!(filter("eth0,lo,eth0").times("eth0"), 2);
        assert_eq!(filter("^eth0,eth0").times("eth1"), 1);
    }

    #[test]
    fn a_mistyped_name_is_an_error_with_the_nearest_there_is_whether_asked_for_or_ruled_out() {
        for text in ["mlx_0", "^mlx_0", "eth0,mlx_0"] {
            match filter(text).check(&KNOWN) {
                Err(FabricError::NoSuchNic {
                    name, suggestion, ..
                }) => {
                    assert_eq!(name, "mlx_0");
                    assert_eq!(suggestion.as_deref(), Some("mlx5_0:1"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(filter("ib*").check(&KNOWN).is_err(), "a star must fit too");
        assert!(filter("mlx5_1").check(&KNOWN).is_err(), "not mlx5_10");
        assert!(filter("^mlx5_10,eth0").check(&KNOWN).is_ok());
    }

    #[test]
    fn what_is_no_list_of_names_is_refused() {
        for text in [
            "",
            "^",
            "eth0,",
            "a b",
            "=mlx5_0",
            "^^eth0",
            "m*x",
            "eth0,^eth1",
        ] {
            assert!(text.parse::<NicFilter>().is_err(), "{text:?}");
        }
        assert!("x".repeat(MAX_FILTER + 1).parse::<NicFilter>().is_err());
    }

    proptest! {
        #[test]
        fn a_filter_reads_back_as_it_is_printed(text in "\\^?[a-z0-9_:*]{0,8}(,[a-z0-9_:]{1,8}){0,3}") {
            if let Ok(filter) = text.parse::<NicFilter>() {
                prop_assert_eq!(filter.to_string(), text);
            }
        }
    }
}
