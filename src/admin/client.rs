//! Asks a running node by its admin interface: one HTTP/1.0 request per connection, bounded in time and size.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Connecting, and each silence while reading, end after this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer read, octets.
const MAX_ANSWER: u64 = 256 * 1024 * 1024;

/// Longest header of an answer that is read as a stream, octets.
const MAX_HEAD: usize = 64 * 1024;

/// Where a node's admin interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    authority: String,
    /// Shown as a bearer token (RFC 6750 §2.1).
    token: Option<Box<[u8]>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is not one of an admin interface.
    #[error("\"{0}\" is no address of an admin interface; write for example http://127.0.0.1:9060")]
    Url(String),
    /// Nobody answers there.
    #[error(
        "no answer from the admin interface at {authority}: {cause}; is sbe running, and is this its admin.bind?"
    )]
    Unreachable {
        /// Where.
        authority: String,
        /// What the system says.
        cause: io::Error,
    },
    /// Somebody answers who does not speak HTTP.
    #[error("what answers at {0} is no admin interface")]
    Garbled(String),
}

impl Admin {
    /// From a URL: `http://HOST[:PORT]`, port 9060 where none is written.
    ///
    /// # Errors
    /// Another scheme, a path, or no host.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(url.to_owned());
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            None => url,
            Some(_) => return Err(wrong()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let clean = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if authority.is_empty() || !authority.chars().all(clean) {
            return Err(wrong());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
            !port.is_empty()
                && port.bytes().all(|b| b.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']'))
        });
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:9060") };
        Ok(Self { authority, token: None })
    }

    /// Shows a token with each request.
    pub fn with_token(self, token: Option<Box<[u8]>>) -> Self {
        Self { token, ..self }
    }

    /// `GET`
    ///
    /// # Errors
    /// Nobody answers, or not in HTTP.
    pub fn get(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask("GET", path)
    }

    /// Any method without a body; `path` is encoded already ([`encoded`]).
    ///
    /// # Errors
    /// Nobody answers, or not in HTTP.
    pub fn ask(&self, method: &str, path: &str) -> Result<Answer, ClientError> {
        let unreachable = |cause| ClientError::Unreachable { authority: self.authority.clone(), cause };
        let octets = self.exchange(method, path).map_err(unreachable)?;
        parse(&octets).ok_or_else(|| ClientError::Garbled(self.authority.clone()))
    }

    /// `GET` of what may come for a long time, in parts; `part` gives false when that is enough. An answer other than 200 is
    /// given back whole.
    ///
    /// # Errors
    /// Nobody answers, not in HTTP, or falls silent.
    pub fn stream(
        &self,
        path: &str,
        part: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<Answer>, ClientError> {
        let unreachable = |cause| ClientError::Unreachable { authority: self.authority.clone(), cause };
        let mut stream = self.request("GET", path).map_err(unreachable)?;
        let mut octets = Vec::new();
        let mut room = [0; 64 * 1024];
        let mut read = |stream: &mut TcpStream| -> io::Result<Vec<u8>> {
            let n = stream.read(&mut room)?;
            Ok(room.get(..n).unwrap_or_default().to_vec())
        };
        let head = loop {
            if let Some(end) = memchr::memmem::find(&octets, b"\r\n\r\n") {
                break end + 4;
            }
            let more = read(&mut stream).map_err(unreachable)?;
            if more.is_empty() || octets.len() > MAX_HEAD {
                return Err(ClientError::Garbled(self.authority.clone()));
            }
            octets.extend_from_slice(&more);
        };
        let answer = parse(&octets).ok_or_else(|| ClientError::Garbled(self.authority.clone()))?;
        if answer.status != 200 {
            stream.take(MAX_ANSWER).read_to_end(&mut octets).map_err(unreachable)?;
            return Ok(parse(&octets));
        }
        let mut more = octets.split_off(head);
        loop {
            if !more.is_empty() && !part(&more) {
                return Ok(None);
            }
            more = read(&mut stream).map_err(unreachable)?;
            if more.is_empty() {
                return Ok(None);
            }
        }
    }

    fn exchange(&self, method: &str, path: &str) -> io::Result<Vec<u8>> {
        let stream = self.request(method, path)?;
        let mut octets = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut octets)?;
        Ok(octets)
    }

    fn request(&self, method: &str, path: &str) -> io::Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // 1.0: the answer comes in one piece and ends with the connection.
        let mut request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n",
            self.authority
        )
        .into_bytes();
        if let Some(token) = &self.token {
            request.extend_from_slice(b"Authorization: Bearer ");
            request.extend_from_slice(token);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request)?;
        Ok(stream)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for addr in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

fn parse(octets: &[u8]) -> Option<Answer> {
    let end = memchr::memmem::find(octets, b"\r\n\r\n")?;
    let line = octets.get(..end)?.split(|b| *b == b'\r').next()?;
    let mut words = line.split(|b| *b == b' ');
    if !words.next()?.starts_with(b"HTTP/1.") {
        return None;
    }
    let status = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    Some(Answer { status, body: octets.get(end + 4..)?.to_vec() })
}

/// A text as one segment of a path or one value of a query.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for octet in text.bytes() {
        match octet {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(octet))
            }
            _ => out.push_str(&format!("%{octet:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_admin_interfaces() {
        for (url, authority) in [
            ("http://127.0.0.1:9060", "127.0.0.1:9060"),
            ("http://127.0.0.1:9060/", "127.0.0.1:9060"),
            ("127.0.0.1", "127.0.0.1:9060"),
            ("http://[::1]", "[::1]:9060"),
            ("http://[::1]:99", "[::1]:99"),
            ("http://node.example", "node.example:9060"),
        ] {
            assert_eq!(Admin::new(url).ok().map(|a| a.authority).as_deref(), Some(authority), "{url}");
        }
        for url in
            ["https://127.0.0.1", "http://", "", "http://a/b", "http://a b", "http://u@a", "http://a\r\nX: y"]
        {
            assert!(Admin::new(url).is_err(), "{url}");
        }
    }

    #[test]
    fn answers_are_taken_apart() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\na: b\r\n\r\nbody\r\n\r\n");
        assert_eq!(answer, Some(Answer { status: 404, body: b"body\r\n\r\n".to_vec() }));
        assert_eq!(parse(b"SIP/2.0 200 OK\r\n\r\n"), None);
        assert_eq!(parse(b"HTTP/1.1 200"), None);
    }

    #[test]
    fn a_call_id_survives_the_way_through_a_path() {
        assert_eq!(encoded("a/b?c%d@e f"), "a%2Fb%3Fc%25d%40e%20f");
    }
}
