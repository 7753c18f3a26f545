//! What ports count by themselves, to hold claims of the path against.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crowfly_route::units::Bytes;

use super::provider::Verb;
use super::transfer::Checked;

/// From this size on a transfer's path is checked against its ports' counters: less does not stand
/// out from other traffic, and two looks would take a tenth of the time of the fastest such transfer
/// over sockets, 10 of 100 us for 1 MiB.
pub(crate) const CHECKED_FROM: u64 = 4 << 20;
/// The unit of an InfiniBand port's data counters, in bytes (InfiniBand specification, volume 1,
/// PortCounters: PortXmitData and PortRcvData).
const WORD: u64 = 4;

/// Bytes that a port has counted since it came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PortCount {
    /// Bytes that came in.
    pub received: Bytes,
    /// Bytes that went out.
    pub sent: Bytes,
}

/// Bytes that a port counted in the direction of a transfer, while it ran.
pub(crate) struct Counted(u64);

impl PortCount {
    /// What was counted since an earlier look in the direction of the data.
    pub(crate) const fn since(self, before: Self, verb: Verb) -> Counted {
        let (now, then) = match verb {
            Verb::Write => (self.sent, before.sent),
            Verb::Read => (self.received, before.received),
        };
        Counted(now.0.saturating_sub(then.0))
    }

    /// What an RDMA device says of one of its ports.
    ///
    /// # Errors
    /// Why it says nothing: software devices count no bytes.
    pub(crate) fn of_rdma_port(device: &str, port: u8) -> Result<Self, String> {
        let count = |name: &str| {
            let at = format!("/sys/class/infiniband/{device}/ports/{port}/counters/{name}");
            let words = fs::read_to_string(&at).and_then(|text| number(&text));
            let bytes = words.map(|words| Bytes(words.saturating_mul(WORD)));
            bytes.map_err(|error| format!("{at}: {error}"))
        };
        Ok(Self {
            received: count("port_rcv_data")?,
            sent: count("port_xmit_data")?,
        })
    }

    fn in_table(text: &str, name: &str) -> Option<Self> {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (_, counts) = lines.find(|(interface, _)| interface.trim() == name)?;
        let mut counts = counts.split_whitespace();
        Some(Self {
            received: Bytes(counts.next()?.parse().ok()?),
            // Eight columns of what was received come first.
            sent: Bytes(counts.nth(7)?.parse().ok()?),
        })
    }
}

/// The counters of a network interface, kept open: to open them takes four times as long as to read
/// them.
#[derive(Debug)]
pub(crate) struct InterfacePort {
    name: String,
    table: Result<File, String>,
}

impl InterfacePort {
    /// The folders below /sys/class/net are those of the namespace that /sys was mounted in; this is the
    /// calling thread's.
    const AT: &str = "/proc/thread-self/net/dev";

    /// An interface of this thread's network namespace.
    pub(crate) fn of(name: &str) -> Self {
        let table = File::open(Self::AT);
        Self {
            name: name.to_owned(),
            table: table.map_err(|error| format!("{}: {error}", Self::AT)),
        }
    }

    /// What the kernel has counted for it.
    ///
    /// # Errors
    /// Why there is no count.
    pub(crate) fn count(&self) -> Result<PortCount, String> {
        const PART: usize = 4096;
        let at = Self::AT;
        let table = self.table.as_ref().map_err(String::clone)?;
        let mut text = Vec::new();
        loop {
            let have = text.len();
            text.resize(have + PART, 0);
            let got = table.read_at(&mut text[have..], have as u64);
            let got = got.map_err(|error| format!("{at}: {error}"))?;
            text.truncate(have + got);
            if got == 0 {
                break;
            }
        }
        let count = PortCount::in_table(&String::from_utf8_lossy(&text), &self.name);
        count.ok_or_else(|| format!("{at} has no counts of {}", self.name))
    }
}

impl Counted {
    pub(crate) const fn judge(&self, claimed: u64) -> Checked {
        let counted = Bytes(self.0);
        if self.0 >= claimed {
            Checked::Agrees { counted }
        } else {
            Checked::Disagrees { counted }
        }
    }
}

fn number(text: &str) -> io::Result<u64> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no number");
    text.trim().parse().map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    1000       5    0    0    0     0          0         0     1000       5    0    0    0     0       0          0
  eth0: 123456789     9    0    0    0     0          0         0 987654321      7    0    0    0     0       0          0
";

    fn eth0() -> PortCount {
        PortCount::in_table(TABLE, "eth0").expect("it is in the table")
    }

    #[test]
    fn an_interfaces_bytes_are_read_from_its_own_line_and_nobody_elses() {
        assert_eq!(eth0().received, Bytes(123_456_789));
        assert_eq!(eth0().sent, Bytes(987_654_321));
        assert_eq!(PortCount::in_table(TABLE, "eth"), None);
        assert_eq!(PortCount::in_table("eth0: 1 2", "eth0"), None);
    }

    #[test]
    fn a_port_that_counted_less_than_is_claimed_disagrees_and_one_that_counted_more_agrees() {
        let later = PortCount {
            sent: Bytes(eth0().sent.0 + 1000),
            ..eth0()
        };
        let out = later.since(eth0(), Verb::Write);
        assert_eq!(
            out.judge(1000),
            Checked::Agrees {
                counted: Bytes(1000)
            }
        );
        assert_eq!(
            out.judge(999),
            Checked::Agrees {
                counted: Bytes(1000)
            }
        );
        assert_eq!(
            out.judge(1001),
            Checked::Disagrees {
                counted: Bytes(1000)
            }
        );
        // Nothing came in: a read cannot have gone by this port.
        let back = later.since(eth0(), Verb::Read);
        assert_eq!(back.judge(1000), Checked::Disagrees { counted: Bytes(0) });
    }

    #[test]
    fn an_open_table_tells_what_was_counted_since() {
        let lo = InterfacePort::of("lo");
        let before = lo.count().expect("every machine has it");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = socket.local_addr().expect("an address");
        assert_eq!(socket.send_to(&[1; 1000], to).expect("sent"), 1000);
        let counted = lo.count().expect("as before").since(before, Verb::Write);
        assert!(matches!(counted.judge(1000), Checked::Agrees { .. }));
    }

    #[test]
    fn what_has_no_counters_says_where_it_was_looked_for() {
        let error = PortCount::of_rdma_port("no-such-device", 1).expect_err("there is none");
        assert!(error.contains("no-such-device"), "{error}");
        let error = InterfacePort::of("no-such-nic").count();
        let error = error.expect_err("there is none");
        assert!(error.contains("no-such-nic"), "{error}");
    }
}
