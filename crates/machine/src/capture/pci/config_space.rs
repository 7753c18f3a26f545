//! How much of a function's configuration space to read.
//!
//! Every four bytes are one transaction to the device, and in a virtual machine one exit to the
//! hypervisor: reading all 4096 bytes of a few hundred functions takes longer than everything else.
//! So the chain of extended capabilities is followed first, and the space is read up to the end of
//! the last one that anyone decodes, and at least to the last header, so that a capability that is
//! not among the bytes is known not to exist.

/// The space of a conventional PCI function.
pub(super) const CONVENTIONAL: usize = 256;
/// The space of a PCI Express function.
const EXTENDED: usize = 4096;
/// Room for as many headers as the extended space holds: a chain with more runs in circles.
const MAX_CAPABILITIES: usize = (EXTENDED - CONVENTIONAL) / 8;

/// Extended capabilities whose contents are decoded, with their sizes (PCI Express base
/// specification 6.0, section 7.7 on; `linux/pci_regs.h`).
const DECODED: &[(u16, usize)] = &[
    (0x0001, 0x48), // advanced error reporting
    (0x000d, 0x08), // access control services
    (0x000f, 0x08), // address translation services
    (0x0010, 0x40), // single-root I/O virtualisation
    (0x0015, 0x34), // resizable BAR
];

/// A place that four bytes can be read from: offset to value, `None` where nothing is shown.
pub(super) type ReadDword<'r> = dyn FnMut(usize) -> Option<u32> + 'r;

/// How many bytes to read of a PCI Express function's space.
pub(super) fn useful_length(read: &mut ReadDword<'_>) -> usize {
    let (mut offset, mut end) = (CONVENTIONAL, CONVENTIONAL);
    for _ in 0..MAX_CAPABILITIES {
        let Some(header) = read(offset) else { break };
        end = end.max(offset + 4);
        // All zeros is an empty chain; all ones is a device that does not answer.
        if header == 0 || header == u32::MAX {
            break;
        }
        let identity = header as u16;
        if let Some((_, size)) = DECODED.iter().find(|(known, _)| *known == identity) {
            end = end.max(offset + size);
        }
        offset = (header >> 20) as usize & !3;
        if offset < CONVENTIONAL {
            break;
        }
    }
    end.min(EXTENDED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn length_of(space: &[(usize, u32)]) -> usize {
        useful_length(&mut |offset| {
            let at = space.iter().find(|(place, _)| *place == offset);
            Some(at.map_or(0, |(_, value)| *value))
        })
    }

    #[test]
    fn an_empty_or_silent_chain_ends_after_its_first_header() {
        assert_eq!(length_of(&[]), 0x104);
        assert_eq!(length_of(&[(0x100, u32::MAX)]), 0x104);
        assert_eq!(useful_length(&mut |_| None), 0x100);
    }

    #[test]
    fn the_space_is_read_to_the_end_of_the_last_decoded_capability() {
        // Error reporting at 100, access control at 148, then one that nobody decodes at 200.
        let chain = [
            (0x100, 0x1481_0001),
            (0x148, 0x2001_000d),
            (0x200, 0x0001_0018),
        ];
        assert_eq!(length_of(&chain), 0x204);
        let chain = [(0x100, 0x2001_0018), (0x200, 0x0001_000d)];
        assert_eq!(length_of(&chain), 0x208);
    }

    #[test]
    fn a_chain_in_circles_ends() {
        assert_eq!(length_of(&[(0x100, 0x1001_0018)]), 0x104);
        assert_eq!(
            length_of(&[(0x100, 0xffc1_0001), (0xffc, 0x1001_0001)]),
            0x1000
        );
    }

    proptest! {
        #[test]
        fn any_device_gives_a_length_within_the_space(values in prop::collection::vec(any::<u32>(), 1..64)) {
            let mut next = values.iter().cycle();
            let length = useful_length(&mut |_| next.next().copied());
            prop_assert!((CONVENTIONAL..=EXTENDED).contains(&length));
        }
    }
}
