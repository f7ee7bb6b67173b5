//! Which samples a profile takes: expressions such as `state == D && duration > 1ms || comm == "nginx*"`. Pure.
//!
//! An expression becomes alternatives, each of terms that must all hold. What only the kernel knows of a sample (thread,
//! name, length) is looked at there, by entries of a map: each alternative with such terms has a bit, which a sample
//! carries if they hold. What is known of it here (namespace, pod, reason) is looked at here, so that a pod whose name
//! comes late is not missed.

mod parse;
mod slots;
mod terms;

use std::{fmt, str::FromStr};

use podperf_ebpf::abi;
use thiserror::Error;

pub use slots::{Filters, Full};
use terms::Term;
pub use terms::{Known, KnownTerm, StateTerm, Text};

/// Alternatives with terms for the kernel, of all filters together: the bits of a sample.
pub const MAX_BITS: usize = abi::PODPERF_FILTERS as usize;
/// Alternatives of one expression.
const MAX_ALTERNATIVES: usize = 64;

/// Why an expression cannot be a filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}\n  {expression}\n  {:>column$}", "^", column = self.column + 1)]
pub struct FilterError {
    /// As it was written.
    pub expression: String,
    /// Where in it, in characters from 0.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// A filter, ready to be looked at.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    expression: String,
    alternatives: Vec<Alternative>,
    /// What the kernel looks at; the bits are those of this filter alone, from 0.
    kernel: Vec<abi::podperf_filter_term>,
}

#[derive(Clone, Debug, Default)]
struct Alternative {
    /// `None` where the kernel has nothing to look at.
    bit: Option<u32>,
    known: Vec<(KnownTerm, bool)>,
}

impl Filter {
    /// Reads an expression; an empty one lets everything pass.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or has too many alternatives.
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
        let alternatives = parse::alternatives(expression, MAX_ALTERNATIVES)?;
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
                "too many alternatives of state, duration, thread or name: {bits} with {} terms (at most {MAX_BITS} with {})",
                filter.kernel.len(),
                abi::PODPERF_FILTER_TERMS
            )));
        }
        Ok(filter)
    }

    /// Whether it lets everything pass.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// What the kernel is to look at.
    #[must_use]
    pub fn kernel_terms(&self) -> &[abi::podperf_filter_term] {
        &self.kernel
    }

    /// How many bits it has.
    fn bits(&self) -> usize {
        self.alternatives.iter().filter(|alternative| alternative.bit.is_some()).count()
    }

    /// The labels of pods that it asks for.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let terms = self.alternatives.iter().flat_map(|alternative| &alternative.known);
        terms.filter_map(|(term, _)| term.label())
    }

    /// Whether a sample passes: by the bits that the kernel set, and by what is known of it.
    #[must_use]
    pub fn passes(&self, bits: u16, known: &Known<'_>) -> bool {
        let alternative = |alternative: &Alternative| {
            alternative.bit.is_none_or(|bit| bits >> bit & 1 == 1)
                && alternative.known.iter().all(|(term, holds)| term.holds(known) == *holds)
        };
        self.is_empty() || self.alternatives.iter().any(alternative)
    }
}

/// As in an argument.
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
