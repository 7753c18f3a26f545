//! The reader of UCX debug output.

use super::{UcxEndpoint, UcxLog, UcxProblem, UcxProtocol, UcxProtocolRow};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::sighting::Tally;
use crate::evidence::wording::wording;
use crate::evidence::{Artefact, Format};

/// Most distinct endpoints and problems kept.
const MAX_FACTS: usize = 4_096;
/// Most protocol tables, rows of one, and lanes of one endpoint kept.
const MAX_TABLES: usize = 1_024;
const MAX_ROWS: usize = 64;
const MAX_LANES: usize = 64;

pub(crate) struct UcxReader {
    found: UcxLog,
    endpoints: Tally<UcxEndpoint>,
    problems: Tally<UcxProblem, String>,
    begun: bool,
    /// Rows that follow belong to a protocol table that is kept.
    in_table: bool,
}

impl Default for UcxReader {
    fn default() -> Self {
        Self {
            found: UcxLog::default(),
            endpoints: Tally::with_limit(MAX_FACTS),
            problems: Tally::with_limit(MAX_FACTS),
            begun: false,
            in_table: false,
        }
    }
}

impl Reader for UcxReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let Some((site, level, text)) = message(line.text) else {
            return Verdict::Refused;
        };
        let taken = self.table(text, line)
            || match level {
                Some(
                    "INFO" | "DEBUG" | "TRACE" | "DATA" | "REQ" | "POLL" | "FUNC" | "DIAG"
                    | "PRINT",
                ) => {
                    self.info(text, line);
                    true
                }
                Some(level @ ("WARN" | "ERROR" | "FATAL")) => {
                    self.problem(level, site, text, line);
                    true
                }
                _ => false,
            };
        self.begun |= taken;
        if taken {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let mut found = self.found;
        found.beyond_limits += self.endpoints.beyond() + self.problems.beyond();
        found.endpoints = self.endpoints.into_seen();
        found.problems = self.problems.into_seen();
        self.begun
            .then_some((Format::UcxLog, Artefact::UcxLog(found)))
    }
}

impl UcxReader {
    fn info(&mut self, text: &str, line: &Line<'_>) {
        if let Some(rest) = text.strip_prefix("Version ") {
            let version = rest.split_whitespace().next().unwrap_or_default();
            self.found
                .version
                .get_or_insert_with(|| line.cite().of(version.to_owned()));
        } else if let Some(endpoint) = endpoint(text) {
            self.endpoints.see(endpoint, None, || line.cite());
        }
    }

    fn problem(&mut self, level: &str, site: &str, text: &str, line: &Line<'_>) {
        let key = wording(text);
        self.problems.see_as(key.as_str(), None, || {
            line.cite().of(UcxProblem {
                level: level.to_owned(),
                site: site.to_owned(),
                text: text.to_owned(),
            })
        });
    }

    /// Lines of a protocol table: its rules, its title, its rows.
    fn table(&mut self, text: &str, line: &Line<'_>) -> bool {
        if text.starts_with("+--") {
            return self.begun;
        }
        let Some(inside) = text.strip_prefix('|').and_then(|t| t.strip_suffix('|')) else {
            self.in_table = false;
            return false;
        };
        let cells: Vec<&str> = inside.split('|').map(str::trim).take(8).collect();
        match cells.as_slice() {
            [config, operation] if config.contains("cfg") => {
                self.in_table = self.found.protocols.len() < MAX_TABLES;
                if self.in_table {
                    self.found.protocols.push(UcxProtocol {
                        title: line.cite().of(format!("{config}: {operation}")),
                        rows: Vec::new(),
                    });
                } else {
                    self.found.beyond_limits += 1;
                }
                true
            }
            [sizes, protocol, over] if self.begun => {
                let Some(table) = self.found.protocols.last_mut().filter(|_| self.in_table) else {
                    return false;
                };
                if table.rows.len() < MAX_ROWS {
                    table.rows.push(line.cite().of(UcxProtocolRow {
                        sizes: (*sizes).to_owned(),
                        protocol: (*protocol).to_owned(),
                        over: (*over).to_owned(),
                    }));
                } else {
                    self.found.beyond_limits += 1;
                }
                true
            }
            _ => false,
        }
    }
}

/// Place, level and words of a line: `[1745994234.385141] [host:711260:0] ucp_context.c:1774 UCX  WARN words`.
/// Newer releases print tables without place and level, and `ucx_info` without anything before.
fn message(text: &str) -> Option<(&str, Option<&str>, &str)> {
    if let Some((head, rest)) = text.split_once(" UCX  ") {
        let site = head.rsplit(' ').next().unwrap_or_default();
        let (level, words) = rest.split_once(' ').unwrap_or((rest, ""));
        return Some((site, Some(level), words.trim()));
    }
    let mut rest = text.trim_start();
    // Time and process, each in brackets.
    for _ in 0..2 {
        if let Some((_, after)) = rest.strip_prefix('[').and_then(|t| t.split_once(']')) {
            rest = after.trim_start();
        }
    }
    rest.starts_with(['|', '+'])
        .then_some(("", None, rest.trim_end()))
}

/// `ucp_context_2 inter-node cfg#3 rma(rc_mlx5/mlx5_0:1)  am(…)` and the older `ep_cfg[1]: tag(…); rma(…);`.
fn endpoint(text: &str) -> Option<UcxEndpoint> {
    let (config, rest) = match text.split_once(" cfg#") {
        Some((head, rest)) => {
            let (number, rest) = rest.split_once(' ')?;
            // The name of the context counts up and says nothing.
            let scope = head.split_once(' ').map_or(head, |(_, scope)| scope);
            (format!("{scope} cfg#{number}"), rest)
        }
        None => {
            let (config, rest) = text.strip_prefix("ep_cfg[")?.split_once("]:")?;
            (format!("ep_cfg[{config}]"), rest)
        }
    };
    let mut lanes = Vec::new();
    let mut rest = rest;
    while let Some((name, inside)) = rest.split_once('(') {
        let (over, after) = inside.split_once(')')?;
        if lanes.len() < MAX_LANES {
            lanes.push((
                name.trim_matches([' ', ';']).to_owned(),
                over.trim().to_owned(),
            ));
        }
        rest = after;
    }
    (!lanes.is_empty()).then_some(UcxEndpoint { config, lanes })
}
