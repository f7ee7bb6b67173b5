//! `podperf metrics`: prints the reference of all exported metrics.

use clap::{Args, ValueEnum};

use super::print;
use crate::export::prometheus::reference;

/// The flags of `podperf metrics`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// markdown, or json for programs.
    #[arg(long, value_name = "FORM", default_value = "markdown", hide_possible_values = true)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Markdown,
    Json,
}

/// Prints the reference.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = match arguments.output {
        Output::Markdown => reference::markdown(),
        Output::Json => serde_json::to_string_pretty(&reference::families())? + "\n",
    };
    print(text.as_bytes())
}
