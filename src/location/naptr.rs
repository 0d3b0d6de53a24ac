//! Which NAPTR records count for SIP, and in which order (RFC 3263 §4.1, RFC 3403 §4).
