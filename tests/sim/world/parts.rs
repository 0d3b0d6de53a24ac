//! What callers and servers have in common: paths, client transactions, dialogs, and what they ask of the world.

use std::net::SocketAddr;

use super::{Ev, Micros, SEC};
use crate::msg::{Msg, Request, bracketed};

/// How an agent sends: from its address to one of the element's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub tcp: bool,
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// This connection while it is open; else a new one to `to`.
    pub conn: Option<u64>,
}

/// What an agent wants done.
#[derive(Debug)]
pub enum Act {
    Send(Path, Vec<u8>),
    Later(Micros, Ev),
    /// Something for the record.
    Note(Note),
}

/// What counts towards "the worlds are not dull".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    Answered,
    Failed(u16),
    TimedOut,
    TwoAnswers,
    Cancelled,
}

pub const T2: Micros = 4 * SEC;

/// A client transaction of an agent.
#[derive(Clone, Debug)]
pub struct Client {
    pub path: Path,
    pub bytes: Vec<u8>,
    pub method: String,
    pub branch: String,
    pub interval: Micros,
    pub provisional: bool,
    pub done: bool,
}

impl Client {
    pub fn new(path: Path, request: &Request, t1: Micros) -> Self {
        let bytes = request.bytes();
        let branch = Msg::parse(&bytes).map(|m| m.branch(0)).unwrap_or_default();
        Self {
            path,
            bytes,
            method: request.method.clone(),
            branch,
            interval: t1,
            provisional: false,
            done: false,
        }
    }

    pub fn matches(&self, response: &Msg) -> bool {
        self.branch == response.branch(0) && self.method == response.method()
    }

    /// The time to repeat has come; `None`: no more.
    pub fn again(&mut self) -> Option<Micros> {
        if self.done || self.path.tcp || (self.method == "INVITE" && self.provisional) {
            return None;
        }
        self.interval *= 2;
        if self.method != "INVITE" {
            self.interval = self.interval.min(T2);
        }
        Some(self.interval)
    }
}

/// A dialog as one of its ends sees it.
#[derive(Clone, Debug)]
pub struct Dialog {
    pub call_id: String,
    pub local: String,
    pub remote: String,
    pub remote_tag: String,
    pub target: String,
    pub routes: Vec<String>,
    pub cseq: u32,
}

impl Dialog {
    /// The caller's end.
    pub fn of_answer(ok: &Msg) -> Self {
        let mut routes = ok.values("record-route");
        routes.reverse();
        Self {
            call_id: ok.call_id().to_string(),
            local: ok.get("from").unwrap_or("").to_string(),
            remote: ok.get("to").unwrap_or("").to_string(),
            remote_tag: ok.to_tag().unwrap_or_default(),
            target: ok.contact().unwrap_or_default(),
            routes,
            cseq: ok.cseq(),
        }
    }

    /// The server's end.
    pub fn of_invite(invite: &Msg, tag: &str) -> Self {
        Self {
            call_id: invite.call_id().to_string(),
            local: format!("{};tag={tag}", invite.get("to").unwrap_or("")),
            remote: invite.get("from").unwrap_or("").to_string(),
            remote_tag: invite.caller_tag().unwrap_or_default(),
            target: invite.contact().unwrap_or_default(),
            routes: invite.values("record-route"),
            cseq: 100,
        }
    }

    /// A request within it. ACK: with the number of the INVITE.
    pub fn request(&mut self, method: &str, at: SocketAddr, branch: &str, tcp: bool) -> Request {
        if method != "ACK" {
            self.cseq += 1;
        }
        let mut request = Request::new(method, &self.target, &at.to_string(), branch, &self.call_id);
        if tcp {
            request.vias = vec![format!("SIP/2.0/TCP {at};branch=z9hG4bK{branch}")];
        }
        request.from.clone_from(&self.local);
        request.to.clone_from(&self.remote);
        request.routes.clone_from(&self.routes);
        request.cseq = self.cseq;
        request
    }

    /// Where its requests go first: what the topmost Route names, and whether by TCP.
    pub fn first_hop(&self) -> Option<(SocketAddr, bool)> {
        let uri = bracketed(self.routes.first()?)?;
        let host = uri.strip_prefix("sip:")?.split(';').next()?.to_string();
        Some((host.parse().ok()?, uri.contains("transport=tcp")))
    }
}

/// Rows that a proxy must leave as they are, in the spellings that parsers like to tidy up.
pub fn odd_rows(n: u64) -> Vec<String> {
    let all = [
        "X-Plain: 1",
        "x-FOLDED:  one,\r\n\ttwo ;p = \"q\"\r\n three",
        "Supported : 100rel ,  timer",
        "k: path",
        "Subject:   Lunch?   ",
        "s:\r\n folded right away",
        "X-Utf8: gr\u{fc}\u{df}e \u{2603}",
        "Date: Sat, 13 Nov 2010 23:29:00 GMT",
        "P-Asserted-Identity: \"Alice, \\\"A\\\"\" <sip:a@example.com>, <tel:+441>",
        "X-Secret: peer's own",
        "X-Empty:",
    ];
    all.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1).map(|(_, r)| (*r).to_string()).collect()
}
