//! Captures on demand: begin, list, fetch or follow, end.
//!
//! All of it is for operators: what is captured is what people say to whom, and it may hold secrets.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::{read_duration, read_size};
use crate::proxy::Policy;
use crate::runtime::capture::{Capture, CaptureError, Filter, OCTETS, TIME, Wanted};
use crate::runtime::node::Node;

use super::http::{Well, error};
use super::resolve::round;
use super::text::Text;

/// Media type of pcapng, as programs know it.
const PCAPNG: &str = "application/x-pcapng";
/// Most octets of a part of a name or of a Call-ID.
const MAX_TEXT: usize = 255;

/// `/api/v1/capture` and below
pub fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/api/v1/capture", get(list).post(start))
        .route("/api/v1/capture/{id}", get(fetch).delete(stop))
}

/// Whether a path shows or moves captures, for which looking takes the rights of acting.
pub fn is_private(path: &str) -> bool {
    path == "/api/v1/capture" || path.starts_with("/api/v1/capture/")
}

/// `POST /api/v1/capture?…`; all that is given has to hold for a call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// A peer's name.
    peer: Option<String>,
    /// A part of the Request-URI or of an address in From, To or P-Asserted-Identity.
    user: Option<String>,
    /// A whole Call-ID.
    call_id: Option<String>,
    /// How long: a number of seconds, or a duration such as `10m`.
    seconds: Option<String>,
    /// Octets kept, such as `16MiB`.
    size: Option<String>,
    /// Messages after which it ends.
    packets: Option<u64>,
    /// It ends with its last follower.
    attached: Option<bool>,
}

impl Asked {
    fn wanted(self, policy: &Policy) -> Result<Wanted, String> {
        let mut words = Vec::new();
        let mut text = |key: &'static str, value: Option<String>| -> Result<Option<String>, String> {
            let Some(value) = value else { return Ok(None) };
            if value.is_empty() || value.len() > MAX_TEXT {
                return Err(format!("{key}: write 1 to {MAX_TEXT} octets"));
            }
            words.push((key, value.clone()));
            Ok(Some(value))
        };
        let peer = match text("peer", self.peer)? {
            None => None,
            Some(name) => {
                let found = policy.peers.iter().flatten().find(|p| p.config.name == name);
                Some(found.ok_or_else(|| format!("there is no peer \"{name}\""))?.id)
            }
        };
        let octets = |text: String| text.into_bytes().into_boxed_slice();
        let user = text("user", self.user)?.map(|user| octets(user.to_ascii_lowercase()));
        let call_id = text("call_id", self.call_id)?.map(octets);
        let time = match &self.seconds {
            None => TIME[1],
            Some(text) => text
                .parse()
                .map(Duration::from_secs)
                .ok()
                .or_else(|| read_duration(text))
                .filter(|time| (TIME[0]..=TIME[2]).contains(time))
                .ok_or_else(|| {
                    format!("seconds \"{text}\": write 1 to {} or 1s to 24h", TIME[2].as_secs())
                })?,
        };
        let size = match &self.size {
            None => OCTETS[1],
            Some(text) => read_size(text)
                .and_then(|octets| usize::try_from(octets).ok())
                .filter(|octets| (OCTETS[0]..=OCTETS[2]).contains(octets))
                .ok_or_else(|| format!("size \"{text}\": write 64KiB to 64MiB"))?,
        };
        if self.packets == Some(0) {
            return Err("packets: write at least 1".to_owned());
        }
        Ok(Wanted {
            filter: Filter { peer, user, call_id },
            words,
            time,
            octets: size,
            packets: self.packets,
            attached: self.attached.unwrap_or(false),
        })
    }
}

async fn start(State(node): State<Arc<Node>>, Well(Query(asked)): Well<Query<Asked>>) -> Response {
    let wanted = match asked.wanted(&node.policy()) {
        Ok(wanted) => wanted,
        Err(text) => return error(StatusCode::BAD_REQUEST, text),
    };
    match node.captures().start(&node, wanted) {
        Ok(capture) => {
            tracing::info!(id = capture.id, filter = ?capture.wanted.words, time = ?capture.wanted.time, "capture begins");
            (StatusCode::CREATED, Json(shown(&capture))).into_response()
        }
        Err(cause) => {
            // The caller can mend the one, not the other.
            let status = match cause {
                CaptureError::TooMany => StatusCode::CONFLICT,
                CaptureError::Thread(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            error(status, cause.to_string())
        }
    }
}

async fn list(State(node): State<Arc<Node>>) -> Json<Value> {
    let all: Vec<Value> = node.captures().list().iter().map(|c| shown(c)).collect();
    Json(json!({ "captures": all }))
}

#[derive(Deserialize)]
struct Follow {
    follow: Option<bool>,
}

/// `/api/v1/capture/ID.pcapng` gives the file, `/api/v1/capture/ID` how it stands.
async fn fetch(
    State(node): State<Arc<Node>>,
    Well(Path(name)): Well<Path<String>>,
    Well(Query(query)): Well<Query<Follow>>,
) -> Response {
    let (id, file) = match name.strip_suffix(".pcapng") {
        Some(id) => (id, true),
        None => (name.as_str(), false),
    };
    let Some(capture) = id.parse().ok().and_then(|id| node.captures().get(id)) else {
        return error(StatusCode::NOT_FOUND, "there is no such capture");
    };
    if !file {
        return Json(shown(&capture)).into_response();
    }
    let reader = capture.read(query.follow.unwrap_or(false));
    let parts = futures_util::stream::unfold(reader, |mut reader| async {
        let part = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(part), reader))
    });
    let named = format!("attachment; filename=\"sbe-{}.pcapng\"", capture.id);
    let set = [(header::CONTENT_TYPE, PCAPNG.to_owned()), (header::CONTENT_DISPOSITION, named)];
    (set, Body::from_stream(parts)).into_response()
}

async fn stop(State(node): State<Arc<Node>>, Well(Path(id)): Well<Path<String>>) -> Response {
    match id.parse().ok().filter(|id| node.captures().remove(*id)) {
        Some(id) => Json(json!({ "ok": true, "id": id })).into_response(),
        None => error(StatusCode::NOT_FOUND, "there is no such capture"),
    }
}

fn shown(capture: &Capture) -> Value {
    let (state, now) = (capture.state(), Instant::now());
    let started = capture.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let left = state.ended.is_none().then(|| capture.until.saturating_duration_since(now));
    let filtered = !capture.wanted.filter.is_empty();
    json!({
        "id": capture.id,
        "file": format!("/api/v1/capture/{}.pcapng", capture.id),
        "filter": capture.wanted.words.iter().map(|(key, text)| ((*key).to_owned(), Value::from(text.as_str()))).collect::<Value>(),
        "started": round(started.as_secs_f64()),
        "seconds": capture.wanted.time.as_secs(),
        "left": left.map(|left| round(left.as_secs_f64())),
        "running": state.ended.is_none(),
        "ended": state.ended.map(|(why, _)| why.label()),
        "size": capture.wanted.octets,
        "attached": capture.wanted.attached,
        "calls": filtered.then_some(state.calls),
        "packets": state.packets,
        "kept": { "packets": state.kept_packets, "octets": state.kept_octets },
        "overwritten": state.overwritten,
    })
}

/// Its metrics; all zero while nothing was captured.
pub fn metrics(text: &mut Text, node: &Node) {
    let captures = node.captures();
    let help = "Messages for captures on demand: kept, overwritten by newer ones, dropped as the queue was full, too large for a packet.";
    text.family("sbe_capture_packets_total", "counter", help);
    for (outcome, n) in captures.counts().outcomes() {
        text.sample(&[("outcome", outcome)], n);
    }
    let states: Vec<_> = captures.list().iter().map(|c| c.state()).collect();
    text.family("sbe_captures_running", "gauge", "Captures on demand that take messages.")
        .sample(&[], states.iter().filter(|s| s.ended.is_none()).count());
    text.family("sbe_capture_bytes", "gauge", "Memory that captures hold, finished ones included.")
        .sample(&[], states.iter().map(|s| s.kept_octets).sum::<usize>());
}
