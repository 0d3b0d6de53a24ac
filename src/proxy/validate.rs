//! Request validation, RFC 3261 §16.3.

use crate::transaction::Branch;
use crate::wire::{Message, Method, Name, Scheme};

/// A request that this element answers itself, with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub phrase: &'static str,
    /// Why, for records and logs; a fixed word.
    pub label: &'static str,
    /// Further header rows: name and value.
    pub rows: Vec<(&'static str, Vec<u8>)>,
}

impl Reject {
    /// A plain one.
    pub const fn new(status: u16, phrase: &'static str, label: &'static str) -> Self {
        Self { status, phrase, label, rows: Vec::new() }
    }

    /// With one more header row.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Vec<u8>>) -> Self {
        self.rows.push((name, value.into()));
        self
    }
}

/// Steps 1 to 6 of §16.3, as far as they need no configuration but our own names. `loop_hash`:
/// what [`crate::transaction::loop_hash`] gives for this request; `ours`: whether a Via's sent-by is this element.
pub fn validate(
    msg: &Message<'_>,
    loop_hash: u32,
    ours: impl Fn(&crate::wire::ViaRef<'_>) -> bool,
) -> Result<(), Reject> {
    if let Some(fault) = msg.index.fault() {
        return Err(Reject::new(fault.status, fault.reason, fault.label));
    }
    scheme(msg)?;
    if msg.max_forwards() == Some(0) {
        return Err(Reject::new(483, "Too Many Hops", "max_forwards"));
    }
    // Step 4 (RFC 5393 §4.2): a Via of ours whose branch says that all that decides the routing is
    // as it was then is a loop; one that says otherwise is a spiral, and goes on.
    let looped = msg.vias().any(|via| {
        ours(&via) && via.branch().and_then(Branch::parse).is_some_and(|parts| parts.loop_hash == loop_hash)
    });
    if looped {
        return Err(Reject::new(482, "Loop Detected", "loop"));
    }
    proxy_require(msg)
}

/// Step 2: only schemes that can be routed (`tel` is for the number routes, rule 3).
fn scheme(msg: &Message<'_>) -> Result<(), Reject> {
    match msg.request_scheme() {
        Some(Scheme::Sip | Scheme::Sips | Scheme::Tel) => Ok(()),
        Some(Scheme::Other(_)) => Err(Reject::new(416, "Unsupported URI Scheme", "scheme")),
        None => Err(Reject::new(400, "Bad Request-URI", "bad_uri")),
    }
}

/// Step 5: no option is supported here, so every tag of Proxy-Require is refused (not for ACK and CANCEL).
fn proxy_require(msg: &Message<'_>) -> Result<(), Reject> {
    if msg.header(Name::ProxyRequire).is_none() || matches!(msg.method(), Method::Ack | Method::Cancel) {
        return Ok(());
    }
    let mut tags: Vec<u8> = Vec::new();
    for tag in msg.tokens(Name::ProxyRequire) {
        if !tags.is_empty() {
            tags.extend_from_slice(b", ");
        }
        tags.extend(tag.iter().filter(|b| b.is_ascii_graphic()));
    }
    if tags.is_empty() {
        return Ok(());
    }
    Err(Reject::new(420, "Bad Extension", "proxy_require").with("Unsupported", tags))
}
