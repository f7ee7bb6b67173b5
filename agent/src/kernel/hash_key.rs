//! The secret in the ids of stacks, wakers and call sites (`ebpf/bpf/hash.h`).
//!
//! The key is made once, when the first programs are loaded. It is pinned with the description of their maps, so that
//! programs that take over continue to use it.

use std::io;

use podperf_ebpf::abi;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::takeover::description::Description;

/// Name of the key's line in a description. The line has the form of a list of names, since all versions read such
/// lines.
const LINE: &str = "hash_key";
/// Number of bits of a point, which keeps it below the prime of the polynomial, 2^61 - 1.
const POINT_BITS: u32 = 60;

const WORDS: usize = size_of::<abi::podperf_hash_key>() / size_of::<u64>();

/// The secret key of the hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HashKey([u64; WORDS]);

impl HashKey {
    /// Makes a new key.
    ///
    /// # Errors
    ///
    /// Fails when the system provides no random bytes.
    pub(super) fn random() -> io::Result<Self> {
        let mut words = [0; WORDS];
        let filled = SystemRandom::new().fill(bytemuck::bytes_of_mut(&mut words));
        filled.map_err(|_unspecified| io::Error::other("failed to get random bytes from the system"))?;
        Ok(Self(words))
    }

    /// Returns the key in a description; `None` if it has none.
    pub(super) fn parse(description: &Description) -> Option<Self> {
        let words: Option<Vec<u64>> =
            description.names(LINE).iter().map(|word| u64::from_str_radix(word, 16).ok()).collect();
        Some(Self(words?.try_into().ok()?))
    }

    /// Returns the key's line in a description.
    pub(super) fn line(&self) -> String {
        let words = self.0.map(|word| format!("{word:016x}"));
        format!("names {LINE} {}\n", words.join(" "))
    }

    /// Returns the key as the value of the programs' constant.
    pub(super) fn constant(&self) -> abi::podperf_hash_key {
        let mut key: abi::podperf_hash_key = bytemuck::cast(self.0);
        key.point &= (1 << POINT_BITS) - 1;
        key.sites.iter_mut().for_each(|factor| *factor |= 1);
        key
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_on_in_the_next_description() {
        let key = HashKey::random().unwrap();
        let text = crate::kernel::takeover::description::text();
        let parse = |text: &str| HashKey::parse(&Description::parse(text).unwrap());
        assert_eq!(parse(&(text.clone() + &key.line())), Some(key));
        assert_eq!(parse(&text), None);
        assert_eq!(parse(&format!("{text}names hash_key 12 zz\n")), None);
    }

    #[test]
    fn two_keys_differ_and_are_what_the_hash_wants() {
        let (one, other) = (HashKey::random().unwrap(), HashKey::random().unwrap());
        assert!(one != other);
        let key = one.constant();
        assert!(key.point >> POINT_BITS == 0 && key.sites.iter().all(|factor| factor % 2 == 1), "{}", one.line());
        assert_eq!(format!("{one:?}"), "HashKey { .. }", "it is a secret");
    }
}
