//! Routes, and the fences around them: tokens ([`super::auth`]), and whatever a browser could be tricked into from
//! another site is refused (DNS rebinding, cross-site requests).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::node::Node;

use super::auth::{Audit, Denied, Tokens};
use super::feed::{self, Feed};
use super::whatif::WhatIf;
use super::{alto, api, assets, capture, explain, metrics, overview, page, resolve, search, text};

/// All routes and what they answer (OpenAPI 3.1).
pub(super) const OPENAPI: &str = include_str!("openapi.json");
/// Connections served at a time; others wait to be accepted.
const MAX_CONNECTIONS: usize = 128;
/// A connection that sends nothing for so long is closed; longer than any answer takes.
const QUIET: Duration = Duration::from_secs(15);
/// A shard that cannot be locked for this long makes the node unhealthy.
const STUCK: Duration = Duration::from_secs(2);

/// Why the admin interface could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("admin interface {bind}: {cause}{}", crate::runtime::bind_hint(cause))]
pub struct ServeError {
    /// Its address.
    pub bind: SocketAddr,
    /// What the system says.
    pub cause: io::Error,
}

/// Opens the admin interface's socket.
///
/// # Errors
/// The address is taken or not ours.
pub async fn bind(bind: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(bind).await.map_err(|cause| ServeError { bind, cause })
}

/// Serves the admin interface until the task is ended, or another process takes over.
///
/// # Errors
/// The socket fails for good.
pub async fn serve(node: Arc<Node>, listener: TcpListener) -> io::Result<()> {
    serve_with(node, listener, QUIET).await
}

/// As [`serve`], with another time that a connection may be quiet.
pub(super) async fn serve_with(node: Arc<Node>, listener: TcpListener, quiet: Duration) -> io::Result<()> {
    let listener = Bounded { listener, quiet, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    let feed = Feed::new(Arc::clone(&node));
    let leaving = Arc::clone(&node);
    let router = router(node, Arc::clone(&feed)).into_make_service_with_connect_info::<Remote>();
    tokio::select! {
        // Once another process has taken over, who asks next is its guest.
        ended = axum::serve(listener, router)
            .with_graceful_shutdown(async move { leaving.until_leaving(true).await }) => ended,
        () = feed.run() => Ok(()),
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
struct Remote(IpAddr);

impl Connected<IncomingStream<'_, Bounded>> for Remote {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(stream.remote_addr().ip())
    }
}

/// What the fences need.
#[derive(Clone)]
struct Fence {
    node: Arc<Node>,
    tokens: Arc<Mutex<Tokens>>,
    /// Reloads that the tokens are from.
    seen: Arc<AtomicU64>,
    audit: Audit,
}

impl Fence {
    fn new(node: &Arc<Node>) -> Self {
        let tokens = Tokens::closed(&node.policy().config.admin_tokens);
        let fence = Self {
            node: Arc::clone(node),
            tokens: Arc::new(Mutex::new(tokens)),
            seen: Arc::default(),
            audit: Audit::default(),
        };
        fence.load();
        fence
    }

    /// Reads the token files again if there has been a reload since.
    async fn refresh(&self) {
        let [good, _] = self.node.reloads();
        if self.seen.swap(good, Ordering::Relaxed) != good {
            let fence = self.clone();
            // Files may block.
            let _ = tokio::task::spawn_blocking(move || fence.load()).await;
        }
    }

    fn load(&self) {
        match Tokens::load(&self.node.policy().config.admin_tokens) {
            Ok(tokens) => *self.tokens() = tokens,
            Err(error) => tracing::error!(%error, "admin: the tokens stay as they were"),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn router(node: Arc<Node>, feed: Arc<Feed>) -> Router {
    let watch = Arc::clone(&feed);
    let fence = Fence::new(&node);
    let audit = fence.audit.clone();
    Router::new()
        .route("/api/v1/audit", get(async move || Json(audit.json())))
        .route("/api/v1/openapi.json", get(async || ([(header::CONTENT_TYPE, "application/json")], OPENAPI)))
        .merge(assets::routes())
        .merge(feed::routes(feed))
        .merge(capture::routes())
        .route("/plain", get(plain))
        .route("/metrics", get(async move |State(node): Shared| all_metrics(&node, &watch)))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/status", get(async |State(node): Shared| Json(api::status(&node))))
        .route("/api/v1/peers", get(async |State(node): Shared| Json(api::peers(&node))))
        .route("/api/v1/dns", get(dns).delete(flush))
        .route("/api/v1/dns/{*name}", delete(flush_name))
        .route("/api/v1/certificates", get(async |State(node): Shared| Json(overview::certificates(&node))))
        .route("/api/v1/alto", get(alto_state).delete(flush_alto))
        .route("/api/v1/alto/{*whose}", delete(flush_alto_of))
        .route("/api/v1/resolve", get(resolve_uri))
        .route("/api/v1/calls", get(calls))
        .route("/api/v1/calls/{*call_id}", get(call))
        .route("/api/v1/drain", post(async |State(node): Shared| drain(&node, true)))
        .route("/api/v1/undrain", post(async |State(node): Shared| drain(&node, false)))
        .route("/api/v1/reload", post(reload))
        .route("/api/v1/upgrade", post(upgrade))
        .fallback(async || error(StatusCode::NOT_FOUND, "no such path"))
        .method_not_allowed_fallback(async || error(StatusCode::METHOD_NOT_ALLOWED, "not by this method"))
        .layer(middleware::from_fn_with_state(fence, guard))
        .with_state(node)
}

type Shared = State<Arc<Node>>;

/// A part of a request; what is wrong with it is told as every other error.
pub(super) struct Well<E>(pub(super) E);

impl<S, E> FromRequestParts<S> for Well<E>
where
    S: Send + Sync,
    E: FromRequestParts<S>,
    E::Rejection: std::fmt::Display,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        E::from_request_parts(parts, state).await.map(Well).map_err(|rejection| {
            let text = rejection.to_string();
            error(rejection.into_response().status(), text)
        })
    }
}

/// Errors are JSON too.
pub(super) fn error(status: StatusCode, text: impl Into<String>) -> Response {
    (status, Json(json!({ "error": text.into() }))).into_response()
}

/// Refuses what another site makes a browser do, and keeps answers from being framed, cached or guessed at.
async fn guard(
    State(fence): State<Fence>,
    ConnectInfo(Remote(from)): ConnectInfo<Remote>,
    request: Request,
    next: Next,
) -> Response {
    let name = fence.node.policy().config.node.name.to_string();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    fence.refresh().await;
    let admitted = fence.tokens().admit(from, &method, &path, request.headers());
    let mut response = match (refusal(&method, request.headers(), &name), admitted) {
        (Some(text), _) => error(StatusCode::FORBIDDEN, text),
        (None, Err(denied)) => refused(denied),
        (None, Ok(_)) => next.run(request).await,
    };
    if method != Method::GET && method != Method::HEAD || capture::is_private(&path) {
        fence.audit.note(from, admitted.ok().flatten(), &method, &path, response.status().as_u16());
    }
    let set: [(HeaderName, &'static str); 5] = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, assets::POLICY),
    ];
    for (name, value) in set {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refused(denied: Denied) -> Response {
    let status = if denied == Denied::Unknown { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
    let mut response = error(status, denied.text());
    if denied == Denied::Unknown {
        let challenge = HeaderValue::from_static("Basic realm=\"sbe\", charset=\"UTF-8\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Why a request is not served; `None`: it is.
fn refusal(method: &Method, headers: &HeaderMap, node_name: &str) -> Option<&'static str> {
    let text = |name: HeaderName| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    // A page that has bent its own name to this address still says that name here. An address cannot be bent.
    if host.is_some_and(|h| !is_known_host(h, node_name)) {
        return Some("the Host header names neither an address, nor localhost, nor this node");
    }
    if method == Method::GET || method == Method::HEAD {
        return None;
    }
    let from_elsewhere = text(HeaderName::from_static("sec-fetch-site"))
        .is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let foreign_origin = text(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        origin.is_none() || !origin.zip(host).is_some_and(|(o, h)| o.eq_ignore_ascii_case(h))
    });
    (from_elsewhere || foreign_origin).then_some("actions are not taken on behalf of another site")
}

fn is_known_host(host: &str, node_name: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.eq_ignore_ascii_case(node_name)
}

async fn plain(State(node): Shared) -> Html<String> {
    Html(page::page(&api::status(&node), &api::peers(&node)))
}

fn all_metrics(node: &Node, feed: &Feed) -> Response {
    let text = metrics::metrics(node) + &feed.metrics();
    ([(header::CONTENT_TYPE, text::MEDIA_TYPE)], text).into_response()
}

/// Alive: every shard can be looked at.
async fn healthz(State(node): Shared) -> Response {
    let look = tokio::task::spawn_blocking(move || node.open());
    match tokio::time::timeout(STUCK, look).await {
        Ok(Ok(_)) => "ok\n".into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "a shard does not answer\n").into_response(),
    }
}

async fn readyz(State(node): Shared) -> Response {
    match node.unready() {
        None => {
            // Nothing that a load balancer should act on: all nodes will have the same certificate.
            let warnings = node.certificate_warnings();
            let lines: String = warnings.iter().map(|w| format!("warning: {w}\n")).collect();
            format!("ready\n{lines}").into_response()
        }
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn dns(State(node): Shared, Well(Query(query)): Well<Query<Limit>>) -> Json<Value> {
    let limit = query.limit.unwrap_or(api::DNS_ENTRIES).min(100_000);
    // The cache may be large.
    let entries = tokio::task::spawn_blocking(move || api::dns(&node, limit)).await;
    Json(entries.unwrap_or_default())
}

async fn flush(State(node): Shared) -> Json<Value> {
    node.resolver().flush(None);
    tracing::info!("DNS cache flushed");
    Json(json!({ "ok": true }))
}

async fn flush_name(State(node): Shared, Well(Path(name)): Well<Path<String>>) -> Response {
    if name.is_empty() || name.len() > 255 || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return error(StatusCode::BAD_REQUEST, "this is no domain name");
    }
    node.resolver().flush(Some(&name));
    tracing::info!(name, "DNS cache flushed");
    Json(json!({ "ok": true, "name": name })).into_response()
}

async fn alto_state(State(node): Shared, Well(Query(query)): Well<Query<Limit>>) -> Json<Value> {
    let limit = query.limit.unwrap_or(alto::COSTS).min(100_000);
    let state = tokio::task::spawn_blocking(move || alto::alto(&node, limit)).await;
    Json(state.unwrap_or_default())
}

async fn flush_alto(State(node): Shared) -> Response {
    if !node.alto().flush(None, std::time::Instant::now()) {
        return error(StatusCode::NOT_FOUND, "there is no [alto] in the configuration");
    }
    tracing::info!("ALTO costs flushed");
    Json(json!({ "ok": true })).into_response()
}

async fn flush_alto_of(State(node): Shared, Well(Path(whose)): Well<Path<String>>) -> Response {
    let Some(addrs) = alto::addresses(&node, &whose) else {
        return error(StatusCode::NOT_FOUND, "this is neither a peer nor an address");
    };
    if !node.alto().flush(Some(&addrs), std::time::Instant::now()) {
        return error(StatusCode::NOT_FOUND, "there is no [alto] in the configuration");
    }
    tracing::info!(whose, addresses = addrs.len(), "ALTO costs flushed");
    let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    Json(json!({ "ok": true, "addresses": addrs })).into_response()
}

#[derive(Deserialize)]
struct Uri {
    uri: Option<String>,
    down: Option<String>,
}

async fn resolve_uri(State(node): Shared, Well(Query(query)): Well<Query<Uri>>) -> Response {
    let Some(uri) = query.uri else {
        return error(StatusCode::BAD_REQUEST, "say which: /api/v1/resolve?uri=sip:example.com");
    };
    let what_if = match query.down.as_deref().map(WhatIf::down).transpose() {
        Ok(what_if) => what_if.unwrap_or_default(),
        Err(e) => return error(StatusCode::BAD_REQUEST, e.to_string()),
    };
    let (policy, health) = (node.policy(), node.health(std::time::Instant::now()));
    match resolve::resolve(&uri, Some(&policy), node.resolver(), Some(&health), &what_if).await {
        Ok(resolution) => Json(resolution).into_response(),
        Err(e) => error(StatusCode::BAD_REQUEST, e.to_string()),
    }
}

async fn calls(State(node): Shared, Well(Query(query)): Well<Query<search::Query>>) -> Response {
    let policy = node.policy();
    let look = {
        let (node, policy) = (Arc::clone(&node), Arc::clone(&policy));
        tokio::task::spawn_blocking(move || search::search(&node, &policy, &query)).await
    };
    match look {
        Ok(Ok(found)) => {
            let calls: Vec<Value> = found.iter().map(|r| explain::summary(&node, &policy, r)).collect();
            Json(json!({ "calls": calls })).into_response()
        }
        Ok(Err(text)) => error(StatusCode::BAD_REQUEST, text),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the search did not come to an end"),
    }
}

async fn call(State(node): Shared, Well(Path(call_id)): Well<Path<String>>) -> Response {
    let policy = node.policy();
    let records = node.records(call_id.as_bytes());
    if records.is_empty() {
        let text = "no record of this Call-ID: not a recent one, or only seen inside a dialog";
        return error(StatusCode::NOT_FOUND, text);
    }
    let records: Vec<Value> = records.iter().map(|r| explain::record(&node, &policy, r)).collect();
    Json(json!({ "call_id": call_id, "requests": records })).into_response()
}

fn drain(node: &Node, drain: bool) -> Json<Value> {
    node.drain(drain);
    Json(json!({ "draining": drain, "open": node.open(), "calls": node.live().calls }))
}

async fn reload(State(node): Shared) -> Response {
    let outcome = tokio::task::spawn_blocking(move || api::reloaded(&node.reload())).await;
    let (status, body) =
        outcome.unwrap_or_else(|_| (500, json!({ "error": "the reload did not come to an end" })));
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(body)).into_response()
}

/// A task of its own: it goes on if whoever asked does not wait for the end.
async fn upgrade(State(node): Shared) -> Response {
    let outcome = tokio::spawn(async move { api::upgraded(&node.upgrade().await) }).await;
    let (status, body) =
        outcome.unwrap_or_else(|_| (500, json!({ "error": "the upgrade did not come to an end" })));
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(body)).into_response()
}

/// Accepts no more connections than are served.
struct Bounded {
    listener: TcpListener,
    quiet: Duration,
    permits: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            match (permit, self.listener.accept().await) {
                (Ok(permit), Ok((stream, from))) => return (Held::new(stream, self.quiet, permit), from),
                // No descriptor left, or the like: it may pass.
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection and its place among those served. One that neither sends nor takes anything for `limit` loses its
/// place, so that half-sent requests and readers that have gone cannot keep others out.
struct Held {
    stream: TcpStream,
    limit: Duration,
    quiet: std::pin::Pin<Box<tokio::time::Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Held {
    fn new(stream: TcpStream, limit: Duration, permit: OwnedSemaphorePermit) -> Self {
        Self { stream, limit, quiet: Box::pin(tokio::time::sleep(limit)), _permit: permit }
    }
}

impl tokio::io::AsyncRead for Held {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let read = std::pin::Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            let until = tokio::time::Instant::now() + self.limit;
            self.quiet.as_mut().reset(until);
        } else if self.quiet.as_mut().poll(cx).is_ready() {
            return std::task::Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl tokio::io::AsyncWrite for Held {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        let written = std::pin::Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            // Who takes in what is sent is alive: a reader of events says nothing itself.
            let until = tokio::time::Instant::now() + self.limit;
            self.quiet.as_mut().reset(until);
        }
        written
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        refusal(&method, &map, "sbe1.example.com").is_none()
    }

    #[test]
    fn a_name_bent_to_this_address_is_not_served() {
        for host in
            ["127.0.0.1:9060", "localhost:9060", "[::1]:9060", "SBE1.example.com", "192.0.2.1", "a.localhost"]
        {
            assert!(asked(Method::GET, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9060",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "a:b:c",
        ] {
            assert!(!asked(Method::GET, &[("host", host)]), "{host}");
        }
        assert!(asked(Method::GET, &[]), "HTTP/1.0 has no Host");
    }

    #[test]
    fn another_site_cannot_make_a_browser_act() {
        let host = ("host", "127.0.0.1:9060");
        assert!(asked(Method::POST, &[host]), "curl sends no Origin");
        assert!(asked(Method::POST, &[host, ("origin", "http://127.0.0.1:9060")]));
        assert!(asked(Method::POST, &[host, ("sec-fetch-site", "same-origin")]));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8080", "http://127.0.0.1"] {
            assert!(!asked(Method::POST, &[host, ("origin", origin)]), "{origin}");
            assert!(!asked(Method::DELETE, &[host, ("origin", origin)]), "{origin}");
        }
        assert!(!asked(Method::POST, &[host, ("sec-fetch-site", "cross-site")]));
        assert!(!asked(Method::POST, &[("origin", "http://evil.example")]));
        assert!(
            asked(Method::GET, &[host, ("origin", "http://evil.example")]),
            "reading needs CORS, which is not given"
        );
    }
}
