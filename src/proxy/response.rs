//! Response processing: RFC 3261 §16.7 steps 3 and 9, as splices on the response as it came.

use crate::wire::{Edit, Message, Name, ensure_content_length, remove_top_via, strip_headers, top_via_range};

/// The response as it goes upstream: without our Via and without the header fields named in `strip` (lower
/// case). `None` if it has no Via.
pub fn upstream(msg: &Message<'_>, strip: &[String]) -> Option<Vec<u8>> {
    let via = msg.top_via()?;
    if strip.is_empty() && msg.header(Name::ContentLength).is_some() {
        // Nothing but one stretch goes.
        let (whole, gone) = (msg.range(), top_via_range(*msg, &via));
        let head = msg.bytes.get(whole.start..gone.start)?;
        let tail = msg.bytes.get(gone.end..whole.end)?;
        let mut out = Vec::with_capacity(head.len() + tail.len());
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
        return Some(out);
    }
    let mut edit = Edit::new(*msg);
    remove_top_via(&mut edit, &via);
    if !strip.is_empty() {
        strip_headers(&mut edit, strip);
    }
    ensure_content_length(&mut edit);
    Some(edit.finish())
}

/// What a final response means for the search (RFC 3261 §16.7 step 5, RFC 3263 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes upstream now and ends the search: 2xx, 6xx, and everything that is no failover code.
    Final,
    /// The next candidate is tried.
    Failover,
}

/// Decides on a final response. `code_fails_over`: it is among the configured codes; `ringing`: a
/// provisional above 100 came on this attempt, after which the call is the user's, not ours to move.
pub const fn verdict(status: u16, code_fails_over: bool, ringing: bool, cancelled: bool) -> Verdict {
    if status >= 300 && code_fails_over && !ringing && !cancelled {
        Verdict::Failover
    } else {
        Verdict::Final
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_configured_code_before_ringing_and_before_a_cancel_fails_over() {
        for (status, code, ringing, cancelled, want) in [
            (503, true, false, false, Verdict::Failover),
            (503, true, true, false, Verdict::Final),
            (503, true, false, true, Verdict::Final),
            (503, false, false, false, Verdict::Final),
            (200, true, false, false, Verdict::Final),
            (603, false, false, false, Verdict::Final),
        ] {
            assert_eq!(
                verdict(status, code, ringing, cancelled),
                want,
                "{status} {code} {ringing} {cancelled}"
            );
        }
    }
}
