//! Whether the kernel has the few symbols whose presence proves a feature.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};

use crowfly_route::snapshot::Observation;

use super::super::recorder::Recorder;
use crate::root::{Refusal, refusal};

const TABLE: &str = "/proc/kallsyms";
/// Five times what a distribution's kernel with all its modules has.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// No symbol's name is longer than 511 bytes (`KSYM_NAME_LEN` of the kernel).
const MAX_LINE_BYTES: u64 = 4 << 10;

/// Symbols looked for, each with what its presence proves.
const SYMBOLS: &[&str] = &[
    // Peer-to-peer DMA of the PCI core.
    "p2pdma_pgmap_ops",
    "pci_p2pdma_map_segment",
    // The RDMA stack's hook for memory that belongs to another driver (peermem).
    "ib_register_peer_memory_client",
    // The NVMe driver's hook for nvidia-fs, by version of its interface.
    "nvme_v1_register_nvfs_dma_ops",
    "nvme_v2_register_nvfs_dma_ops",
    "nvme_rdma_v1_register_nvfs_dma_ops",
    "rpcrdma_register_nvfs_dma_ops",
    "lustre_v1_register_nvfs_dma_ops",
    "lnet_register_nvfs_dma_ops",
];

/// Records `kallsyms:NAME` as the symbol's type and module, or absent.
///
/// The kernel takes tens of milliseconds to write its table, so nothing is looked at where no driver
/// that would use one of the symbols is there and the configuration answers for the first two.
pub(super) fn look(r: &mut Recorder<'_>) {
    let drivers = ["nvidia", "nvidia_fs", "amdgpu", "ib_core"];
    let wanted = drivers
        .iter()
        .any(|module| !r.seen_list(&format!("/sys/module/{module}")).is_empty());
    if !wanted && r.seen("kconfig:source").is_some() {
        return;
    }
    match r.root().regular(TABLE).and_then(scan) {
        Ok(found) => {
            for name in SYMBOLS {
                let line = found.iter().find(|line| name_of(line) == Some(name));
                let seen = line.map_or(Observation::Absent, |line| {
                    let fields = line.split_whitespace().skip(1);
                    let shown: Vec<&str> = fields.filter(|field| field != name).collect();
                    Observation::text(shown.join(" "))
                });
                r.record(format!("kallsyms:{name}"), seen);
            }
        }
        Err(why) => {
            let seen = refusal(why);
            for name in SYMBOLS {
                r.record(format!("kallsyms:{name}"), seen.clone());
            }
        }
    }
}

/// The table's lines that name one of the symbols.
fn scan(table: impl Read) -> Result<Vec<String>, Refusal> {
    let wanted: BTreeSet<&str> = SYMBOLS.iter().copied().collect();
    let mut table = BufReader::with_capacity(256 << 10, table.take(MAX_TABLE_BYTES));
    let (mut line, mut found) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = Read::take(&mut table, MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .map_err(|error| Refusal::Odd(error.to_string()))?;
        if read == 0 {
            return Ok(found);
        }
        if read as u64 == MAX_LINE_BYTES {
            let what = format!("a line of {MAX_LINE_BYTES} bytes or more");
            return Err(Refusal::Odd(what));
        }
        if let Ok(text) = std::str::from_utf8(&line)
            && name_of(text).is_some_and(|name| wanted.contains(name))
            && found.len() < SYMBOLS.len() * 2
        {
            found.push(text.trim().to_owned());
        }
    }
}

/// The name in `ffffffffc0a01230 t nvme_v1_register_nvfs_dma_ops [nvme]`.
fn name_of(line: &str) -> Option<&str> {
    line.split_whitespace().nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_table_of_symbols_is_refused_early() {
        let Err(Refusal::Odd(why)) = scan(std::io::repeat(0)) else {
            panic!("it was read")
        };
        assert_eq!(why, "a line of 4096 bytes or more");
    }

    #[test]
    fn symbols_are_matched_by_whole_name() {
        let table = "ffffffff81000000 T _text\n\
                     ffffffffc0a01230 t nvme_v1_register_nvfs_dma_ops\t[nvme]\n\
                     ffffffffc0a01240 r __ksymtab_p2pdma_pgmap_ops\n\
                     short\n";
        let found = scan(table.as_bytes()).expect("in memory");
        assert_eq!(
            found,
            ["ffffffffc0a01230 t nvme_v1_register_nvfs_dma_ops\t[nvme]"]
        );
    }
}
