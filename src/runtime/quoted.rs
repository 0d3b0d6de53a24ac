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

#[cfg(test)]
mod tests {
    use super::quotes_call_id;

    #[test]
    fn a_quoted_call_id_counts_only_when_its_line_is_whole() {
        assert!(quotes_call_id(b"INVITE sip:a SIP/2.0\r\nCall-ID: x\r\nVia"));
        assert!(quotes_call_id(b"INVITE sip:a SIP/2.0\r\nI : x\r\n"));
        assert!(!quotes_call_id(b"INVITE sip:a SIP/2.0\r\nCall-ID: x"));
        assert!(!quotes_call_id(b""));
    }
}
