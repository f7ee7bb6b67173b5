//! Filters of the samples in a profile: expressions such as `state == D && duration > 1ms || comm == "nginx*"`. Pure.
//!
//! An expression becomes alternatives; all terms of an alternative must hold. The kernel programs test the terms that
//! only the kernel knows (thread, name, length), by entries of a map: each alternative with such terms has a bit, and a
//! sample has this bit if they hold. The agent tests the other terms (namespace, pod, reason), so that a pod whose name
//! arrives late is not missed.

mod grammar;
mod slots;
mod terms;

use std::{fmt, str::FromStr};

use podperf_ebpf::abi;
use thiserror::Error;

pub use slots::{Filters, Full};
use terms::Term;
pub use terms::{Known, KnownTerm, StateTerm, Text};

/// The number of bits of a sample: alternatives with terms for the kernel, of all filters together.
pub const MAX_BITS: usize = abi::PODPERF_FILTERS as usize;
/// The largest number of terms of one expression, in all of its alternatives: each sample may be compared with each.
const MAX_TERMS: usize = 64;

/// The reason why an expression is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}\n  {expression}\n  {:>column$}", "^", column = self.column + 1)]
pub struct FilterError {
    /// The expression as the user wrote it.
    pub expression: String,
    /// The position of the mistake, in characters from 0.
    pub column: usize,
    /// The mistake, and the correct form.
    pub message: String,
}

/// A parsed filter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    expression: String,
    alternatives: Vec<Alternative>,
    /// The terms for the kernel; their bits count from 0 within this filter.
    kernel: Vec<abi::podperf_filter_term>,
}

#[derive(Clone, Debug, Default)]
struct Alternative {
    /// `None` if the alternative has no terms for the kernel.
    bit: Option<u32>,
    known: Vec<(KnownTerm, bool)>,
}

impl Filter {
    /// Parses an expression; an empty one lets every sample pass.
    ///
    /// # Errors
    ///
    /// When the expression cannot be read, or has too many terms.
    pub fn parse(expression: &str) -> Result<Self, FilterError> {
        let mut filter = Self { expression: expression.to_owned(), ..Self::default() };
        if expression.trim().is_empty() {
            return Ok(filter);
        }
        let at_end = |message: String| FilterError {
            expression: expression.to_owned(),
            column: expression.chars().count(),
            message,
        };
        let alternatives = grammar::alternatives(expression, MAX_TERMS)?;
        let mut bits = 0;
        for terms in alternatives {
            let mut alternative = Alternative::default();
            for (term, holds) in terms {
                match term {
                    Term::Known(term) => alternative.known.push((term, holds)),
                    Term::Kernel(term) => {
                        let bit = *alternative.bit.get_or_insert_with(|| {
                            bits += 1;
                            bits - 1
                        });
                        filter.kernel.push(term.entry(bit, holds));
                    }
                }
            }
            filter.alternatives.push(alternative);
        }
        if bits as usize > MAX_BITS || filter.kernel.len() > abi::PODPERF_FILTER_TERMS as usize {
            return Err(at_end(format!(
                "too many alternatives of duration, thread or name: {bits} with {} terms (at most {MAX_BITS} with {})",
                filter.kernel.len(),
                abi::PODPERF_FILTER_TERMS
            )));
        }
        Ok(filter)
    }

    /// Returns whether the filter lets every sample pass.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// Returns the terms for the kernel.
    #[must_use]
    pub fn kernel_terms(&self) -> &[abi::podperf_filter_term] {
        &self.kernel
    }

    /// Returns the number of bits of this filter.
    fn bits(&self) -> usize {
        self.alternatives.iter().filter(|alternative| alternative.bit.is_some()).count()
    }

    /// Returns the pod labels that the filter uses.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let terms = self.alternatives.iter().flat_map(|alternative| &alternative.known);
        terms.filter_map(|(term, _)| term.label())
    }

    /// Returns whether a sample passes, by the bits that the kernel set and by the fields that the agent knows.
    #[must_use]
    pub fn passes(&self, bits: u16, known: &Known<'_>) -> bool {
        let alternative = |alternative: &Alternative| {
            alternative.bit.is_none_or(|bit| bits >> bit & 1 == 1)
                && alternative.known.iter().all(|(term, holds)| term.holds(known) == *holds)
        };
        self.is_empty() || self.alternatives.iter().any(alternative)
    }
}

/// Parses a filter from a command-line argument.
impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expression)
    }
}

#[cfg(test)]
mod tests;
