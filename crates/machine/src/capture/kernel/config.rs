//! The kernel's build configuration: only the options that matter here.

use std::collections::BTreeMap;
use std::io::Read;

use crowfly_route::snapshot::{MAX_VALUE_BYTES, Observation};
use flate2::read::GzDecoder;

use super::super::recorder::Recorder;
use crate::root::{Refusal, refusal};

/// A kernel configuration has about 300 kB; ten times that is none.
const MAX_CONFIG_BYTES: usize = 4 << 20;

/// The options recorded, without `CONFIG_`.
const OPTIONS: &[&str] = &[
    "PCI_P2PDMA",
    "ZONE_DEVICE",
    "DMABUF_MOVE_NOTIFY",
    "DMABUF_HEAPS",
    "UDMABUF",
    "HSA_AMD",
    "HSA_AMD_P2P",
    "INFINIBAND",
    "INFINIBAND_USER_ACCESS",
    "INFINIBAND_USER_MEM",
    "INFINIBAND_ON_DEMAND_PAGING",
    "MLX5_INFINIBAND",
    "RDMA_RXE",
    "RDMA_SIW",
    "BLK_DEV_NVME",
    "NVME_MULTIPATH",
    "NVME_RDMA",
    "NVME_TCP",
    "VFIO_PCI",
    "VFIO_PCI_DMABUF",
    "INTEL_IOMMU",
    "INTEL_IOMMU_DEFAULT_ON",
    "AMD_IOMMU",
    "IOMMU_DEFAULT_PASSTHROUGH",
    "IOMMU_DEFAULT_DMA_LAZY",
    "IOMMU_DEFAULT_DMA_STRICT",
    "PCIEAER",
    "PCI_ATS",
    "IO_URING",
    "NUMA",
    "NUMA_BALANCING",
    "HUGETLBFS",
    "TRANSPARENT_HUGEPAGE",
    "RANDOMIZE_BASE",
    "STRICT_DEVMEM",
];

/// Records each option as `kconfig:CONFIG_NAME`: its value, `n` where the configuration says *is
/// not set*, absent where it does not name the option at all (nothing it depends on is set, or
/// this kernel has no such option). Where no configuration can be read, the options are not looked
/// at; `kconfig:source` says which file they came from, or why there was none.
pub(super) fn look(r: &mut Recorder<'_>) {
    let mut refused = Observation::Absent;
    for path in places(r) {
        match read(r, &path) {
            Ok(text) => {
                let options = parse(&text);
                for name in OPTIONS {
                    let seen = options.get(name).map_or(Observation::Absent, |value| {
                        Observation::text(
                            value.chars().take(MAX_VALUE_BYTES / 4).collect::<String>(),
                        )
                    });
                    r.record(format!("kconfig:CONFIG_{name}"), seen);
                }
                r.record("kconfig:source", Observation::text(path));
                return;
            }
            // A place that exists but cannot be read tells more than the ones that do not exist.
            Err(why) => {
                let seen = refusal(why);
                if seen != Observation::Absent {
                    refused = seen;
                }
            }
        }
    }
    r.record("kconfig:source", refused);
}

/// Where distributions keep the configuration of the running kernel.
fn places(r: &Recorder<'_>) -> Vec<String> {
    let mut places = vec!["/proc/config.gz".to_owned()];
    if let Some(release) = release(r) {
        places.push(format!("/boot/config-{release}"));
        places.push(format!("/lib/modules/{release}/config"));
        places.push(format!("/lib/modules/{release}/build/.config"));
    }
    places
}

/// The running kernel's release, as long as it is one component of a path.
fn release<'s>(r: &'s Recorder<'_>) -> Option<&'s str> {
    let version = || {
        let text = r.seen("/proc/version")?;
        text.strip_prefix("Linux version ")?.split(' ').next()
    };
    r.seen("/proc/sys/kernel/osrelease")
        .or_else(version)
        .filter(|release| !release.is_empty() && !release.contains('/'))
}

fn read(r: &Recorder<'_>, path: &str) -> Result<String, Refusal> {
    let bytes = r.root().whole(path, MAX_CONFIG_BYTES)?;
    if !path.ends_with(".gz") {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    inflate(&bytes).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn inflate(compressed: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    GzDecoder::new(compressed)
        .take(MAX_CONFIG_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Refusal::Odd(format!("not a gzip file: {error}")))?;
    if bytes.len() > MAX_CONFIG_BYTES {
        return Err(Refusal::Odd(format!(
            "more than {MAX_CONFIG_BYTES} bytes when unpacked"
        )));
    }
    Ok(bytes)
}

/// Options by name without `CONFIG_`; the later of two lines wins, as in the kernel's own reader.
fn parse(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(option).collect()
}

/// `CONFIG_NAME=value` or `# CONFIG_NAME is not set`.
fn option(line: &str) -> Option<(&str, &str)> {
    match line.strip_prefix("# CONFIG_") {
        Some(rest) => Some((rest.strip_suffix(" is not set")?, "n")),
        None => line.strip_prefix("CONFIG_")?.split_once('='),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("into memory");
        encoder.finish().expect("into memory")
    }

    #[test]
    fn set_unset_and_unnamed_options_are_told_apart() {
        let text = "# Linux kernel\nCONFIG_NUMA=y\nCONFIG_RDMA_RXE=m\n# CONFIG_PCI_P2PDMA is not set\n\
                    CONFIG_CMDLINE=\"a=b c\"\n# CONFIG_HALF is not\nCONFIG_BARE\n";
        let options = parse(text);
        assert_eq!(options.get("NUMA"), Some(&"y"));
        assert_eq!(options.get("RDMA_RXE"), Some(&"m"));
        assert_eq!(options.get("PCI_P2PDMA"), Some(&"n"));
        assert_eq!(options.get("CMDLINE"), Some(&"\"a=b c\""));
        assert_eq!(options.len(), 4);
    }

    #[test]
    fn a_small_file_that_unpacks_to_too_much_is_refused() {
        let bomb = gzip(&vec![b'#'; MAX_CONFIG_BYTES + 1]);
        assert!(bomb.len() < MAX_CONFIG_BYTES / 100);
        let Err(Refusal::Odd(why)) = inflate(&bomb) else {
            panic!("it was unpacked")
        };
        assert_eq!(why, "more than 4194304 bytes when unpacked");
    }

    proptest! {
        #[test]
        fn every_option_written_is_read_back(
            options in prop::collection::btree_map("[A-Z0-9_]{1,20}", "[a-z0-9\"]{1,10}", 0..30)
        ) {
            let text: String = options.iter().map(|(name, value)| match value.as_str() {
                "n" => format!("# CONFIG_{name} is not set\n"),
                value => format!("CONFIG_{name}={value}\n"),
            }).collect();
            let unpacked = inflate(&gzip(text.as_bytes())).expect("our own gzip");
            let unpacked = String::from_utf8(unpacked).expect("our own text");
            let read: BTreeMap<String, String> = parse(&unpacked)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            prop_assert_eq!(read, options);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>(), text in any::<String>()) {
            let _ = inflate(&bytes);
            let _ = parse(&text);
        }
    }
}
