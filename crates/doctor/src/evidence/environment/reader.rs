//! The reader of environment variables.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{Environment, Variable, VariableOrigin};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most variables kept.
const MAX_VARIABLES: usize = 4_096;
/// Longest value kept, in bytes.
const MAX_VALUE_BYTES: usize = 4_096;

/// Fronts of the names that bear on data paths.
const RELEVANT: [&str; 26] = [
    "NCCL_",
    "RCCL_",
    "OFI_NCCL_",
    "FI_",
    "UCX_",
    "NIXL_",
    "MC_",
    "CUFILE_",
    "CUDA_",
    "NVIDIA_VISIBLE",
    "NVSHMEM_",
    "HSA_",
    "HIP_",
    "ROCR_",
    "GPU_MAX_HW_QUEUES",
    "MELLANOX_",
    "IBV_",
    "MLX5_",
    "RDMAV_",
    "OMPI_MCA_",
    "OMPI_COMM_",
    "SLURM_",
    "PMIX_RANK",
    "TORCH_NCCL_",
    "KVIKIO_",
    "LIBCUFILE",
];

/// Names that are relevant as they are.
const RELEVANT_NAMES: [&str; 8] = [
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "LOCAL_WORLD_SIZE",
    "NPROC_PER_NODE",
];

/// What may stand around a value.
const QUOTES: [char; 2] = ['"', '\''];

/// Programs that start ranks.
const LAUNCHERS: [&str; 6] = [
    "mpirun",
    "mpiexec",
    "prterun",
    "orterun",
    "srun",
    "mpiexec.hydra",
];

#[derive(Default)]
pub(crate) struct EnvironmentReader {
    found: Environment,
    begun: bool,
    /// The name that a container's specification gave, until its value comes.
    named: Option<String>,
}

impl Reader for EnvironmentReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        if let Some((variable, origin)) = assignment(line.text) {
            if !self.begun && !is_relevant(variable.0) {
                return Verdict::Refused;
            }
            self.begun = true;
            self.keep(variable.0, Some(variable.1), origin, line);
            return Verdict::Taken;
        }
        if let Some(verdict) = self.specified(line) {
            return verdict;
        }
        if !may_name_relevant(line.text) {
            return Verdict::Refused;
        }
        let variables = command(line.text);
        if variables.is_empty() {
            return Verdict::Refused;
        }
        for (name, value, origin) in variables {
            self.keep(name, value, origin, line);
        }
        // The command is also the beginning of what it runs.
        Verdict::Shared
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let says_something = !self.found.variables.is_empty();
        says_something.then_some((Format::Environment, Artefact::Environment(self.found)))
    }
}

impl EnvironmentReader {
    /// `- name: NCCL_DEBUG` and `value: INFO` of a container's specification.
    fn specified(&mut self, line: &Line<'_>) -> Option<Verdict> {
        let text = line.trimmed().trim_start_matches("- ").trim_start();
        if let Some(name) = text.strip_prefix("name: ") {
            let name = name.trim().trim_matches(QUOTES);
            (is_name(name) && (self.begun || is_relevant(name))).then_some(())?;
            self.begun = true;
            self.named = Some(name.to_owned());
            return Some(Verdict::Taken);
        }
        let value = text.strip_prefix("value: ")?;
        let name = self.named.take()?;
        let value = value.trim().trim_matches(QUOTES);
        self.keep(&name, Some(value), VariableOrigin::Launch, line);
        Some(Verdict::Taken)
    }

    fn keep(&mut self, name: &str, value: Option<&str>, origin: VariableOrigin, line: &Line<'_>) {
        if !is_relevant(name) || self.found.variables.len() >= MAX_VARIABLES {
            self.found.others += 1;
            return;
        }
        let end = |value: &str| value.floor_char_boundary(MAX_VALUE_BYTES);
        self.found.variables.push(line.cite().of(Variable {
            name: name.to_owned(),
            value: value.map(|value| value[..end(value)].to_owned()),
            origin,
        }));
    }
}

fn is_relevant(name: &str) -> bool {
    RELEVANT.iter().any(|front| name.starts_with(front)) || RELEVANT_NAMES.contains(&name)
}

/// The relevant names that have no underscore after a capital letter or a digit.
static WITHOUT_UNDERSCORE: LazyLock<[Finder<'_>; 2]> =
    LazyLock::new(|| [Finder::new("RANK"), Finder::new("LIBCUFILE")]);

/// Whether a line can hold a relevant name at all. Most lines of a training job cannot, which is much
/// quicker to see than to take them apart.
fn may_name_relevant(text: &str) -> bool {
    let bytes = text.as_bytes();
    let upper_before = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        before.is_some_and(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
    };
    memchr::memchr_iter(b'_', bytes).any(upper_before)
        || WITHOUT_UNDERSCORE
            .iter()
            .any(|name| name.find(bytes).is_some())
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// `NAME=value` alone on its line, `export NAME=value`, `declare -x NAME="value"`.
fn assignment(text: &str) -> Option<((&str, &str), VariableOrigin)> {
    let trimmed = text.trim_start();
    let may_begin = |c: char| c.is_ascii_uppercase() || matches!(c, '_' | 'e' | 'd');
    trimmed.starts_with(may_begin).then_some(())?;
    let exported = ["export ", "declare -x ", "ENV "]
        .iter()
        .find_map(|word| trimmed.strip_prefix(word));
    let (rest, origin) = match exported {
        Some(rest) => (rest.trim_start(), VariableOrigin::Export),
        None => (trimmed, VariableOrigin::Dump),
    };
    let (name, value) = rest.split_once('=')?;
    // A kernel command line and a boot loader's settings look the same.
    let is_boot = name == "BOOT_IMAGE" || name.starts_with("GRUB_");
    (is_name(name) && !is_boot).then_some(())?;
    let unquoted = unquote(value);
    // `NAME=value program …` is a command.
    if origin == VariableOrigin::Dump
        && unquoted.is_none()
        && value.contains(' ')
        && is_command(value)
    {
        return None;
    }
    Some(((name, unquoted.unwrap_or(value)), origin))
}

fn unquote(value: &str) -> Option<&str> {
    let value = value.trim().trim_end_matches(';');
    ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
}

/// Whether a value goes on with another assignment or a program.
fn is_command(value: &str) -> bool {
    value.split_whitespace().skip(1).any(|word| {
        word.split_once('=').is_some_and(|(name, _)| is_name(name))
            || word.starts_with("./")
            || word.starts_with('/')
            || LAUNCHERS.contains(&word)
            || word.starts_with("python")
            || word == "torchrun"
            || word.ends_with("_perf")
    })
}

/// Variables that a command line sets for what it starts.
fn command(text: &str) -> Vec<(&str, Option<&str>, VariableOrigin)> {
    let mut found = Vec::new();
    let mut words = text.split_whitespace().peekable();
    let mut launched = false;
    let mut before_program = true;
    while let Some(word) = words.next() {
        let program = word.rsplit('/').next().unwrap_or(word);
        if LAUNCHERS.contains(&program) {
            launched = true;
            before_program = false;
            continue;
        }
        match word {
            "-x" if launched => {
                let Some(variable) = words.next() else { break };
                let (name, value) = split(variable);
                if is_name(name) {
                    found.push((name, value, VariableOrigin::Launch));
                }
            }
            "-genv" | "-env" if launched => {
                if let (Some(name), Some(value)) = (words.next(), words.next())
                    && is_name(name)
                {
                    found.push((name, Some(value), VariableOrigin::Launch));
                }
            }
            _ if launched && word.starts_with("--export=") => {
                let list = word["--export=".len()..].trim_matches(['"', '\'']);
                found.extend(
                    list.split(',')
                        .map(split)
                        .filter(|(name, value)| is_name(name) && value.is_some())
                        .map(|(name, value)| (name, value, VariableOrigin::Launch)),
                );
            }
            _ if before_program => match word.split_once('=') {
                Some((name, value)) if is_name(name) => {
                    found.push((name, Some(value), VariableOrigin::Command))
                }
                // A prompt, `env`, `sudo` and the like can stand before them.
                _ if found.is_empty() => {}
                _ => before_program = false,
            },
            _ => {}
        }
        if found.len() >= MAX_VARIABLES {
            break;
        }
    }
    found.retain(|(name, ..)| is_relevant(name));
    found
}

fn split(variable: &str) -> (&str, Option<&str>) {
    match variable.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (variable, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_relevant_name_passes_the_quick_look_and_ordinary_words_do_not() {
        for name in RELEVANT.iter().chain(&RELEVANT_NAMES) {
            assert!(may_name_relevant(&format!("mpirun -x {name}")), "{name}");
        }
        for line in ["step 7 loss=2.1 lr=1e-4", "a_b c", "", "_"] {
            assert!(!may_name_relevant(line), "{line}");
        }
    }
}
