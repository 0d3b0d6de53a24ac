//! What an ICMP error quotes of a message.

/// True if a quoted part of a message holds its Call-ID whole.
pub(super) fn quotes_call_id(payload: &[u8]) -> bool {
    let mut rest = payload;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        if let Some(colon) = memchr::memchr(b':', line) {
            let name = line.get(..colon).unwrap_or_default().trim_ascii_end();
            if name.eq_ignore_ascii_case(b"call-id") || name.eq_ignore_ascii_case(b"i") {
                return true;
            }
        }
    }
    false
}

/// True if a quoted part of a message holds the branch of its topmost Via whole, which nobody guesses who has not
/// seen the message.
pub(super) fn quotes_branch(payload: &[u8]) -> bool {
    const BRANCH: &[u8] = b"branch=";
    memchr::memmem::find(payload, BRANCH)
        .and_then(|at| payload.get(at + BRANCH.len()..))
        .is_some_and(|value| value.iter().any(|c| matches!(c, b'\r' | b'\n' | b';' | b',' | b' ' | b'\t')))
}

#[cfg(test)]
mod tests {
    use super::{quotes_branch, quotes_call_id};

    #[test]
    fn a_quoted_branch_counts_only_when_it_is_whole() {
        assert!(quotes_branch(b"INVITE sip:a SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bKx\r\n"));
        assert!(quotes_branch(b"INVITE sip:a SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bKx;rport"));
        assert!(!quotes_branch(b"INVITE sip:a SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bKx"));
        assert!(!quotes_branch(b"INVITE"));
    }

    #[test]
    fn a_quoted_call_id_counts_only_when_its_line_is_whole() {
        assert!(quotes_call_id(b"INVITE sip:a SIP/2.0\r\nCall-ID: x\r\nVia"));
        assert!(quotes_call_id(b"INVITE sip:a SIP/2.0\r\nI : x\r\n"));
        assert!(!quotes_call_id(b"INVITE sip:a SIP/2.0\r\nCall-ID: x"));
        assert!(!quotes_call_id(b""));
    }
}
