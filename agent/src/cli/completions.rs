//! `podperf completions`: prints a script with which a shell completes the command's words.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, print};

/// The flags of `podperf completions`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "podperf", &mut script);
    print(&script)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn each_shell_completes_all_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "podperf", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: no `{}`", command.get_name());
            }
            assert!(script.contains("otlp-endpoint"), "{shell}");
        }
    }
}
