//! ALTO from the outside: what real servers have said, and a whole element with a server that behaves or does not.

#![allow(clippy::unwrap_used)]

mod element;
mod recorded;
