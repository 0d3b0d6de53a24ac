//! HTTP for the ALTO client: TLS with name check, credentials where they belong (Digest with its challenges), bodies cut
//! off at their limit.
//!
//! Redirects are not followed here: whether one may be is decided in [`crate::alto::redirect`].

use std::collections::HashMap;
use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{self, HeaderMap, HeaderName};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::alto::digest::{self, Session};
use crate::alto::error::short;
use crate::alto::{Answer, Fault, Headers, Request, Target};
use crate::config::{Alto, AltoCredentials};

use super::super::random::random;

/// Longest time for a connection, its handshake included.
const CONNECT: Duration = Duration::from_secs(2);
/// An idle connection is kept this long.
const IDLE: Duration = Duration::from_secs(300);
/// Most octets read of the body of an error.
const ERROR_LIMIT: usize = 64 << 10;
/// Longest header that counts, octets; a longer one is as good as none.
const MAX_HEADER: usize = 4096;
/// Most octets of a token or password.
const SECRET_LIMIT: u64 = 16 << 10;
/// Most times that one request is sent: with an old nonce, without knowing one, with one that was too old already.
const MAX_SENT: usize = 3;

/// The two clients: towards the configured servers, and towards others, who get neither certificate nor credentials.
pub(super) struct Http {
    clients: Result<[reqwest::Client; 2], String>,
    credentials: Option<AltoCredentials>,
    /// Digest: by origin, of which only those of the configured servers get credentials.
    sessions: Mutex<HashMap<url::Origin, Session>>,
}

impl Http {
    /// Reads certificates and key. What is wrong with them is the outcome of every request, and so seen.
    pub(super) fn new(alto: &Alto) -> Self {
        let clients = client(alto, false).and_then(|plain| Ok([plain, client(alto, true)?]));
        Self { clients, credentials: alto.credentials.clone(), sessions: Mutex::default() }
    }

    /// Carries a request out.
    pub(super) async fn fetch(&self, request: &Request) -> Result<Answer, Fault> {
        let all = async {
            match &request.target {
                Target::File(path) => {
                    let (path, limit) = (path.clone(), request.limit);
                    let read = tokio::task::spawn_blocking(move || read_file(&path, limit)).await;
                    let body = read.map_err(|e| Fault::File(e.to_string()))??;
                    Ok(Answer { status: 200, body, ..Answer::default() })
                }
                Target::Http(url) => self.ask(request, url).await,
            }
        };
        let whole = tokio::time::timeout(request.within, all).await;
        whole.unwrap_or(Err(Fault::Timeout(request.within.as_secs())))
    }

    async fn ask(&self, request: &Request, url: &url::Url) -> Result<Answer, Fault> {
        let [plain, trusted] = self.clients.as_ref().map_err(|why| Fault::Connect(why.clone()))?;
        let client = if request.credentials { trusted } else { plain };
        let digest = match &self.credentials {
            Some(AltoCredentials::Digest(user, file)) if request.credentials => Some((user, file)),
            _ => None,
        };
        let Some((user, file)) = digest else {
            return self.read(request, self.send(client, request, url, None).await?).await;
        };
        let mut challenged = false;
        for sent in 1..=MAX_SENT {
            let authorization = self.authorization(request, url, user, file).await?;
            let response = self.send(client, request, url, authorization).await?;
            if response.status() != reqwest::StatusCode::UNAUTHORIZED {
                self.note(url, response.headers());
                return self.read(request, response).await;
            }
            let found = digest::challenge(texts(response.headers(), header::WWW_AUTHENTICATE));
            // Read to its end, so that the connection serves on.
            let answer = self.read(request, response).await?;
            self.sessions().remove(&url.origin());
            let challenge = found.map_err(Fault::Challenge)?;
            if sent == MAX_SENT || (challenged && !challenge.stale) {
                // Name and password are not what the server knows.
                return Ok(answer);
            }
            challenged = true;
            let random = random().map_err(|e| Fault::Broken(e.to_string()))?;
            self.sessions().insert(url.origin(), Session::new(challenge, random));
        }
        Err(Fault::Challenge("again and again".into()))
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<url::Origin, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `Authorization` header by Digest, if there is a challenge of this server's to answer.
    async fn authorization(
        &self,
        request: &Request,
        url: &url::Url,
        user: &str,
        file: &Path,
    ) -> Result<Option<String>, Fault> {
        if !self.sessions().contains_key(&url.origin()) {
            return Ok(None);
        }
        let password = secret(file).await?;
        let method = if request.post.is_some() { "POST" } else { "GET" };
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let mut sessions = self.sessions();
        let session = sessions.get_mut(&url.origin());
        Ok(session.map(|session| session.authorization(user, &password, method, target)))
    }

    /// Takes note of what a server says of the nonce to use next.
    fn note(&self, url: &url::Url, headers: &HeaderMap) {
        if let Some(session) = self.sessions().get_mut(&url.origin()) {
            for text in texts(headers, HeaderName::from_static("authentication-info")) {
                session.info(text);
            }
        }
    }

    async fn send(
        &self,
        client: &reqwest::Client,
        request: &Request,
        url: &url::Url,
        authorization: Option<String>,
    ) -> Result<reqwest::Response, Fault> {
        let mut builder = match &request.post {
            None => client.get(url.clone()),
            Some((kind, body)) => {
                client.post(url.clone()).header(header::CONTENT_TYPE, *kind).body(body.clone())
            }
        };
        builder = builder.header(header::ACCEPT, &request.accept);
        if let Some(etag) = &request.if_none_match {
            builder = builder.header(header::IF_NONE_MATCH, etag);
        }
        // Digest alone does not tell the secret to whoever listens.
        if let Some(authorization) = authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        } else if request.credentials && url.scheme() == "https" {
            builder = match &self.credentials {
                Some(AltoCredentials::Bearer(file)) => builder.bearer_auth(secret(file).await?),
                Some(AltoCredentials::Basic(user, file)) => {
                    builder.basic_auth(user, Some(secret(file).await?))
                }
                Some(AltoCredentials::Digest(..)) | None => builder,
            };
        }
        builder.send().await.map_err(|e| fault(e, request.within))
    }

    async fn read(&self, request: &Request, mut response: reqwest::Response) -> Result<Answer, Fault> {
        let status = response.status().as_u16();
        let good = response.status().is_success();
        let headers = headers(response.headers());
        let limit = if good { request.limit } else { request.limit.min(ERROR_LIMIT) };
        if good && response.content_length().is_some_and(|n| n > limit as u64) {
            return Err(Fault::TooLarge(limit));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| fault(e, request.within))? {
            if body.len() + chunk.len() > limit {
                if good {
                    return Err(Fault::TooLarge(limit));
                }
                // Of an error, the beginning will do.
                break;
            }
            body.extend_from_slice(&chunk);
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Answer { status, headers, body, wall })
    }
}

/// A client for the configured servers (`trusted`), or for others.
fn client(alto: &Alto, trusted: bool) -> Result<reqwest::Client, String> {
    let tls = tls(alto, trusted)?;
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("sbe/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .http1_only()
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(1)
        .build()
        .map_err(|e| words(&e))
}

fn tls(alto: &Alto, trusted: bool) -> Result<ClientConfig, String> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    if alto.trust.is_empty() {
        // Some of a system's certificates are usually odd; the others serve.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    for file in &alto.trust {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|e| format!("trust {}: {e}", file.display()))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    match alto.certificate.as_ref().filter(|_| trusted) {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let wrong = |what: &dyn std::fmt::Display| format!("certificate {}: {what}", chain.display());
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| format!("key {}: {e}", key.display()))?;
            builder.with_client_auth_cert(certificates(chain)?, key).map_err(|e| wrong(&e))
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{}: there is no certificate in it", file.display())),
        Err(e) => Err(format!("{}: {e}", file.display())),
    }
}

/// A token or password, read each time so that it can be replaced.
async fn secret(file: &Path) -> Result<String, Fault> {
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::fs::File::open(path)?.take(SECRET_LIMIT).read_to_string(&mut text).map(|_| text)
    });
    let text = match read.await {
        Ok(Ok(text)) => text,
        Ok(Err(e)) => return Err(Fault::File(format!("{}: {e}", file.display()))),
        Err(e) => return Err(Fault::File(format!("{}: {e}", file.display()))),
    };
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Fault::File(format!("{}: it must hold one line", file.display())));
    }
    Ok(text.to_owned())
}

fn read_file(path: &Path, limit: usize) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(limit as u64 + 1).read_to_end(&mut body));
    read.map_err(|e| Fault::File(short(&e.to_string())))?;
    if body.len() > limit { Err(Fault::TooLarge(limit)) } else { Ok(body) }
}

fn texts(map: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    map.get_all(name).into_iter().filter_map(|v| v.to_str().ok())
}

fn headers(map: &HeaderMap) -> Headers {
    let read = |v: &header::HeaderValue| v.to_str().ok().filter(|v| v.len() <= MAX_HEADER).map(str::to_owned);
    let one = |name: HeaderName| map.get(name).and_then(read);
    let all: Vec<&str> = texts(map, header::CACHE_CONTROL).collect();
    Headers {
        content_type: one(header::CONTENT_TYPE),
        cache_control: (!all.is_empty()).then(|| all.join(",")).filter(|all| all.len() <= MAX_HEADER),
        age: one(header::AGE),
        expires: one(header::EXPIRES),
        date: one(header::DATE),
        etag: one(header::ETAG),
        location: one(header::LOCATION),
        retry_after: one(header::RETRY_AFTER),
    }
}

fn fault(e: reqwest::Error, within: Duration) -> Fault {
    if e.is_connect() {
        let text = if e.is_timeout() {
            format!("none within {} s", CONNECT.as_secs())
        } else {
            words(&e.without_url())
        };
        Fault::Connect(text)
    } else if e.is_timeout() {
        Fault::Timeout(within.as_secs())
    } else {
        Fault::Broken(words(&e.without_url()))
    }
}

/// What an error comes from in the end: what is around it only says that there was one.
fn words(e: &dyn Error) -> String {
    let mut innermost = e;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    short(&innermost.to_string())
}
