//! The stateful proxy of RFC 3261 §16.

/// What a configuration makes of the element's decisions.
#[derive(Debug)]
pub struct Policy;
