//! What may identify something at which key.

/// What an observation's text may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One identifier and nothing else.
    Whole(Identity),
    /// A table of mounts.
    Mounts,
    /// Any text, in which identifiers are looked for.
    Scanned {
        /// Whether four numbers with dots between them are an address and not a version.
        addresses: bool,
        /// Whether host names, user names and serial numbers found elsewhere are replaced.
        words: bool,
    },
}

impl Place {
    /// Text that people write.
    pub const FREE: Self = Self::Scanned {
        addresses: true,
        words: true,
    };
    /// Text of the kernel's and the drivers' own words.
    pub const KERNEL: Self = Self::Scanned {
        addresses: true,
        words: false,
    };
    /// Versions and files named by version.
    const VERSION: Self = Self::Scanned {
        addresses: false,
        words: false,
    };
    /// Files of libraries: their names hold versions, their folders may hold a user's name.
    const FILE: Self = Self::Scanned {
        addresses: false,
        words: true,
    };
}

/// The kind of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    Host,
    /// One or more hosts, addresses or URLs, with ports.
    Servers,
    Secret,
    Serial,
    HardwareAddress,
    Guid,
    Gid,
    /// `eui.…`, `nqn.…`: an identifier after the name of its kind.
    Tagged,
    /// `LVM-…`: the UUID of a device-mapper device.
    DeviceMapper,
    /// A number, decimal or `0x…`.
    Number,
}

/// Words that make a variable, option or parameter a secret.
const SECRETS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "pass",
    "passphrase",
    "credential",
    "credentials",
    "key",
    "apikey",
];
/// Words in the name of a variable whose value is the name or address of a host.
const SERVERS: &[&str] = &[
    "server",
    "host",
    "hostname",
    "hostid",
    "addr",
    "address",
    "endpoint",
    "endpoints",
    "url",
    "uri",
];

/// What the text at a key may hold.
pub(super) fn of(key: &str) -> Place {
    if let Some(name) = key.strip_prefix("env:") {
        return variable(name);
    }
    match key {
        "uname:nodename" | "/proc/sys/kernel/hostname" | "/etc/hostname" => {
            return Place::Whole(Identity::Host);
        }
        "/proc/self/mountinfo" | "/proc/mounts" => return Place::Mounts,
        _ => {}
    }
    let last = key.rsplit(['/', ':']).next().unwrap_or_default();
    if key.starts_with("library:") {
        return if last == "version" {
            Place::VERSION
        } else {
            Place::FILE
        };
    }
    if let Some(identity) = in_sysfs(key, last) {
        return Place::Whole(identity);
    }
    if last.ends_with("version") || last.ends_with("rev") || last == "fw_ver" {
        // The kernel's own version names who built it; any other is a number.
        return if key == "/proc/version" {
            Place::FREE
        } else {
            Place::VERSION
        };
    }
    let chosen_by_people =
        ["backing_file", "address", "ifalias"].contains(&last) || key.ends_with("/dm/name");
    if is_kernels(key) && !chosen_by_people {
        Place::KERNEL
    } else {
        Place::FREE
    }
}

fn in_sysfs(key: &str, last: &str) -> Option<Identity> {
    let below = |directory: &str| key.starts_with(directory);
    Some(match last {
        "address" | "broadcast" if below("/sys/class/net/") => Identity::HardwareAddress,
        "node_guid" | "sys_image_guid" => Identity::Guid,
        "serial" | "serial_number" => Identity::Serial,
        "wwid" | "nguid" | "eui" | "subsysnqn" | "hostnqn" => Identity::Tagged,
        "unique_id" | "xgmi_hive_id" => Identity::Number,
        "uuid" if key.ends_with("/dm/uuid") => Identity::DeviceMapper,
        _ if below("/sys/class/infiniband/") && key.contains("/gids/") => Identity::Gid,
        _ => return None,
    })
}

fn variable(name: &str) -> Place {
    if names_secret(name) {
        return Place::Whole(Identity::Secret);
    }
    let lower = name.to_ascii_lowercase();
    let last = lower.rsplit('_').next().unwrap_or_default();
    if SERVERS.contains(&last) || lower.ends_with("comm_id") {
        Place::Whole(Identity::Servers)
    } else {
        Place::FREE
    }
}

/// Whether a name says that its value is a secret: one of its words does.
pub(super) fn names_secret(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| SECRETS.contains(&word.to_ascii_lowercase().as_str()))
}

/// Whether a key's components and text are the kernel's and the drivers' own words.
pub(super) fn is_kernels(key: &str) -> bool {
    const PEOPLES: &[&str] = &[
        "/proc/cmdline",
        "/proc/version",
        "/proc/1/cgroup",
        "/proc/self/cgroup",
    ];
    let files = ["/sys/", "/proc/", "/dev/"];
    let answers = [
        "kconfig:",
        "kallsyms:",
        "nvml:",
        "limit:",
        "call:",
        "statfs:",
        "uname:",
        "capture:",
    ];
    let starts = |start: &&str| key.starts_with(*start);
    (files.iter().any(starts) && !PEOPLES.contains(&key)) || answers.iter().any(starts)
}

/// Whether a key is a path that is looked at on every machine, and not one that a user chose.
pub(super) fn is_looked_for(key: &str) -> bool {
    const FILES: &[&str] = &[
        "/.dockerenv",
        "/etc/cufile.json",
        "/etc/hostname",
        "/etc/nccl.conf",
    ];
    let of_the_system = [
        "/sys/",
        "/proc/",
        "/dev/",
        "/run/",
        "/boot/",
        "/lib/modules/",
    ];
    // The directory of a file system is named by its UUID, which no rule knows beforehand.
    const NAMED_BY_UUID: &str = "/sys/fs/btrfs/";
    FILES.contains(&key)
        || (of_the_system.iter().any(|start| key.starts_with(start))
            && !key.starts_with(NAMED_BY_UUID))
}

/// Whether a key is a PCI function's configuration space.
pub(super) fn is_config_space(key: &str) -> bool {
    key.starts_with("/sys/bus/pci/devices/") && key.ends_with("/config")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_by_what_they_may_hold() {
        let whole = Place::Whole;
        for (key, place) in [
            ("uname:nodename", whole(Identity::Host)),
            ("env:MASTER_ADDR", whole(Identity::Servers)),
            ("env:NCCL_COMM_ID", whole(Identity::Servers)),
            ("env:NCCL_IB_ADDR_FAMILY", Place::FREE),
            ("env:MC_REDIS_PASSWORD", whole(Identity::Secret)),
            ("env:NCCL_SOCKET_IFNAME", Place::FREE),
            (
                "/sys/class/net/eth0/address",
                whole(Identity::HardwareAddress),
            ),
            ("/sys/class/nvme/nvme0/address", Place::FREE),
            ("/sys/class/nvme/nvme0/firmware_rev", Place::VERSION),
            ("/sys/class/infiniband/bnxt_re0/fw_ver", Place::VERSION),
            (
                "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
                whole(Identity::Gid),
            ),
            ("/sys/class/infiniband/mlx5_0/ports/1/rate", Place::KERNEL),
            ("/sys/block/dm-0/dm/uuid", whole(Identity::DeviceMapper)),
            ("/sys/block/dm-0/dm/name", Place::FREE),
            ("/proc/version", Place::FREE),
            ("/proc/meminfo", Place::KERNEL),
            ("/proc/driver/nvidia/version", Place::VERSION),
            ("/etc/cufile.json", Place::FREE),
            ("library:libnccl.so.2", Place::FILE),
        ] {
            assert_eq!(of(key), place, "{key}");
        }
    }
}
