//! An ALTO server on loopback (RFC 7285), strict as none in the wild: directory behind a redirect, maps with ETags,
//! endpoint costs with the four errors of §8.5.2, lifetimes. Its costs change while it runs; for tests it can also
//! stall, flood or talk nonsense.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::alto::{address, media};

/// Lifetime of its answers, seconds.
const MAX_AGE: u64 = 60;
/// Longest query read, octets.
const MAX_QUERY: usize = 1 << 20;

/// How the server behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    #[default]
    Good,
    /// Each answer comes so late.
    Late(Duration),
    /// It takes requests and never answers.
    Silent,
    /// Its bodies never end.
    Flooding,
    /// No JSON, under the right media type.
    Nonsense,
    /// Its cost maps belong to another version of the network map, and endpoint costs are negative.
    Lying,
}

/// Which services the directory offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offer {
    /// Endpoint costs and maps.
    #[default]
    Both,
    /// Maps alone.
    Maps,
}

struct Inner {
    costs: BTreeMap<IpAddr, f64>,
    /// Grows with each change; the version of the maps.
    version: u64,
    manner: Manner,
    offer: Offer,
    /// Requests by path.
    requests: BTreeMap<String, u64>,
}

/// A running server; ends when dropped.
pub struct AltoServer {
    addr: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    task: JoinHandle<io::Result<()>>,
}

impl AltoServer {
    /// Serves costs from anywhere to these addresses, on a free port of `ip`.
    ///
    /// # Errors
    /// No socket.
    pub async fn start(ip: IpAddr, costs: &[(IpAddr, f64)]) -> io::Result<Self> {
        let inner = Arc::new(Mutex::new(Inner {
            costs: costs.iter().copied().collect(),
            version: 1,
            manner: Manner::Good,
            offer: Offer::Both,
            requests: BTreeMap::new(),
        }));
        let listener = TcpListener::bind((ip, 0)).await?;
        let addr = listener.local_addr()?;
        let router = Router::new().fallback(serve).with_state(Arc::clone(&inner));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { addr, inner, task })
    }

    /// The URL to configure; it redirects to the directory.
    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// Sets the cost towards an address.
    pub fn set_cost(&self, addr: IpAddr, cost: f64) {
        let mut inner = lock(&self.inner);
        inner.costs.insert(addr, cost);
        inner.version += 1;
    }

    /// The cost towards an address.
    pub fn cost(&self, addr: IpAddr) -> Option<f64> {
        lock(&self.inner).costs.get(&addr).copied()
    }

    /// Another manner from the next request on.
    pub fn set_manner(&self, manner: Manner) {
        lock(&self.inner).manner = manner;
    }

    /// Another offer from the next directory on.
    pub fn set_offer(&self, offer: Offer) {
        lock(&self.inner).offer = offer;
    }

    /// Requests for a path so far.
    pub fn requests(&self, path: &str) -> u64 {
        lock(&self.inner).requests.get(path).copied().unwrap_or(0)
    }

    /// All requests so far.
    pub fn total(&self) -> u64 {
        lock(&self.inner).requests.values().sum()
    }
}

impl Drop for AltoServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(State(inner): State<Arc<Mutex<Inner>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let manner = {
        let mut inner = lock(&inner);
        // Few paths are ever asked for; others count as one.
        let path = if inner.requests.len() < 64 { parts.uri.path() } else { "other" };
        *inner.requests.entry(path.to_owned()).or_default() += 1;
        inner.manner
    };
    match manner {
        Manner::Good | Manner::Lying => {}
        Manner::Late(delay) => tokio::time::sleep(delay).await,
        Manner::Silent => return std::future::pending().await,
        Manner::Flooding => return flood(),
        Manner::Nonsense => {
            return ([(header::CONTENT_TYPE, media::DIRECTORY)], "{\"meta\": {nope").into_response();
        }
    }
    let query = axum::body::to_bytes(body, MAX_QUERY).await.unwrap_or_default();
    answer(&lock(&inner), &parts.method, parts.uri.path(), &parts.headers, &query)
}

/// White space without end.
fn flood() -> Response {
    let chunk = Bytes::from(vec![b' '; 1 << 16]);
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Bytes>(4);
    // Ends when nobody reads any more.
    tokio::spawn(async move { while sender.send(chunk.clone()).await.is_ok() {} });
    let stream = Endless(move |context: &mut std::task::Context<'_>| receiver.poll_recv(context));
    ([(header::CONTENT_TYPE, media::DIRECTORY)], Body::new(stream)).into_response()
}

/// A body of what a function gives.
struct Endless<F>(F);

impl<F> axum::body::HttpBody for Endless<F>
where
    F: FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Bytes>> + Unpin,
{
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        (self.0)(context).map(|chunk| chunk.map(|c| Ok(http_body::Frame::data(c))))
    }
}

fn answer(inner: &Inner, method: &Method, path: &str, headers: &HeaderMap, query: &[u8]) -> Response {
    let cost_type = json!({ "cost-mode": "numerical", "cost-metric": "routingcost" });
    let vtag = json!({ "resource-id": "net", "tag": format!("v{}", inner.version) });
    let content = match (method, path) {
        (&Method::GET, "/") => {
            return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/directory")]).into_response();
        }
        (&Method::GET, "/directory") => (media::DIRECTORY, directory(inner, &cost_type)),
        (&Method::GET, "/networkmap") => {
            let mut pids = json!({ "here": { "ipv4": ["0.0.0.0/0"], "ipv6": ["::/0"] } });
            for (at, addr) in inner.costs.keys().enumerate() {
                let (kind, length) = if addr.is_ipv4() { ("ipv4", 32) } else { ("ipv6", 128) };
                pids[format!("p{at}")] = json!({ kind: [format!("{addr}/{length}")] });
            }
            (media::NETWORK_MAP, json!({ "meta": { "vtag": vtag }, "network-map": pids }))
        }
        (&Method::GET, "/costmap") => {
            let row: serde_json::Map<String, Value> =
                inner.costs.values().enumerate().map(|(at, cost)| (format!("p{at}"), json!(cost))).collect();
            let vtag = if inner.manner == Manner::Lying {
                json!({ "resource-id": "net", "tag": "v0" })
            } else {
                vtag
            };
            let meta = json!({ "dependent-vtags": [vtag], "cost-type": cost_type });
            (media::COST_MAP, json!({ "meta": meta, "cost-map": { "here": row } }))
        }
        (&Method::POST, "/endpointcost") => match endpoint_costs(inner, headers, query) {
            Ok(map) => {
                let body = json!({ "meta": { "cost-type": cost_type }, "endpoint-cost-map": map });
                (media::ENDPOINT_COST, body)
            }
            Err(refusal) => return *refusal,
        },
        (_, "/" | "/directory" | "/networkmap" | "/costmap" | "/endpointcost") => {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let (kind, body) = content;
    let cache = format!("max-age={MAX_AGE}");
    if method == Method::POST {
        return ([(header::CONTENT_TYPE, kind.to_owned()), (header::CACHE_CONTROL, cache)], body.to_string())
            .into_response();
    }
    let etag = format!("\"{}-{:?}\"", inner.version, inner.offer);
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    if known && inner.manner != Manner::Lying {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag), (header::CACHE_CONTROL, cache)])
            .into_response();
    }
    let headers =
        [(header::CONTENT_TYPE, kind.to_owned()), (header::ETAG, etag), (header::CACHE_CONTROL, cache)];
    (headers, body.to_string()).into_response()
}

fn directory(inner: &Inner, cost_type: &Value) -> Value {
    let capabilities = json!({ "cost-type-names": ["routing"] });
    let mut resources = json!({
        "net": { "uri": "/networkmap", "media-type": media::NETWORK_MAP },
        "costs": { "uri": "/costmap", "media-type": media::COST_MAP, "uses": ["net"], "capabilities": capabilities },
    });
    if inner.offer == Offer::Both {
        resources["endpoint-costs"] = json!({
            "uri": "/endpointcost", "media-type": media::ENDPOINT_COST, "accepts": media::ENDPOINT_COST_PARAMS,
            "capabilities": capabilities,
        });
    }
    json!({
        "meta": { "cost-types": { "routing": cost_type }, "default-alto-network-map": "net" },
        "resources": resources,
    })
}

/// An error of RFC 7285 §8.5.
fn refuse(code: &str, more: Value) -> Box<Response> {
    let mut meta = more;
    meta["code"] = json!(code);
    let body = json!({ "meta": meta }).to_string();
    Box::new((StatusCode::BAD_REQUEST, [(header::CONTENT_TYPE, media::ERROR)], body).into_response())
}

/// The member of a query, or the error that says what is wrong with it.
fn member<'v>(value: &'v Value, path: &str) -> Result<&'v Value, Box<Response>> {
    path.split('/').try_fold(value, |value, key| match value {
        Value::Object(map) => map.get(key).ok_or_else(|| refuse("E_MISSING_FIELD", json!({ "field": path }))),
        _ => Err(refuse("E_INVALID_FIELD_TYPE", json!({ "field": path }))),
    })
}

fn endpoint_costs(inner: &Inner, headers: &HeaderMap, query: &[u8]) -> Result<Value, Box<Response>> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if media::essence(kind) != media::ENDPOINT_COST_PARAMS {
        return Err(Box::new(StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response()));
    }
    let query: Value = serde_json::from_slice(query)
        .map_err(|e| refuse("E_SYNTAX", json!({ "syntax-error": e.to_string() })))?;
    for (field, only) in [("cost-type/cost-mode", "numerical"), ("cost-type/cost-metric", "routingcost")] {
        match member(&query, field)? {
            Value::String(text) if text == only => {}
            Value::String(text) => {
                return Err(refuse("E_INVALID_FIELD_VALUE", json!({ "field": field, "value": text })));
            }
            _ => return Err(refuse("E_INVALID_FIELD_TYPE", json!({ "field": field }))),
        }
    }
    let list = |field: &str| -> Result<Vec<(String, IpAddr)>, Box<Response>> {
        let Value::Array(items) = member(&query, field)? else {
            return Err(refuse("E_INVALID_FIELD_TYPE", json!({ "field": field })));
        };
        items
            .iter()
            .map(|item| {
                let found = item.as_str().and_then(|text| Some((text.to_owned(), address::parse(text)?)));
                found.ok_or_else(|| refuse("E_INVALID_FIELD_VALUE", json!({ "field": field, "value": item })))
            })
            .collect()
    };
    let (srcs, dsts) = (list("endpoints/srcs")?, list("endpoints/dsts")?);
    let sign = if inner.manner == Manner::Lying { -1.0 } else { 1.0 };
    let row: serde_json::Map<String, Value> = dsts
        .iter()
        .filter_map(|(text, addr)| Some((text.clone(), json!(sign * inner.costs.get(addr)?))))
        .collect();
    Ok(srcs.into_iter().map(|(src, _)| (src, Value::Object(row.clone()))).collect())
}
