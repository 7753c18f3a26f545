//! The reader of `gdscheck -p`.

use super::{DriverState, GdsCheck, GdsGpu, Support, Verification};
use crate::evidence::cite::Located;
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most entries of each list kept.
const MAX_ENTRIES: usize = 1_024;

/// Sentences of the tool that name a failure.
const ERRORS: [&str; 8] = [
    "Platform does not have any supported GPU",
    "platform is not supported by cufile",
    "cufile initialization failed",
    "cuFile initialization failed",
    "cuFileDriverOpen error",
    "Platform verification error",
    "GPUDirect Storage not supported",
    "cuFile driver open failed",
];

const HEADINGS: [&str; 6] = [
    "ENVIRONMENT:",
    "DRIVER CONFIGURATION:",
    "CUFILE CONFIGURATION:",
    "cuFile CONFIGURATION:",
    "GPU INFO:",
    "PLATFORM INFO:",
];

#[derive(Default)]
pub(crate) struct GdsCheckReader {
    found: GdsCheck,
    begun: bool,
}

impl Reader for GdsCheckReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let text = line.trimmed();
        if text.starts_with("GDS release version") && self.found.release.is_some() {
            return Verdict::Restart;
        }
        let taken = self.telling(text, line) || (self.begun && self.detail(text, line));
        self.begun |= taken;
        if taken {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        Some((Format::GdsCheck, Artefact::GdsCheck(Box::new(self.found))))
    }
}

impl GdsCheckReader {
    /// Lines that only this tool writes.
    fn telling(&mut self, text: &str, line: &Line<'_>) -> bool {
        let after = |prefix: &str| {
            text.strip_prefix(prefix)
                .map(|t| t.trim_start_matches([' ', ':']))
        };
        let value = |t: &str| Some(line.cite().of(t.trim().to_owned()));
        if text.starts_with("GDS release version") {
            self.found.release = text
                .rsplit_once(':')
                .and_then(|(_, version)| value(version));
        } else if let Some(minimum) = after("nvidia_fs minimum version") {
            self.found.nvidia_fs_minimum = value(minimum);
        } else if let Some(rest) = after("nvidia_fs version") {
            let (module, library) = rest.split_once("libcufile version:").unwrap_or((rest, ""));
            self.found.nvidia_fs = Some(module.trim())
                // Where the module is not loaded, some versions print why they cannot tell.
                .filter(|m| m.starts_with(|c: char| c.is_ascii_digit()))
                .and_then(value);
            self.found.libcufile = Some(library.trim())
                .filter(|l| !l.is_empty())
                .and_then(value);
        } else if let Some(library) = after("libcufile version") {
            self.found.libcufile = value(library);
        } else if let Some(outcome) =
            after("Platform verification ").filter(|o| !o.starts_with("error"))
        {
            let verification = match outcome.split_whitespace().next() {
                Some("succeeded") => Verification::Succeeded,
                Some("failed") => Verification::Failed,
                _ => return false,
            };
            self.found.verification = Some(line.cite().of(verification));
        } else if text.starts_with("No GPU found in the system") {
            self.found.no_gpu = Some(line.cite());
        } else if ERRORS.iter().any(|error| text.starts_with(error)) {
            push(&mut self.found.errors, line.cite().of(text.to_owned()));
        } else if let Some(driver) = driver(text).filter(|d| self.begun || is_own_driver(&d.name)) {
            push(&mut self.found.drivers, line.cite().of(driver));
        } else if let Some(gpu) = gpu(text) {
            push(&mut self.found.gpus, line.cite().of(gpu));
        } else {
            return text.starts_with("properties.") && self.detail(text, line)
                || is_own_heading(text);
        }
        true
    }

    /// Lines that mean something only inside the report.
    fn detail(&mut self, text: &str, line: &Line<'_>) -> bool {
        if HEADINGS.contains(&text) || text.bytes().all(|b| b == b'=') {
            return true;
        }
        let Some((key, value)) = text.split_once(':') else {
            return false;
        };
        let (key, value) = (key.trim(), value.trim());
        let cited = || line.cite().of(value.to_owned());
        if let Some(name) = key.strip_prefix("--") {
            push(
                &mut self.found.rdma,
                line.cite().of((name.to_owned(), value.to_owned())),
            );
        } else if is_config_key(key) {
            push(
                &mut self.found.config,
                line.cite().of((key.to_owned(), value.to_owned())),
            );
        } else {
            match key {
                "IOMMU" => self.found.iommu = Some(cited()),
                "Nvidia Driver Info Status" => self.found.driver_status = Some(cited()),
                "Cuda Driver Version Installed" => self.found.cuda_driver = Some(cited()),
                "Platform" => self.found.platform = Some(cited()),
                _ => return false,
            }
        }
        true
    }
}

fn push<T>(list: &mut Vec<Located<T>>, entry: Located<T>) {
    if list.len() < MAX_ENTRIES {
        list.push(entry);
    }
}

/// Headings that no other tool writes.
fn is_own_heading(text: &str) -> bool {
    text.eq_ignore_ascii_case("cuFile CONFIGURATION:")
}

/// `properties.use_compat_mode`, `fs.lustre.posix_gds_min_kb`, `CUFILE_ENV_PATH_JSON`.
fn is_config_key(key: &str) -> bool {
    let dotted = key.contains('.')
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_'));
    dotted || (key.starts_with("CUFILE_") && !key.contains(' '))
}

/// Drivers that no other report lists as supported or not.
fn is_own_driver(name: &str) -> bool {
    [
        "NVMe",
        "NVMe P2PDMA",
        "NVMeOF",
        "SCSI",
        "NVMesh",
        "Userspace RDMA",
        "WekaFS",
    ]
    .iter()
    .any(|own| own.eq_ignore_ascii_case(name))
}

/// `NVMe               : Supported`.
fn driver(text: &str) -> Option<DriverState> {
    let (name, state) = text.split_once(':')?;
    let name = name.trim();
    let support = match state.trim() {
        "Supported" => Support::Supported,
        "Unsupported" => Support::Unsupported,
        "compat" => Support::Compat,
        _ => return None,
    };
    let plausible = !name.is_empty() && name.len() < 40 && !name.starts_with('-');
    plausible.then(|| DriverState {
        name: name.to_owned(),
        support,
    })
}

/// `GPU index 0 NVIDIA L40S bar:1 bar size (MiB):65536 supports GDS, IOMMU State: Disabled`, and the
/// older `GPU 0 Quadro K1200 does not have supported architecture, …` and `GPU Index: 0 bar:1 bar size
/// (MB):32768`, which says nothing of support.
fn gpu(text: &str) -> Option<GdsGpu> {
    let rest = text.strip_prefix("GPU ")?;
    let nameless = rest.strip_prefix("Index: ");
    let rest = nameless
        .or_else(|| rest.strip_prefix("index "))
        .unwrap_or(rest);
    let (index, rest) = rest.split_at(rest.find(' ')?);
    let index = index.parse().ok()?;
    let refusal = rest
        .find(" does not ")
        .or_else(|| rest.find(" not support"));
    let name_end = rest
        .find(" bar:")
        .or(refusal)
        .or_else(|| rest.find(" supports GDS"))?;
    Some(GdsGpu {
        index,
        name: rest[..name_end].trim().to_owned(),
        bar1_mib: rest.split_once("bar size (M").and_then(|(_, t)| {
            let (_, t) = t.split_once("):")?;
            let digits = t.bytes().take_while(u8::is_ascii_digit).count();
            t[..digits].parse().ok()
        }),
        supported: refusal.is_none() && (nameless.is_some() || rest.contains("supports GDS")),
        iommu: rest
            .split_once("IOMMU State:")
            .map(|(_, t)| t.trim().to_owned()),
    })
}
