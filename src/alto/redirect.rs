//! Where redirects and the addresses in a directory may lead (RFC 7285 §8.3.3, RFC 9110 §15.4).

use url::{Host, Url};

use super::error::Fault;

/// Redirects followed in a row.
pub const MAX_HOPS: usize = 5;

/// Longest URL that is followed, octets.
const MAX_URL: usize = 2048;

/// Second-level labels under which registries of two-letter domains register names.
const SHARED: [&str; 8] = ["ac", "co", "com", "edu", "gov", "net", "or", "org"];

/// Where to a server may send us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The configured servers.
    pub servers: Vec<Url>,
    /// `redirect_allow`: hosts, or origins (`https://host:port`).
    pub allow: Vec<String>,
}

impl Policy {
    /// Whether a request that began at `from` may go to `to`.
    ///
    /// # Errors
    /// In words, why not.
    pub fn check(&self, from: &Url, to: &Url) -> Result<(), String> {
        if to.as_str().len() > MAX_URL {
            return Err(format!("to a URL of more than {MAX_URL} octets"));
        }
        if !matches!(to.scheme(), "http" | "https") {
            return Err(format!("to {}, which is not HTTP", show(to)));
        }
        if from.scheme() == "https" && to.scheme() != "https" {
            return Err(format!("to {}, from https to http", show(to)));
        }
        if !to.username().is_empty() || to.password().is_some() {
            return Err(format!("to {}, with a user name in it", show(to)));
        }
        let known = self.servers.iter().chain([from]).any(|server| related(server, to));
        if known || self.allow.iter().any(|allowed| names(allowed, to)) {
            return Ok(());
        }
        Err(format!("to {}, a host that redirect_allow does not name", show(to)))
    }

    /// Whether credentials may go there: to the origins of the configured servers, and by TLS unless it is plain
    /// HTTP that is configured.
    pub fn trusts(&self, url: &Url) -> bool {
        self.servers.iter().any(|server| server.origin() == url.origin())
    }
}

/// The same host, or both below one domain that can be expected to have one owner.
fn related(server: &Url, to: &Url) -> bool {
    let (Some(server), Some(to)) = (server.host(), to.host()) else { return false };
    let (Host::Domain(server), Host::Domain(to)) = (&server, &to) else { return server == to };
    if server == to || below(to, server) {
        return true;
    }
    server.split_once('.').is_some_and(|(_, parent)| is_owned(parent) && (*to == parent || below(to, parent)))
}

fn below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// A domain that one party owns, as far as that can be told without a list: two labels at least, and not the likes
/// of `co.uk`.
fn is_owned(domain: &str) -> bool {
    let mut labels = domain.rsplit('.');
    let (Some(top), Some(second)) = (labels.next(), labels.next()) else { return false };
    labels.next().is_some() || top.len() > 2 || !SHARED.contains(&second)
}

fn names(allowed: &str, to: &Url) -> bool {
    match Url::parse(allowed) {
        Ok(origin) if origin.has_host() => origin.origin() == to.origin(),
        _ => to.host_str().is_some_and(|host| host.eq_ignore_ascii_case(allowed)),
    }
}

/// The next request after a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where to.
    pub url: Url,
    /// By GET, without the body (303); else by the same method with the same body.
    pub get: bool,
    /// May be remembered (301, 308).
    pub permanent: bool,
}

/// Follows a redirect. `seen`: the addresses asked so far, the latest last. A 301 or 302 in answer to a POST is
/// followed by a POST, as a GET would go to a resource that takes none.
///
/// # Errors
/// It is not to be followed.
pub fn follow(policy: &Policy, status: u16, location: Option<&str>, seen: &[Url]) -> Result<Next, Fault> {
    let refused = |why: String| Fault::Redirect(super::error::short(&why));
    let (Some(first), Some(last)) = (seen.first(), seen.last()) else {
        return Err(refused("out of nowhere".into()));
    };
    let location = location.ok_or_else(|| refused(format!("by a {status} without Location")))?;
    let mut url = last.join(location).map_err(|e| refused(format!("to {location:?}: {e}")))?;
    url.set_fragment(None);
    policy.check(last, &url).map_err(refused)?;
    if first.scheme() == "https" && url.scheme() != "https" {
        return Err(refused(format!("to {}, from https to http", show(&url))));
    }
    // A 303 may lead to where the POST went, to be fetched by GET.
    if seen.contains(&url) && status != 303 {
        return Err(refused(format!("in a circle, back to {}", show(&url))));
    }
    if seen.len() > MAX_HOPS {
        return Err(refused(format!("more than {MAX_HOPS} times")));
    }
    Ok(Next { url, get: status == 303, permanent: matches!(status, 301 | 308) })
}

/// Whether a status is one that is followed.
pub const fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// An address without what may be secret in it.
pub fn show(url: &Url) -> String {
    let mut url = url.clone();
    if !url.username().is_empty() || url.password().is_some() {
        let _ = url.set_password(None);
        let _ = url.set_username("...");
    }
    url.set_query(None);
    super::error::short(url.as_str())
}
