//! The `sbe` binary: everything lives in the library.

use std::process::ExitCode;

use clap::Parser;

/// Messages are a little over a kilobyte, which the C library's allocator serves by its slow way:
/// a fifth of the instructions that a call takes. This one gives memory back when load ends, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sbe::cli::run(sbe::cli::Cli::parse())
}
