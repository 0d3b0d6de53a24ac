//! The wire layer's behaviours, by room.
#![allow(clippy::unwrap_used)]

mod build;
mod edit;
mod faults;
mod framing;
mod views;

use super::{Fault, Framing, Index, Limits, Message, Unusable};

/// A sound request: replace or add rows by text.
pub(super) const OPTIONS: &str = "OPTIONS sip:bob@dest.example.test SIP/2.0\r\n\
    Via: SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1\r\n\
    Max-Forwards: 70\r\n\
    From: <sip:alice@a.example.test>;tag=f-1\r\n\
    To: <sip:bob@dest.example.test>\r\n\
    Call-ID: 1@a.example.test\r\n\
    CSeq: 1 OPTIONS\r\n\
    Content-Length: 0\r\n\r\n";

pub(super) const RESPONSE: &str = "SIP/2.0 200 OK\r\n\
    Via: SIP/2.0/UDP 127.0.0.10;branch=z9hG4bK-p\r\n\
    Via: SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1\r\n\
    From: <sip:alice@a.example.test>;tag=f-1\r\n\
    To: <sip:bob@dest.example.test>;tag=t-1\r\n\
    Call-ID: 1@a.example.test\r\n\
    CSeq: 1 OPTIONS\r\n\
    Content-Length: 0\r\n\r\n";

pub(super) fn parse(bytes: &[u8]) -> Result<Index, Unusable> {
    Index::parse(bytes, &Limits::default(), Framing::Datagram)
}

pub(super) fn fault_of(text: impl AsRef<[u8]>) -> Option<Fault> {
    parse(text.as_ref()).unwrap().fault()
}

/// `OPTIONS` with `from` replaced by `to`.
pub(super) fn with(from: &str, to: &str) -> String {
    assert!(OPTIONS.contains(from), "{from:?} is not in the message");
    OPTIONS.replacen(from, to, 1)
}

/// Status of the fault of `OPTIONS` changed so; 0 without a fault.
pub(super) fn status_with(from: &str, to: &str) -> u16 {
    fault_of(with(from, to)).map_or(0, |f| f.status)
}

/// Calls `check` with the message of `text`, which must be without fault.
pub(super) fn view(text: impl AsRef<[u8]>, check: impl FnOnce(Message<'_>)) {
    let bytes = text.as_ref();
    let index = parse(bytes).unwrap();
    assert_eq!(index.fault(), None, "{}", String::from_utf8_lossy(bytes));
    check(Message::new(bytes, &index));
}
