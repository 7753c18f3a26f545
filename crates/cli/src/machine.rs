//! The machine that a command looks at: this one, or one that someone captured.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::Args;
use crowfly_machine::{Options, Root, capture};
use crowfly_plan::catalog::Catalog;
use crowfly_plan::layout::Layout;
use crowfly_route::snapshot::{MAX_SNAPSHOT_BYTES, Snapshot};
use crowfly_route::topology::{Oddity, Topology};

use crate::failure::{Exit, Failure};
use crate::input::read_bounded;
use crate::path::shown;

/// What some editors put in front of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The same in UTF-16, as Windows writes what is redirected: the last byte first, and the first one first.
const WIDE_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// Options that choose the machine to look at. Flatten them into a command's arguments.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// Look at a snapshot that `crowfly capture` wrote instead of this machine
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    snapshot: Option<PathBuf>,
    /// Look at a copy of a machine's /sys, /proc and /etc in a directory instead of this machine
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl MachineArgs {
    /// The file or directory of another machine, where one was chosen.
    pub fn elsewhere(&self) -> Option<&Path> {
        self.snapshot.as_deref().or(self.root.as_deref())
    }

    /// Whether another machine than this one was chosen.
    pub const fn is_elsewhere(&self) -> bool {
        self.snapshot.is_some() || self.root.is_some()
    }

    /// What is seen of the chosen machine.
    pub fn look(&self) -> Result<Snapshot, Failure> {
        let root = match (&self.snapshot, &self.root) {
            (Some(file), _) => return read_snapshot(file),
            (None, Some(dir)) => tree(dir)?,
            (None, None) => Root::live()?,
        };
        seen(&root, &Options::default())
    }
}

/// A copy of a machine, which has to have what every look begins with.
fn tree(dir: &Path) -> Result<Root, Failure> {
    let root = Root::tree(dir)?;
    if !dir.join("sys").is_dir() {
        let what = format!(
            "{} holds no `sys`, so it is no copy of a machine",
            shown(dir)
        );
        return Err(Failure::new("root-without-sys", Exit::NoInput, what)
            .hint("give the directory that holds sys, proc and etc"));
    }
    Ok(root)
}

/// What is seen of a machine, unless the limits of this process kept it from looking: a machine of
/// which half was not seen would pass for a smaller one.
pub fn seen(root: &Root, options: &Options) -> Result<Snapshot, Failure> {
    let snapshot = capture(root, options);
    root.not_starved()?;
    Ok(snapshot)
}

/// As [`MachineArgs`], and besides a file in which another program describes a machine.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Machine")]
pub struct DescribedMachineArgs {
    /// Look at the machine of a file: a snapshot, `lstopo --of xml`, or a topology file of NCCL or RCCL
    #[arg(long, value_name = "FILE", conflicts_with_all = ["snapshot", "root"])]
    from: Option<PathBuf>,
    /// Look at a server of the planner's catalogue, laid out as such servers are built
    #[arg(long, value_name = "ID", conflicts_with_all = ["snapshot", "root", "from"])]
    server: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

impl DescribedMachineArgs {
    /// Whether another machine than this one was chosen.
    pub const fn is_elsewhere(&self) -> bool {
        self.from.is_some() || self.server.is_some() || self.machine.is_elsewhere()
    }

    /// The chosen machine's graph, and what it was decoded from where that is a snapshot.
    pub fn look(&self) -> Result<(Topology, Option<Snapshot>), Failure> {
        if let Some(server) = &self.server {
            let layout = Layout::of(&Catalog::built_in(), server)?;
            return Ok((layout.topology, None));
        }
        let Some(file) = &self.from else {
            let snapshot = self.machine.look()?;
            return Ok((Topology::from_snapshot(&snapshot), Some(snapshot)));
        };
        described_in(file)
    }

    /// What is not known of a server of the catalogue and was assumed, a sentence each.
    pub fn assumptions(&self, topology: &Topology) -> Vec<String> {
        let told = |odd: &Oddity| format!("{}: {}", odd.at, odd.what);
        match self.server {
            Some(_) => topology.oddities.iter().map(told).collect(),
            None => Vec::new(),
        }
    }

    /// What a command line says to choose this machine, as option and value; `None` for the machine
    /// at hand.
    pub fn choice(&self) -> Option<(&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let choices = [
            ("--from", self.from.as_ref().map(path)),
            ("--server", self.server.clone()),
            ("--snapshot", self.machine.snapshot.as_ref().map(path)),
            ("--root", self.machine.root.as_ref().map(path)),
        ];
        let mut chosen = choices.into_iter();
        chosen.find_map(|(option, value)| Some((option, value?)))
    }
}

/// The machine of a file: a snapshot, or another program's description.
pub fn described_in(path: &Path) -> Result<(Topology, Option<Snapshot>), Failure> {
    described(&shown(path), &read_bounded(path, MAX_SNAPSHOT_BYTES)?)
}

/// The machine of a content that goes by a name.
pub fn described(name: &str, content: &[u8]) -> Result<(Topology, Option<Snapshot>), Failure> {
    let content = unmarked(content);
    Ok(match Snapshot::from_json(&content) {
        Ok(snapshot) => (Topology::from_snapshot(&snapshot), Some(snapshot)),
        Err(_) => {
            let topology = Topology::from_any(&content);
            (
                topology.map_err(|error| Failure::from(error).about(name))?,
                None,
            )
        }
    })
}

/// Reads a snapshot file.
pub fn read_snapshot(path: &Path) -> Result<Snapshot, Failure> {
    snapshot(&shown(path), &read_bounded(path, MAX_SNAPSHOT_BYTES)?)
}

/// The snapshot in a content that goes by a name.
pub fn snapshot(name: &str, content: &[u8]) -> Result<Snapshot, Failure> {
    let read = Snapshot::from_json(&unmarked(content));
    read.map_err(|error| Failure::from(error).about(name))
}

/// A text without the mark in front of it, in UTF-8.
fn unmarked(content: &[u8]) -> Cow<'_, [u8]> {
    let wide = |content: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = content.as_chunks().0.iter().map(|pair| unit(*pair));
        let text: String = char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        Cow::Owned(text.into_bytes())
    };
    let [little, big] = WIDE_MARKS;
    match content {
        content if content.starts_with(little) => {
            wide(&content[little.len()..], u16::from_le_bytes)
        }
        content if content.starts_with(big) => wide(&content[big.len()..], u16::from_be_bytes),
        content => Cow::Borrowed(content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_text_as_other_systems_save_it_it_is_read_without_its_mark() {
        let text = "{\"schema\": \"ü\"}";
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let marked = [
            text.as_bytes().to_vec(),
            [BYTE_ORDER_MARK, text.as_bytes()].concat(),
            [WIDE_MARKS[0], &little].concat(),
            [WIDE_MARKS[1], &big].concat(),
        ];
        for content in marked {
            assert_eq!(unmarked(&content), text.as_bytes());
        }
        assert_eq!(unmarked(b""), &b""[..]);
    }

    #[test]
    fn given_a_file_that_describes_no_machine_the_refusal_names_it() {
        let failures = [
            snapshot("odd.json", b"{").expect_err("no snapshot"),
            described("odd.json", b"odd")
                .map(drop)
                .expect_err("no machine"),
        ];
        for failure in failures {
            assert!(failure.message().starts_with("odd.json: "), "{failure:?}");
        }
    }
}
