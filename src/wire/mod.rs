//! SIP messages as bytes: an index over them, views into them, splices on top of them.
//!
//! A received message stays what it is, a `&[u8]`. [`Index::parse`] finds the start line, the rows of
//! the header and the body, and checks what a proxy has to check; it allocates nothing for usual
//! messages. [`Message`] puts bytes and index together and hands out views ([`ViaRef`], [`UriRef`],
//! [`NameAddrRef`]) that are read on demand. A message is changed by an [`Edit`]: a list of splices
//! applied in one pass, so that every octet nobody had to touch leaves as it came, folding included.
//!
//! Words used here: a *row* is one header field line with its continuation lines and final CRLF; a
//! *value* is one element of a comma-separated row; all ranges are octet offsets into the message.
//!
//! The layer is strict where leniency lets one element see a header that the next one does not
//! (bare CR or LF, conflicting lengths, doubled fields) and lenient elsewhere.

pub mod build;
mod check;
mod edit;
mod fault;
mod framing;
mod host;
mod index;
mod message;
mod name;
mod name_addr;
mod octets;
mod scan;
mod uri;
mod via;

pub use edit::{
    Edit, Writer, decimal, ensure_content_length, remove_top_via, remove_value, retain_values,
    set_max_forwards, stamp_via, strip_headers, top_via_range,
};
pub use fault::{Fault, Unusable};
pub use framing::{Event, Step, StreamFramer};
pub use host::HostRef;
pub use index::{Framing, Index};
pub use message::{Field, Fields, Message, RouteValue};
pub use name::{Method, Name};
pub use name_addr::{AddrFault, NameAddrRef};
pub use scan::{Param, Params};
pub use uri::{Scheme, UriFault, UriRef};
pub use via::ViaRef;

/// Bounds on what is read from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message, start line to end of body, in octets.
    pub max_message: usize,
    /// Most header rows.
    pub max_headers: usize,
    /// Largest row, continuation lines included, in octets; also the longest start line.
    pub max_header: usize,
}

impl Default for Limits {
    /// 64 KiB, 256 rows, 32 KiB a row.
    fn default() -> Self {
        Limits { max_message: 65_536, max_headers: 256, max_header: 32_768 }
    }
}

#[cfg(test)]
mod tests;
