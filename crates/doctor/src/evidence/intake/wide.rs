//! UTF-16, as Windows writes what is redirected or saved: told by its mark, or by its zeros.

/// Bytes of the head that have to look alike without a mark.
const ENOUGH: usize = 16;

/// The order of a unit's two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// A decoder of UTF-16 that arrives piece by piece.
#[derive(Debug)]
pub(super) struct Wide {
    order: Order,
    /// The first byte of a unit whose second has not arrived.
    half: Option<u8>,
    /// The first unit of a pair whose second has not arrived.
    high: Option<u16>,
}

impl Wide {
    /// A decoder for what begins like this, and how many bytes of it are its mark; `None` when it is
    /// not UTF-16.
    pub(super) fn of(head: &[u8]) -> Option<(Self, usize)> {
        let (order, mark) = match head {
            [0xff, 0xfe, ..] => (Order::Little, 2),
            [0xfe, 0xff, ..] => (Order::Big, 2),
            _ => (unmarked(head)?, 0),
        };
        let wide = Self {
            order,
            half: None,
            high: None,
        };
        Some((wide, mark))
    }

    /// The text of the next bytes; what is not valid becomes U+FFFD.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len() / 2 + 1);
        for byte in bytes {
            let Some(first) = self.half.take() else {
                self.half = Some(*byte);
                continue;
            };
            let pair = [first, *byte];
            self.unit(
                match self.order {
                    Order::Little => u16::from_le_bytes(pair),
                    Order::Big => u16::from_be_bytes(pair),
                },
                &mut text,
            );
        }
        text
    }

    fn unit(&mut self, unit: u16, text: &mut String) {
        let high = self.high.take();
        if (0xdc00..0xe000).contains(&unit) {
            let pair = high.map(|high| char::decode_utf16([high, unit]).next());
            text.push(match pair {
                Some(Some(Ok(c))) => c,
                _ => char::REPLACEMENT_CHARACTER,
            });
            return;
        }
        if high.is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        match char::from_u32(u32::from(unit)) {
            Some(c) => text.push(c),
            None => self.high = Some(unit),
        }
    }
}

/// Text in UTF-16 is mostly ASCII here: most units have one byte of zero, always on the same side.
fn unmarked(head: &[u8]) -> Option<Order> {
    let (pairs, _) = head.as_chunks::<2>();
    if head.len() < ENOUGH {
        return None;
    }
    let ascii = |which: fn(&[u8; 2]) -> bool| pairs.iter().filter(|pair| which(pair)).count();
    let little = ascii(|[low, high]| *low != 0 && *high == 0);
    let big = ascii(|[high, low]| *low != 0 && *high == 0);
    let most = pairs.len() * 3 / 4;
    let few = |these: usize, others: usize| these * 8 < others;
    if little >= most && few(big, little) {
        Some(Order::Little)
    } else if big >= most && few(little, big) {
        Some(Order::Big)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(order).collect()
    }

    #[test]
    fn both_orders_decode_whatever_the_pieces() {
        let text = "GPU0 \u{1f680} é\n";
        for (mark, order) in [
            ([0xff, 0xfe], u16::to_le_bytes as fn(u16) -> [u8; 2]),
            ([0xfe, 0xff], u16::to_be_bytes),
        ] {
            let all = [&mark[..], &bytes(text, order)].concat();
            let (mut wide, skip) = Wide::of(&all).unwrap();
            let decoded: String = all[skip..]
                .chunks(3)
                .map(|piece| wide.decode(piece))
                .collect();
            assert_eq!(decoded, text);
        }
    }

    #[test]
    fn without_a_mark_zeros_in_every_other_byte_tell() {
        assert!(Wide::of(&bytes("hca_id: mlx5_0", u16::to_le_bytes)).is_some());
        assert!(Wide::of(b"hca_id: mlx5_0 and more").is_none());
        assert!(Wide::of(&[0; 64]).is_none());
        assert!(Wide::of(b"").is_none());
    }

    #[test]
    fn lone_halves_become_replacement_characters() {
        let (mut wide, skip) = Wide::of(&[0xff, 0xfe]).unwrap();
        assert_eq!(skip, 2);
        assert_eq!(
            wide.decode(&[0x00, 0xdc, 0x3d, 0xd8, 0x41, 0x00]),
            "\u{fffd}\u{fffd}A"
        );
    }
}
