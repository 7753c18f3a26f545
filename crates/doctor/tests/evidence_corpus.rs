//! Real pastes, where a collection of them lies beside the workspace: each is recognised as what it
//! is, and says something. The collection is not part of this repository.

use std::path::{Path, PathBuf};

use crowfly_doctor::evidence::{Artefact, Document, Format, read};
use crowfly_waive::{record, waived};

/// Folders of the collection and the formats that their files may have.
const KINDS: &[(&str, &[Format])] = &[
    ("cmdline", &[Format::KernelCmdline]),
    ("cufile-log", &[Format::CufileLog]),
    ("dmesg", &[Format::KernelLog]),
    ("gdscheck", &[Format::GdsCheck]),
    // One file there holds `lsblk`.
    ("ibv", &[Format::IbvDevinfo, Format::Ibstat, Format::Lsblk]),
    ("lspci", &[Format::Lspci, Format::LspciTree]),
    ("lstopo", &[Format::Lstopo]),
    ("nccl-log", &[Format::NcclLog]),
    ("nccl-tests", &[Format::NcclTests]),
    ("nccl-topo-xml", &[Format::NcclTopology]),
    ("nvidia-fs-stats", &[Format::NvidiaFsStats]),
    ("topo-m", &[Format::TopoMatrix]),
];

fn collection() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.parent()?;
    let folder = workspace.parent()?.join("shared/corpus");
    folder.is_dir().then_some(folder)
}

/// Whether an artefact says anything that a rule could use.
fn says_something(artefact: &Artefact) -> bool {
    match artefact {
        Artefact::NcclLog(log) => log.lines > 0 && !log.processes.is_empty(),
        Artefact::TopoMatrix(m) => !m.gpus().is_empty() && m.rows.iter().any(|r| r.cells.len() > 1),
        Artefact::NcclTopology(t) => !t.functions.is_empty() && !t.cpus.is_empty(),
        Artefact::NcclTests(t) => !t.rows.is_empty() && t.average_bus.is_some(),
        Artefact::GdsCheck(g) => !g.drivers.is_empty(),
        Artefact::CufileLog(l) => !l.messages.is_empty(),
        Artefact::NvidiaFsStats(s) => !s.counters.is_empty(),
        Artefact::RdmaDevices(d) => d.devices.iter().all(|d| !d.ports.is_empty()),
        Artefact::Lspci(l) => !l.functions.is_empty() || !l.orphans.acs.is_empty(),
        Artefact::LspciTree(t) => !t.functions.is_empty(),
        Artefact::BlockDevices(b) => !b.devices.is_empty(),
        Artefact::KernelLog(l) => !l.messages.is_empty(),
        Artefact::KernelCmdline(c) => !c.arguments.is_empty(),
        Artefact::Kept(k) => k.complete,
        _ => false,
    }
}

fn judge(document: &Document, formats: &[Format]) -> Result<(), String> {
    let fits = |s: &&crowfly_doctor::evidence::Section| formats.contains(&s.format);
    let found: Vec<_> = document.sections.iter().map(|s| s.format.code()).collect();
    match document.sections.iter().find(fits) {
        None => Err(format!("recognised as {found:?}")),
        Some(section) if !says_something(&section.artefact) => Err("says nothing".into()),
        Some(_) => Ok(()),
    }
}

#[test]
fn given_real_pastes_then_each_is_recognised_and_says_something() {
    let Some(folder) = collection() else {
        waived!("no collection of real pastes beside the workspace");
    };
    let (mut right, mut wrong) = (0, Vec::new());
    for (kind, formats) in KINDS {
        let Ok(files) = std::fs::read_dir(folder.join(kind)) else {
            wrong.push(format!("{kind}: no such folder"));
            continue;
        };
        for file in files {
            let path = file.unwrap().path();
            let name = format!("{kind}/{}", path.file_name().unwrap().to_string_lossy());
            match judge(
                &read(name.as_str(), &std::fs::read(&path).unwrap()),
                formats,
            ) {
                Ok(()) => right += 1,
                Err(why) => wrong.push(format!("{name}: {why}")),
            }
        }
    }
    println!("{right} right, {} wrong", wrong.len());
    assert!(right > 0);
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn given_real_logs_then_the_counts_of_their_channels_are_right() {
    let Some(folder) = collection() else {
        waived!("no collection of real pastes beside the workspace");
    };
    // By grep: channels with and without /GDRDMA, and cut ones.
    for (file, gdr, plain, cut) in [
        ("02.txt", 0, 16, 0),
        ("03.txt", 0, 4, 0),
        ("05.txt", 4, 0, 0),
        ("06.txt", 96, 0, 0),
        ("07.txt", 0, 16, 0),
        ("09.txt", 64, 0, 0),
        ("10.txt", 112, 0, 0),
        ("11.txt", 24, 0, 0),
        ("12.txt", 100, 0, 0),
        ("13.txt", 0, 0, 1),
        ("15.txt", 0, 8, 0),
    ] {
        let Ok(bytes) = std::fs::read(folder.join("nccl-log").join(file)) else {
            record(&format!("{file} is not in the collection"));
            continue;
        };
        let document = read(file, &bytes);
        let log = document.sections.iter().find_map(|s| match &s.artefact {
            Artefact::NcclLog(log) => Some(log),
            _ => None,
        });
        let log = log.unwrap();
        let counted = (
            log.totals.net_channels(true),
            log.totals.net_channels(false),
            log.cut.as_ref().map_or(0, |c| c.count),
        );
        assert_eq!(counted, (gdr, plain, cut), "{file}");
    }
}
