//! Locating SIP servers: RFC 3263, RFC 2782, and the ranking of what was found.
