//! hwloc's bitmaps: 32-bit words in hexadecimal, the highest first, `0x000000ff,0xffffffff`.
//! Words that are zero may be empty, and `0xf...f` says that all higher bits are set.

/// The most words that are read: sets of 32768 CPUs.
const MAX_WORDS: usize = 1024;

/// A set of numbers.
pub(super) struct Bitmap {
    /// Lowest word first.
    words: Vec<u32>,
    infinite: bool,
}

impl Bitmap {
    pub(super) fn parse(text: &str) -> Self {
        let mut infinite = false;
        let word = |part: &str| match part.trim() {
            "0xf...f" => {
                infinite = true;
                0
            }
            part => u32::from_str_radix(part.trim_start_matches("0x"), 16).unwrap_or(0),
        };
        Self {
            words: text.rsplit(',').take(MAX_WORDS).map(word).collect(),
            infinite,
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.words).flat_map(|(index, word)| {
            (0..32)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| index * 32 + bit)
        })
    }

    /// The number in it when there is exactly one.
    pub(super) fn only(&self) -> Option<u32> {
        let mut numbers = self.numbers();
        let only = numbers.next().filter(|_| !self.infinite);
        only.filter(|_| numbers.next().is_none())
    }

    /// The kernel's list form, `0-31,64-95`; empty for sets without end.
    pub(super) fn list(&self) -> String {
        if self.infinite {
            return String::new();
        }
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in self.numbers() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let range = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.iter().map(range).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_read_as_hwloc_writes_them() {
        let list = |text| Bitmap::parse(text).list();
        assert_eq!(list("0x03000003"), "0-1,24-25");
        assert_eq!(list("0x00000001,,0x80000000"), "31,64");
        assert_eq!(list(""), "");
        assert_eq!(list("0xf...f,0x0"), "");
        assert_eq!(Bitmap::parse("0x00000100").only(), Some(8));
        assert_eq!(Bitmap::parse("0x00000101").only(), None);
        assert_eq!(Bitmap::parse("0xf...f,0x1").only(), None);
        assert_eq!(Bitmap::parse("junk").only(), None);
    }
}
