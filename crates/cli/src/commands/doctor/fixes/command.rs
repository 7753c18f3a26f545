//! Which commands a script may run: only those that are known to do no harm.
//!
//! A command of a fix can hold words of the evidence, which a stranger may have written. So nothing
//! is run that has to be trusted: every program is on a list, every word is made of characters that
//! mean nothing to the shell, and all else is held back.

/// What a script does with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It runs.
    Harmless,
    /// It sets a variable or limit of a process, which has to be the job's.
    Setting,
    /// It does not run, and why.
    Held(&'static str),
}

const NOT_PLAIN: &str = "it has blanks to fill in, or is more than one plain command";
const REGISTER: &str = "it writes a register of a device";
const ACCESS_CONTROL: &str =
    "it takes away what keeps virtual machines apart, where devices are passed to them";
const SERVICE: &str = "it interrupts what uses the service";
const NETWORK: &str = "it changes the network, and connections may break";
const INSTALLS: &str = "it installs or removes software";
const BOOT: &str = "it changes how the machine boots, and needs a restart";
const DELETES: &str = "it removes or overwrites something";
const RESETS: &str = "it stops what runs on the device";
const UNKNOWN: &str = "it is not on the list of commands known to do no harm";

/// Kernel modules whose loading takes nothing away.
const MODULES: [&str; 10] = [
    "nvidia-peermem",
    "nvidia_peermem",
    "nvidia-fs",
    "nvidia_fs",
    "nvidia-uvm",
    "nvidia_uvm",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "gdrdrv",
];
/// Knobs of the kernel that only cost or gain speed.
const KNOBS: [&str; 4] = [
    "kernel.numa_balancing",
    "vm.nr_hugepages",
    "net.core.rmem_max",
    "net.core.wmem_max",
];
/// Services that only add what was missing.
const SERVICES: [&str; 3] = ["nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex"];

/// Why a program is held back, where that can be said better than [`UNKNOWN`].
const HELD: [(&[&str], &str); 6] = [
    (&["setpci"], REGISTER),
    (
        &["ip", "ifconfig", "ethtool", "mlnx_qos", "cma_roce_tos"],
        NETWORK,
    ),
    (
        &[
            "apt", "apt-get", "dnf", "yum", "zypper", "pip", "pip3", "dpkg", "rpm", "dkms",
        ],
        INSTALLS,
    ),
    (
        &[
            "reboot",
            "shutdown",
            "grubby",
            "update-grub",
            "grub2-mkconfig",
            "update-initramfs",
            "dracut",
            "mlxconfig",
        ],
        BOOT,
    ),
    (
        &[
            "rm", "dd", "mv", "cp", "tee", "mkfs", "wipefs", "sed", "umount",
        ],
        DELETES,
    ),
    (&["rmmod", "kill", "pkill", "killall", "mlxfwreset"], RESETS),
];

/// Weighs the command of a fix.
pub fn weigh(command: &str) -> Weight {
    match parsed(command) {
        Weight::Held(REGISTER) if command.contains("ECAP_ACS") => Weight::Held(ACCESS_CONTROL),
        weight => weight,
    }
}

fn parsed(command: &str) -> Weight {
    let Some(pipelines) = parse(command) else {
        return match first_word(command) {
            Some(program) if is_setting(program) => Weight::Setting,
            Some(program) => Weight::Held(held(program).unwrap_or(NOT_PLAIN)),
            None => Weight::Held(NOT_PLAIN),
        };
    };
    if pipelines.iter().flatten().all(|words| looks(words)) {
        return Weight::Harmless;
    }
    let [pipeline] = pipelines.as_slice() else {
        return Weight::Held(NOT_PLAIN);
    };
    let [words] = pipeline.as_slice() else {
        return Weight::Held(NOT_PLAIN);
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = without_sudo(&words);
    match words {
        [program, ..] if is_setting(program) => Weight::Setting,
        ["modprobe", module] if MODULES.contains(module) => Weight::Harmless,
        ["sysctl", setting] | ["sysctl", "-w", setting]
            if setting
                .split_once('=')
                .is_some_and(|(knob, _)| KNOBS.contains(&knob)) =>
        {
            Weight::Harmless
        }
        ["nvidia-smi", "-pm", "1"] => Weight::Harmless,
        ["systemctl", "start", service] if SERVICES.contains(service) => Weight::Harmless,
        ["systemctl", ..] => Weight::Held(SERVICE),
        ["modprobe", "-r", ..] => Weight::Held(RESETS),
        ["nvidia-smi", ..] => Weight::Held(RESETS),
        [program, ..] => Weight::Held(held(program).unwrap_or(UNKNOWN)),
        [] => Weight::Held(NOT_PLAIN),
    }
}

/// How what a command did is taken back before the next boot, which takes back all of it; `None` for
/// one that only looks or does not run.
pub fn undo(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match without_sudo(&words) {
        ["modprobe", module] => Some(format!("sudo modprobe -r {module}")),
        ["sysctl", setting] | ["sysctl", "-w", setting] => {
            let (knob, _) = setting.split_once('=')?;
            Some(format!("sudo sysctl {knob}=<the value printed as before>"))
        }
        ["nvidia-smi", "-pm", "1"] => Some("sudo nvidia-smi -pm 0".to_owned()),
        ["systemctl", "start", service] => Some(format!("sudo systemctl stop {service}")),
        _ => None,
    }
}

/// What shows the state that a command is about to change, where that is lost otherwise.
pub fn before(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match without_sudo(&words) {
        ["sysctl", setting] | ["sysctl", "-w", setting] => {
            let (knob, _) = setting.split_once('=')?;
            Some(format!("sysctl {knob}"))
        }
        _ => None,
    }
}

/// Whether a command does nothing but look, and is safe to run as it stands.
pub fn only_looks(command: &str) -> bool {
    parse(command).is_some_and(|pipelines| pipelines.iter().flatten().all(|words| looks(words)))
}

fn held(program: &str) -> Option<&'static str> {
    let name = program.rsplit('/').next().unwrap_or(program);
    let of = |(programs, _): &&(&[&str], &'static str)| programs.contains(&name);
    HELD.iter().find(of).map(|(_, why)| *why)
}

/// The program of a command that could not be taken apart.
fn first_word(command: &str) -> Option<&str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    without_sudo(&words).first().copied()
}

fn without_sudo<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    match words {
        ["sudo", rest @ ..] => rest,
        words => words,
    }
}

fn is_setting(word: &str) -> bool {
    let variable = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    });
    variable || ["export", "unset", "ulimit", "source"].contains(&word)
}

/// Whether a simple command only reads.
fn looks(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = without_sudo(&words);
    let has = |flags: &[&str]| words.iter().any(|word| flags.contains(word));
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    let sets = || arguments.iter().any(|argument| argument.contains('='));
    match *program {
        "cat"
        | "grep"
        | "egrep"
        | "ls"
        | "lsmod"
        | "modinfo"
        | "readlink"
        | "wc"
        | "df"
        | "uname"
        | "lspci"
        | "lsblk"
        | "ibv_devinfo"
        | "ibstat"
        | "ibstatus"
        | "show_gids"
        | "findmnt"
        | "numactl"
        | "head"
        | "test"
        | "printenv"
        | "/usr/local/cuda/gds/tools/gdscheck" => true,
        "tail" => !has(&["-f", "-F", "--follow"]),
        "dmesg" => arguments.is_empty(),
        "env" | "mount" => arguments.is_empty(),
        "uniq" => has(&["-c"]) && arguments.len() == 1,
        "sort" => arguments.is_empty(),
        "setpci" | "sysctl" => !sets() && !has(&["-w", "-p", "--system", "--load"]),
        "nvidia-smi" => {
            matches!(arguments.first(), Some(&("topo" | "-q" | "-L"))) || arguments.is_empty()
        }
        "systemctl" => matches!(arguments.first(), Some(&("status" | "is-active"))),
        "rdma" => matches!(
            arguments,
            ["link"] | ["link", "show", ..] | ["dev"] | ["dev", "show", ..]
        ),
        "ip" => matches!(
            arguments,
            ["link"] | ["link", "show", ..] | ["-s", "link", "show", ..]
        ),
        _ => false,
    }
}

/// A command line as pipelines of simple commands, words without their quotes; `None` where it is
/// more than that, or has a character that the shell might take for something. A comment at its end
/// is left out.
fn parse(line: &str) -> Option<Vec<Vec<Vec<String>>>> {
    let mut pipelines = vec![vec![Vec::new()]];
    let mut word: Option<String> = None;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '#' if word.is_none() => break,
            ' ' | '|' | ';' => {
                let commands = pipelines.last_mut()?;
                commands.last_mut()?.extend(word.take());
                match c {
                    '|' if characters.peek() == Some(&'|') => return None,
                    '|' => commands.push(Vec::new()),
                    ';' => pipelines.push(vec![Vec::new()]),
                    _ => {}
                }
            }
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        end if end == c => break,
                        '$' | '`' | '\\' | '!' if c == '"' => return None,
                        inside if inside.is_control() => return None,
                        inside => word.push(inside),
                    }
                }
            }
            c if c.is_ascii_alphanumeric() || "_./:=,@%+-*^".contains(c) => {
                word.get_or_insert_default().push(c);
            }
            _ => return None,
        }
    }
    pipelines.last_mut()?.last_mut()?.extend(word);
    let whole = pipelines.iter().flatten().all(|words| !words.is_empty());
    whole.then_some(pipelines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loads_a_driver_or_sets_a_kernel_knob_runs() {
        for command in [
            "sudo modprobe nvidia-peermem",
            "modprobe ib_uverbs",
            "sudo sysctl -w kernel.numa_balancing=0",
            "sudo sysctl kernel.numa_balancing=0",
            "sudo systemctl start nvidia-fabricmanager",
            "nvidia-smi topo -m",
        ] {
            assert_eq!(weigh(command), Weight::Harmless, "{command}");
        }
    }

    #[test]
    fn what_could_do_harm_is_held_back_with_the_reason() {
        for (command, why) in [
            ("sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w=0", ACCESS_CONTROL),
            ("sudo setpci -s <bridge> ECAP_ACS+6.w=0", ACCESS_CONTROL),
            (
                "sudo setpci -s 0000:15:00.0 CAP_EXP+8.w=5000:7000",
                REGISTER,
            ),
            ("sudo systemctl restart nvidia-fabricmanager", SERVICE),
            (
                "sudo apt install mlnx-nvme-dkms && sudo update-initramfs -u",
                INSTALLS,
            ),
            ("sudo modprobe -r nvidia_fs", RESETS),
            ("nvidia-smi --gpu-reset -i 0", RESETS),
            ("rm -rf /", DELETES),
            ("echo 1 | sudo tee /sys/x", NOT_PLAIN),
            ("ib_write_bw -d <nic> <peer>", NOT_PLAIN),
            ("frobnicate", UNKNOWN),
            ("sudo modprobe something-else", UNKNOWN),
            ("sudo sysctl -w kernel.core_pattern=x", UNKNOWN),
            ("sudo", NOT_PLAIN),
            ("", NOT_PLAIN),
        ] {
            assert_eq!(weigh(command), Weight::Held(why), "{command}");
        }
    }

    #[test]
    fn what_the_job_has_to_be_told_is_a_setting() {
        for command in [
            "export NCCL_IB_HCA=mlx5_0",
            "unset NCCL_P2P_DISABLE",
            "ulimit -l unlimited",
            "NCCL_NET_GDR_LEVEL=LOC <job>",
            "source /usr/local/gib/scripts/set_nccl_env.sh",
        ] {
            assert_eq!(weigh(command), Weight::Setting, "{command}");
        }
    }

    #[test]
    fn given_words_from_a_stranger_nothing_of_them_is_run() {
        for command in [
            "cat /proc/cmdline; rm -rf /",
            "cat /proc/cmdline\nrm -rf /",
            "cat $(rm -rf /)",
            "cat `rm -rf /`",
            "cat \"$(rm -rf /)\"",
            "cat /dev/null > /etc/passwd",
            "cat /dev/null && rm -rf /",
            "cat x || rm -rf /",
            "cat x & rm -rf /",
            "modprobe x; rm -rf /",
            "dmesg -C",
            "grep 'x",
            "env rm -rf /",
            "sort -o /etc/passwd x",
            "uniq -c a /etc/passwd",
            "nvidia-smi --gpu-reset",
            "sysctl -p /tmp/x",
        ] {
            assert!(!only_looks(command), "{command}");
            assert_ne!(weigh(command), Weight::Harmless, "{command}");
        }
    }

    #[test]
    fn checks_as_the_rules_write_them_run() {
        for check in [
            "lsmod | grep nvidia_peermem",
            "sudo dmesg | grep -c nvidia-peermem   # 0 is right",
            "cat /sys/kernel/iommu_groups/*/type | sort | uniq -c",
            "sudo lspci -vvv | grep -E '^[0-9a-f]|LnkSta:' | grep -B1 downgraded",
            "nvidia-smi -q -d MEMORY | grep -A3 'BAR1'",
            "sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w",
            "cat /proc/driver/nvidia-fs/version; /usr/local/cuda/gds/tools/gdscheck -p",
        ] {
            assert!(only_looks(check), "{check}");
        }
        assert!(!only_looks(
            "NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'via P2P'"
        ));
    }
}
