//! Parses the entries of `.eh_frame`: common information entries (CIE) and frame description entries (FDE).
//!
//! The format is that of the Linux Standard Base 5.0, chapter 10.6. Entries of 4 GiB or more and the augmentation `eh`
//! of GCC 2 are not supported.

use super::{bytes::Bytes, machine::Machine};

/// The longest entry, in bytes. The longest ones of `node` have some KiB.
pub(super) const MAX_ENTRY: usize = 64 << 10;

/// The longest augmentation. Compilers write at most five letters.
const MAX_AUGMENTATION: usize = 8;

/// The encoding of a pointer (`DW_EH_PE_*`): the lower four bits are its format, the upper ones its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Encoding(pub(super) u8);

/// The bases of pointers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bases {
    /// The address of the first byte.
    pub(super) start: u64,
    /// The base of `DW_EH_PE_datarel`, which only the search table has.
    pub(super) data: Option<u64>,
}

impl Encoding {
    /// Reads a pointer. Indirect pointers are not supported, because they are only known while the program runs.
    pub(super) fn pointer(self, bytes: &mut Bytes<'_>, bases: Bases) -> Option<u64> {
        let base = match self.0 & 0xf0 {
            // DW_EH_PE_absptr, DW_EH_PE_pcrel, DW_EH_PE_datarel.
            0x00 => 0,
            0x10 => bases.start.wrapping_add(bytes.position()),
            0x30 => bases.data?,
            _ => return None,
        };
        Some(base.wrapping_add(self.number(bytes)?))
    }

    /// Reads a number in the format of the pointer, without a base.
    pub(super) fn number(self, bytes: &mut Bytes<'_>) -> Option<u64> {
        match self.0 & 0x0f {
            // DW_EH_PE_absptr, DW_EH_PE_udata8.
            0x00 | 0x04 => bytes.u64(),
            0x01 => bytes.uleb(),
            0x02 => bytes.u16().map(u64::from),
            0x03 => bytes.u32().map(u64::from),
            0x09 => bytes.sleb().map(i64::cast_unsigned),
            0x0a => bytes.signed(2),
            0x0b => bytes.signed(4),
            0x0c => bytes.signed(8),
            _ => None,
        }
    }
}

/// An entry of either kind.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    /// The address of `bytes`, which begin behind the length.
    pub(super) start: u64,
    bytes: &'a [u8],
}

/// A common information entry.
#[derive(Clone, Debug)]
pub(super) struct Cie<'a> {
    pub(super) code_factor: u64,
    pub(super) data_factor: i64,
    /// The register of the return address.
    pub(super) return_register: u8,
    pub(super) is_signal: bool,
    pub(super) instructions: &'a [u8],
    /// The encoding of addresses in FDEs.
    encoding: Encoding,
    /// Set if FDEs have augmentation data.
    has_data: bool,
}

/// A frame description entry.
#[derive(Clone, Debug)]
pub(super) struct Fde<'a> {
    pub(super) start: u64,
    /// The address behind the last instruction.
    pub(super) end: u64,
    pub(super) instructions: &'a [u8],
}

/// Returns the size of the entry at the start of `bytes`, with its length field; `None` at the end of the entries.
pub(super) fn size(bytes: &[u8]) -> Option<usize> {
    let length = Bytes::new(bytes).u32().filter(|length| (4..u32::MAX).contains(length))?;
    usize::try_from(length).ok()?.checked_add(4)
}

impl<'a> Entry<'a> {
    /// Returns the entry at the start of `bytes`, which lie at `address`.
    pub(super) fn new(bytes: &'a [u8], address: u64) -> Option<Self> {
        let bytes = bytes.get(4..size(bytes)?)?;
        Some(Self { start: address.checked_add(4)?, bytes })
    }

    /// Returns the address of an FDE's CIE; `None` if this is a CIE.
    pub(super) fn cie_address(&self) -> Option<u64> {
        let distance = Bytes::new(self.bytes).u32().filter(|distance| *distance != 0)?;
        self.start.checked_sub(distance.into())
    }

    /// Parses a CIE; returns `None` if a part is not understood.
    pub(super) fn cie(&self, machine: Machine) -> Option<Cie<'a>> {
        let mut bytes = Bytes::new(self.bytes);
        let (id, version) = (bytes.u32()?, bytes.u8()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let length = bytes.rest().iter().take(MAX_AUGMENTATION + 1).position(|byte| *byte == 0)?;
        let augmentation = bytes.take(length)?;
        bytes.u8()?;
        let (code_factor, data_factor) = (bytes.uleb()?, bytes.sleb()?);
        let return_register = if version == 1 { bytes.u8()? } else { bytes.small()? };
        let (mut encoding, mut is_signal) = (Encoding(0), false);
        let mut letters = augmentation.iter();
        let has_data = letters.as_slice().starts_with(b"z");
        if has_data {
            letters.next();
            let mut data = Bytes::new(bytes.block()?);
            for letter in letters {
                match letter {
                    b'R' => encoding = Encoding(data.u8()?),
                    b'L' => drop(data.u8()?),
                    // The personality: only its size matters.
                    b'P' => drop(Encoding(data.u8()?).number(&mut data)?),
                    b'S' => is_signal = true,
                    // The function signs return addresses with the key B.
                    b'B' if machine == Machine::Aarch64 => {}
                    _ => return None,
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        if usize::from(return_register) >= machine.registers() {
            return None;
        }
        let instructions = bytes.rest();
        Some(Cie { code_factor, data_factor, return_register, is_signal, instructions, encoding, has_data })
    }

    /// Parses an FDE.
    pub(super) fn fde(&self, cie: &Cie<'_>) -> Option<Fde<'a>> {
        let mut bytes = Bytes::new(self.bytes);
        bytes.u32()?;
        let start = cie.encoding.pointer(&mut bytes, Bases { start: self.start, data: None })?;
        let end = start.checked_add(cie.encoding.number(&mut bytes)?)?;
        if cie.has_data {
            bytes.block()?;
        }
        Some(Fde { start, end, instructions: bytes.rest() })
    }
}

impl Fde<'_> {
    pub(super) fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}
