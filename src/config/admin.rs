//! `[admin]`: where the admin interface is, and who may use it.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::check::Spots;
use super::defaults;
use super::error::{At, Report};
use super::listeners::path;
use super::names;
use super::raw::{self, Section};

/// Files with the tokens that a request must show (RFC 6750); each is read at start and at a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminTokens {
    /// `token_file`: may look and act.
    pub operator: Option<PathBuf>,
    /// `read_token_file`: may look.
    pub reader: Option<PathBuf>,
}

impl AdminTokens {
    /// True if there is none: then loopback alone is served.
    pub fn is_empty(&self) -> bool {
        self.operator.is_none() && self.reader.is_none()
    }
}

/// `bind`; `None`: no admin interface.
pub(super) fn bind(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Option<SocketAddr> {
    let section = root.table(report, "admin", &raw::ADMIN);
    let bind = section.parsed(report, "bind", |text| {
        if text.is_empty() { Ok(None) } else { names::socket(text).map(Some) }
    });
    let Some(At { value, at }) = bind else {
        return Some(defaults::ADMIN_BIND);
    };
    spots.admin = at;
    if value.is_some_and(|a| !a.ip().is_loopback()) && !section.has("token_file") {
        let what = "without token_file nobody but this machine may use the admin interface (health and metrics apart)";
        report.warn(at, what, "add token_file, or bind it to 127.0.0.1 or [::1]");
    }
    value
}

/// `token_file` and `read_token_file`
pub(super) fn tokens(report: &mut Report<'_>, root: &Section<'_>) -> AdminTokens {
    let section = root.table(report, "admin", &raw::ADMIN);
    let operator = section.parsed(report, "token_file", path).map(|p| p.value);
    let reader = section.parsed(report, "read_token_file", path).map(|p| p.value);
    if reader.is_some() && operator.is_none() {
        report.warn(
            section.place("read_token_file"),
            "nobody may act on this node: there is a read_token_file and no token_file",
            "add token_file",
        );
    }
    AdminTokens { operator, reader }
}
