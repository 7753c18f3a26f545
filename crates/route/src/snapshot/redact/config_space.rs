//! What identifies a card in PCI configuration space.

use super::stand_in::StandIns;

/// Register and bit of the conventional header that say that there are capabilities
/// (PCI Express base specification 6.0, section 7.5.1).
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u8 = 1 << 4;
const FIRST_CAPABILITY: usize = 0x34;
const VITAL_PRODUCT_DATA: u8 = 0x03;
const EXTENDED: usize = 0x100;
const DEVICE_SERIAL_NUMBER: u32 = 0x0003;
/// Chains of more capabilities run in circles.
const MAX_CAPABILITIES: usize = 480;

/// The space with another serial number, and without what was last read of the vital product data.
pub(super) fn redacted(bytes: &[u8], stand_ins: &StandIns) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in capabilities(&bytes, VITAL_PRODUCT_DATA) {
        if let Some(data) = bytes.get_mut(at + 4..at + 8) {
            data.fill(0);
        }
    }
    for at in extended_capabilities(&bytes, DEVICE_SERIAL_NUMBER) {
        if let Some(serial) = bytes.get_mut(at + 4..at + 12)
            && let Ok(number) = <[u8; 8]>::try_from(&*serial)
        {
            // An EUI-64, low half first: often the GUID of the card's port.
            let replaced = stand_ins.guid(u64::from_le_bytes(number));
            serial.copy_from_slice(&replaced.to_le_bytes());
        }
    }
    bytes
}

fn capabilities(bytes: &[u8], wanted: u8) -> Vec<usize> {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let mut found = Vec::new();
    if byte(STATUS) & HAS_CAPABILITIES == 0 {
        return found;
    }
    let mut at = usize::from(byte(FIRST_CAPABILITY)) & !3;
    for _ in 0..MAX_CAPABILITIES {
        if at == 0 {
            break;
        }
        if byte(at) == wanted {
            found.push(at);
        }
        at = usize::from(byte(at + 1)) & !3;
    }
    found
}

fn extended_capabilities(bytes: &[u8], wanted: u32) -> Vec<usize> {
    let (mut at, mut found) = (EXTENDED, Vec::new());
    for _ in 0..MAX_CAPABILITIES {
        let Some(Ok(header)) = bytes.get(at..at + 4).map(<[u8; 4]>::try_from) else {
            break;
        };
        let header = u32::from_le_bytes(header);
        if header & 0xffff == wanted {
            found.push(at);
        }
        at = (header >> 20) as usize & !3;
        if at < EXTENDED {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_serial_number_is_replaced_and_product_data_emptied() {
        let mut space = vec![0; 0x140];
        space[STATUS] = HAS_CAPABILITIES;
        space[FIRST_CAPABILITY] = 0x48;
        space[0x48..0x50].copy_from_slice(&[VITAL_PRODUCT_DATA, 0, 0, 0, b'S', b'N', b'1', b'2']);
        space[0x100..0x104].copy_from_slice(&0x1101_0001_u32.to_le_bytes());
        space[0x110..0x114].copy_from_slice(&0x0001_0003_u32.to_le_bytes());
        space[0x114..0x11c].copy_from_slice(&0x0c42_a103_001d_506a_u64.to_le_bytes());
        let stand_ins = StandIns::new(3);
        let replaced = redacted(&space, &stand_ins);
        assert_eq!(replaced[0x4c..0x50], [0; 4]);
        let guid = stand_ins.guid(0x0c42_a103_001d_506a).to_le_bytes();
        assert_eq!(replaced[0x114..0x11c], guid);
        space[0x4c..0x50].fill(0);
        space[0x114..0x11c].copy_from_slice(&guid);
        assert_eq!(replaced, space, "nothing else changed");
    }

    proptest! {
        #[test]
        fn any_bytes_keep_their_length(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(redacted(&bytes, &StandIns::new(1)).len(), bytes.len());
        }
    }
}
