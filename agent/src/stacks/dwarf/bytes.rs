//! Reads numbers from bytes, from front to back.

/// Reads bytes from front to back. Each read returns `None` where the bytes end.
#[derive(Clone, Debug)]
pub(super) struct Bytes<'a> {
    rest: &'a [u8],
    read: u64,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, read: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the bytes that were not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the number of bytes that were read.
    pub(super) fn position(&self) -> u64 {
        self.read
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        self.read += taken.len() as u64;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a signed number of one, two, four or eight bytes and extends its sign to 64 bits.
    pub(super) fn signed(&mut self, size: usize) -> Option<u64> {
        let number = match size {
            1 => self.array().map(i8::from_le_bytes)?.into(),
            2 => self.array().map(i16::from_le_bytes)?.into(),
            4 => self.array().map(i32::from_le_bytes)?.into(),
            8 => self.array().map(i64::from_le_bytes)?,
            _ => return None,
        };
        Some(number.cast_unsigned())
    }

    /// Reads a LEB128 number; returns `None` if it has more than 64 bits.
    pub(super) fn uleb(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a signed LEB128 number; returns `None` if it has more than 64 bits.
    pub(super) fn sleb(&mut self) -> Option<i64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && !matches!(bits, 0 | 0x7f) {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                let sign = if byte & 0x40 != 0 && shift < 57 { u64::MAX << (shift + 7) } else { 0 };
                return Some((number | sign).cast_signed());
            }
        }
        None
    }

    /// Reads a LEB128 number that must fit into a smaller type.
    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.uleb()?).ok()
    }

    /// Reads a block: its length and as many bytes.
    pub(super) fn block(&mut self) -> Option<&'a [u8]> {
        let length = self.small()?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb_numbers_have_at_most_64_bits() {
        let uleb = |bytes: &[u8]| Bytes::new(bytes).uleb();
        let sleb = |bytes: &[u8]| Bytes::new(bytes).sleb();
        assert_eq!(uleb(&[0xe5, 0x8e, 0x26]), Some(624_485));
        assert_eq!(uleb(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Some(u64::MAX));
        assert_eq!(uleb(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3]), None);
        assert_eq!(uleb(&[0x80; 20]), None);
        assert_eq!(uleb(&[0x80]), None);
        assert_eq!([sleb(&[0x78]), sleb(&[0x80, 0x7f]), sleb(&[0x3f])], [Some(-8), Some(-128), Some(63)]);
        assert_eq!(sleb(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f]), Some(i64::MIN));
        assert_eq!(sleb(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1]), None);
    }
}
