//! The front of a log line: who wrote it, and where in the library.

use std::collections::HashMap;

use super::{Process, limits};
use crate::evidence::sighting::ProcessId;

/// Most distinct prefixes remembered; each thread of a process has its own.
const MAX_PREFIXES: usize = 8 * limits::PROCESSES;

/// Most processes of one number that are compared by host name.
const MAX_NAMESAKES: usize = 64;

/// What stands before `NCCL INFO` or `NCCL WARN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix<'a> {
    /// `host`, `pid` of `host:pid:tid`.
    pub(super) writer: Option<(&'a str, u32)>,
    /// `[0]`.
    pub(super) device: Option<u32>,
    /// What stands between the device and the marker: the place in the library that warns.
    pub(super) site: Option<&'a str>,
    /// Where `host:pid:tid` begins; text before it belongs to something else.
    pub(super) starts: usize,
}

impl<'a> Prefix<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let mut prefix = Self {
            starts: text.len(),
            ..Self::default()
        };
        // The last name is the writer's; an earlier one belongs to a line that was cut by this one.
        let mut rest = text;
        while let Some((before, token)) = last_word(rest) {
            if let Some((host_at, host, pid)) = writer(token) {
                prefix.writer = Some((host, pid));
                prefix.starts = before + host_at;
                let after = text[before + token.len()..].trim_start();
                let (device, after) = device(after);
                prefix.device = device;
                let site = after.trim();
                prefix.site = (!site.is_empty()).then_some(site);
                return prefix;
            }
            rest = &text[..before];
        }
        let (device, _) = device(text.trim());
        prefix.device = device;
        prefix.starts = 0;
        prefix
    }
}

/// The last word of a text and where it begins.
fn last_word(text: &str) -> Option<(usize, &str)> {
    let text = text.trim_end();
    let at = text.rfind([' ', '\t']).map_or(0, |at| at + 1);
    let word = &text[at..];
    (!word.is_empty()).then_some((at, word))
}

/// Where the host of `host:pid:tid` begins, the host and the pid; what is glued in front is left off.
fn writer(token: &str) -> Option<(usize, &str, u32)> {
    let (rest, tid) = token.rsplit_once(':')?;
    let (name, pid) = rest.rsplit_once(':')?;
    tid.parse::<u32>().ok()?;
    let pid = pid.parse().ok()?;
    let host_at = name.rfind([':', '>', ')']).map_or(0, |at| at + 1);
    let host = &name[host_at..];
    // `12:08:32` is a time.
    let is_name = host.bytes().any(|b| !b.is_ascii_digit());
    is_name.then_some((host_at, host, pid))
}

fn device(text: &str) -> (Option<u32>, &str) {
    let inside = text
        .strip_prefix('[')
        .and_then(|t| t.split_once(']'))
        .and_then(|(n, rest)| Some((n.parse().ok()?, rest)));
    match inside {
        Some((device, rest)) => (Some(device), rest),
        None => (None, text),
    }
}

/// Host, process number, and the device or else the task: what tells processes apart.
type Name = (Option<String>, Option<u32>, Option<u32>);

/// The processes of a log, by the prefixes that name them.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: Vec<Process>,
    /// By the text of a prefix, for each task that used it.
    by_prefix: HashMap<Box<str>, Vec<(Option<u32>, ProcessId)>>,
    by_name: HashMap<Name, ProcessId>,
    by_pid: HashMap<u32, Vec<ProcessId>>,
}

impl Processes {
    /// The process that a prefix names. Another writer's text may be `glued` to the host name, or
    /// stand before it; then a process that is known already is preferred.
    pub(super) fn identify(&mut self, text: &str, task: Option<u32>, glued: bool) -> ProcessId {
        let remembered = self.by_prefix.get(text).map_or(&[][..], Vec::as_slice);
        if let Some((_, id)) = remembered.iter().find(|(t, _)| *t == task) {
            return *id;
        }
        let prefix = Prefix::parse(text);
        let id = match prefix.writer {
            Some((host, pid)) if glued || prefix.starts > 0 => self.ending_with(host, pid),
            _ => None,
        };
        let id = id.unwrap_or_else(|| self.named(&prefix, task));
        // A prefix that several tasks share has no host in it, and there are few of those.
        if self.by_prefix.len() < MAX_PREFIXES {
            self.by_prefix
                .entry(text.into())
                .or_default()
                .push((task, id));
        }
        id
    }

    /// A known process of this pid whose host name the given one ends with.
    fn ending_with(&self, host: &str, pid: u32) -> Option<ProcessId> {
        let same_pid = self.by_pid.get(&pid)?;
        same_pid.iter().take(MAX_NAMESAKES).copied().find(|id| {
            let known = self
                .known
                .get(id.0 as usize)
                .and_then(|p| p.host.as_deref());
            known.is_some_and(|known| host.ends_with(known))
        })
    }

    fn named(&mut self, prefix: &Prefix<'_>, task: Option<u32>) -> ProcessId {
        let host = prefix.writer.map(|(host, _)| host.to_owned());
        let pid = prefix.writer.map(|(_, pid)| pid);
        // One process can drive several devices, and their lines differ in the device alone.
        let name = (host.clone(), pid, prefix.device.or(task));
        if let Some(id) = self.by_name.get(&name) {
            return *id;
        }
        if self.known.len() >= limits::PROCESSES {
            return ProcessId(self.known.len() as u32 - 1);
        }
        let id = ProcessId(self.known.len() as u32);
        self.known.push(Process {
            host,
            pid,
            device: prefix.device,
            task,
            rank: None,
        });
        self.by_name.insert(name, id);
        if let Some(pid) = pid {
            self.by_pid.entry(pid).or_default().push(id);
        }
        id
    }

    pub(super) fn known_mut(&mut self) -> &mut [Process] {
        &mut self.known
    }

    pub(super) fn into_known(self) -> Vec<Process> {
        self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_host_process_device_and_site() {
        let prefix = Prefix::parse("n1:77:78 [3] transport/net_ib.cc:1295 ");
        assert_eq!(prefix.writer, Some(("n1", 77)));
        assert_eq!(
            (prefix.device, prefix.site),
            (Some(3), Some("transport/net_ib.cc:1295"))
        );
        let prefix = Prefix::parse("0: [x] nccl.log:12:n1:77:78 [3] ");
        assert_eq!((prefix.writer, prefix.site), (Some(("n1", 77)), None));
        assert_eq!(Prefix::parse("").writer, None);
        assert_eq!(Prefix::parse("[5] ").device, Some(5));
    }

    #[test]
    fn a_site_with_spaces_and_colons_is_not_a_writer() {
        let prefix = Prefix::parse("ip-1:5:6 [2] int create(plugin_t**, const char *):208 ");
        assert_eq!(prefix.writer, Some(("ip-1", 5)));
        assert_eq!(
            prefix.site,
            Some("int create(plugin_t**, const char *):208")
        );
    }

    #[test]
    fn threads_of_one_process_are_one_process_and_devices_are_told_apart() {
        let mut processes = Processes::default();
        let a = processes.identify("n1:7:8 [0] ", None, false);
        assert_eq!(processes.identify("n1:7:9 [0] ", None, false), a);
        assert_ne!(processes.identify("n1:7:9 [1] ", None, false), a);
        assert_ne!(processes.identify("n2:7:8 [0] ", None, false), a);
        assert_eq!(processes.into_known().len(), 3);
    }

    #[test]
    fn text_glued_to_a_host_does_not_make_a_new_process() {
        let mut processes = Processes::default();
        let a = processes.identify("node-1:7:8 [0] ", None, false);
        assert_eq!(processes.identify("Channelnode-1:7:8 [0] ", None, true), a);
        assert_eq!(processes.into_known().len(), 1);
    }
}
