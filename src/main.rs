//! The `sbe` binary: everything lives in the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    sbe::cli::run(sbe::cli::Cli::parse())
}
