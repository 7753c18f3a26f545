//! Ranks of communicators, from the lines that begin, describe and end them.

use std::collections::HashMap;

use super::{Ending, Member, limits};
use crate::evidence::line::Line;
use crate::evidence::sighting::ProcessId;

#[derive(Debug, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    index: HashMap<(ProcessId, String), usize>,
    beyond: u64,
}

/// What one line says of a rank.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields<'a> {
    communicator: &'a str,
    rank: Option<u32>,
    ranks: Option<u32>,
    nodes: Option<u32>,
    local_ranks: Option<u32>,
    mnnvl: Option<bool>,
    device: Option<u32>,
    bus_id: Option<&'a str>,
    group: Option<&'a str>,
}

impl Members {
    /// Takes a line with `comm 0x… rank n nranks m …`; says whether it was one.
    pub(super) fn take(&mut self, text: &str, by: ProcessId, line: &Line<'_>, whole: bool) -> bool {
        let Some(fields) = fields(text, whole) else {
            return false;
        };
        let (Some(rank), Some(ranks)) = (fields.rank, fields.ranks) else {
            return false;
        };
        let ending = ending(text);
        let key = (by, fields.communicator.to_owned());
        // An address can be used again once its communicator is gone.
        let known = self.index.get(&key).copied().filter(|at| {
            self.list
                .get(*at)
                .is_some_and(|m| m.ended.is_none() || ending.is_some())
        });
        let at = match known {
            Some(at) => at,
            None if self.list.len() >= limits::MEMBERS => {
                self.beyond += 1;
                return true;
            }
            None => {
                self.index.insert(key, self.list.len());
                self.list.push(Member {
                    process: by,
                    communicator: fields.communicator.to_owned(),
                    group: None,
                    rank,
                    ranks,
                    nodes: None,
                    local_ranks: None,
                    mnnvl: None,
                    device: None,
                    bus_id: None,
                    started: None,
                    completed: None,
                    ended: None,
                });
                self.list.len() - 1
            }
        };
        let Some(member) = self.list.get_mut(at) else {
            return true;
        };
        member.nodes = fields.nodes.or(member.nodes);
        member.local_ranks = fields.local_ranks.or(member.local_ranks);
        member.mnnvl = fields.mnnvl.or(member.mnnvl);
        member.device = fields.device.or(member.device);
        member.bus_id = fields.bus_id.map(str::to_owned).or(member.bus_id.take());
        member.group = fields.group.map(str::to_owned).or(member.group.take());
        if let Some(ending) = ending {
            member.ended.get_or_insert_with(|| (ending, line.cite()));
        } else if text.contains("Init COMPLETE") {
            member.completed.get_or_insert_with(|| line.cite());
        } else if text.contains("Init START") {
            member.started.get_or_insert_with(|| line.cite());
        }
        true
    }

    /// The rank of each process in the largest communicator that it joined.
    pub(super) fn ranks(&self) -> HashMap<ProcessId, u32> {
        let mut largest: HashMap<ProcessId, (u32, u32)> = HashMap::new();
        for member in &self.list {
            let entry = largest
                .entry(member.process)
                .or_insert((member.ranks, member.rank));
            if member.ranks > entry.0 {
                *entry = (member.ranks, member.rank);
            }
        }
        largest
            .into_iter()
            .map(|(id, (_, rank))| (id, rank))
            .collect()
    }

    pub(super) fn beyond(&self) -> u64 {
        self.beyond
    }

    pub(super) fn into_list(self) -> Vec<Member> {
        self.list
    }
}

fn ending(text: &str) -> Option<Ending> {
    [
        ("Destroy COMPLETE", Ending::Destroyed),
        ("Abort COMPLETE", Ending::Aborted),
        ("Abort START", Ending::Aborted),
        ("Revoke COMPLETE", Ending::Revoked),
        ("Revoke START", Ending::Revoked),
    ]
    .into_iter()
    .find_map(|(words, ending)| text.contains(words).then_some(ending))
}

fn fields(text: &str, whole: bool) -> Option<Fields<'_>> {
    let at = text.find("comm 0x")?;
    let mut words = text[at..].split_whitespace().skip(1).peekable();
    let mut fields = Fields {
        communicator: words.next()?,
        ..Fields::default()
    };
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        // The last word of a cut line may be the front of another.
        if words.peek().is_none() && !whole {
            break;
        }
        match key {
            "rank" => fields.rank = value.parse().ok(),
            "nranks" | "nRanks" => fields.ranks = value.parse().ok(),
            "nNodes" => fields.nodes = value.parse().ok(),
            "localRanks" => fields.local_ranks = value.parse().ok(),
            "MNNVL" => fields.mnnvl = value.parse::<u32>().ok().map(|n| n != 0),
            "cudaDev" => fields.device = value.parse().ok(),
            "busId" => {
                fields.bus_id = Some(value).filter(|v| v.bytes().all(|b| b.is_ascii_hexdigit()))
            }
            "commId" => fields.group = Some(value).filter(|v| v.starts_with("0x")),
            "localRank" | "nvmlDev" | "parent" | "splitCount" | "color" | "key" => {}
            _ => break,
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::cite::LineNumber;

    fn take(members: &mut Members, number: u64, text: &str) -> bool {
        let source = "log".into();
        let line = Line::new(&source, LineNumber(number), text, None, true);
        members.take(text, ProcessId(0), &line, true)
    }

    #[test]
    fn the_lines_of_one_rank_become_one_member() {
        let mut members = Members::default();
        for (number, text) in [
            (
                1,
                "ncclCommInitRank comm 0x5 rank 3 nranks 16 cudaDev 1 nvmlDev 1 busId 8d000 commId 0x7d - Init START",
            ),
            (
                2,
                "comm 0x5 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0",
            ),
            (
                3,
                "ncclCommInitRank comm 0x5 rank 3 nranks 16 cudaDev 1 nvmlDev 1 busId 8d000 commId 0x7d - Init COMPLETE",
            ),
            (
                4,
                "comm 0x5 rank 3 nranks 16 cudaDev 1 busId 8d000 - Destroy COMPLETE",
            ),
        ] {
            assert!(take(&mut members, number, text));
        }
        let list = members.into_list();
        assert_eq!(list.len(), 1);
        let member = &list[0];
        assert_eq!((member.rank, member.ranks, member.nodes), (3, 16, Some(2)));
        assert_eq!(
            (member.bus_id.as_deref(), member.group.as_deref()),
            (Some("8d000"), Some("0x7d"))
        );
        assert_eq!(member.started.as_ref().map(|c| c.line.0), Some(1));
        assert_eq!(member.completed.as_ref().map(|c| c.line.0), Some(3));
        assert_eq!(
            member.ended.as_ref().map(|(e, c)| (*e, c.line.0)),
            Some((Ending::Destroyed, 4))
        );
    }

    #[test]
    fn an_address_used_again_is_another_member() {
        let mut members = Members::default();
        take(
            &mut members,
            1,
            "comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1 - Destroy COMPLETE",
        );
        take(
            &mut members,
            2,
            "comm 0x5 rank 1 nranks 4 cudaDev 0 busId 1 - Init START",
        );
        assert_eq!(members.into_list().len(), 2);
    }

    #[test]
    fn a_cut_line_gives_what_is_certain_and_no_more() {
        assert_eq!(
            fields(
                "comm 0x5 rank 8 nranks 16 cudaDev 0 busId 8dSetting up",
                true
            )
            .unwrap()
            .bus_id,
            None
        );
        assert_eq!(
            fields("comm 0x5 rank 8 nranks 16 cudaDev 0 busId 8d", false)
                .unwrap()
                .bus_id,
            None
        );
        assert_eq!(
            fields("comm 0x5 rankSetting up 1", true).unwrap().rank,
            None
        );
    }

    #[test]
    fn the_rank_of_a_process_is_that_in_its_largest_communicator() {
        let mut members = Members::default();
        take(
            &mut members,
            1,
            "comm 0x1 rank 1 nranks 2 cudaDev 0 busId 1 - Init START",
        );
        take(
            &mut members,
            2,
            "comm 0x2 rank 9 nranks 16 cudaDev 0 busId 1 - Init START",
        );
        assert_eq!(members.ranks().get(&ProcessId(0)), Some(&9));
    }
}
