//! Whole messages that own their octets, and the few kinds that a user agent makes.

use std::fmt::Write as _;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::flow::Transport;
use crate::wire::build::{ResponseOptions, response};
use crate::wire::{self, Framing, Index, Limits, Message, Name, StreamFramer};

/// A session description that is the same for everybody: nobody sends media in the demo.
const SDP: &str =
    "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n";
/// Read from a connection at a time, octets.
const CHUNK: usize = 16 * 1024;

/// A message with its index.
#[derive(Debug)]
pub struct Sip {
    bytes: Bytes,
    index: Index,
}

impl Sip {
    /// Indexes a message; `None`: it is none, or a faulty one.
    pub fn parse(bytes: impl Into<Bytes>, framing: Framing) -> Option<Self> {
        let bytes = bytes.into();
        let index = Index::parse(&bytes, &Limits::default(), framing).ok()?;
        index.fault().is_none().then_some(Self { bytes, index })
    }

    /// Its views.
    pub fn msg(&self) -> Message<'_> {
        Message::new(&self.bytes, &self.index)
    }

    /// The start line.
    pub fn start_line(&self) -> String {
        let line = self.bytes.get(self.msg().start_line_range()).unwrap_or_default();
        text(line.trim_ascii_end())
    }

    /// The Call-ID; octets that are no UTF-8 replaced.
    pub fn call_id(&self) -> String {
        text(self.msg().call_id())
    }

    /// The values of a header field given in lower case, one for each row.
    pub fn rows(&self, name: &str) -> Vec<String> {
        self.msg().named(name.as_bytes()).map(|f| text(f.value)).collect()
    }

    /// The URIs of Record-Route (or Route), from the top down.
    pub fn route_uris(&self, name: Name) -> Vec<String> {
        self.msg().route_values(name).flatten().map(|r| text(r.addr.uri)).collect()
    }

    /// The URI of the first Contact.
    pub fn contact(&self) -> Option<String> {
        self.msg().contacts().next()?.ok().map(|c| text(c.uri))
    }

    /// The branch of the topmost Via; empty if there is none.
    pub fn branch(&self) -> String {
        self.msg().top_via().and_then(|v| v.branch()).map(text).unwrap_or_default()
    }

    /// The number in CSeq; 0 if there is none.
    pub fn cseq(&self) -> u32 {
        self.msg().cseq().map_or(0, |(n, _)| n)
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// The messages of a connection, one after the other.
pub struct Incoming<R> {
    stream: R,
    framer: StreamFramer,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// Of the reading half of a connection.
    pub fn new(stream: R) -> Self {
        Self { stream, framer: StreamFramer::new(Limits::default()), buffer: BytesMut::new() }
    }

    /// The reading half.
    pub const fn stream(&self) -> &R {
        &self.stream
    }

    /// A whole message is there already, without reading.
    pub fn poll(&mut self) -> Option<Option<Sip>> {
        loop {
            match self.framer.poll(&mut self.buffer)? {
                wire::Event::Message { bytes, .. } => return Some(Sip::parse(bytes, Framing::Stream)),
                wire::Event::Ping => {}
                wire::Event::Broken(_) => return Some(None),
            }
        }
    }

    /// Octets of a message that is not whole yet.
    pub fn is_mid_message(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Reads once. False: the connection has ended.
    pub async fn read(&mut self) -> bool {
        self.buffer.reserve(CHUNK);
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0)
    }

    /// The next message; `None`: the connection has ended, or carries no SIP. Cancel safe.
    pub async fn next(&mut self) -> Option<Sip> {
        loop {
            match self.poll() {
                Some(message) => return message,
                None if self.read().await => {}
                None => return None,
            }
        }
    }
}

/// What a user agent writes into its requests besides what belongs to the call.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Transport of Via and Contact.
    pub transport: Transport,
    /// Address of Via and Contact.
    pub addr: SocketAddr,
}

impl Sender {
    /// A Contact value.
    pub fn contact(&self, user: &str) -> String {
        match self.transport {
            Transport::Udp => format!("<sip:{user}@{}>", self.addr),
            other => format!("<sip:{user}@{};transport={other}>", self.addr),
        }
    }
}

/// One request of a user agent (RFC 3261 §8.1.1).
#[derive(Clone, Debug)]
pub struct RequestParts<'a> {
    /// Who sends it.
    pub sender: &'a Sender,
    /// Method.
    pub method: &'a str,
    /// Request-URI.
    pub uri: &'a str,
    /// Branch, with its cookie.
    pub branch: &'a str,
    /// Route URIs, top first.
    pub routes: &'a [String],
    /// From, with its tag.
    pub from: &'a str,
    /// To, with its tag if there is one.
    pub to: &'a str,
    /// Call-ID.
    pub call_id: &'a str,
    /// Number in CSeq.
    pub cseq: u32,
}

impl RequestParts<'_> {
    /// The request; an INVITE has a Contact and a session description.
    pub fn build(&self) -> Bytes {
        let mut out = String::with_capacity(1024);
        let via = self.sender.transport.via_token();
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{} {} SIP/2.0\r\nVia: SIP/2.0/{via} {};branch={};rport\r\nMax-Forwards: 70\r\n",
            self.method, self.uri, self.sender.addr, self.branch
        );
        for route in self.routes {
            let _ = write!(out, "Route: <{route}>\r\n");
        }
        let _ = write!(
            out,
            "From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {} {}\r\n",
            self.from, self.to, self.call_id, self.cseq, self.method
        );
        if self.method == "INVITE" {
            let _ = write!(
                out,
                "Contact: {}\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP}",
                self.sender.contact("caller"),
                SDP.len()
            );
        } else {
            out.push_str("Content-Length: 0\r\n\r\n");
        }
        out.into()
    }
}

/// An answer to a request: 2xx to an INVITE with a session description, everything above 100 with
/// `contact` and the route set.
pub fn answer(request: &Sip, from: SocketAddr, status: u16, reason: &str, tag: &str, contact: &str) -> Bytes {
    let msg = request.msg();
    let invite = msg.method() == wire::Method::Invite;
    let contact: &[(&str, &[u8])] = &[("Contact", contact.as_bytes())];
    let options = ResponseOptions {
        to_tag: Some(tag.as_bytes()),
        stamp: Some(from),
        extra_rows: if invite && (101..300).contains(&status) { contact } else { &[] },
        copy_record_route: invite && (101..300).contains(&status),
    };
    let mut out = response(msg, status, reason, options);
    const EMPTY: &[u8] = b"Content-Length: 0\r\n\r\n";
    if invite
        && (200..300).contains(&status)
        && let Some(head) = out.len().checked_sub(EMPTY.len())
        && out.ends_with(EMPTY)
    {
        out.truncate(head);
        let body = format!("Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP}", SDP.len());
        out.extend_from_slice(body.as_bytes());
    }
    out.into()
}
