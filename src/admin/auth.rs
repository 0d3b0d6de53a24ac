//! Who may use the admin interface: whoever shows a token from a file; without such files, this machine alone.
//!
//! | | `/healthz`, `/readyz`, `/metrics` | looking (`GET`) | acting (the rest) |
//! |---|---|---|---|
//! | no token files, from loopback | yes | yes | yes |
//! | no token files, from elsewhere | yes | no | no |
//! | token files, no or a wrong token | yes | no | no |
//! | the token of `read_token_file` | yes | yes, but for captures | no |
//! | the token of `token_file` | yes | yes | yes |
//!
//! A token is shown as `Authorization: Bearer TOKEN` (RFC 6750 §2.1), or as the password of HTTP's Basic scheme with
//! any user name (RFC 7617), which is what a browser asks for.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::http::{HeaderMap, Method, header};
use base64::Engine;
use serde_json::{Value, json};

use crate::config::AdminTokens;

/// Least length of a token, octets.
const LEAST: usize = 16;
/// Most octets read of a file.
const MOST: u64 = 4096;
/// Actions remembered.
const REMEMBERED: usize = 200;
/// Longest token looked at in a request, octets.
const LONGEST: usize = 8192;

/// Why a token file gives no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It holds too little, or what no header field can carry.
    #[error("{}: a token has at least 16 characters, printable and without spaces", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a token: the file's text without the white space around it.
///
/// # Errors
/// The file cannot be read, or holds no token.
pub fn read(path: &Path) -> Result<Box<[u8]>, TokenError> {
    let mut octets = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST).read_to_end(&mut octets))
        .map_err(|cause| TokenError::Read { path: path.to_owned(), cause })?;
    let token = octets.trim_ascii();
    if token.len() < LEAST || !token.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Unfit { path: path.to_owned() });
    }
    Ok(token.into())
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look and act.
    Operator,
    /// Look.
    Reader,
}

impl Role {
    /// A fixed word for the log.
    const fn label(self) -> &'static str {
        match self {
            Role::Operator => "operator",
            Role::Reader => "reader",
        }
    }
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No token, or none of ours (401).
    Unknown,
    /// There are no token files, and the request does not come from this machine (403).
    Elsewhere,
    /// The token lets look, not act (403).
    ReadOnly,
}

impl Denied {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Denied::Unknown => "show a token: Authorization: Bearer TOKEN, or as a password",
            Denied::Elsewhere => "without admin.token_file only this machine may use the admin interface",
            Denied::ReadOnly => {
                "this token lets look, not act, nor see what was captured: admin.token_file holds the one that does"
            }
        }
    }
}

/// The tokens in force.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    files: AdminTokens,
    operator: Option<Box<[u8]>>,
    reader: Option<Box<[u8]>>,
}

impl Tokens {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read or holds no token.
    pub fn load(files: &AdminTokens) -> Result<Self, TokenError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        Ok(Self { operator: read(&files.operator)?, reader: read(&files.reader)?, files: files.clone() })
    }

    /// Nobody gets in: there are files, and none of them can be used.
    pub fn closed(files: &AdminTokens) -> Self {
        Self { files: files.clone(), operator: None, reader: None }
    }

    /// Who may do this; `None`: anybody, and nobody needs to say who they are.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        from: IpAddr,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Role>, Denied> {
        let look = method == Method::GET || method == Method::HEAD;
        if look && matches!(path, "/healthz" | "/readyz" | "/metrics") {
            return Ok(None);
        }
        let private = super::capture::is_private(path);
        if self.files.is_empty() {
            let here = from.to_canonical().is_loopback();
            return if here { Ok(Some(Role::Operator)) } else { Err(Denied::Elsewhere) };
        }
        let shown = shown(headers).ok_or(Denied::Unknown)?;
        let is = |token: &Option<Box<[u8]>>| token.as_deref().is_some_and(|t| same(t, &shown));
        if is(&self.operator) {
            Ok(Some(Role::Operator))
        } else if is(&self.reader) {
            if look && !private { Ok(Some(Role::Reader)) } else { Err(Denied::ReadOnly) }
        } else {
            Err(Denied::Unknown)
        }
    }
}

/// The token that a request shows.
fn shown(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok().filter(|v| v.len() <= LONGEST)?;
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let plain = base64::engine::general_purpose::STANDARD.decode(rest).ok()?;
    let colon = memchr::memchr(b':', &plain)?;
    plain.get(colon + 1..).map(<[u8]>::to_vec)
}

/// Takes as long for a wrong token as for the right one.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// One action that somebody took.
#[derive(Clone, Debug)]
struct Action {
    at: SystemTime,
    from: IpAddr,
    role: &'static str,
    method: String,
    path: String,
    status: u16,
}

/// Actions taken by way of the admin interface: logged, and the newest kept.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    actions: Arc<Mutex<VecDeque<Action>>>,
}

impl Audit {
    /// Takes note of an action, a refused one too.
    pub fn note(&self, from: IpAddr, role: Option<Role>, method: &Method, path: &str, status: u16) {
        let role = role.map_or("nobody", Role::label);
        // A path may be long, and hold anything.
        let path: String = path.chars().take(200).collect();
        tracing::info!(target: "sbe::audit", %from, role, %method, path = path.as_str(), status, "action");
        let action = Action { at: SystemTime::now(), from, role, method: method.to_string(), path, status };
        let mut actions = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        if actions.len() >= REMEMBERED {
            actions.pop_front();
        }
        actions.push_back(action);
    }

    /// `/api/v1/audit`: newest first.
    pub fn json(&self) -> Value {
        let actions = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<Value> = actions
            .iter()
            .rev()
            .map(|a| {
                let at = a.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                json!({
                    "at": super::resolve::round(at.as_secs_f64()),
                    "from": a.from.to_string(),
                    "role": a.role,
                    "method": a.method,
                    "path": a.path,
                    "status": a.status,
                })
            })
            .collect();
        json!({ "actions": all })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn elsewhere() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    fn tokens() -> Tokens {
        Tokens {
            files: AdminTokens { operator: Some("o".into()), reader: Some("r".into()) },
            operator: Some((*b"operator-operator").into()),
            reader: Some((*b"reader:with:colons").into()),
        }
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        headers
    }

    #[test]
    fn without_token_files_this_machine_alone_is_served() {
        let none = Tokens::default();
        let ask = |from, method: Method, path| none.admit(from, &method, path, &HeaderMap::new());
        assert_eq!(ask(HERE, Method::POST, "/api/v1/drain"), Ok(Some(Role::Operator)));
        assert_eq!(ask("::ffff:127.0.0.1".parse().unwrap(), Method::GET, "/"), Ok(Some(Role::Operator)));
        assert_eq!(ask(elsewhere(), Method::GET, "/api/v1/status"), Err(Denied::Elsewhere));
        assert_eq!(ask(elsewhere(), Method::POST, "/healthz"), Err(Denied::Elsewhere));
        for open in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(ask(elsewhere(), Method::GET, open), Ok(None), "{open}");
        }
    }

    #[test]
    fn tokens_rule_from_everywhere_once_there_are_files() {
        let tokens = tokens();
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        for (authorization, look, act) in [
            ("Bearer operator-operator".to_owned(), Ok(Some(Role::Operator)), Ok(Some(Role::Operator))),
            ("bearer  operator-operator".to_owned(), Ok(Some(Role::Operator)), Ok(Some(Role::Operator))),
            (
                format!("Basic {}", encode("me:operator-operator")),
                Ok(Some(Role::Operator)),
                Ok(Some(Role::Operator)),
            ),
            ("Bearer reader:with:colons".to_owned(), Ok(Some(Role::Reader)), Err(Denied::ReadOnly)),
            (
                format!("Basic {}", encode(":reader:with:colons")),
                Ok(Some(Role::Reader)),
                Err(Denied::ReadOnly),
            ),
            ("Bearer operator-operato".to_owned(), Err(Denied::Unknown), Err(Denied::Unknown)),
            ("Bearer ".to_owned(), Err(Denied::Unknown), Err(Denied::Unknown)),
            ("Basic not base64".to_owned(), Err(Denied::Unknown), Err(Denied::Unknown)),
            (format!("Basic {}", encode("operator-operator")), Err(Denied::Unknown), Err(Denied::Unknown)),
            ("Digest operator-operator".to_owned(), Err(Denied::Unknown), Err(Denied::Unknown)),
        ] {
            let ask = |method| tokens.admit(HERE, &method, "/api/v1/drain", &with(&authorization));
            assert_eq!((ask(Method::GET), ask(Method::POST)), (look, act), "{authorization}");
        }
        let nobody = tokens.admit(HERE, &Method::GET, "/", &HeaderMap::new());
        assert_eq!(nobody, Err(Denied::Unknown), "from loopback too");
    }

    #[test]
    fn what_was_captured_is_for_operators() {
        let tokens = tokens();
        for path in ["/api/v1/capture", "/api/v1/capture/7", "/api/v1/capture/7.pcapng"] {
            let ask = |shown| tokens.admit(HERE, &Method::GET, path, &with(shown));
            assert_eq!(ask("Bearer reader:with:colons"), Err(Denied::ReadOnly), "{path}");
            assert_eq!(ask("Bearer operator-operator"), Ok(Some(Role::Operator)), "{path}");
        }
    }

    #[test]
    fn a_token_file_that_holds_no_token_is_refused() {
        let path = std::env::temp_dir().join(format!("sbe-token-{}", std::process::id()));
        for (text, good) in [
            ("0123456789abcdef\n", true),
            ("  0123456789abcdef  ", true),
            ("too short\n", false),
            ("0123456789 abcdef0123", false),
            ("", false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).is_ok(), good, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(TokenError::Read { .. })));
    }
}
