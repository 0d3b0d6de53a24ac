//! The `sbe` binary: everything lives in the library.
fn main() {}
