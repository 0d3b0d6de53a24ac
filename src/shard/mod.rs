//! The whole element as a value: inputs in, outputs out.

pub mod io;
