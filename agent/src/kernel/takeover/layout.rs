//! The constants and map sizes of the programs, set when they are loaded, and a name for them. Maps of the same name
//! were made by the same programs with the same settings.

use aya::EbpfLoader;
use bytemuck::Pod;
use podperf_ebpf::abi;
use ring::digest::{Context, SHA256};

/// Number of bytes of the hash in the name.
const HASH_BYTES: usize = 8;

/// The read-only data of the programs, and the sizes of the maps.
#[derive(Debug, Default)]
pub(in crate::kernel) struct Layout {
    globals: Vec<(&'static str, Vec<u8>)>,
    sizes: Vec<(&'static str, u32)>,
    /// Other settings that make a layout different.
    besides: Vec<String>,
}

impl Layout {
    /// Sets a constant of the programs.
    pub(in crate::kernel) fn global<T: Pod>(mut self, name: &'static str, value: T) -> Self {
        self.globals.push((name, bytemuck::bytes_of(&value).to_vec()));
        self
    }

    /// Sets the number of entries of a map.
    pub(in crate::kernel) fn size(mut self, map: &'static str, entries: u32) -> Self {
        self.sizes.push((map, entries));
        self
    }

    /// Returns the number of entries of a map; `None` if it is not set here.
    pub(in crate::kernel) fn entries(&self, map: &str) -> Option<u32> {
        self.sizes.iter().find(|(of, _)| *of == map).map(|(_, entries)| *entries)
    }

    /// Adds a setting that is neither a constant nor a size, such as the wanted form of the scheduling tracepoint.
    pub(in crate::kernel) fn besides(mut self, what: impl Into<String>) -> Self {
        self.besides.push(what.into());
        self
    }

    /// Passes the constants and the sizes to the loader.
    pub(in crate::kernel) fn apply<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, bytes) in &self.globals {
            loader.override_global(name, bytes.as_slice(), true);
        }
        for (map, entries) in &self.sizes {
            loader.map_max_entries(map, *entries);
        }
    }

    /// Returns the version of the map layout, and a hash of the object and all of its settings, such as
    /// `2-0123456789abcdef`.
    pub(in crate::kernel) fn name(&self) -> String {
        let mut hash = Context::new(&SHA256);
        hash.update(podperf_ebpf::OBJECT);
        for (name, bytes) in &self.globals {
            hash.update(name.as_bytes());
            hash.update(bytes);
        }
        for (map, entries) in &self.sizes {
            hash.update(map.as_bytes());
            hash.update(&entries.to_ne_bytes());
        }
        self.besides.iter().for_each(|what| hash.update(what.as_bytes()));
        let hash = hash.finish();
        let hex: String = hash.as_ref().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hex}", abi::PODPERF_LAYOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_all_settings_of_the_programs() {
        let of = |value: u32, entries: u32, besides: &str| {
            Layout::default().global("value", value).size("map", entries).besides(besides).name()
        };
        let names = [of(1, 2, "raw"), of(2, 2, "raw"), of(1, 3, "raw"), of(1, 2, "btf")];
        assert_eq!(names[0], of(1, 2, "raw"));
        assert!((1..names.len()).all(|at| !names[..at].contains(&names[at])), "{names:?}");
        let version = abi::PODPERF_LAYOUT.to_string();
        assert!(
            names[0].starts_with(&format!("{version}-")) && names[0].len() == version.len() + 1 + 2 * HASH_BYTES,
            "{}",
            names[0]
        );
    }
}
