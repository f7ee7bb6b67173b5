//! Function names as their authors wrote them. Pure.
//!
//! A name comes from a file of an untrusted author. The result is bounded, since a few bytes of a C++ name can expand
//! to gigabytes.

use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Names are cut at this length, in bytes: no receiver shows more.
pub(super) const MAX_NAME: usize = 1024;
/// C++ templates that are nested deeper keep their mangled name. The parser's stack frames are large, and a thread's
/// stack is small.
const MAX_DEPTH: u32 = 96;

/// The language of a function, as far as its symbol or its file shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Go,
    Rust,
    Cpp,
    /// C, or an unknown language.
    Other,
}

/// The name of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionName {
    /// The name as the author wrote it.
    pub(super) text: String,
    pub(super) language: Language,
}

/// A text with a limited length: the rest is cut.
struct Bounded {
    text: String,
    full: bool,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_NAME - self.text.len();
        if part.len() > room {
            let end = part.floor_char_boundary(room);
            self.text.push_str(&part[..end]);
            self.full = true;
            return Err(fmt::Error);
        }
        self.text.push_str(part);
        Ok(())
    }
}

/// Returns Rust for symbols that only rustc makes: its current mangling, and its older mangling, which looks like C++
/// but ends in a hash. Returns C++ for the other names of that form.
pub(super) fn language(symbol: &str) -> Language {
    let is_mangled = || symbol.starts_with("_R") && rustc_demangle::try_demangle(symbol).is_ok();
    let has_hash = || {
        let (_, rest) = symbol.strip_prefix("_ZN")?.rsplit_once("17h")?;
        let (hash, rest) = rest.split_at_checked(16)?;
        // LLVM adds text behind a dot.
        let is_end = matches!(rest.strip_prefix('E')?.chars().next(), None | Some('.'));
        Some(is_end && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if is_mangled() || has_hash() == Some(true) {
        Language::Rust
    } else if symbol.starts_with("_Z") {
        Language::Cpp
    } else {
        Language::Other
    }
}

/// Returns whether a symbol of a Go program, not mangled as C++, has a package. Parts and variants of a function that a
/// C compiler makes have none.
pub(super) fn has_package(symbol: &str) -> bool {
    const PARTS: [&str; 10] =
        ["part", "constprop", "isra", "cold", "llvm", "lto_priv", "localalias", "default", "resolver", "_omp_fn"];
    let Some((_, rest)) = symbol.split_once('.') else { return false };
    let part = rest.split('.').next().unwrap_or(rest);
    // Variants such as `memcpy.avx2` and `f.arch_haswell`.
    let is_variant = ["avx", "sse", "arch_"].iter().any(|prefix| part.starts_with(prefix));
    !rest.is_empty() && !PARTS.contains(&part) && !is_variant
}

/// Returns the demangled name of a Rust or C++ symbol, and other symbols as they are. Rust's hashes and symbol versions
/// are removed.
pub(super) fn demangle(symbol: &str) -> String {
    let mut bounded = Bounded { text: String::new(), full: false };
    // Symbol tables hold `name@@VERSION`.
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
            (
                "_RNvMNtNtNtNtCsjrHSEGnQ3l9_3std3sys4sync5mutex5futexNtB2_5Mutex14lock_contended",
                "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
            ),
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
    fn a_symbol_of_rustc_is_distinguished_from_one_of_cpp() {
        for (symbol, expected) in [
            ("_ZN4core3fmt5write17h0123456789abcdefE", Language::Rust),
            ("_ZN4core3fmt5write17h0123456789abcdefE.llvm.123", Language::Rust),
            ("_ZN48_$LT$core..tuple..Pair$u20$as$u20$Default$GT$7default17h0123456789abcdefE", Language::Rust),
            ("_RNvCs1234_7mycrate3foo", Language::Rust),
            ("_ZN5shape6Circle4areaEv", Language::Cpp),
            ("_ZN3foo3barEi.cold", Language::Cpp),
            ("_ZN4core3fmt5write17hEv", Language::Cpp),
            ("_ZN4core3fmt5write17hnot_a_hash_at_allE", Language::Cpp),
            ("_Run", Language::Other),
            ("main", Language::Other),
            ("é17h0123456789abcdefE", Language::Other),
            ("", Language::Other),
        ] {
            assert_eq!(language(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn a_package_is_distinguished_from_a_part_of_a_c_function() {
        for symbol in ["main.main", "runtime.goexit.abi0", "github.com/a/b.(*T).M", "type:.eq.main.T"] {
            assert!(has_package(symbol), "{symbol}");
        }
        for symbol in [
            "x_cgo_init",
            "parse.part.0",
            "parse.cold",
            "parse.constprop.0.isra.0",
            "sum._omp_fn.0",
            "copy.avx2",
            "",
            ".",
            "main.",
        ] {
            assert!(!has_package(symbol), "{symbol}");
        }
    }

    #[test]
    fn a_name_that_would_grow_without_end_is_cut() {
        // Each `S_` pair doubles the text before it.
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
