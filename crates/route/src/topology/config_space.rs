//! What PCI configuration space says about a function.
//!
//! Unprivileged readers see its first 64 bytes, machines without MMCONFIG the first 256, and a
//! removed device answers with ones; every walk is bounded because the bytes may come from a
//! file that someone mailed. Offsets and fields: PCI Express Base Specification, chapter 7.

use super::pcie::{AcsState, PortKind};

/// What was read; `None` where the bytes do not reach. The port kind means something for bridges
/// alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigSpace {
    pub acs: AcsState,
    pub port: Option<PortKind>,
    pub max_payload: Option<u32>,
    pub max_read_request: Option<u32>,
    pub relaxed_ordering: Option<bool>,
}

/// Capabilities are at least four bytes long and lie between 0x40 and 0x100.
const MAX_CAPABILITIES: usize = (0x100 - 0x40) / 4;
/// Extended capabilities are at least eight bytes long and lie between 0x100 and 0x1000.
const MAX_EXTENDED_CAPABILITIES: usize = (0x1000 - 0x100) / 8;

const STATUS: usize = 0x06;
const STATUS_HAS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITY_POINTER: usize = 0x34;
const PCI_EXPRESS: u8 = 0x10;
const ACCESS_CONTROL_SERVICES: u32 = 0x000d;
const EXTENDED: usize = 0x100;
/// What a readable configuration space has beyond the unprivileged part.
const PRIVILEGED: usize = 0x40;

impl ConfigSpace {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let space = Bytes(bytes);
        let removed = space.word(0) == Some(0xffff);
        if removed || bytes.len() <= PRIVILEGED {
            return Self::default();
        }
        let express = match space.capability(PCI_EXPRESS) {
            Listed::At(express) => express,
            Listed::Nowhere => {
                return Self {
                    acs: AcsState::NoCapability,
                    port: Some(PortKind::Conventional),
                    ..Self::default()
                };
            }
            Listed::Unreadable => return Self::default(),
        };
        let control = space.word(express + 8);
        let size = |shift: u16| {
            // Codes 6 and 7 are reserved.
            let code = control? >> shift & 7;
            (code <= 5).then(|| 128u32 << code)
        };
        Self {
            acs: space.access_control(),
            port: space.word(express + 2).and_then(port_kind),
            max_payload: size(5),
            max_read_request: size(12),
            relaxed_ordering: control.map(|c| c & 1 << 4 != 0),
        }
    }
}

fn port_kind(flags: u16) -> Option<PortKind> {
    match flags >> 4 & 0xf {
        4 => Some(PortKind::Root),
        5 => Some(PortKind::Upstream),
        6 => Some(PortKind::Downstream),
        7 | 8 => Some(PortKind::Conventional),
        _ => None,
    }
}

/// Whether a capability is in a function's list.
enum Listed {
    At(usize),
    Nowhere,
    /// The bytes end before the list does, or the list runs in circles.
    Unreadable,
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn word(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*bytes))
    }

    fn double_word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    fn capability(&self, wanted: u8) -> Listed {
        let Some(status) = self.word(STATUS) else {
            return Listed::Unreadable;
        };
        if status & STATUS_HAS_CAPABILITIES == 0 {
            return Listed::Nowhere;
        }
        let mut next = CAPABILITY_POINTER;
        for _ in 0..=MAX_CAPABILITIES {
            let Some(at) = self.byte(next).map(|byte| usize::from(byte & !3)) else {
                return Listed::Unreadable;
            };
            if at < PRIVILEGED {
                return Listed::Nowhere;
            }
            if self.byte(at) == Some(wanted) {
                return Listed::At(at);
            }
            next = at + 1;
        }
        Listed::Unreadable
    }

    fn access_control(&self) -> AcsState {
        let mut at = EXTENDED;
        for _ in 0..MAX_EXTENDED_CAPABILITIES {
            // Bytes that end before the list does leave the question open.
            let Some(header) = self.double_word(at) else {
                return AcsState::Unreadable;
            };
            match header {
                u32::MAX => return AcsState::Unreadable,
                _ if header & 0xffff == ACCESS_CONTROL_SERVICES => {
                    return match self.word(at + 6) {
                        Some(control) => AcsState::Control {
                            offset: at as u16,
                            control,
                        },
                        None => AcsState::Unreadable,
                    };
                }
                _ => {}
            }
            at = (header >> 20) as usize & !3;
            if at < EXTENDED {
                return AcsState::NoCapability;
            }
        }
        // A list that runs in circles says nothing.
        AcsState::Unreadable
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A PCIe function whose Express capability lies at 0x60 and whose extended list starts with
    /// an AER capability, followed by `acs` at 0x148 where given.
    fn space(flags: u16, control: u16, acs: Option<u16>) -> Vec<u8> {
        let mut bytes = vec![0; 0x1000];
        let mut put = |at: usize, data: &[u8]| bytes[at..at + data.len()].copy_from_slice(data);
        put(0, &0x15b3u16.to_le_bytes());
        put(STATUS, &STATUS_HAS_CAPABILITIES.to_le_bytes());
        put(CAPABILITY_POINTER, &[0x40]);
        put(0x40, &[0x01, 0x60]);
        put(0x60, &[PCI_EXPRESS, 0]);
        put(0x62, &flags.to_le_bytes());
        put(0x68, &control.to_le_bytes());
        let next = if acs.is_some() { 0x148u32 } else { 0 };
        put(EXTENDED, &(next << 20 | 1 << 16 | 1).to_le_bytes());
        if let Some(acs) = acs {
            put(0x148, &(1u32 << 16 | ACCESS_CONTROL_SERVICES).to_le_bytes());
            put(0x14e, &acs.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn given_root_rights_the_registers_read_as_the_specification_lays_them_out() {
        // Downstream port; MaxReadReq 4096, MaxPayload 256, relaxed ordering on.
        let read = ConfigSpace::read(&space(6 << 4 | 2, 5 << 12 | 1 << 5 | 1 << 4, Some(0x1d)));
        let expected = ConfigSpace {
            acs: AcsState::Control {
                offset: 0x148,
                control: 0x1d,
            },
            port: Some(PortKind::Downstream),
            max_payload: Some(256),
            max_read_request: Some(4096),
            relaxed_ordering: Some(true),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn given_what_an_unprivileged_reader_sees_nothing_is_claimed() {
        let whole = space(6 << 4, 0, Some(0x1d));
        assert_eq!(ConfigSpace::read(&whole[..64]), ConfigSpace::default());
        assert_eq!(ConfigSpace::read(&[]), ConfigSpace::default());
        let without_mmconfig = ConfigSpace::read(&whole[..256]);
        assert_eq!(without_mmconfig.acs, AcsState::Unreadable);
        assert_eq!(without_mmconfig.max_read_request, Some(128));
    }

    #[test]
    fn a_port_without_the_capability_differs_from_one_that_could_not_be_read() {
        let acs = |bytes: &[u8]| ConfigSpace::read(bytes).acs;
        assert_eq!(acs(&space(6 << 4, 0, None)), AcsState::NoCapability);
        assert_eq!(acs(&vec![0xff; 4096]), AcsState::Unreadable);
        let mut conventional = vec![0; 256];
        conventional[0] = 0x86;
        assert_eq!(acs(&conventional), AcsState::NoCapability);
    }

    #[test]
    fn lists_that_run_in_circles_end() {
        let mut bytes = space(6 << 4, 0, None);
        bytes[0x41] = 0x40;
        assert_eq!(ConfigSpace::read(&bytes), ConfigSpace::default());
        let mut bytes = space(6 << 4, 0, None);
        bytes[EXTENDED..EXTENDED + 4].copy_from_slice(&(0x100u32 << 20 | 1).to_le_bytes());
        assert_eq!(ConfigSpace::read(&bytes).acs, AcsState::Unreadable);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let _ = ConfigSpace::read(&bytes);
        }
    }
}
