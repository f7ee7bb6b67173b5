//! Function names as their authors wrote them. Pure.
//!
//! A name comes from a file that anybody may have written: what is made of it is bounded, since a few bytes of a C++
//! name can stand for gigabytes.

use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Names are cut at this length: no receiver shows more.
pub(super) const MAX_NAME: usize = 1024;
/// Deeper templates keep their mangled name. The parser's frames are large, and a thread's stack is not.
const MAX_DEPTH: u32 = 96;

/// A text that takes no more than fits.
struct Bounded {
    text: String,
    full: bool,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_NAME - self.text.len();
        if part.len() > room {
            let end = (0..=room).rev().find(|end| part.is_char_boundary(*end)).unwrap_or(0);
            self.text.push_str(&part[..end]);
            self.full = true;
            return Err(fmt::Error);
        }
        self.text.push_str(part);
        Ok(())
    }
}

/// The name that `symbol` stands for, Rust's and C++'s demangled, without Rust's hashes.
pub(super) fn demangle(symbol: &str) -> String {
    let mut bounded = Bounded { text: String::new(), full: false };
    // `name@@VERSION` in symbol tables.
    let bare = symbol.split_once('@').filter(|(bare, _)| !bare.is_empty()).map_or(symbol, |(bare, _)| bare);
    if let Ok(name) = rustc_demangle::try_demangle(bare) {
        if write!(bounded, "{name:#}").is_ok() || bounded.full {
            return bounded.text;
        }
    } else if bare.starts_with("_Z") {
        let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
        if let Ok(name) = Symbol::new_with_options(bare, &options) {
            let options = DemangleOptions::default().recursion_limit(MAX_DEPTH);
            if name.structured_demangle(&mut bounded, &options).is_ok() || bounded.full {
                return bounded.text;
            }
        }
    }
    let mut plain = Bounded { text: String::new(), full: false };
    plain.write_str(bare).ok();
    plain.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_languages_are_as_written() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN5shape6Circle4areaEv", "shape::Circle::area()"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("runtime.goexit.abi0", "runtime.goexit.abi0"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("@", "@"),
            ("_ZN", "_ZN"),
            ("", ""),
        ] {
            assert_eq!(demangle(symbol), name);
        }
    }

    #[test]
    fn a_name_that_would_grow_without_end_is_cut() {
        // Each `S_` pair doubles what came before.
        let mut symbol = "_Z1fIiEvT_".to_owned();
        for _ in 0..200 {
            symbol.push_str("S0_S0_S1_");
        }
        for symbol in [
            symbol,
            "é".repeat(MAX_NAME),
            format!("_Z1f{}i", "P".repeat(100_000)),
            format!("_Z1f{}", "1AI".repeat(100_000)),
        ] {
            let name = demangle(&symbol);
            assert!(name.len() <= MAX_NAME && !name.is_empty(), "{}", name.len());
        }
    }
}
