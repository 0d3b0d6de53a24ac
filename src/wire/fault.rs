//! What can be wrong with a message, and what to answer.

/// A fault that makes a request refusable with `status`, and a response worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Status code of the answer to a request: 400, 501, 505 or 513.
    pub status: u16,
    /// Reason phrase of that answer.
    pub reason: &'static str,
    /// A fixed word for metrics and records.
    pub label: &'static str,
}

impl Fault {
    const fn bad(reason: &'static str, label: &'static str) -> Self {
        Fault { status: 400, reason, label }
    }

    pub(crate) const VERSION: Fault =
        Fault { status: 505, reason: "Version Not Supported", label: "version" };
    pub(crate) const START_LINE: Fault = Self::bad("Bad Request-Line", "start_line");
    pub(crate) const STATUS: Fault = Self::bad("Bad Status Code", "status_code");
    pub(crate) const CONTROL: Fault = Self::bad("Control Characters in Header", "control_octets");
    pub(crate) const HEADER_LINE: Fault = Self::bad("Bad Header Line", "header_line");
    pub(crate) const NO_BLANK_LINE: Fault = Self::bad("Missing Blank Line", "no_blank_line");
    pub(crate) const TOO_MANY_HEADERS: Fault = Self::bad("Too Many Header Fields", "too_many_headers");
    pub(crate) const HEADER_TOO_LARGE: Fault = Self::bad("Header Field Too Large", "header_too_large");
    pub(crate) const MESSAGE_TOO_LARGE: Fault =
        Fault { status: 513, reason: "Message Too Large", label: "message_too_large" };
    pub(crate) const NO_VIA: Fault = Self::bad("Missing Via", "missing_via");
    pub(crate) const BAD_VIA: Fault = Self::bad("Bad Via", "bad_via");
    pub(crate) const NO_FROM: Fault = Self::bad("Missing From", "missing_from");
    pub(crate) const BAD_FROM: Fault = Self::bad("Bad From", "bad_from");
    pub(crate) const TWO_FROM: Fault = Self::bad("Repeated From", "repeated_from");
    pub(crate) const NO_TO: Fault = Self::bad("Missing To", "missing_to");
    pub(crate) const BAD_TO: Fault = Self::bad("Bad To", "bad_to");
    pub(crate) const TWO_TO: Fault = Self::bad("Repeated To", "repeated_to");
    pub(crate) const NO_CALL_ID: Fault = Self::bad("Missing Call-ID", "missing_call_id");
    pub(crate) const BAD_CALL_ID: Fault = Self::bad("Bad Call-ID", "bad_call_id");
    pub(crate) const TWO_CALL_ID: Fault = Self::bad("Repeated Call-ID", "repeated_call_id");
    pub(crate) const NO_CSEQ: Fault = Self::bad("Missing CSeq", "missing_cseq");
    pub(crate) const BAD_CSEQ: Fault = Self::bad("Bad CSeq", "bad_cseq");
    pub(crate) const TWO_CSEQ: Fault = Self::bad("Repeated CSeq", "repeated_cseq");
    pub(crate) const CSEQ_METHOD: Fault = Self::bad("CSeq Method Mismatch", "cseq_method");
    pub(crate) const UNKNOWN_METHOD: Fault =
        Fault { status: 501, reason: "Not Implemented", label: "cseq_method" };
    pub(crate) const BAD_MAX_FORWARDS: Fault = Self::bad("Bad Max-Forwards", "bad_max_forwards");
    pub(crate) const TWO_MAX_FORWARDS: Fault = Self::bad("Repeated Max-Forwards", "repeated_max_forwards");
    pub(crate) const BAD_LENGTH: Fault = Self::bad("Bad Content-Length", "bad_content_length");
    pub(crate) const TWO_LENGTHS: Fault =
        Self::bad("Conflicting Content-Length", "conflicting_content_length");
    pub(crate) const SHORT_BODY: Fault = Self::bad("Content-Length Exceeds Message", "short_body");
    pub(crate) const NO_LENGTH: Fault = Self::bad("Missing Content-Length", "missing_content_length");
    pub(crate) const BAD_URI: Fault = Self::bad("Bad Request-URI", "bad_request_uri");
    pub(crate) const URI_HEADERS: Fault = Self::bad("Header Part in Request-URI", "request_uri_headers");
}

/// Octets that cannot be answered: counted and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Nothing but CRLF or NUL octets (RFC 5626 §3.5.1 and habits of NAT keep-alives).
    KeepAlive,
    /// No start line of SIP.
    NotSip,
    /// More than `max_message` octets, or a start line of more than `max_header`.
    TooLarge,
}

impl Unusable {
    /// A fixed word for metrics and records.
    pub const fn label(self) -> &'static str {
        match self {
            Unusable::KeepAlive => "keepalive",
            Unusable::NotSip => "not_sip",
            Unusable::TooLarge => "too_large",
        }
    }
}
