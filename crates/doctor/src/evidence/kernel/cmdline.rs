//! The reader of kernel command lines: `/proc/cmdline`, a boot message, or GRUB's settings.

use super::{Argument, CmdlineOrigin, KernelCmdline};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most arguments kept.
const MAX_ARGUMENTS: usize = 1_024;

#[derive(Default)]
pub(crate) struct KernelCmdlineReader {
    found: Option<KernelCmdline>,
}

impl Reader for KernelCmdlineReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        if self.found.is_some() {
            return Verdict::Restart;
        }
        let Some((origin, text)) = command_line(line.trimmed()) else {
            return Verdict::Refused;
        };
        let cite = line.cite();
        let arguments: Vec<_> = words(text)
            .take(MAX_ARGUMENTS)
            .map(|word| {
                let (name, value) = match word.split_once('=') {
                    Some((name, value)) => (name, Some(value.trim_matches('"').to_owned())),
                    None => (word, None),
                };
                cite.of(Argument {
                    name: name.to_owned(),
                    value,
                })
            })
            .collect();
        if arguments.is_empty() {
            return Verdict::Refused;
        }
        self.found = Some(KernelCmdline {
            origin,
            arguments,
            cite,
        });
        Verdict::Last
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        Some((Format::KernelCmdline, Artefact::KernelCmdline(self.found?)))
    }
}

fn command_line(text: &str) -> Option<(CmdlineOrigin, &str)> {
    if let Some((_, arguments)) = text.split_once("Kernel command line:") {
        return Some((CmdlineOrigin::Running, arguments));
    }
    if let Some(rest) = text.strip_prefix("GRUB_CMDLINE_LINUX") {
        let (_, value) = rest.split_once('=')?;
        return Some((
            CmdlineOrigin::BootLoader,
            value.trim().trim_matches(['"', '\'']),
        ));
    }
    if text.starts_with("BOOT_IMAGE=") {
        return Some((CmdlineOrigin::Running, text));
    }
    // Other boot loaders do not name the image; several common arguments together are telling.
    let common = [
        "root=",
        "ro",
        "rw",
        "quiet",
        "console=",
        "iommu=",
        "intel_iommu=",
        "amd_iommu=",
        "splash",
    ];
    let is_common = |word: &&str| {
        common
            .iter()
            .any(|c| word == c || (c.ends_with('=') && word.starts_with(c)))
    };
    let telling =
        text.contains("root=") && text.split_whitespace().filter(is_common).take(2).count() == 2;
    telling.then_some((CmdlineOrigin::Running, text))
}

/// Words, white space inside quotes kept.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let mut quoted = false;
        let end = rest
            .find(|c: char| {
                quoted ^= c == '"';
                c.is_whitespace() && !quoted
            })
            .unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}
