//! One call of a collective, as every rank of the group must make it.

use std::fmt;

use crowfly_route::collective::Collective;

use super::choose::Algorithm;
use super::element::Element;
use super::reduce::Reduction;
use super::shared::SHARED_ALIGNMENT;
use crate::fabric::Reader;

/// Bytes of an encoded call.
pub(crate) const CALL_BYTES: usize = 24;

/// What a rank calls. All ranks of a group must call the same, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// What is done.
    pub(crate) collective: u8,
    pub(crate) element: u8,
    pub(crate) reduction: u8,
    /// 1 where half precision is summed in single precision.
    pub(crate) wide: u8,
    pub(crate) root: u32,
    /// The algorithm's place among all: ranks must not choose differently.
    pub(crate) way: u32,
    /// Of a call on the group's own memory: where in it, in units of [`SHARED_ALIGNMENT`]. The buffer's
    /// number is in the place of the root.
    pub(crate) place: u32,
    /// Numbers: of the whole buffer for all-reduce and broadcast, of one rank's part otherwise.
    pub(crate) count: u64,
}

impl Call {
    pub(crate) fn new(collective: Collective, element: Element, count: usize) -> Self {
        let at = Collective::ALL
            .iter()
            .position(|known| *known == collective);
        Self {
            collective: at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX),
            element: element.number(),
            reduction: u8::MAX,
            wide: 0,
            root: u32::MAX,
            way: 0,
            place: 0,
            count: count as u64,
        }
    }

    pub(crate) fn reducing(mut self, reduction: Reduction, wide: bool) -> Self {
        self.reduction = reduction.number();
        self.wide = u8::from(wide);
        self
    }

    /// The call as numbers that fit the words of an arena.
    pub(crate) fn words(&self) -> [u64; CALL_BYTES / 8] {
        let kinds = [self.collective, self.element, self.reduction, self.wide];
        let kinds = u64::from(u32::from_le_bytes(kinds));
        [
            kinds | u64::from(self.root) << 32,
            u64::from(self.way) | u64::from(self.place) << 32,
            self.count,
        ]
    }

    pub(crate) fn of_words([kinds, way, count]: [u64; CALL_BYTES / 8]) -> Self {
        let [collective, element, reduction, wide] = (kinds as u32).to_le_bytes();
        Self {
            collective,
            element,
            reduction,
            wide,
            root: (kinds >> 32) as u32,
            way: way as u32,
            place: (way >> 32) as u32,
            count,
        }
    }

    pub(crate) fn encode(&self) -> [u8; CALL_BYTES] {
        let mut bytes = [0; CALL_BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words()) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let words = [fields.u64()?, fields.u64()?, fields.u64()?];
        Some(Self::of_words(words))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Collective::ALL.get(usize::from(self.collective));
        f.write_str(known.map_or("an unknown collective", |known| known.as_str()))?;
        if let Some(element) = Element::numbered(self.element)
            && known != Some(&Collective::Barrier)
        {
            write!(f, " of {} {element}", self.count)?;
        }
        if let Some(reduction) = Reduction::numbered(self.reduction) {
            write!(f, " by {reduction}")?;
        }
        if self.wide != 0 {
            f.write_str(" in single precision")?;
        }
        let way = usize::try_from(self.way).ok();
        let way = way.and_then(|way| Algorithm::ALL.get(way));
        if way == Some(&Algorithm::InPlace) {
            let at = u64::from(self.place) * SHARED_ALIGNMENT as u64;
            write!(f, " in buffer {} of the group from byte {at} on", self.root)?;
        } else if self.root != u32::MAX {
            write!(f, " from rank {}", self.root)?;
        }
        if let Some(way) = way
            && self.way != 0
        {
            write!(f, " ({way})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_back_and_says_what_it_is() {
        let call =
            Call::new(Collective::AllReduce, Element::Bf16, 1000).reducing(Reduction::Mean, true);
        assert_eq!(Call::decode(&call.encode()), Some(call));
        let text = "all-reduce of 1000 bf16 by mean in single precision";
        assert_eq!(call.to_string(), text);
        assert_eq!(Call::decode(&[0; 4]), None);
        let way = Algorithm::ALL
            .iter()
            .position(|way| *way == Algorithm::InPlace);
        let shared = Call {
            root: 2,
            way: way.expect("it is one of them") as u32,
            place: 3,
            ..call
        };
        assert_eq!(Call::decode(&shared.encode()), Some(shared));
        let text = format!("{text} in buffer 2 of the group from byte 192 on (in-place)");
        assert_eq!(shared.to_string(), text);
    }
}
