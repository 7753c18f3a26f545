//! The style that matters, as a test over the whole repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Longer files hold more than one idea.
const MAX_LINES: usize = 700;
/// Not part of the repository, or written by a tool.
const SKIPPED: [&str; 6] = [
    "target",
    ".git",
    ".cache",
    "results",
    "Cargo.lock",
    "snapshots",
];
/// Crates that are functions of values: no unsafe code, enforced by the compiler.
const PURE: [&str; 4] = ["route", "doctor", "plan", "waive"];
/// Crates that may hold unsafe blocks.
const UNSAFE: [&str; 4] = ["machine", "mover", "nccl-net", "python"];

struct TextFile {
    /// Relative to the repository's root, with `/`.
    path: String,
    text: String,
}

impl TextFile {
    fn has_extension(&self, wanted: &[&str]) -> bool {
        let extension = Path::new(&self.path).extension();
        wanted.iter().any(|w| extension.is_some_and(|e| e == *w))
    }

    fn is_program(&self) -> bool {
        self.has_extension(&["rs", "py", "sh", "c"]) || self.text.starts_with("#!")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn repository() -> Vec<TextFile> {
    let root = root();
    let mut files = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the repository") {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            if SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(&path)
            {
                let path = path.strip_prefix(&root).expect("below the root");
                files.push(TextFile {
                    path: path.to_string_lossy().into_owned(),
                    text,
                });
            }
        }
    }
    assert!(files.len() > 30, "this is not the repository");
    files
}

/// The lines of the files that a rule objects to, as `file:line: text`.
fn lines_where(files: &[&TextFile], objects: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let lines = file.text.lines().enumerate();
        let objected = lines.filter(|(_, line)| objects(line));
        found.extend(objected.map(|(n, line)| format!("{}:{}: {}", file.path, n + 1, line.trim())));
    }
    found
}

fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn source_files_are_short_enough_to_hold_in_mind() {
    let files = repository();
    let long: Vec<String> = files
        .iter()
        .filter(|f| f.path.starts_with("crates/") && f.path.contains("/src/"))
        .map(|f| (f.text.lines().count(), &f.path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    assert_none("split by idea", &long);
}

#[test]
fn modules_are_named_by_what_they_are_about() {
    let files = repository();
    let vague: Vec<String> = files
        .iter()
        .map(|f| f.path.clone())
        .filter(|p| p.ends_with("/mod.rs") || p.contains("/utils") || p.contains("/util."))
        .collect();
    assert_none("no mod.rs, no utils", &vague);
}

#[test]
fn nothing_is_unfinished_or_skipped() {
    let files = repository();
    let programs: Vec<&TextFile> = files.iter().filter(|f| f.is_program()).collect();
    // Spelled apart so that this file does not object to itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("dbg", "!("),
        concat!("#[ig", "nore"),
    ];
    let found = lines_where(&programs, |line| marks.iter().any(|m| line.contains(m)));
    assert_none("finish it, or waive the test with a reason", &found);
}

#[test]
fn a_waived_test_is_recorded_and_not_only_printed() {
    let files = repository();
    let rust: Vec<&TextFile> = files.iter().filter(|f| f.has_extension(&["rs"])).collect();
    let printed = [
        concat!("println!(\"", "waived"),
        concat!("println!(\"", "skipp"),
    ];
    let found = lines_where(&rust, |line| printed.iter().any(|p| line.contains(p)));
    assert_none("use crowfly_waive::waived!", &found);
}

#[test]
fn the_repository_names_no_machine_it_was_written_on_and_no_registry() {
    let files = repository();
    let all: Vec<&TextFile> = files.iter().collect();
    let places = [
        concat!("/wo", "rk/"),
        concat!("fa", "rm-"),
        concat!("py", "pi.org"),
        concat!("deb.deb", "ian.org"),
        concat!("registry.np", "mjs"),
        concat!("static.cra", "tes.io"),
        concat!("index.cra", "tes.io"),
    ];
    let found = lines_where(&all, |line| places.iter().any(|p| line.contains(p)));
    assert_none("take it out", &found);
}

#[test]
fn unsafe_code_lives_only_where_the_design_allows_it() {
    let files = repository();
    let in_crate = |file: &TextFile, names: &[&str]| {
        let mut parts = file.path.split('/');
        parts.next() == Some("crates") && parts.next().is_some_and(|c| names.contains(&c))
    };
    let elsewhere: Vec<&TextFile> = files
        .iter()
        .filter(|f| f.path.starts_with("crates/") && f.path.contains("/src/"))
        .filter(|f| !in_crate(f, &UNSAFE))
        .collect();
    let opens = [
        concat!("unsafe", " {"),
        concat!("unsafe", " fn"),
        concat!("unsafe", " impl"),
    ];
    let found = lines_where(&elsewhere, |line| opens.iter().any(|o| line.contains(o)));
    assert_none("only in machine, mover, nccl-net and python", &found);

    let unguarded: Vec<String> = files
        .iter()
        .filter(|f| f.path.ends_with("/src/lib.rs") && in_crate(f, &PURE))
        .filter(|f| !f.text.contains("#![forbid(unsafe_code)]"))
        .map(|f| f.path.clone())
        .collect();
    assert_none("needs #![forbid(unsafe_code)]", &unguarded);
}

#[test]
fn threads_are_started_by_what_tells_when_there_is_none() {
    let files = repository();
    let programs: Vec<TextFile> = files
        .into_iter()
        .filter(|f| f.has_extension(&["rs"]) && f.path.contains("/src/"))
        .filter(|f| !f.path.ends_with("tests.rs") && !f.path.contains("/tests/"))
        .map(|f| TextFile {
            // Tests come last in a file, and may fail as they like.
            text: f
                .text
                .split("#[cfg(test)]\nmod")
                .next()
                .unwrap_or_default()
                .to_owned(),
            path: f.path,
        })
        .collect();
    let programs: Vec<&TextFile> = programs.iter().collect();
    // A thread cannot always be had, and these panic then.
    let starts = [
        concat!("thread::", "spawn("),
        concat!("scope.", "spawn("),
        concat!("enable_steady", "_tick("),
        concat!("spawn_", "blocking("),
        concat!("new_multi", "_thread("),
    ];
    let found = lines_where(&programs, |line| starts.iter().any(|s| line.contains(s)));
    assert_none("use std::thread::Builder", &found);
}

#[test]
fn errors_are_typed() {
    let files = repository();
    let manifests: Vec<&TextFile> = files
        .iter()
        .filter(|f| f.path.ends_with("Cargo.toml"))
        .collect();
    let found = lines_where(&manifests, |line| {
        ["anyhow", "eyre"].iter().any(|e| line.starts_with(e))
    });
    assert_none("use thiserror", &found);
}

#[test]
fn every_dependency_is_explained_and_used() {
    let files = repository();
    let find = |path: &str| {
        let found = files.iter().find(|f| f.path == path);
        &found.unwrap_or_else(|| panic!("no {path}")).text
    };
    let manifest = find("Cargo.toml");
    let explained = find("ARCHITECTURE.md");
    let section = manifest.split("[workspace.dependencies]").nth(1);
    let section = section.and_then(|s| s.split("\n[").next());
    let names = section.expect("the dependencies of the workspace").lines();
    let names = names.filter_map(|line| line.split_once(" = ").map(|(name, _)| name));
    let mut faults = Vec::new();
    for name in names.filter(|name| !name.starts_with("crowfly-")) {
        let cell = |row: &str| {
            let first = row.split('|').nth(1).unwrap_or_default();
            first.split(',').any(|listed| listed.trim() == name)
        };
        if !explained.lines().any(cell) {
            faults.push(format!(
                "{name} is missing from the table in ARCHITECTURE.md"
            ));
        }
        let used = |f: &TextFile| {
            let wanted = format!("{name}.workspace = true");
            let long = format!("{name} = {{ workspace = true");
            let mut lines = f.text.lines();
            f.path.starts_with("crates/")
                && f.path.ends_with("Cargo.toml")
                && lines.any(|l| l == wanted || l.starts_with(&long))
        };
        if !files.iter().any(used) {
            faults.push(format!("{name} is used by no crate"));
        }
    }
    assert_none("explain it or take it out", &faults);
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let root = root();
    let mut broken = Vec::new();
    for file in repository().iter().filter(|f| f.has_extension(&["md"])) {
        let here = root.join(&file.path);
        let here = here.parent().expect("a file has a directory");
        for link in file.text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !here.join(target).exists() {
                broken.push(format!("{}: {target}", file.path));
            }
        }
    }
    assert_none("no such file", &broken);
}
