//! Channel lines: which transport a connection was given.

use serde::Serialize;

/// The side of a network connection that wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The sender.
    Send,
    /// The receiver.
    Receive,
}

/// How two GPUs of one machine (or one NVLink domain) reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2pMethod {
    /// Both GPUs belong to one process.
    DirectPointer,
    /// CUDA or HIP inter-process handles.
    Ipc,
    /// `cuMem` handles.
    CuMem,
    /// Multi-node NVLink.
    Mnnvl,
    /// Both ends are one GPU.
    SameDevice,
    /// Through another GPU.
    Indirect,
}

/// Who copies on one side of a shared-memory connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShmSide {
    /// The GPU's own threads.
    Direct,
    /// The copy engine.
    CopyEngine,
}

/// The transport of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// GPU to GPU.
    P2p {
        /// By which means.
        method: P2pMethod,
        /// The receiver reads, instead of the sender writing.
        read: bool,
        /// The copy engine moves the data.
        copy_engine: bool,
    },
    /// Through host memory shared by two processes.
    Shm {
        /// The sending side.
        send: ShmSide,
        /// The receiving side.
        receive: ShmSide,
    },
    /// Through a NIC.
    Net {
        /// Name of the network (`IB`, `IBext_v10`, `Socket`, `AWS Libfabric`).
        network: String,
        /// Number of the NIC within that network.
        device: u32,
        /// The rank whose NIC is used (PXN), when it is another's.
        proxy: Option<u32>,
        /// `/GDRDMA`: the NIC reads or writes GPU memory itself.
        gdr: bool,
        /// `(PCI)`: over PCIe although the GPU has a chip-to-chip link to the CPU.
        pci: bool,
        /// `/Shared`: buffers shared between connections.
        shared: bool,
    },
    /// Through a NIC with in-network reduction.
    CollNet {
        /// Name of the network.
        network: String,
        /// Number of the NIC within that network.
        device: u32,
        /// `/GDRDMA`.
        gdr: bool,
    },
}

/// Channels of one network, direction and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetTotal {
    /// Name of the network.
    pub network: String,
    /// Sending or receiving side.
    pub direction: Direction,
    /// With `/GDRDMA`.
    pub gdr: bool,
    /// Channel lines.
    pub channels: u64,
}

/// Channel lines of a whole log by transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportTotals {
    /// GPU to GPU.
    pub p2p: u64,
    /// Shared host memory.
    pub shm: u64,
    /// Networks.
    pub net: Vec<NetTotal>,
    /// In-network reduction with `/GDRDMA`.
    pub collnet_gdr: u64,
    /// In-network reduction without.
    pub collnet_plain: u64,
}

impl TransportTotals {
    /// Network channels with (`true`) or without (`false`) `/GDRDMA`, both directions.
    pub fn net_channels(&self, gdr: bool) -> u64 {
        self.net
            .iter()
            .filter(|t| t.gdr == gdr)
            .map(|t| t.channels)
            .sum()
    }
}

/// A channel line, its transport still as printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelLine<'a> {
    pub(crate) from: u32,
    pub(crate) to: Option<u32>,
    pub(crate) direction: Option<Direction>,
    /// What follows `via `.
    pub(crate) via: &'a str,
}

impl<'a> ChannelLine<'a> {
    /// Reads `Channel 00/0 : 3[8a000] -> 0[1a000] [receive] via …`, `Ring 00 : 3 -> 0 via …` (2.4)
    /// and `CollNet 00/0 : 3 [send] via …`.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let rest = ["Channel ", "Ring ", "CollNet ", "Coll "]
            .iter()
            .find_map(|kind| text.strip_prefix(kind))?;
        let (_, rest) = number(rest)?;
        let rest = match rest.strip_prefix('/') {
            Some(connection) => number(connection)?.1,
            None => rest,
        };
        let (from, rest) = rank(rest.strip_prefix(" : ")?)?;
        let (to, rest) = match rest.strip_prefix(" -> ") {
            Some(rest) => {
                let (to, rest) = rank(rest)?;
                (Some(to), rest)
            }
            None => (None, rest),
        };
        let (direction, rest) = match rest.strip_prefix(" [send]") {
            Some(rest) => (Some(Direction::Send), rest),
            None => match rest.strip_prefix(" [receive]") {
                Some(rest) => (Some(Direction::Receive), rest),
                None => (None, rest),
            },
        };
        Some(Self {
            from,
            to,
            direction,
            via: rest.strip_prefix(" via ")?,
        })
    }
}

/// A number and what follows it.
fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

/// `3[8a000]` or `3`, and what follows.
fn rank(text: &str) -> Option<(u32, &str)> {
    let (rank, rest) = number(text)?;
    match rest.strip_prefix('[') {
        Some(device) => {
            let digits = device.bytes().take_while(u8::is_ascii_hexdigit).count();
            Some((rank, device[digits..].strip_prefix(']')?))
        }
        None => Some((rank, rest)),
    }
}

/// What stands after `via `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A transport, complete or certain as far as it goes.
    Transport(Transport),
    /// Cut off before it said enough, or continued with another writer's text.
    Cut,
}

impl Via {
    /// Reads a transport. `whole` is false when the text ended before its line did.
    ///
    /// `/GDRDMA` is certain wherever it stands complete, whatever follows. Its absence is certain
    /// only when the suffix ends there.
    pub(crate) fn parse(via: &str, whole: bool) -> Self {
        // RCCL appends the communicator.
        let via = via
            .split_once(" comm 0x")
            .map_or(via, |(via, _)| via)
            .trim_end();
        let read = if let Some(rest) = via.strip_prefix("NET/") {
            net(rest, whole)
        } else if let Some(rest) = via.strip_prefix("P2P/") {
            p2p(rest)
        } else if via.starts_with("direct shared memory") {
            Some(SHM_DIRECT)
        } else if let Some(rest) = via.strip_prefix("SHM") {
            Some(shm(rest))
        } else if let Some(rest) = via.strip_prefix("COLLNET/") {
            net(rest, whole).and_then(|transport| match transport {
                Transport::Net {
                    network,
                    device,
                    gdr,
                    ..
                } => Some(Transport::CollNet {
                    network,
                    device,
                    gdr,
                }),
                _ => None,
            })
        } else {
            None
        };
        read.map_or(Self::Cut, Self::Transport)
    }
}

const SHM_DIRECT: Transport = Transport::Shm {
    send: ShmSide::Direct,
    receive: ShmSide::Direct,
};

fn net(text: &str, whole: bool) -> Option<Transport> {
    let (network, rest) = text.split_once('/')?;
    let (device, rest) = number(rest)?;
    let (proxy, rest) = match rest.strip_prefix('(') {
        Some(inside) => {
            let (rank, rest) = number(inside)?;
            (Some(rank), rest.strip_prefix(')')?)
        }
        None => (None, rest),
    };
    let (gdr, rest) = strip(rest, "/GDRDMA");
    let (pci, rest) = strip(rest, "(PCI)");
    let (shared, rest) = strip(rest, "/Shared");
    let certain = gdr || (rest.is_empty() && (whole || shared));
    certain.then(|| Transport::Net {
        network: network.to_owned(),
        device,
        proxy,
        gdr,
        pci,
        shared,
    })
}

fn strip<'a>(text: &'a str, suffix: &str) -> (bool, &'a str) {
    match text.strip_prefix(suffix) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

fn p2p(text: &str) -> Option<Transport> {
    let methods = [
        ("IPC", P2pMethod::Ipc),
        ("CUMEM", P2pMethod::CuMem),
        ("MNNVL", P2pMethod::Mnnvl),
        ("direct pointer", P2pMethod::DirectPointer),
        ("common device", P2pMethod::SameDevice),
        ("indirect/", P2pMethod::Indirect),
    ];
    let (method, rest) = methods
        .iter()
        .find_map(|(name, method)| Some((*method, text.strip_prefix(name)?)))?;
    let rest = match method {
        P2pMethod::Indirect => rank(rest).map_or(rest, |(_, rest)| rest),
        _ => rest,
    };
    let (read, rest) = strip(rest, "/read");
    let (copy_engine, _) = strip(rest, "/CE");
    Some(Transport::P2p {
        method,
        read,
        copy_engine,
    })
}

fn shm(rest: &str) -> Transport {
    let side = |name: Option<&str>| match name {
        Some("CE") => ShmSide::CopyEngine,
        _ => ShmSide::Direct,
    };
    let mut sides = rest.split('/').skip(1);
    Transport::Shm {
        send: side(sides.next()),
        receive: side(sides.next()),
    }
}

/// Whether a line is the wrapped rest of a channel suffix: `/GDRDMA`, `DMA/Shared`, `3/GDRDMA(PCI)`.
pub(crate) fn is_wrapped_suffix(text: &str) -> bool {
    let rest = text
        .trim_start()
        .trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = rest.strip_suffix("/Shared").unwrap_or(rest);
    let rest = rest.strip_suffix("(PCI)").unwrap_or(rest);
    rest.len() >= 2 && "/GDRDMA".ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(network: &str, device: u32, gdr: bool) -> Transport {
        Transport::Net {
            network: network.into(),
            device,
            proxy: None,
            gdr,
            pci: false,
            shared: false,
        }
    }

    fn via(text: &str) -> Via {
        Via::parse(text, true)
    }

    #[test]
    fn channel_lines_of_every_age_read() {
        let read = |text| ChannelLine::parse(text).unwrap();
        let line = read("Channel 00/0 : 3[8a000] -> 0[1a000] [receive] via NET/IB/1");
        assert_eq!((line.from, line.to, line.via), (3, Some(0), "NET/IB/1"));
        assert_eq!(line.direction, Some(Direction::Receive));
        let line = read("Ring 07 : 15 -> 0 [send] via NET/IB/0/GDRDMA");
        assert_eq!(
            (line.from, line.to, line.direction),
            (15, Some(0), Some(Direction::Send))
        );
        let line = read("Channel 00 : 3[8a000] -> 0[1a000] via P2P/IPC");
        assert_eq!((line.direction, line.via), (None, "P2P/IPC"));
        let line = read("CollNet 00/1 : 4 [send] via COLLNET/SHARP/0/GDRDMA");
        assert_eq!((line.from, line.to), (4, None));
    }

    #[test]
    fn ring_orders_and_cut_heads_are_not_channels() {
        for text in [
            "Channel 00/02 :    0   1   2   3",
            "Ring 00 : 3 -> 0 -> 1",
            "Channel 00/0 : 3[8a0",
            "Channel 00/0 : 3[8a000] -> ",
            "Channel",
            "Channel 99999999999 : 0 -> 1 via SHM",
        ] {
            assert_eq!(ChannelLine::parse(text), None, "{text}");
        }
    }

    #[test]
    fn pxn_names_the_rank_whose_nic_is_used() {
        let Via::Transport(Transport::Net {
            proxy, gdr, device, ..
        }) = via("NET/IBext/0(4)/GDRDMA")
        else {
            panic!("not a network");
        };
        assert_eq!((device, proxy, gdr), (0, Some(4), true));
    }

    #[test]
    fn networks_with_and_without_gpudirect_read() {
        assert_eq!(
            via("NET/AWS Libfabric/0"),
            Via::Transport(net("AWS Libfabric", 0, false))
        );
        assert_eq!(
            via("NET/IBext_v10/13/GDRDMA"),
            Via::Transport(net("IBext_v10", 13, true))
        );
        assert_eq!(
            via("NET/IB/4/GDRDMA comm 0x3d1e26e0 nRanks 16"),
            Via::Transport(net("IB", 4, true))
        );
        assert!(matches!(
            via("NET/IB/2/GDRDMA(PCI)/Shared"),
            Via::Transport(Transport::Net {
                gdr: true,
                pci: true,
                shared: true,
                ..
            })
        ));
    }

    #[test]
    fn a_suffix_cut_by_another_writer_is_no_evidence() {
        for text in [
            "NET/IBext/6/GDSetting up attention",
            "NET/IBext/6Setting up",
            "NET/IBext/",
            "NET/IBe",
            "NET/IBext/0(4",
            "P2P/I",
            "NE",
            "",
            "COLLNET/SHARP/0/GDR",
        ] {
            assert_eq!(via(text), Via::Cut, "{text}");
        }
        assert_eq!(Via::parse("NET/IB/6", false), Via::Cut);
        assert_eq!(
            Via::parse("NET/IB/6/GDRDMA", false),
            Via::Transport(net("IB", 6, true))
        );
    }

    #[test]
    fn a_complete_suffix_counts_whatever_follows_it() {
        assert_eq!(
            via("NET/IBext/6/GDRDMASetting up attention"),
            Via::Transport(net("IBext", 6, true))
        );
    }

    #[test]
    fn peer_and_shared_memory_transports_read() {
        let p2p = |method, read, copy_engine| {
            Via::Transport(Transport::P2p {
                method,
                read,
                copy_engine,
            })
        };
        assert_eq!(via("P2P/CUMEM/read"), p2p(P2pMethod::CuMem, true, false));
        assert_eq!(via("P2P/IPC/read/CE"), p2p(P2pMethod::Ipc, true, true));
        assert_eq!(
            via("P2P/direct pointer"),
            p2p(P2pMethod::DirectPointer, false, false)
        );
        assert_eq!(
            via("P2P/indirect/5[c1000]/read"),
            p2p(P2pMethod::Indirect, true, false)
        );
        assert_eq!(via("P2P/MNNVL"), p2p(P2pMethod::Mnnvl, false, false));
        assert_eq!(via("direct shared memory"), Via::Transport(SHM_DIRECT));
        assert_eq!(
            via("SHM/CE/direct"),
            Via::Transport(Transport::Shm {
                send: ShmSide::CopyEngine,
                receive: ShmSide::Direct
            })
        );
    }

    #[test]
    fn the_wrapped_rest_of_a_suffix_is_recognised() {
        for text in [
            "/GDRDMA",
            "DRDMA",
            "3/GDRDMA",
            "RDMA/Shared",
            "  /GDRDMA(PCI)",
        ] {
            assert!(is_wrapped_suffix(text), "{text}");
        }
        for text in ["", "A", "3", "GDR", "host:1:1 [0] NCCL INFO x", "CUDA"] {
            assert!(!is_wrapped_suffix(text), "{text}");
        }
    }
}
