//! What goes wrong with an ALTO server, in words, and the server's own errors (RFC 7285 §8.5).

use serde::Deserialize;

use super::json;

/// Longest text of a server's that is repeated.
const MAX_TEXT: usize = 200;

/// Why a request has brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No connection: refused, unreachable, no such name, TLS.
    #[error("no connection: {0}")]
    Connect(String),
    /// No answer in time.
    #[error("no whole answer within {0} s")]
    Timeout(u64),
    /// The connection broke.
    #[error("the answer broke off: {0}")]
    Broken(String),
    /// A file cannot be read.
    #[error("the file cannot be read: {0}")]
    File(String),
    /// An HTTP status that is no success.
    #[error("HTTP {status}{}", .error.as_ref().map(|e| format!(", {e}")).unwrap_or_default())]
    Status {
        /// The status.
        status: u16,
        /// What the server says of it.
        error: Option<Box<ServerError>>,
        /// The Retry-After header, in seconds.
        retry_after: Option<u64>,
    },
    /// 401, and no challenge that we can answer with the credentials that we have.
    #[error("HTTP 401, {0}")]
    Challenge(String),
    /// A success of another media type (RFC 7285 §8.3.4.2).
    #[error("the answer is of type {found:?}, not {wanted}")]
    WrongType {
        /// The type wanted.
        wanted: &'static str,
        /// The type found.
        found: String,
    },
    /// Longer than accepted.
    #[error("the answer is longer than {0} octets")]
    TooLarge(usize),
    /// More entries than accepted.
    #[error("the answer has a list of more than {0} entries")]
    TooMany(usize),
    /// No JSON, or too deep.
    #[error("the answer is not JSON as it should be: {0}")]
    Json(String),
    /// JSON of another shape.
    #[error("the answer has the wrong shape: {0}")]
    Shape(String),
    /// Costs of another type than asked for.
    #[error("costs of type {found} instead of {asked}")]
    CostType {
        /// What was asked for.
        asked: String,
        /// What came.
        found: String,
    },
    /// A network map that means nothing (RFC 7285 §11.2.1.6).
    #[error("the network map cannot be used: {0}")]
    NetworkMap(String),
    /// Cost map and network map are of different versions (RFC 7285 §10.3).
    #[error(
        "the cost map is for version {wanted} of the network map, which the server gives as {found}; both were \
         fetched again"
    )]
    Versions {
        /// What the cost map depends on.
        wanted: String,
        /// What the network map is.
        found: String,
    },
    /// Nothing in the directory serves.
    #[error("{0}")]
    NoResource(String),
    /// A redirect that is not followed.
    #[error("redirected {0}")]
    Redirect(String),
    /// A validated answer that we do not have.
    #[error("304 for something that was never fetched")]
    NothingToRenew,
}

impl Fault {
    /// The label of `sbe_alto_requests_total`.
    pub const fn outcome(&self) -> Outcome {
        match self {
            Fault::Connect(_) => Outcome::Connect,
            Fault::Timeout(_) => Outcome::Timeout,
            Fault::Broken(_) => Outcome::Broken,
            Fault::TooLarge(_) | Fault::TooMany(_) => Outcome::TooLarge,
            Fault::Status { status: 400..=499, .. } | Fault::Challenge(_) => Outcome::ClientError,
            Fault::Status { .. } => Outcome::ServerError,
            Fault::Versions { .. } => Outcome::Mismatch,
            Fault::Redirect(_) => Outcome::Redirect,
            _ => Outcome::Unusable,
        }
    }

    /// The way to the server, rather than what it says.
    pub const fn is_transport(&self) -> bool {
        matches!(self, Fault::Connect(_) | Fault::Timeout(_) | Fault::Broken(_) | Fault::File(_))
    }
}

/// How a request ended, for the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Data.
    Ok,
    /// 304.
    NotModified,
    /// A redirect, followed or not.
    Redirect,
    /// 4xx.
    ClientError,
    /// 5xx, and statuses that make no sense.
    ServerError,
    /// No whole answer in time.
    Timeout,
    /// No connection.
    Connect,
    /// The connection broke.
    Broken,
    /// Cut off at the limit.
    TooLarge,
    /// Wrong type, JSON, shape or meaning.
    Unusable,
    /// Versions that do not fit.
    Mismatch,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 11] = [
        Outcome::Ok,
        Outcome::NotModified,
        Outcome::Redirect,
        Outcome::ClientError,
        Outcome::ServerError,
        Outcome::Timeout,
        Outcome::Connect,
        Outcome::Broken,
        Outcome::TooLarge,
        Outcome::Unusable,
        Outcome::Mismatch,
    ];

    /// A fixed word.
    pub const fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::NotModified => "not_modified",
            Outcome::Redirect => "redirect",
            Outcome::ClientError => "client_error",
            Outcome::ServerError => "server_error",
            Outcome::Timeout => "timeout",
            Outcome::Connect => "connect",
            Outcome::Broken => "broken",
            Outcome::TooLarge => "too_large",
            Outcome::Unusable => "unusable",
            Outcome::Mismatch => "mismatch",
        }
    }
}

/// The codes of RFC 7285 §8.5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `E_SYNTAX`
    Syntax,
    /// `E_MISSING_FIELD`
    MissingField,
    /// `E_INVALID_FIELD_TYPE`
    InvalidFieldType,
    /// `E_INVALID_FIELD_VALUE`
    InvalidFieldValue,
    /// Another one.
    Other,
}

/// The body of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// What it means.
    pub code: Code,
    /// The code as sent.
    pub name: String,
    /// `field`: the path of a member of our query.
    pub field: Option<String>,
    /// `value`: what it held.
    pub value: Option<String>,
    /// `syntax-error`
    pub syntax: Option<String>,
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        for (what, text) in [("field", &self.field), ("value", &self.value), ("syntax error", &self.syntax)] {
            if let Some(text) = text {
                write!(f, ", {what} {text:?}")?;
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Body {
    meta: Meta,
}

#[derive(Deserialize)]
struct Meta {
    code: String,
    field: Option<serde_json::Value>,
    value: Option<serde_json::Value>,
    #[serde(rename = "syntax-error")]
    syntax: Option<serde_json::Value>,
}

/// The error in a body, if there is one that can be read.
pub fn server_error(body: &[u8]) -> Option<ServerError> {
    let meta = json::parse::<Body>(body).ok()?.meta;
    let code = match meta.code.as_str() {
        "E_SYNTAX" => Code::Syntax,
        "E_MISSING_FIELD" => Code::MissingField,
        "E_INVALID_FIELD_TYPE" => Code::InvalidFieldType,
        "E_INVALID_FIELD_VALUE" => Code::InvalidFieldValue,
        _ => Code::Other,
    };
    let text = |value: Option<serde_json::Value>| {
        value.map(|v| match v {
            serde_json::Value::String(text) => short(&text),
            other => short(&other.to_string()),
        })
    };
    Some(ServerError {
        code,
        name: short(&meta.code),
        field: text(meta.field),
        value: text(meta.value),
        syntax: text(meta.syntax),
    })
}

/// What of a server's text may go into a log: not too long, nothing that is not printed.
pub fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}
