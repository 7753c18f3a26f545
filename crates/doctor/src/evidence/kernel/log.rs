//! The reader of kernel messages, from `dmesg`, `/dev/kmsg`, `journalctl` or a system log.

use crowfly_route::units::PciAddress;

use super::{KernelLog, KernelMessage, Topic};
use crate::evidence::line::{Line, undecorated};
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::sighting::Tally;
use crate::evidence::wording::wording;
use crate::evidence::{Artefact, Format};

/// Most distinct messages kept.
const MAX_MESSAGES: usize = 2_048;

pub(crate) struct KernelLogReader {
    messages: Tally<KernelMessage, String>,
    lines: u64,
}

impl Default for KernelLogReader {
    fn default() -> Self {
        Self {
            messages: Tally::with_limit(MAX_MESSAGES),
            lines: 0,
        }
    }
}

impl Reader for KernelLogReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let (text, has_prefix) = without_prefix(line.trimmed());
        // An artefact of its own.
        if text.starts_with("Kernel command line:") {
            return Verdict::Refused;
        }
        let begun = self.lines > 0;
        let topic = topic(text).filter(|topic| has_prefix || is_unmistakable(topic));
        if topic.is_none() && !(begun && has_prefix) {
            return Verdict::Refused;
        }
        self.lines += 1;
        if let Some(topic) = topic {
            let device = device(text);
            let key = format!("{topic:?} {device:?} {}", wording(text));
            self.messages.see_as(key.as_str(), None, || {
                line.cite().of(KernelMessage {
                    topic,
                    device,
                    text: text.to_owned(),
                })
            });
        }
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let log = KernelLog {
            beyond_limit: self.messages.beyond(),
            messages: self.messages.into_seen(),
            lines: self.lines,
        };
        Some((Format::KernelLog, Artefact::KernelLog(log)))
    }
}

/// A message without what its printer put in front, and whether there was any of that.
fn without_prefix(text: &str) -> (&str, bool) {
    // `6,3973,227996636,-;words` of /dev/kmsg.
    if text.starts_with(|c: char| c.is_ascii_digit())
        && let Some((head, words)) = text.split_once(';')
        && head.matches(',').count() >= 3
        && head
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b',' | b'-' | b'c'))
    {
        return (words, true);
    }
    // `kern  :warn  : [time] words` of dmesg -x.
    if let Some(rest) = text.strip_prefix("kern ")
        && let Some((_, rest)) = rest
            .split_once(':')
            .and_then(|(_, rest)| rest.split_once(": "))
    {
        let (rest, _) = undecorated(rest);
        return (without_prefix(rest).0, true);
    }
    // `[   12.345678] words`, `[Wed Jan 21 04:41:44 2025] words`.
    if let Some(inside) = text.strip_prefix('[')
        && let Some((time, words)) = inside.split_once("] ")
    {
        let time = time.trim_start();
        // Since the machine started, or since the line before (`+0.000012`); a longer count is since
        // 1970, and not a kernel's.
        let count = time.trim_start_matches('+').split_once('.');
        let seconds = count.is_some_and(|(s, us)| {
            (1..=8).contains(&s.len())
                && us.len() == 6
                && s.bytes().chain(us.bytes()).all(|b| b.is_ascii_digit())
        });
        // `Wed Jan 21 04:41:44 2025`, and `Jan21 04:41` of dmesg -H.
        let colons = time.bytes().filter(|b| *b == b':').count();
        let date = matches!((time.len(), colons), (24, 2) | (11, 1))
            && time.starts_with(|c: char| c.is_ascii_uppercase());
        if seconds || date {
            return (words, true);
        }
    }
    // `Jan 21 04:41:44 host kernel: words` of a system log; the time of a journal is off already.
    if let Some((head, words)) = text.split_once(" kernel: ")
        && head.len() < 96
    {
        let (words, _) = without_prefix(words);
        return (words, true);
    }
    (text, false)
}

/// Whether a message can only come from a kernel, even without its prefix.
fn is_unmistakable(topic: &Topic) -> bool {
    matches!(
        topic,
        Topic::Xid(_)
            | Topic::SXid(_)
            | Topic::P2pdmaAcsRedirect
            | Topic::P2pdmaRefused
            | Topic::PeerMem
            | Topic::UnknownSymbol(_)
            | Topic::Aer { .. }
            | Topic::Segfault { .. }
            | Topic::LinkDegraded
    )
}

fn topic(text: &str) -> Option<Topic> {
    let has = |words: &str| text.contains(words);
    if let Some(topic) = error_number(text) {
        return Some(topic);
    }
    if has("ACS redirect is set between")
        || has("disable_acs_redir=") && has("to disable ACS redirect")
    {
        return Some(Topic::P2pdmaAcsRedirect);
    }
    if has("cannot be used for peer-to-peer DMA") {
        return Some(Topic::P2pdmaRefused);
    }
    if let Some(symbol) = unknown_symbol(text) {
        return Some(Topic::UnknownSymbol(symbol));
    }
    if has("segfault at ") {
        return segfault(text);
    }
    if has("available PCIe bandwidth, limited by") {
        return Some(Topic::LinkDegraded);
    }
    if has("AER:") || has("PCIe Bus Error: severity=") {
        return Some(Topic::Aer {
            severity: severity(text),
        });
    }
    if has("BAR ") && (has("no space for") || has("can't assign") || has("failed to assign")) {
        return Some(Topic::BarAssignment);
    }
    const WORDS: [(&[&str], Topic); 8] = [
        (
            &["nvidia-peermem", "nvidia_peermem", "nv_peer_mem"],
            Topic::PeerMem,
        ),
        (&["p2pdma"], Topic::P2pdma),
        (&["nvidia-fs", "nvidia_fs", "nvfs"], Topic::NvidiaFs),
        (
            &["NVRM:", "nvidia-nvswitch", "nvidia-modeset", "nvidia-uvm"],
            Topic::NvidiaDriver,
        ),
        (
            &["mlx5_core", "mlx5_ib", "bnxt_re", "irdma", "infiniband"],
            Topic::RdmaDriver,
        ),
        (&["DMAR:", "AMD-Vi:", "iommu:"], Topic::Iommu),
        (&["amdgpu", "amdkfd", "kfd:"], Topic::AmdGpu),
        (&["Out of memory:", "oom-kill"], Topic::OutOfMemory),
    ];
    let found = WORDS
        .into_iter()
        .find(|(words, _)| words.iter().any(|w| has(w)));
    found.map(|(_, topic)| topic)
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, …` and `SXid (PCI:…): 12028, …`.
fn error_number(text: &str) -> Option<Topic> {
    let (head, rest) = text.split_once("Xid (PCI:")?;
    let (_, rest) = rest.split_once("): ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest[..digits].parse().ok()?;
    Some(if head.ends_with('S') {
        Topic::SXid(number)
    } else {
        Topic::Xid(number)
    })
}

fn unknown_symbol(text: &str) -> Option<String> {
    let (_, rest) = text
        .split_once("Unknown symbol ")
        .or_else(|| text.split_once("disagrees about version of symbol "))?;
    Some(rest.split_whitespace().next()?.to_owned())
}

/// `train[123]: segfault at … in libnccl.so.2[7f…+d3d000]`.
fn segfault(text: &str) -> Option<Topic> {
    let (head, rest) = text.split_once(": segfault at ")?;
    let process = head.rsplit(' ').next()?.split('[').next()?;
    let library = rest
        .rsplit_once(" in ")
        .and_then(|(_, l)| l.split(['[', ' ']).next());
    Some(Topic::Segfault {
        process: process.to_owned(),
        library: library.map(str::to_owned),
    })
}

/// `severity=Uncorrected (Fatal), type=…`, `AER: Corrected error received: …`.
fn severity(text: &str) -> String {
    let stated = text
        .split_once("severity=")
        .map(|(_, rest)| rest.split(',').next().unwrap_or(rest));
    let after = text.split_once("AER: ").map(|(_, rest)| rest);
    let words = stated.or(after).unwrap_or_default();
    let end = words.find(" error").unwrap_or(words.len());
    let known = [
        "Corrected",
        "Uncorrected",
        "Multiple",
        "Correctable",
        "Fatal",
    ];
    let word = words[..end].trim();
    if known.iter().any(|k| word.starts_with(k)) {
        word.to_owned()
    } else {
        "unknown".to_owned()
    }
}

/// The first PCI address that a message names; `(PCI:0000:3b:00)` stands for function 0.
fn device(text: &str) -> Option<PciAddress> {
    if let Some((_, rest)) = text.split_once("(PCI:") {
        let inside = rest.split(')').next()?;
        let whole = if inside.contains('.') {
            inside.to_owned()
        } else {
            format!("{inside}.0")
        };
        return whole.parse().ok();
    }
    text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | '[' | ']'))
        .map(|word| word.trim_end_matches(':'))
        .filter(|word| word.len() >= 12 && word.matches(':').count() == 2)
        .find_map(|word| word.parse().ok())
}
