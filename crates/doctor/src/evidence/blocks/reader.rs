//! The reader of `lsblk`.

use super::{BlockDevice, BlockDevices};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most devices kept, and most mount points of one.
const MAX_DEVICES: usize = 4_096;
const MAX_MOUNTS: usize = 256;

#[derive(Default)]
pub(crate) struct LsblkReader {
    found: BlockDevices,
    /// Names of the columns, up to the mount points.
    columns: Vec<String>,
    /// Devices above the next one, with the column in which their names begin.
    above: Vec<(usize, String)>,
}

impl Reader for LsblkReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let words: Vec<&str> = line.text.split_whitespace().take(MAX_MOUNTS).collect();
        if words.first() == Some(&"NAME") && words.contains(&"TYPE") && words.contains(&"SIZE") {
            if !self.columns.is_empty() {
                return Verdict::Restart;
            }
            self.columns = words.iter().map(|w| (*w).to_owned()).collect();
            return Verdict::Taken;
        }
        if self.columns.is_empty() || !(self.device(line, &words) || self.mount(&words)) {
            return Verdict::Refused;
        }
        Verdict::Taken
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let says_something = !self.found.devices.is_empty();
        says_something.then_some((Format::Lsblk, Artefact::BlockDevices(self.found)))
    }
}

impl LsblkReader {
    fn device(&mut self, line: &Line<'_>, words: &[&str]) -> bool {
        let is_drawing = |c: char| matches!(c, '├' | '└' | '─' | '│' | '|' | '`' | '-' | ' ');
        let drawn = line.text.trim_start_matches(is_drawing);
        let depth = line.text.chars().count() - drawn.chars().count();
        let Some(name) = drawn.split_whitespace().next() else {
            return false;
        };
        let names: Vec<&str> = words
            .iter()
            .copied()
            .skip_while(|w| !w.ends_with(name))
            .collect();
        let value = |column: &str| {
            let at = self.columns.iter().position(|c| c == column)?;
            names.get(at).copied()
        };
        let is_kind = |kind: &str| {
            matches!(
                kind,
                "disk" | "part" | "lvm" | "crypt" | "loop" | "rom" | "md" | "mpath"
            ) || kind.starts_with("raid")
        };
        let Some(kind) = value("TYPE").filter(|kind| is_kind(kind)) else {
            return false;
        };
        let mounts = self
            .columns
            .iter()
            .position(|c| c.starts_with("MOUNTPOINT"));
        self.above.retain(|(column, _)| *column < depth);
        let device = BlockDevice {
            name: name.to_owned(),
            on: self.above.last().map(|(_, name)| name.clone()),
            kind: kind.to_owned(),
            size: value("SIZE").map(str::to_owned),
            mounts: mounts
                .and_then(|at| names.get(at..))
                .unwrap_or_default()
                .iter()
                .map(|m| (*m).to_owned())
                .collect(),
            cite: line.cite(),
        };
        self.above.push((depth, name.to_owned()));
        if self.found.devices.len() < MAX_DEVICES {
            self.found.devices.push(device);
        }
        true
    }

    /// A second mount point stands alone on its line.
    fn mount(&mut self, words: &[&str]) -> bool {
        let [path] = words else { return false };
        let Some(device) = self.found.devices.last_mut() else {
            return false;
        };
        let is_path =
            path.starts_with('/') && !device.mounts.is_empty() && device.mounts.len() < MAX_MOUNTS;
        if is_path {
            device.mounts.push((*path).to_owned());
        }
        is_path
    }
}
