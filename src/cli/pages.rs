//! Shell completions and manual pages, made from the definition of the command line itself.

use std::path::Path;

use clap::CommandFactory;

use super::{Cli, NO, print};

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sbe", &mut text);
    print(&String::from_utf8_lossy(&text));
    0
}

/// Writes the manual pages.
pub fn man(dir: &Path) -> u8 {
    let made = std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir));
    match made {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}: {error}", dir.display());
            NO
        }
    }
}
