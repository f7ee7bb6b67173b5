//! Looks up the functions of the vDSO, which the kernel maps into all processes: the agent's own copy is valid for all.

use std::{
    fs::{self, File},
    io,
    sync::Arc,
};

use super::{
    elf::Elf,
    elf_symbols::functions,
    maps::{self, Backing},
    read_at::read_exact,
};

/// The largest size of the image, in bytes: it has only some pages.
const MAX_SIZE: u64 = 1 << 20;

/// The vDSO's image, once it was needed.
#[derive(Debug, Default)]
pub(super) struct Vdso(Option<Option<(Elf, Vec<u8>)>>);

impl Vdso {
    /// Returns the function at an address in the vDSO. Processes of 32 bits have another image, whose addresses seldom
    /// match.
    pub(super) fn name(&mut self, address: u64) -> Option<Arc<str>> {
        let (elf, image) = self.0.get_or_insert_with(|| read().ok().flatten()).as_ref()?;
        functions(elf, &image[..], &[address]).pop()?.map(|name| name.text.into())
    }
}

/// Reads the image.
pub(super) fn read() -> io::Result<Option<(Elf, Vec<u8>)>> {
    let vmas = maps::parse(&fs::read("/proc/self/maps")?);
    let vdso = vmas.iter().find(|vma| matches!(&vma.backing, Backing::Special(name) if name == "[vdso]"));
    let Some(vdso) = vdso.filter(|vdso| vdso.end - vdso.start <= MAX_SIZE) else { return Ok(None) };
    let image = read_exact(&File::open("/proc/self/mem")?, vdso.start, vdso.end - vdso.start);
    Ok(image.and_then(|image| Some((Elf::parse(&image[..])?, image))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libraries_call_in_it_has_a_name() {
        let mut vdso = Vdso::default();
        let name = (0..MAX_SIZE).step_by(16).find_map(|address| vdso.name(address));
        assert!(name.as_ref().is_some_and(|name| name.contains("vdso") || name.contains("get")), "{name:?}");
        assert_eq!(vdso.name(u64::MAX), None);
    }
}
