//! The text form of Prometheus (version 0.0.4), read as strictly as its documentation has it: what
//! scrapers forgive is an error here.

use std::collections::{BTreeMap, BTreeSet};

/// Labels by name, and the value.
pub type Sample = (BTreeMap<String, String>, f64);

/// A family of samples.
#[derive(Debug)]
pub struct Family {
    pub kind: String,
    /// By their whole names, which in histograms are longer than that of the family.
    pub samples: BTreeMap<String, Vec<Sample>>,
}

/// All families by name.
pub fn parsed(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let body = text.strip_suffix('\n').ok_or("the last line has no end")?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped: BTreeSet<String> = BTreeSet::new();
    let mut current: Option<String> = None;
    for line in body.split('\n') {
        let bad = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| bad("no help"))?;
            if !is_name(name) || help.is_empty() || !helped.insert(name.to_owned()) {
                return Err(bad("a bad or second help"));
            }
            current = None;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| bad("no type"))?;
            let known = ["counter", "gauge", "histogram", "summary", "untyped"];
            let family = Family {
                kind: kind.to_owned(),
                samples: BTreeMap::new(),
            };
            let second = families.insert(name.to_owned(), family).is_some();
            if second || !known.contains(&kind) || !helped.contains(name) {
                return Err(bad("a second or bad type, or one without help"));
            }
            if (kind == "counter") != name.ends_with("_total") {
                return Err(bad("counters and nothing else end with _total"));
            }
            current = Some(name.to_owned());
        } else {
            let (name, labels, value) = sample(line).ok_or_else(|| bad("no sample"))?;
            let of = current
                .as_ref()
                .ok_or_else(|| bad("a sample of no family"))?;
            let family = families.get_mut(of).ok_or_else(|| bad("of no family"))?;
            let rest = name.strip_prefix(of.as_str());
            let fits = match (family.kind.as_str(), rest) {
                ("histogram", Some("_bucket")) => labels.contains_key("le"),
                ("histogram", Some("_sum" | "_count")) => !labels.contains_key("le"),
                ("histogram", _) => false,
                (_, rest) => rest == Some(""),
            };
            if !fits {
                return Err(bad("a sample of another family"));
            }
            let samples = family.samples.entry(name).or_default();
            if samples.iter().any(|(known, _)| *known == labels) {
                return Err(bad("the same labels twice"));
            }
            samples.push((labels, value));
        }
    }
    for (name, family) in &families {
        if family.kind == "histogram" {
            add_up(name, family)?;
        }
        let negative = |(_, value): &Sample| *value < 0.0;
        if family.kind == "counter" && family.samples.values().flatten().any(negative) {
            return Err(format!("{name} counts backwards"));
        }
    }
    Ok(families)
}

/// The buckets of a histogram grow, and the last has all.
fn add_up(name: &str, family: &Family) -> Result<(), String> {
    let of = |suffix: &str| family.samples.get(&format!("{name}{suffix}"));
    let none = Vec::new();
    for (labels, count) in of("_count").unwrap_or(&none) {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (known, value) in of("_bucket").unwrap_or(&none) {
            let mut known = known.clone();
            let end = known.remove("le").ok_or("a bucket without an end")?;
            if known == *labels {
                let end = match end.as_str() {
                    "+Inf" => f64::INFINITY,
                    other => other.parse().map_err(|_| format!("{name}: le {other}"))?,
                };
                buckets.push((end, *value));
            }
        }
        let grow = buckets.is_sorted() && buckets.is_sorted_by_key(|(_, value)| *value);
        if !grow || buckets.last() != Some(&(f64::INFINITY, *count)) {
            return Err(format!("the buckets of {name} do not add up: {buckets:?}"));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(fine)
}

fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at_checked(end)?;
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"")?;
            let (value, behind) = quoted(value)?;
            is_name(label).then_some(())?;
            labels
                .insert(label.to_owned(), value)
                .is_none()
                .then_some(())?;
            rest = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    is_name(name).then(|| Some((name.to_owned(), labels, value.parse().ok()?)))?
}

/// A value up to its quote, and what stands behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, text.get(at + 1..)?)),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            (_, c) => value.push(c),
        }
    }
}
