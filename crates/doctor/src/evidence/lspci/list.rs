//! The reader of `lspci`, plain, `-nn` or `-vvv`, whole or through `grep`.

use std::collections::HashSet;

use crowfly_route::units::{Bytes, PciAddress};

use super::{AcsControl, Lspci, PciDetails, PciFunction, PciLink, Region};
use crate::evidence::cite::Located;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most functions kept.
const MAX_FUNCTIONS: usize = 16_384;
/// Most details of one kind kept of one function, or without any.
const MAX_DETAILS: usize = 1_024;

/// First words of lines that `-vvv` prints and that hold nothing wanted here.
const OTHER_DETAILS: [&str; 34] = [
    "Subsystem:",
    "Control:",
    "Status:",
    "Latency:",
    "Latency",
    "Interrupt:",
    "Expansion",
    "Capabilities:",
    "DevCap:",
    "DevSta:",
    "LnkCtl:",
    "LnkCap2:",
    "LnkCtl2:",
    "LnkSta2:",
    "LnkCtl3:",
    "DevCap2:",
    "DevCtl2:",
    "I/O",
    "Memory",
    "Prefetchable",
    "Secondary",
    "BridgeCtl:",
    "Flags:",
    "Address:",
    "Vector",
    "PBA:",
    "ACSCap:",
    "AERCap:",
    "HeaderLog:",
    "LaneErrStat:",
    "IOVCap:",
    "IOVCtl:",
    "ARICap:",
    "SltCap:",
];

#[derive(Default)]
pub(crate) struct LspciReader {
    found: Lspci,
    seen: HashSet<PciAddress>,
    begun: bool,
    /// The function whose details follow was not kept.
    skipping: bool,
}

impl Reader for LspciReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        if let Some(function) = function(line) {
            if self
                .found
                .functions
                .iter()
                .any(|f| f.address == function.address)
            {
                return Verdict::Restart;
            }
            self.begun = true;
            self.skipping = self.found.functions.len() >= MAX_FUNCTIONS;
            if self.skipping {
                self.found.beyond_limit += 1;
            } else {
                self.seen.insert(function.address);
                self.found.functions.push(function);
            }
            return Verdict::Taken;
        }
        let text = line.trimmed();
        let telling = ["LnkSta:", "LnkCap:", "ACSCtl:"]
            .iter()
            .any(|word| text.starts_with(word));
        if !self.begun && !telling {
            return Verdict::Refused;
        }
        if self.skipping && is_other_detail(text) {
            return Verdict::Taken;
        }
        let details = match self.found.functions.last_mut() {
            Some(function) => &mut function.details,
            None => &mut self.found.orphans,
        };
        let taken = detail(details, text, line) || (self.begun && is_other_detail(text));
        self.begun |= taken;
        if taken {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        self.begun
            .then_some((Format::Lspci, Artefact::Lspci(self.found)))
    }
}

/// `0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b2] (rev a1)`.
fn function(line: &Line<'_>) -> Option<PciFunction> {
    let text = line.trimmed();
    text.starts_with(|c: char| c.is_ascii_hexdigit())
        .then_some(())?;
    let (address, rest) = text.split_once(' ')?;
    let address: PciAddress = address.parse().ok()?;
    let (class, name) = rest.split_once(": ").or_else(|| rest.split_once(':'))?;
    let bracketed = |text: &str| u16::from_str_radix(text, 16).ok();
    let (class, class_code) = match class
        .rsplit_once(" [")
        .and_then(|(c, n)| Some((c, n.strip_suffix(']')?)))
    {
        Some((class, number)) => (class, bracketed(number)),
        None => (class, bracketed(class).filter(|_| class.len() == 4)),
    };
    let name = name.trim().split(" (rev ").next().unwrap_or(name);
    let name = name.split(" (prog-if ").next().unwrap_or(name);
    let (name, ids) = match name
        .rsplit_once('[')
        .and_then(|(n, ids)| Some((n, numbers(ids.strip_suffix(']')?)?)))
    {
        Some((name, ids)) => (name.trim_end(), Some(ids)),
        None => (name, numbers(name)),
    };
    Some(PciFunction {
        address,
        class: class.to_owned(),
        class_code,
        name: name.to_owned(),
        ids,
        cite: line.cite(),
        details: PciDetails::default(),
    })
}

/// `10de:20b2`.
fn numbers(text: &str) -> Option<(u16, u16)> {
    let (vendor, device) = text.split_once(':')?;
    let number = |t: &str| {
        (t.len() == 4)
            .then(|| u16::from_str_radix(t, 16).ok())
            .flatten()
    };
    Some((number(vendor)?, number(device)?))
}

fn push<T>(list: &mut Vec<Located<T>>, value: Option<T>, line: &Line<'_>) {
    if let Some(value) = value
        && list.len() < MAX_DETAILS
    {
        list.push(line.cite().of(value));
    }
}

/// Takes a line of details; says whether it was one.
fn detail(details: &mut PciDetails, text: &str, line: &Line<'_>) -> bool {
    let after = |prefix: &str| text.strip_prefix(prefix).map(str::trim_start);
    if let Some(rest) = after("LnkCap:") {
        push(&mut details.link_max, link(rest), line);
    } else if let Some(rest) = after("LnkSta:") {
        push(&mut details.link_now, link(rest), line);
    } else if let Some(rest) = after("ACSCtl:") {
        push(&mut details.acs, Some(acs(rest)), line);
    } else if let Some(rest) = after("Region ") {
        push(&mut details.regions, region(rest), line);
    } else if let Some(rest) = after("Kernel driver in use:") {
        push(&mut details.driver, Some(rest.to_owned()), line);
    } else if let Some(rest) = after("NUMA node:") {
        push(&mut details.numa, rest.parse().ok(), line);
    } else if let Some(rest) = after("IOMMU group:") {
        push(&mut details.iommu_group, rest.parse().ok(), line);
    } else if let Some(rest) = after("Bus: ") {
        push(&mut details.bridges_to, buses(rest), line);
    } else if let Some(rest) = after("BAR ") {
        push(&mut details.resizable_bars, resizable(rest), line);
    } else if text.starts_with("Capabilities: <access denied>") {
        details.denied.get_or_insert_with(|| line.cite());
    } else if text.contains("MaxReadReq ") {
        push(
            &mut details.max_read_request,
            bytes_after(text, "MaxReadReq "),
            line,
        );
        push(
            &mut details.max_payload,
            bytes_after(text, "MaxPayload "),
            line,
        );
    } else if text.contains("RlxdOrd") {
        push(&mut details.relaxed_ordering, flag(text, "RlxdOrd"), line);
    } else {
        return false;
    }
    true
}

/// `Speed 2.5GT/s (downgraded), Width x16`; `Speed unknown, Width x0`.
fn link(text: &str) -> Option<PciLink> {
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest);
    let speed = after("Speed ")?;
    let digits = |t: &str, extra: char| {
        let end = t
            .bytes()
            .take_while(|b| b.is_ascii_digit() || char::from(*b) == extra)
            .count();
        t[..end].to_owned()
    };
    Some(PciLink {
        gigatransfers: digits(speed, '.').parse().ok(),
        lanes: after("Width x").and_then(|t| digits(t, '0').parse().ok()),
        downgraded: text.contains("(downgraded)"),
    })
}

fn flag(text: &str, name: &str) -> Option<bool> {
    match text.split_once(name)?.1.bytes().next()? {
        b'+' => Some(true),
        b'-' => Some(false),
        _ => None,
    }
}

fn acs(text: &str) -> AcsControl {
    let on = |name| flag(text, name).unwrap_or(false);
    AcsControl {
        source_validation: on("SrcValid"),
        translation_blocking: on("TransBlk"),
        request_redirect: on("ReqRedir"),
        completion_redirect: on("CmpltRedir"),
        upstream_forwarding: on("UpstreamFwd"),
        egress_control: on("EgressCtrl"),
        direct_translated: on("DirectTrans"),
    }
}

/// `1: Memory at 13000000000 (64-bit, prefetchable) [size=64G]`.
fn region(text: &str) -> Option<Region> {
    let (bar, rest) = text.split_once(':')?;
    rest.contains("Memory at").then_some(())?;
    let size = rest.rsplit_once("[size=")?.1.strip_suffix(']')?;
    Some(Region {
        bar: bar.parse().ok()?,
        size: binary_size(size)?,
        wide: rest.contains("64-bit"),
        prefetchable: rest.contains("prefetchable") && !rest.contains("non-prefetchable"),
    })
}

/// `1: current size: 64GB, supported: …`.
fn resizable(text: &str) -> Option<(u32, Bytes)> {
    let (bar, rest) = text.split_once(':')?;
    let size = rest
        .trim_start()
        .strip_prefix("current size: ")?
        .split(',')
        .next()?;
    Some((
        bar.parse().ok()?,
        binary_size(size.trim().trim_end_matches('B'))?,
    ))
}

/// `64G`, `512K`, `128`: powers of two, as the tool counts.
fn binary_size(text: &str) -> Option<Bytes> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let shift = match &text[digits..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    text[..digits]
        .parse::<u64>()
        .ok()?
        .checked_shl(shift)
        .map(Bytes)
}

fn bytes_after(text: &str, mark: &str) -> Option<u32> {
    text.split_once(mark)?
        .1
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// `primary=00, secondary=01, subordinate=02, sec-latency=0`.
fn buses(text: &str) -> Option<(u8, u8)> {
    let bus = |name: &str| {
        let rest = text.split_once(name)?.1;
        u8::from_str_radix(rest.get(..2)?, 16).ok()
    };
    Some((bus("secondary=")?, bus("subordinate=")?))
}

/// A line of `-vvv` that holds nothing wanted here: by its first word, or by flags (`Mem+ Stepping-`).
fn is_other_detail(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else {
        return false;
    };
    let is_flag = |word: &str| {
        let word = word.trim_end_matches([',', ')']);
        word.len() > 1 && word.ends_with(['+', '-'])
    };
    first.starts_with("Kernel")
        || OTHER_DETAILS.contains(&first)
        || words
            .chain([first])
            .filter(|word| is_flag(word))
            .take(2)
            .count()
            == 2
}
