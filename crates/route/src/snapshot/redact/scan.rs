//! Identifiers within a text.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::known::Known;
use super::places::{self, Place};
use super::stand_in::{self, StandIns};

/// Where people's folders lie.
const HOMES: &[&str] = &["/home/", "/Users/", "/run/media/", "/media/"];
/// What an identifier follows, up to the next delimiter.
const TAGS: &[&str] = &[
    "UUID=",
    "PARTUUID=",
    "LABEL=",
    "PARTLABEL=",
    "/by-uuid/",
    "/by-partuuid/",
    "/by-label/",
    "/by-partlabel/",
    "/by-id/",
    "iqn.",
    "eui.",
    "naa.",
    "nqn.",
    "wwn-",
    "nn-0x",
    "pn-0x",
];
/// Networks of Lustre after the `@` of an address, which is otherwise that of `user@host`.
const LUSTRE_NETWORKS: &[&str] = &["o2ib", "tcp", "kfi", "gni", "ptlf", "lo"];
/// From how many hexadecimal digits on a word is an identifier: container and machine ids have 32
/// or 64, addresses and masks at most 16.
const LONG_HEX: usize = 24;
/// Words of AMD's compute topology after which a number identifies a GPU or a group of them.
const NUMBERED: &[&str] = &["unique_id ", "hive_id "];
/// How far a text is looked ahead for the end of an identifier; none is longer.
const MAX_IDENTIFIER: usize = 1024;
/// The longest address: 20 octets with marks between them.
const MAX_ADDRESS: usize = 59;
/// The longest name of a variable or option that may be a secret's, and of a user.
const MAX_NAME: usize = 64;
/// `8-4-4-4-12`.
const UUID: &[usize] = &[8, 4, 4, 4, 12];

/// Replaces identifiers in texts of one kind.
pub(super) struct Scanner<'r> {
    pub stand_ins: &'r StandIns,
    known: &'r Known,
    addresses: bool,
    words: bool,
}

/// How many bytes an identifier has, and what stands in for it.
type Found = Option<(usize, String)>;

impl<'r> Scanner<'r> {
    pub fn new(stand_ins: &'r StandIns, known: &'r Known, place: Place) -> Self {
        let (addresses, words) = match place {
            Place::Scanned { addresses, words } => (addresses, words),
            Place::Whole(_) | Place::Mounts => (true, true),
        };
        Self {
            stand_ins,
            known,
            addresses,
            words,
        }
    }

    /// The text with stand-ins.
    pub fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while let Some((before, rest)) = text.split_at_checked(at) {
            let Some(next) = rest.chars().next() else {
                break;
            };
            let ahead = rest.floor_char_boundary(MAX_IDENTIFIER);
            match self.recognise(before, rest.get(..ahead).unwrap_or(rest)) {
                Some((length, replaced)) if length > 0 => {
                    out.push_str(&replaced);
                    at += length;
                }
                _ => {
                    out.push(next);
                    at += next.len_utf8();
                }
            }
        }
        out
    }

    /// One or more servers, as addresses, names or URLs.
    pub fn servers(&self, text: &str) -> String {
        if text.contains("://") || text.starts_with('/') {
            return self.text(text);
        }
        let pieces = text.split_inclusive([',', ';', ' ']).map(|piece| {
            let bare = piece.trim_end_matches([',', ';', ' ']);
            let mark = piece.get(bare.len()..).unwrap_or_default();
            format!("{}{mark}", self.server(bare))
        });
        pieces.collect()
    }

    /// `host`, `host:port`, `[address]:port`, `address@o2ib`, `user@host`, `address:address`.
    fn server(&self, text: &str) -> String {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return self.stand_ins.ipv6(address).to_string();
        }
        if let Some((address, after)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            return format!("[{}]{after}", self.server(address));
        }
        // A port, or the next server of a Lustre file system.
        if let Some((first, rest)) = text.split_once(':') {
            return format!("{}:{}", self.server(first), self.server(rest));
        }
        match text.split_once('@') {
            Some((address, network)) if is_lustre_network(network) => {
                format!("{}@{network}", self.server(address))
            }
            Some((user, host)) => {
                format!("{}@{}", self.stand_ins.user(user), self.server(host))
            }
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.to_owned(),
            None => self.stand_ins.host(text),
        }
    }

    fn recognise(&self, before: &str, rest: &str) -> Found {
        let first = rest.bytes().next()?;
        let fresh = !before.ends_with(|c: char| c.is_alphanumeric());
        if first.is_ascii_hexdigit()
            && let Some(found) = self.uuid(rest)
        {
            return Some(found);
        }
        if matches!(first, b'/' | b':')
            && let Some(found) = self.home(rest).or_else(|| self.url(rest))
        {
            return Some(found);
        }
        // Before single words: in `user@host` the part after the `@` is a host in any case.
        if fresh && let Some(found) = self.user_at_host(rest) {
            return Some(found);
        }
        if self.words
            && let Some(found) = self.known.word(rest, fresh)
        {
            return Some(found);
        }
        if let Some(found) = self.tag(before, rest, fresh) {
            return Some(found);
        }
        if !fresh {
            return None;
        }
        self.known
            .name(rest)
            .or_else(|| self.numbered(rest))
            .or_else(|| self.secret(rest))
            .or_else(|| self.address(before, rest))
            .or_else(|| self.long_hex(rest))
    }

    fn uuid(&self, rest: &str) -> Found {
        let mut length = 0;
        for (group, digits) in UUID.iter().enumerate() {
            if group > 0 {
                // The kernel's control groups write `_`.
                let mark = rest.as_bytes().get(length)?;
                matches!(mark, b'-' | b'_').then_some(())?;
                length += 1;
            }
            let part = rest.as_bytes().get(length..length + digits)?;
            part.iter().all(u8::is_ascii_hexdigit).then_some(())?;
            length += digits;
        }
        let (uuid, after) = rest.split_at_checked(length)?;
        (!after.starts_with(|c: char| c.is_ascii_hexdigit())).then_some(())?;
        // The marks are not part of it: the same one is written with either.
        let dashes = self.stand_ins.digits(&uuid.replace('_', "-"));
        let marks = if uuid.contains('_') {
            dashes.replace('-', "_")
        } else {
            dashes
        };
        Some((length, marks))
    }

    fn home(&self, rest: &str) -> Found {
        let home = HOMES.iter().find(|home| rest.starts_with(**home))?;
        let name = user_in(rest.get(home.len()..)?)?;
        Some((
            home.len() + name.len(),
            format!("{home}{}", self.stand_ins.user(name)),
        ))
    }

    /// `://credentials@host:port`
    fn url(&self, rest: &str) -> Found {
        let authority = rest.strip_prefix("://")?;
        let end = authority.find(|c: char| c.is_whitespace() || "/?#\"',;<>()".contains(c));
        let authority = authority.get(..end.unwrap_or(authority.len()))?;
        let (credentials, server) = match authority.rsplit_once('@') {
            Some((_, server)) => ("redacted@", server),
            None => ("", authority),
        };
        let length = "://".len() + authority.len();
        Some((length, format!("://{credentials}{}", self.server(server))))
    }

    fn tag(&self, before: &str, rest: &str, fresh: bool) -> Found {
        let tag = TAGS.iter().find(|tag| rest.starts_with(**tag))?;
        (fresh || tag.starts_with('/')).then_some(())?;
        // `PARTUUID=` is found before its second half is reached.
        (!before.ends_with("PART")).then_some(())?;
        let value = rest.get(tag.len()..)?;
        let end = value.find(|c: char| c.is_whitespace() || "/,;\"')".contains(c));
        let value = value.get(..end.unwrap_or(value.len()))?;
        let replaced = if tag.starts_with(|c: char| c.is_lowercase()) {
            self.stand_ins.tagged(rest.get(..tag.len() + value.len())?)
        } else {
            format!("{tag}{}", self.stand_ins.opaque(value))
        };
        Some((tag.len() + value.len(), replaced))
    }

    fn numbered(&self, rest: &str) -> Found {
        let word = NUMBERED.iter().find(|word| rest.starts_with(**word))?;
        let after = rest.get(word.len()..)?;
        let end = after.find(|c: char| !c.is_ascii_digit());
        let number = after.get(..end.unwrap_or(after.len()))?;
        (!number.is_empty()).then_some(())?;
        let replaced = format!("{word}{}", self.stand_ins.number(number));
        Some((word.len() + number.len(), replaced))
    }

    /// `name=value` and `"name": "value"` where the name is that of a secret.
    fn secret(&self, rest: &str) -> Found {
        self.words.then_some(())?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let ahead = rest.get(..rest.floor_char_boundary(MAX_NAME + 1))?;
        let name = rest.get(..ahead.find(|c| !is_name(c))?)?;
        places::names_secret(name).then_some(())?;
        let after = rest.get(name.len()..)?;
        let equals = after.find(['=', ':'])?;
        let between = |text: &str| text.bytes().all(|byte| b" \"'".contains(&byte));
        between(after.get(..equals)?).then_some(())?;
        let after = after.get(equals + 1..)?;
        let value = after.trim_start_matches([' ', '"', '\'']);
        let end = value.find(|c: char| c.is_whitespace() || "\"',;&}".contains(c));
        let end = end.unwrap_or(value.len());
        (end > 0).then_some(())?;
        let kept = rest.len() - value.len();
        Some((kept + end, format!("{}redacted", rest.get(..kept)?)))
    }

    fn user_at_host(&self, rest: &str) -> Found {
        self.words.then_some(())?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let ahead = rest.get(..rest.floor_char_boundary(MAX_NAME + 1))?;
        let user = rest.get(..ahead.find(|c| !is_word(c))?)?;
        let after = rest.get(user.len()..)?.strip_prefix('@')?;
        (!user.is_empty()).then_some(())?;
        let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
        let host = after.get(..end)?.trim_end_matches('.');
        // systemd names instances of a unit that way.
        let unit = host.ends_with(".service") || host.ends_with(".slice");
        (!host.is_empty() && !unit).then_some(())?;
        let replaced = if is_lustre_network(host) {
            format!("{}@{host}", self.server(user))
        } else {
            format!(
                "{}@{}",
                self.stand_ins.user(user),
                self.stand_ins.host(host)
            )
        };
        Some((user.len() + 1 + host.len(), replaced))
    }

    /// MAC, GUID, IPv6 and IPv4 addresses.
    fn address(&self, before: &str, rest: &str) -> Found {
        let ahead = rest.get(..rest.floor_char_boundary(MAX_ADDRESS + 2))?;
        let within = |marks: &str| {
            let end = ahead.find(|c: char| !c.is_ascii_hexdigit() && !marks.contains(c));
            let run = ahead.get(..end.unwrap_or(ahead.len())).unwrap_or_default();
            let trimmed = run.trim_end_matches(['.', '-']);
            // `fe80::` ends in two, `address:` in one.
            match trimmed.strip_suffix(':') {
                Some(shorter) if !shorter.ends_with(':') => shorter,
                _ => trimmed,
            }
        };
        let ends = |run: &str| {
            let after = rest.get(run.len()..).unwrap_or_default();
            let mut after = after.chars();
            match (after.next(), after.next()) {
                (Some('.'), Some(next)) => !next.is_alphanumeric(),
                (Some(next), _) => !next.is_alphanumeric(),
                (None, _) => true,
            }
        };
        let (run, dashed) = (within(":."), within("-"));
        if !before.ends_with([':', '.'])
            && run.contains(':')
            && ends(run)
            && let Some(replaced) = self.whole_address(run)
        {
            return Some((run.len(), replaced));
        }
        if dashed.len() == "00-00-00-00-00-00".len()
            && ends(dashed)
            && let Some(replaced) = self.stand_ins.hardware_address_text(dashed)
        {
            return Some((dashed.len(), replaced));
        }
        // `address:port`, `address::gateway`
        let plain = run.split(':').next()?;
        (self.addresses && !before.ends_with('.') && ends(plain)).then_some(())?;
        let address: Ipv4Addr = plain.parse().ok()?;
        Some((plain.len(), self.stand_ins.ipv4(address).to_string()))
    }

    fn whole_address(&self, run: &str) -> Option<String> {
        let octets = run.split(':').count();
        if matches!(octets, 6 | 8 | 20)
            && let Some(replaced) = self.stand_ins.hardware_address_text(run)
        {
            return Some(replaced);
        }
        self.stand_ins
            .guid_text(run)
            .or_else(|| self.stand_ins.gid_text(run))
    }

    fn long_hex(&self, rest: &str) -> Found {
        let end = rest.find(|c: char| !c.is_alphanumeric());
        let run = rest.get(..end.unwrap_or(rest.len()))?;
        let hex = run.len() >= LONG_HEX && run.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| (run.len(), self.stand_ins.digits(run)))
    }
}

fn is_lustre_network(text: &str) -> bool {
    let kind = text.trim_end_matches(|c: char| c.is_ascii_digit());
    LUSTRE_NETWORKS.contains(&kind)
}

/// The name at the start of what follows `/home/`.
fn user_in(after: &str) -> Option<&str> {
    let end = after.find(|c: char| c.is_whitespace() || "/,:;\"'\\)".contains(c));
    let name = after.get(..end.unwrap_or(after.len()))?;
    (!name.is_empty()).then_some(name)
}

/// The names of people whose folders a text mentions.
pub(super) fn users(text: &str) -> impl Iterator<Item = &str> {
    HOMES.iter().flat_map(move |home| {
        text.match_indices(home)
            .filter_map(move |(at, _)| user_in(text.get(at + home.len()..)?))
    })
}

/// The host names in a list of servers or URLs: what is neither an address, a port, a person nor the
/// name of a protocol.
pub(super) fn hosts(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ';', ' '])
        .filter_map(|server| {
            let after = server.split_once("://").map_or(server, |(_, after)| after);
            let authority = after.split('/').find(|part| !part.is_empty())?;
            Some(match authority.rsplit_once('@') {
                Some((_, server)) if !is_lustre_network(server) => server,
                _ => authority,
            })
        })
        .flat_map(|authority| authority.split([':', '@', '[', ']']))
        .filter(|part| {
            let named = part.bytes().any(|byte| byte.is_ascii_alphabetic());
            let address = part.parse::<Ipv4Addr>().is_ok();
            named && !address && !is_lustre_network(part) && !stand_in::is_no_host(part)
        })
}
