//! Answers to tiers of servers (RFC 2782, RFC 3263 §4.2, RFC 7984).
