//! Mount tables: which field is a host, which is a path, and which is the kernel's own word.

use super::scan::Scanner;

/// Options whose value is a server or an address.
const SERVERS: &[&str] = &[
    "addr",
    "mountaddr",
    "clientaddr",
    "mon_addr",
    "ip",
    "host",
    "server",
    "servername",
    "local_addr",
];
/// Options whose value names someone, and the file systems of which that is so: a control group's
/// `name` is its hierarchy's.
const USERS: &[(&str, &[&str])] = &[
    ("username", &["cifs", "smb3"]),
    ("user", &["cifs", "smb3", "fuse.sshfs"]),
    ("name", &["ceph"]),
];
/// Options whose value names an organisation's domain.
const DOMAINS: &[&str] = &["domain", "realm"];

/// The fields of one line of either table.
struct Line<'t> {
    /// What stands before the source, type last.
    source: &'t str,
    fs_type: &'t str,
}

/// A mount table with stand-ins.
pub(super) fn redacted(table: &str, scanner: &Scanner<'_>) -> String {
    let lines: Vec<String> = table
        .lines()
        .map(|line| redact_line(line, scanner))
        .collect();
    lines.join("\n")
}

/// What file systems that lie on servers are mounted from.
pub(super) fn servers(table: &str) -> impl Iterator<Item = &str> {
    table
        .lines()
        .filter_map(fields)
        .filter_map(|line| server_of(line.source, line.fs_type))
}

/// Users that mount options name.
pub(super) fn users(table: &str) -> impl Iterator<Item = &str> {
    table.lines().flat_map(|line| {
        let fs_type = fields(line).map_or("", |found| found.fs_type);
        line.split([' ', ','])
            .filter_map(|option| option.split_once('='))
            .filter(move |(name, value)| names_user(name, fs_type) && !value.is_empty())
            .map(|(_, value)| value)
    })
}

fn names_user(option: &str, fs_type: &str) -> bool {
    USERS
        .iter()
        .any(|(name, of)| *name == option && of.contains(&fs_type))
}

/// `id parent device root point options … - type source options` of mountinfo, or
/// `source point type options dump pass` of mounts.
fn fields(line: &str) -> Option<Line<'_>> {
    if let Some((_, after)) = line.split_once(" - ") {
        let mut fields = after.split(' ');
        let (fs_type, source) = (fields.next()?, fields.next()?);
        return Some(Line { source, fs_type });
    }
    let mut fields = line.split(' ');
    let source = fields.next()?;
    let fs_type = fields.nth(1)?;
    Some(Line { source, fs_type })
}

fn redact_line(line: &str, scanner: &Scanner<'_>) -> String {
    match (line.split_once(" - "), fields(line)) {
        (Some((mount, file_system)), Some(found)) => {
            let mount: Vec<String> = (0..)
                .zip(mount.split(' '))
                .map(|(column, field)| match column {
                    // Its root and its place; the device's number and the options are the kernel's.
                    3 | 4 => scanner.text(field),
                    _ => field.to_owned(),
                })
                .collect();
            let file_system: Vec<String> = (0..)
                .zip(file_system.split(' '))
                .map(|(column, field)| match column {
                    0 => field.to_owned(),
                    1 => redact_source(&found, scanner),
                    _ => redact_options(field, found.fs_type, scanner),
                })
                .collect();
            format!("{} - {}", mount.join(" "), file_system.join(" "))
        }
        (None, Some(found)) => {
            let columns: Vec<String> = (0..)
                .zip(line.split(' '))
                .map(|(column, field)| match column {
                    0 => redact_source(&found, scanner),
                    1 => scanner.text(field),
                    3 => redact_options(field, found.fs_type, scanner),
                    _ => field.to_owned(),
                })
                .collect();
            columns.join(" ")
        }
        _ => scanner.text(line),
    }
}

fn redact_source(line: &Line<'_>, scanner: &Scanner<'_>) -> String {
    let source = line.source;
    match server_of(source, line.fs_type) {
        Some(server) => {
            let at = if source.starts_with("//") { 2 } else { 0 };
            let after = source.get(at + server.len()..).unwrap_or_default();
            let before = source.get(..at).unwrap_or_default();
            format!("{before}{}{}", scanner.servers(server), scanner.text(after))
        }
        // A bucket or volume, where the source is not a path and not the program's own name.
        None if line.fs_type.starts_with("fuse.")
            && !source.starts_with('/')
            && line.fs_type != format!("fuse.{source}") =>
        {
            scanner.stand_ins.opaque(source)
        }
        None => scanner.text(source),
    }
}

/// The part of a source that names servers: `server:/path`, `//server/share`.
fn server_of<'t>(source: &'t str, fs_type: &str) -> Option<&'t str> {
    if let Some(rest) = source.strip_prefix("//") {
        return rest.split('/').next().filter(|server| !server.is_empty());
    }
    if source.starts_with('/') || source.contains("://") {
        return None;
    }
    let volume = || {
        source
            .split_once(':')
            .filter(|_| fs_type.contains("gluster"))
    };
    let (server, _) = source.split_once(":/").or_else(volume)?;
    (!server.is_empty()).then_some(server)
}

fn redact_options(options: &str, fs_type: &str, scanner: &Scanner<'_>) -> String {
    let options: Vec<String> = options
        .split(',')
        .map(|option| match option.split_once('=') {
            Some((name, value)) if names_user(name, fs_type) => {
                format!("{name}={}", scanner.stand_ins.user(value))
            }
            Some((name, value)) => format!("{name}={}", redact_value(name, value, scanner)),
            None => option.to_owned(),
        })
        .collect();
    options.join(",")
}

fn redact_value(name: &str, value: &str, scanner: &Scanner<'_>) -> String {
    match name {
        _ if super::places::names_secret(name) => "redacted".into(),
        _ if SERVERS.contains(&name) => scanner.servers(value),
        _ if DOMAINS.contains(&name) => scanner.stand_ins.host(value),
        // A word here is the kernel's (`data=ordered`); a path or an address is not.
        _ if value.contains(['/', '.', ':']) => scanner.text(value),
        _ => value.to_owned(),
    }
}
