//! The edge of the trust domain: asserted identities (RFC 3325) and what a proxy can do for Privacy (RFC 3323).
//!
//! Nothing is written here, only header fields are named that do not go on. What would take a back-to-back
//! user agent (another From, Contact or Call-ID, RFC 3323 §5.1 and §5.3) is left to the user agents.

use crate::wire::Message;

/// What an untrusted sender has no right to say (RFC 3325 §5).
const ASSERTED: [&str; 2] = ["p-asserted-identity", "p-preferred-identity"];

/// What goes besides the asserted identity where the user wants to stay unknown (RFC 3323 §5.3).
const INFORMATIONAL: [&str; 6] =
    ["subject", "call-info", "organization", "user-agent", "reply-to", "in-reply-to"];

/// What a message's Privacy asks of this element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Nothing: there is none, or `none`.
    Open,
    /// `id` or `header`: the asserted identity stays within the trust domain (RFC 3325 §7).
    Identity,
    /// `user`: and what tells of the user without need.
    User,
}

impl Privacy {
    /// Reads all Privacy rows (RFC 3323 §4.2). A `none` beside others, which must not be, counts for nothing.
    pub fn of(msg: &Message<'_>) -> Self {
        let mut found = Self::Open;
        for field in msg.named(b"privacy") {
            for word in field.value.split(|b| matches!(b, b';' | b',')).map(<[u8]>::trim_ascii) {
                if word.eq_ignore_ascii_case(b"user") {
                    found = Self::User;
                } else if found == Self::Open
                    && (word.eq_ignore_ascii_case(b"id") || word.eq_ignore_ascii_case(b"header"))
                {
                    found = Self::Identity;
                }
            }
        }
        found
    }
}

/// The header fields (lower case) that are removed from what one party sends.
#[derive(Clone, Debug, Default)]
pub struct Strips {
    always: Vec<String>,
    identity: Vec<String>,
    user: Vec<String>,
}

impl Strips {
    /// `configured`: its `strip_headers`. `trusted`: whether it is in the trust domain.
    pub fn new(configured: &[String], trusted: bool) -> Self {
        let with = |base: &[String], more: &[&str]| -> Vec<String> {
            let mut all = base.to_vec();
            for name in more {
                if !all.iter().any(|have| have == name) {
                    all.push((*name).to_owned());
                }
            }
            all
        };
        let always = with(configured, if trusted { &[] } else { &ASSERTED });
        let identity = with(&always, &ASSERTED);
        let user = with(&identity, &INFORMATIONAL);
        Self { always, identity, user }
    }

    /// What goes from this message on its way to somebody. `trusted`: whether the receiver is in the trust domain.
    pub fn from(&self, msg: &Message<'_>, trusted: bool) -> &[String] {
        if trusted {
            return &self.always;
        }
        match Privacy::of(msg) {
            Privacy::Open => &self.always,
            Privacy::Identity => &self.identity,
            Privacy::User => &self.user,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::wire::{Framing, Index, Limits};

    fn privacy(rows: &str) -> Privacy {
        let text = format!(
            "INVITE sip:b@b.example SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\n\
             Max-Forwards: 9\r\nTo: <sip:b@b.example>\r\nFrom: <sip:a@a.example>;tag=1\r\nCall-ID: 1\r\n\
             CSeq: 1 INVITE\r\n{rows}Content-Length: 0\r\n\r\n"
        );
        let index = Index::parse(text.as_bytes(), &Limits::default(), Framing::Datagram).unwrap();
        Privacy::of(&Message::new(text.as_bytes(), &index))
    }

    #[test]
    fn privacy_is_read_from_all_rows_in_any_case() {
        for (rows, want) in [
            ("", Privacy::Open),
            ("Privacy: none\r\n", Privacy::Open),
            ("Privacy: session;critical\r\n", Privacy::Open),
            ("Privacy: id\r\n", Privacy::Identity),
            ("privacy : critical ; ID\r\n", Privacy::Identity),
            ("Privacy: header\r\n", Privacy::Identity),
            ("Privacy: none;id\r\n", Privacy::Identity),
            ("Privacy: id\r\nPRIVACY: user\r\n", Privacy::User),
            ("Privacy: user;id\r\n", Privacy::User),
            ("Privacy: identity\r\nX-Privacy: id\r\n", Privacy::Open),
        ] {
            assert_eq!(privacy(rows), want, "{rows}");
        }
    }

    #[test]
    fn the_lists_grow_with_distrust_and_name_nothing_twice() {
        let own = ["x-own".to_owned(), "p-asserted-identity".to_owned()];
        let trusted = Strips::new(&own, true);
        assert_eq!(trusted.always, own);
        assert_eq!(trusted.identity, ["x-own", "p-asserted-identity", "p-preferred-identity"]);
        let untrusted = Strips::new(&[], false);
        assert_eq!(untrusted.always, ASSERTED);
        assert_eq!(untrusted.user.len(), ASSERTED.len() + INFORMATIONAL.len());
    }
}
