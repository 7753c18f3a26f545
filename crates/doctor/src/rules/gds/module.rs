//! The kernel modules: G1 to G4, G7.

use crowfly_route::obstacle::Fix;

use crate::case::{Case, Machine};
use crate::evidence::gdscheck::{GdsCheck, Support};
use crate::facts::host::{has_nvidia_gpu, kernel_at_least};
use crate::facts::settings::is_on;
use crate::facts::storage::{
    NVME_HOOKS, fell_back, kernel_p2pdma, nvidia_fs_loaded, p2pdma_configured,
};
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const NOT_LOADED: Rule = Rule {
    id: "G1",
    name: "nvidia-fs-not-loaded",
    family: Family::Gds,
    summary: "nvidia-fs is not loaded: cuFile copies through host memory",
    page: Page {
        condition: "The module nvidia-fs is not loaded, and the kernel's P2PDMA does not stand in for it.",
        detection: "/proc/driver/nvidia-fs is absent; gdscheck prints `nvidia_fs minimum version` instead of a version, or `compat` for its drivers; cuFile's log says `nvidia-fs driver is not loaded`.",
        consequence: "cuFile works by POSIX reads and writes through host memory (compat mode), without saying so.",
        fix: "Install nvidia-fs and load it: modprobe nvidia-fs.",
        source: "NVIDIA GPUDirect Storage installation guide",
        false_alarms: "With use_pci_p2pdma and what it needs (G4), the module is not needed.",
    },
    check: not_loaded,
};

fn any_supported(check: &GdsCheck) -> bool {
    check.drivers.iter().any(|d| {
        d.value.support == Support::Supported
            && !d.value.name.to_ascii_lowercase().contains("userspace")
    })
}

fn load_module(finding: Finding) -> Finding {
    finding.fixed_by(
        Fix::run(
            "Load the module; install nvidia-fs (nvidia-gds) where it is missing.",
            "sudo modprobe nvidia-fs",
        )
        .checked_by("cat /proc/driver/nvidia-fs/version; /usr/local/cuda/gds/tools/gdscheck -p"),
    )
}

fn not_loaded(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in case.gds_checks() {
        let compat = check
            .drivers
            .iter()
            .find(|d| d.value.support == Support::Compat);
        let unloaded = check.nvidia_fs.is_none()
            && !any_supported(check)
            && (check.nvidia_fs_minimum.is_some() || compat.is_some());
        if !unloaded {
            continue;
        }
        let quotes = check
            .nvidia_fs_minimum
            .as_ref()
            .map(|v| &v.cite)
            .into_iter()
            .chain(compat.map(|d| &d.cite))
            .chain(check.no_gpu.as_ref());
        let title = match &check.no_gpu {
            Some(_) => {
                "nvidia-fs is not loaded and no GPU is seen: cuFile works by POSIX calls alone"
            }
            None => "nvidia-fs is not loaded: cuFile copies through host memory",
        };
        findings.push(load_module(
            rule.fault(title)
                .quoting_all(quotes)
                .implying(PairKind::GpuDrive, Verdict::Staged),
        ));
    }
    for log in case.cufile_logs() {
        let said = log.messages.iter().find(|message| {
            let text = message.what.text.to_ascii_lowercase();
            text.contains("nvidia-fs") && text.contains("not loaded")
        });
        let Some(said) = said else { continue };
        // With compat mode allowed the library goes on; otherwise it refuses to start.
        let refuses = log
            .messages
            .iter()
            .find(|m| m.what.text.contains("Set allow_compat_mode to true"));
        let (finding, verdict) = match refuses {
            Some(_) => (
                rule.broken(
                    "nvidia-fs is not loaded and compat mode is off: cuFile does not start",
                ),
                Verdict::Broken,
            ),
            None => (
                rule.fault("nvidia-fs is not loaded: cuFile copies through host memory"),
                Verdict::Staged,
            ),
        };
        findings.push(load_module(
            finding
                .quoting(&said.first)
                .quoting_all(refuses.map(|m| &m.first))
                .implying(PairKind::GpuFileSystem, verdict),
        ));
    }
    for machine in &case.machines {
        let lost = nvidia_fs_loaded(machine) == Some(false)
            && has_nvidia_gpu(machine)
            && !p2pdma_configured(machine);
        if lost {
            findings.push(load_module(
                rule.warning(format!(
                    "nvidia-fs is not loaded on {}: cuFile would copy through host memory",
                    machine.source
                ))
                .quoting_all(machine.quote("/proc/driver/nvidia-fs"))
                .quoting_all(machine.quote("/sys/module/nvidia_fs"))
                .doubting("It matters only where GPUDirect Storage is to be used."),
            ));
        }
    }
    findings
}

pub(super) const NVME_NOT_PATCHED: Rule = Rule {
    id: "G2",
    name: "nvme-without-gds",
    family: Family::Gds,
    summary: "the NVMe driver cannot work with nvidia-fs",
    page: Page {
        condition: "nvidia-fs is loaded, and the NVMe driver has no hook for it.",
        detection: "`NVMe : Unsupported` in gdscheck while no other storage driver is supported; no nvme_v1_register_nvfs_dma_ops among the kernel's symbols; `not registered with nvidia-fs` in cuFile's log.",
        consequence: "Files on NVMe drives go through host memory.",
        fix: "An NVMe driver with GDS: the RDMA stack installed --with-nvmf --enable-gds, mlnx-nvme-dkms, or the P2PDMA mode of recent kernels; then rebuild the initramfs, which holds the old driver.",
        source: "NVIDIA/network-operator issue 1829; GPUDirect Storage installation guide",
        false_alarms: "Where files lie on NFS, Weka, Lustre or the like, NVMe does not matter.",
    },
    check: nvme_not_patched,
};

fn nvme_not_patched(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding
            .fixed_by(
                Fix::run("Install an NVMe driver with GDS and rebuild the initramfs, then boot again.", "sudo apt install mlnx-nvme-dkms && sudo update-initramfs -u")
                    .checked_by("sudo grep nvfs_dma_ops /proc/kallsyms; /usr/local/cuda/gds/tools/gdscheck -p | grep NVMe"),
            )
            .fixed_by(Fix::by_hand("Or, on kernel 6.2 and later with the open GPU driver, use the kernel's own P2PDMA (G4)."))
    };
    let mut findings = Vec::new();
    for check in case.gds_checks() {
        let nvme = check
            .driver("NVMe")
            .filter(|d| d.value.support == Support::Unsupported);
        if let (Some(nvme), Some(_), false) = (nvme, &check.nvidia_fs, any_supported(check)) {
            findings.push(fixed(
                rule.fault("nvidia-fs is loaded, but the NVMe driver does not work with it")
                    .quoting(&nvme.cite)
                    .implying(PairKind::GpuDrive, Verdict::Staged)
                    .doubting("With compat mode switched off, reads fail instead of going through host memory."),
            ));
        }
    }
    for log in case.cufile_logs() {
        let said = log
            .messages
            .iter()
            .find(|m| m.what.text.contains("not registered with nvidia-fs"));
        let Some(said) = said else { continue };
        let finding = match fell_back(log) {
            Some(posix) => rule
                .fault("The storage driver is not registered with nvidia-fs: cuFile copies through host memory")
                .quoting(&said.first)
                .quoting(&posix.first)
                .implying(PairKind::GpuFileSystem, Verdict::Staged),
            None => rule
                .broken("The storage driver is not registered with nvidia-fs, and the log shows no fallback: cuFile refuses the file")
                .quoting(&said.first)
                .implying(PairKind::GpuFileSystem, Verdict::Broken)
                .doubting("A clipped log may lack the line that says that compat mode took over."),
        };
        findings.push(fixed(finding));
    }
    for machine in &case.machines {
        let unhooked = NVME_HOOKS.iter().all(|hook| machine.lacks(hook));
        if nvidia_fs_loaded(machine) == Some(true) && unhooked && !p2pdma_configured(machine) {
            findings.push(fixed(
                rule.fault(format!(
                    "The NVMe driver of {} has no hook for nvidia-fs",
                    machine.source
                ))
                .quoting_all(NVME_HOOKS.iter().filter_map(|hook| machine.quote(hook))),
            ));
        }
    }
    findings
}

pub(super) const NVME_INTERFACE: Rule = Rule {
    id: "G3",
    name: "nvme-interface-mismatch",
    family: Family::Gds,
    summary: "the NVMe driver and nvidia-fs speak different versions of their interface",
    page: Page {
        condition: "The NVMe driver offers version 2 of the hook and nvidia-fs does not know it.",
        detection: "nvme_v2_register_nvfs_dma_ops without nvme_v1 among the kernel's symbols, and no NVMe among nvidia-fs's modules (as with DOCA-OFED 26.01).",
        consequence: "cuFile goes through host memory without a word.",
        fix: "DOCA-OFED 26.04 or later, or an nvidia-fs that knows version 2.",
        source: "NVIDIA/gds-nvidia-fs issue 87",
        false_alarms: "When nvidia-fs lists NVMe among its modules, both agree.",
    },
    check: nvme_interface,
};

fn nvme_interface(rule: &Rule, case: &Case) -> Vec<Finding> {
    const MODULES: &str = "/proc/driver/nvidia-fs/modules";
    case.machines
        .iter()
        .filter(|machine| {
            machine.has(NVME_HOOKS[1])
                && machine.lacks(NVME_HOOKS[0])
                && nvidia_fs_loaded(machine) == Some(true)
                && machine
                    .text(MODULES)
                    .is_some_and(|list| !list.contains("nvme"))
        })
        .map(|machine| {
            rule.fault(
                "The NVMe driver offers version 2 of its hook, and nvidia-fs did not take it",
            )
            .quoting_all(machine.quote(NVME_HOOKS[1]))
            .quoting_all(machine.quote(MODULES))
            .fixed_by(
                Fix::by_hand("Use DOCA-OFED 26.04 or later, or an nvidia-fs that knows version 2.")
                    .checked_by("cat /proc/driver/nvidia-fs/modules"),
            )
        })
        .collect()
}

pub(super) const P2PDMA_MODE: Rule = Rule {
    id: "G4",
    name: "p2pdma-mode-incomplete",
    family: Family::Gds,
    summary: "GPUDirect Storage by the kernel's P2PDMA is asked for and something it needs is missing",
    page: Page {
        condition: "cuFile is configured with use_pci_p2pdma, and one of its conditions does not hold.",
        detection: "use_pci_p2pdma true in cufile.json or gdscheck, with `NVMe P2PDMA : Unsupported`, a kernel before 6.2, CONFIG_PCI_P2PDMA unset, nvme_core multipath=Y, or files on an md RAID.",
        consequence: "cuFile falls back to host memory.",
        fix: "Kernel 6.2 or later, the open GPU driver 565 or later, a data-centre GPU of Ampere or later, nvme_core.multipath=N, no RAID 0 and no NVMe over fabrics; on x86 NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\".",
        source: "NVIDIA GPUDirect Storage guide, chapter on P2PDMA, and its known issues",
        false_alarms: "`NVMe P2PDMA : Unsupported` without use_pci_p2pdma is the normal state beside nvidia-fs.",
    },
    check: p2pdma_mode,
};

fn p2pdma_mode(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    let requirements = |finding: Finding| {
        finding.fixed_by(
            Fix::by_hand("Kernel 6.2 or later, open GPU driver 565 or later, nvme_core.multipath=N, no RAID, and on x86 NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\".")
                .checked_by("/usr/local/cuda/gds/tools/gdscheck -p | grep 'NVMe P2PDMA'"),
        )
    };
    for check in case.gds_checks() {
        let asked = check
            .config("properties.use_pci_p2pdma")
            .filter(|c| is_on(c.value));
        let state = check
            .driver("NVMe P2PDMA")
            .filter(|d| d.value.support != Support::Supported);
        if let (Some(asked), Some(state)) = (asked, state) {
            findings.push(requirements(
                rule.fault("P2PDMA is asked for, and gdscheck says that it is not supported here")
                    .quoting(&asked.cite)
                    .quoting(&state.cite),
            ));
        }
    }
    for machine in case.machines.iter().filter(|m| p2pdma_configured(m)) {
        let missing = unmet(machine);
        if missing.is_empty() {
            continue;
        }
        let words: Vec<&str> = missing.iter().map(|(what, _)| *what).collect();
        findings.push(requirements(
            rule.fault(format!(
                "P2PDMA is asked for on {}, but {}",
                machine.source,
                words.join(", and ")
            ))
            .quoting_all(missing.into_iter().filter_map(|(_, quote)| quote)),
        ));
    }
    findings
}

/// Conditions of the P2PDMA mode that a machine does not meet.
fn unmet(machine: &Machine) -> Vec<(&'static str, Option<Quote>)> {
    const MULTIPATH: &str = "/sys/module/nvme_core/parameters/multipath";
    let mut unmet = Vec::new();
    if kernel_at_least(machine, (6, 2)) == Some(false) {
        unmet.push((
            "the kernel is older than 6.2",
            machine.quote("uname:release"),
        ));
    }
    if kernel_p2pdma(machine) == Some(false) {
        let quote = machine.quote("kconfig:CONFIG_PCI_P2PDMA");
        unmet.push(("the kernel was built without it", quote));
    }
    if machine.text(MULTIPATH) == Some("Y") {
        unmet.push(("NVMe multipath is on", machine.quote(MULTIPATH)));
    }
    if let Some((name, block)) = machine
        .topology
        .blocks
        .iter()
        .find(|(_, block)| block.kind.starts_with("md raid"))
    {
        let shows = format!("{name} is {}", block.kind);
        let quote = Quote::device(machine.source.clone(), name.clone(), &shows);
        unmet.push(("files on an md RAID cannot use it", Some(quote)));
    }
    unmet
}

pub(super) const BAD_VERSION: Rule = Rule {
    id: "G7",
    name: "nvidia-fs-2.25.6",
    family: Family::Gds,
    summary: "nvidia-fs 2.25.6 makes cuFile fail",
    page: Page {
        condition: "The loaded nvidia-fs is version 2.25.6.",
        detection: "The version in /proc/driver/nvidia-fs. gdscheck prints `2.25` without the last number, which leaves it open.",
        consequence: "cuFile calls fail.",
        fix: "nvidia-fs 2.25.7 or later.",
        source: "NVIDIA GPUDirect Storage release notes",
        false_alarms: "2.25.7 prints `2.25` in gdscheck as well: see /proc/driver/nvidia-fs/version.",
    },
    check: bad_version,
};

fn bad_version(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding.fixed_by(
            Fix::by_hand("Install nvidia-fs 2.25.7 or later.")
                .checked_by("cat /proc/driver/nvidia-fs/version"),
        )
    };
    let mut findings = Vec::new();
    let settled = case.nvidia_fs_stats().any(|s| s.driver.is_some())
        || case
            .machines
            .iter()
            .any(|m| m.text("/proc/driver/nvidia-fs/version").is_some());
    for stats in case.nvidia_fs_stats() {
        if let Some(driver) = &stats.driver
            && driver.value == "2.25.6"
        {
            findings.push(fixed(
                rule.fault("nvidia-fs 2.25.6 is loaded, with which cuFile fails")
                    .quoting(&driver.cite),
            ));
        }
    }
    for machine in &case.machines {
        let key = [
            "/proc/driver/nvidia-fs/version",
            "/sys/module/nvidia_fs/version",
        ]
        .into_iter()
        .find(|key| {
            machine
                .text(key)
                .is_some_and(|v| v.split_whitespace().any(|w| w == "2.25.6"))
        });
        if let Some(key) = key {
            findings.push(fixed(
                rule.fault("nvidia-fs 2.25.6 is loaded, with which cuFile fails")
                    .quoting_all(machine.quote(key)),
            ));
        }
    }
    for check in case.gds_checks() {
        let Some(version) = &check.nvidia_fs else {
            continue;
        };
        if version.value == "2.25.6" {
            findings.push(fixed(
                rule.fault("nvidia-fs 2.25.6 is loaded, with which cuFile fails")
                    .quoting(&version.cite),
            ));
        } else if version.value == "2.25" && !settled {
            findings.push(
                fixed(
                    rule.warning("nvidia-fs 2.25 is loaded; if it is 2.25.6, cuFile fails")
                        .quoting(&version.cite),
                )
                .doubting("gdscheck does not print the last number."),
            );
        }
    }
    findings
}
