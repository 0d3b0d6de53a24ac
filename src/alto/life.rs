//! How long an answer serves (RFC 9111 §4.2, RFC 5861), and Retry-After (RFC 9110 §10.2.3).

use std::time::Duration;

use super::client::Headers;

/// The lifetime of an answer that says nothing of it.
pub const DEFAULT: Duration = Duration::from_secs(300);
/// The shortest lifetime, whatever a server says.
pub const LEAST: Duration = Duration::from_secs(30);
/// The longest one.
pub const MOST: Duration = Duration::from_secs(86_400);
/// The longest that a Retry-After is obeyed.
pub const MOST_RETRY: Duration = Duration::from_secs(3600);

/// What caching headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// From the answer's arrival.
    pub fresh: Duration,
    /// `stale-while-revalidate`
    pub while_revalidate: Option<Duration>,
    /// `stale-if-error`
    pub if_error: Option<Duration>,
}

/// Reads the headers; a configured time stands above what they say of freshness.
pub fn lifetime(headers: &Headers, configured: Option<Duration>) -> Lifetime {
    let mut found = Lifetime { fresh: DEFAULT, while_revalidate: None, if_error: None };
    let (mut max_age, mut at_once) = (None, false);
    for directive in headers.cache_control.as_deref().unwrap_or_default().split(',') {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let seconds = || seconds(value.trim().trim_matches('"'));
        match name.trim().to_ascii_lowercase().as_str() {
            "max-age" => max_age = seconds(),
            "no-store" | "no-cache" => at_once = true,
            "stale-while-revalidate" => found.while_revalidate = seconds(),
            "stale-if-error" => found.if_error = seconds(),
            _ => {}
        }
    }
    let age = headers.age.as_deref().and_then(seconds).unwrap_or_default();
    let date = |text: &Option<String>| text.as_deref().and_then(|t| httpdate::parse_http_date(t).ok());
    let said = if at_once {
        Some(Duration::ZERO)
    } else if let Some(max_age) = max_age {
        Some(max_age.saturating_sub(age))
    } else if headers.expires.is_some() {
        // A date that cannot be read has passed (RFC 9111 §5.3).
        let left = date(&headers.expires).zip(date(&headers.date));
        Some(left.and_then(|(e, d)| e.duration_since(d).ok()).unwrap_or_default().saturating_sub(age))
    } else {
        None
    };
    found.fresh = configured.unwrap_or_else(|| said.unwrap_or(DEFAULT).clamp(LEAST, MOST));
    found
}

/// How long a server asks to be left alone. `wall`: our own time since 1970, for a date without a Date header.
pub fn retry_after(headers: &Headers, wall: Duration) -> Option<Duration> {
    let text = headers.retry_after.as_deref()?.trim();
    let wait = match seconds(text) {
        Some(wait) => wait,
        None => {
            let until = since_epoch(text)?;
            let from = headers.date.as_deref().and_then(since_epoch).unwrap_or(wall);
            until.saturating_sub(from)
        }
    };
    Some(wait.min(MOST_RETRY))
}

fn since_epoch(text: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(std::time::UNIX_EPOCH).ok()
}

/// Seconds in decimal; what overflows is for ever.
fn seconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Large enough for all uses here, and small enough to be added to a moment.
    Some(Duration::from_secs(text.parse::<u64>().unwrap_or(u64::MAX).min(10 * 365 * 86_400)))
}
