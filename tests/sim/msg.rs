//! SIP messages as the parties of the simulation write and read them: a small reader of its own, so
//! that the element's parser is not its own judge.

use std::fmt::Write as _;

/// One header row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Lower case, compact forms resolved.
    pub name: String,
    /// As it stands in the message, continuation lines and final CRLF included.
    pub raw: Vec<u8>,
    /// Unfolded, without white space around it.
    pub value: String,
}

/// A message taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msg {
    pub raw: Vec<u8>,
    pub start: String,
    pub rows: Vec<Row>,
    pub body: Vec<u8>,
}

fn long_name(name: &str) -> &str {
    match name {
        "v" => "via",
        "f" => "from",
        "t" => "to",
        "i" => "call-id",
        "m" => "contact",
        "l" => "content-length",
        "c" => "content-type",
        "s" => "subject",
        "k" => "supported",
        other => other,
    }
}

impl Msg {
    /// `None` for what is no message at all.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let head_end = memchr::memmem::find(raw, b"\r\n\r\n")? + 2;
        let body = raw.get(head_end + 2..)?.to_vec();
        let mut lines: Vec<Vec<u8>> = Vec::new();
        for line in raw.get(..head_end)?.split_inclusive(|b| *b == b'\n') {
            match (line.first(), lines.last_mut()) {
                (Some(b' ' | b'\t'), Some(last)) => last.extend_from_slice(line),
                _ => lines.push(line.to_vec()),
            }
        }
        let start = String::from_utf8_lossy(lines.first()?).trim_end().to_string();
        let mut rows = Vec::new();
        for raw in lines.into_iter().skip(1) {
            let text = String::from_utf8_lossy(&raw).replace("\r\n", "");
            let (name, value) = text.split_once(':')?;
            let name = name.trim().to_ascii_lowercase();
            rows.push(Row { name: long_name(&name).to_string(), value: value.trim().to_string(), raw });
        }
        Some(Self { raw: raw.to_vec(), start, rows, body })
    }

    pub fn is_request(&self) -> bool {
        !self.start.starts_with("SIP/2.0 ")
    }

    /// The method of the start line, or of CSeq for a response.
    pub fn method(&self) -> &str {
        if self.is_request() {
            self.start.split(' ').next().unwrap_or("")
        } else {
            self.get("cseq").and_then(|c| c.split_whitespace().nth(1)).unwrap_or("")
        }
    }

    /// 0 for a request.
    pub fn status(&self) -> u16 {
        self.start.strip_prefix("SIP/2.0 ").and_then(|s| s.get(..3)?.parse().ok()).unwrap_or(0)
    }

    pub fn uri(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or("")
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.rows.iter().find(|r| r.name == name).map(|r| r.value.as_str())
    }

    /// All values of a comma-separated field (no commas in quotes or brackets are written here).
    pub fn values(&self, name: &str) -> Vec<String> {
        self.rows
            .iter()
            .filter(|r| r.name == name)
            .flat_map(|r| r.value.split(',').map(|v| v.trim().to_string()))
            .collect()
    }

    pub fn vias(&self) -> Vec<String> {
        self.values("via")
    }

    /// Branch of the n-th Via.
    pub fn branch(&self, n: usize) -> String {
        self.vias().get(n).and_then(|v| param(v, "branch")).unwrap_or_default()
    }

    pub fn call_id(&self) -> &str {
        self.get("call-id").unwrap_or("")
    }

    pub fn cseq(&self) -> u32 {
        self.get("cseq").and_then(|c| c.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    pub fn to_tag(&self) -> Option<String> {
        param(self.get("to")?, "tag")
    }

    pub fn caller_tag(&self) -> Option<String> {
        param(self.get("from")?, "tag")
    }

    /// The URI of Contact.
    pub fn contact(&self) -> Option<String> {
        bracketed(self.get("contact")?)
    }
}

/// A parameter of a header value, in any case.
pub fn param(value: &str, name: &str) -> Option<String> {
    let after = value.rsplit('>').next().unwrap_or(value);
    after.split(';').skip(1).find_map(|p| {
        let (n, v) = p.split_once('=').unwrap_or((p, ""));
        n.trim().eq_ignore_ascii_case(name).then(|| v.trim().to_string())
    })
}

/// What stands in angle brackets.
pub fn bracketed(value: &str) -> Option<String> {
    let (_, rest) = value.split_once('<')?;
    rest.split_once('>').map(|(uri, _)| uri.to_string())
}

/// A request to be written.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub uri: String,
    /// Whole Via values, topmost first.
    pub vias: Vec<String>,
    pub routes: Vec<String>,
    pub from: String,
    pub to: String,
    pub call_id: String,
    pub cseq: u32,
    pub max_forwards: Option<u32>,
    /// Whole rows without CRLF (folded ones with their inner CRLF).
    pub extra: Vec<String>,
    pub body: Vec<u8>,
}

impl Request {
    /// A plain one from `at` (host:port of the sender's UDP socket).
    pub fn new(method: &str, uri: &str, at: &str, branch: &str, call_id: &str) -> Self {
        Self {
            method: method.to_string(),
            uri: uri.to_string(),
            vias: vec![format!("SIP/2.0/UDP {at};rport;branch=z9hG4bK{branch}")],
            routes: Vec::new(),
            from: format!("\"A\" <sip:alice@{at}>;tag=f{branch}"),
            to: format!("<{uri}>"),
            call_id: call_id.to_string(),
            cseq: 1,
            max_forwards: Some(70),
            extra: vec![format!("Contact: <sip:alice@{at}>")],
            body: Vec::new(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} SIP/2.0\r\n", self.method, self.uri);
        for via in &self.vias {
            let _ = write!(text, "Via: {via}\r\n");
        }
        for route in &self.routes {
            let _ = write!(text, "Route: {route}\r\n");
        }
        if let Some(n) = self.max_forwards {
            let _ = write!(text, "Max-Forwards: {n}\r\n");
        }
        let _ = write!(
            text,
            "From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {} {}\r\n",
            self.from, self.to, self.call_id, self.cseq, self.method
        );
        for row in &self.extra {
            let _ = write!(text, "{row}\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\n\r\n", self.body.len());
        [text.as_bytes(), &self.body].concat()
    }
}

/// A response to a request, written by its receiver.
pub fn reply(request: &Msg, status: u16, tag: &str, extra: &[String], body: &[u8]) -> Vec<u8> {
    let mut out = format!("SIP/2.0 {status} {}\r\n", phrase(status)).into_bytes();
    for row in &request.rows {
        match row.name.as_str() {
            "via" | "from" | "call-id" | "cseq" => out.extend_from_slice(&row.raw),
            "record-route" if status > 100 && status < 300 => out.extend_from_slice(&row.raw),
            "to" if status > 100 && request.to_tag().is_none() => {
                out.extend_from_slice(row.raw.strip_suffix(b"\r\n").unwrap_or(&row.raw));
                out.extend_from_slice(format!(";tag={tag}\r\n").as_bytes());
            }
            "to" => out.extend_from_slice(&row.raw),
            _ => {}
        }
    }
    for row in extra {
        out.extend_from_slice(row.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    out.extend_from_slice(body);
    out
}

fn phrase(status: u16) -> &'static str {
    match status {
        100 => "Trying",
        180 => "Ringing",
        183 => "Session Progress",
        200 => "OK",
        486 => "Busy Here",
        487 => "Request Terminated",
        503 => "Service Unavailable",
        _ => "Whatever It Is",
    }
}
