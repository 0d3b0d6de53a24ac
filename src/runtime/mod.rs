//! The shell around the shards: sockets, connections, DNS.

pub mod dns;
