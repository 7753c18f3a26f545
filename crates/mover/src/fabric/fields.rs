//! Reading and writing the fields of untrusted messages: little-endian, every length bounded.

/// Takes fields off the front of received bytes; every method answers `None` at the end.
#[derive(Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next bytes, as many as the array has.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// A number.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A 16-bit length and that many bytes, `most` at most.
    pub fn bytes(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = usize::from(self.u16()?);
        if len > most {
            return None;
        }
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// As [`Self::bytes`], and it must be UTF-8.
    pub fn text(&mut self, most: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(most)?).ok()
    }

    /// So many numbers, and nothing behind them.
    pub fn last_u64s(mut self, count: usize) -> Option<Vec<u64>> {
        let numbers: Option<Vec<u64>> = (0..count).map(|_| self.u64()).collect();
        numbers.filter(|_| self.is_done())
    }

    /// Whether everything was taken.
    pub const fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends fields.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// With room for so many bytes.
    pub fn with_room(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// A number.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    /// A number.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// These bytes alone.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A 16-bit length and the bytes; what is longer is cut, which no reader accepts as whole.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len).raw(&bytes[..usize::from(len)])
    }

    /// What was written.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}
