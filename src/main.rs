//! The `sbe` binary: everything lives in the library.

use std::process::ExitCode;

use clap::Parser;

/// A message takes some five pieces of memory; this allocator hands them out in a quarter of the
/// instructions that the C library's takes, and gives them back to the system when a burst is over.
#[global_allocator]
static ALLOCATOR: sbe::runtime::Allocator = sbe::runtime::Allocator;

fn main() -> ExitCode {
    sbe::cli::run(sbe::cli::Cli::parse())
}
