//! TLS on both sides of a connection (RFC 3261 §26.3, RFC 5922).
//!
//! [`Tls`] is everything read from files, one immutable value; a reload makes another one, and connections
//! that are open go on with theirs. Certificates are verified twice over: the chain as everywhere, then the
//! name by the rules of SIP ([`identity`], [`verify`]). Not an octet of SIP goes either way before that.
//!
//! Sessions are not resumed in either direction: a resumed session would go on with a certificate that has
//! expired, been revoked or been replaced meanwhile, and connections here live long, so there is little to gain.
//!
//! The cryptography is ring: it builds with nothing but a C compiler, in a fraction of the time that aws-lc-rs
//! takes, and signatures with ECDSA keys, which is what costs in a handshake, take about the same time in both.

mod files;
pub(super) mod gate;
pub(super) mod identity;
#[cfg(test)]
pub(super) mod tests;
mod verify;
pub(super) mod words;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::config::{ClientCertificates, Config};
use crate::flow::{Host, PeerId, TlsExpectation, TlsIdentity, Transport};

pub use files::{Certificate, FileError, Gravity, Setting};

use files::{Own, own, trust};
use verify::{Trust, Verifier};
use words::{Cause, explain};

/// With less than this left, a certificate is worth a warning.
pub const SOON: Duration = Duration::from_secs(7 * 86_400);

/// Certificates, keys and authorities in force.
#[derive(Debug)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    trust: Arc<Trust>,
    client_certificates: ClientCertificates,
    /// What we show by default.
    own: Own,
    /// What we show some peers, by name.
    peers: Vec<(String, Own)>,
    /// The same by number.
    by_id: HashMap<PeerId, Arc<CertifiedKey>>,
    server: Arc<dyn ResolvesServerCert>,
}

/// A handshake that came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    /// What happened, with "it" for the other end.
    pub(super) words: String,
}

impl Tls {
    /// Reads all files that `[tls]` and the peers name; `None` without `[tls]`.
    ///
    /// # Errors
    /// The first file that cannot serve.
    pub fn load(config: &Config) -> Result<Option<Self>, FileError> {
        let (loaded, mut errors) = Self::gather(config);
        if errors.is_empty() { Ok(loaded) } else { Err(errors.swap_remove(0)) }
    }

    /// Reads all files; with every error.
    fn gather(config: &Config) -> (Option<Self>, Vec<FileError>) {
        let Some(tls) = &config.tls else { return (None, Vec::new()) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut errors = Vec::new();
        let mut note = |e: FileError| errors.push(e);
        let own_one = own([Setting::Certificate, Setting::Key], &tls.certificate, &tls.key, &provider);
        let own_one = own_one.map_err(&mut note).ok();
        let mut peers = Vec::new();
        for peer in &config.peers {
            let Some((certificate, key)) = &peer.certificate else { continue };
            let settings = [Setting::PeerCertificate(peer.name.clone()), Setting::PeerKey(peer.name.clone())];
            if let Ok(own) = own(settings, certificate, key, &provider).map_err(&mut note) {
                peers.push((peer.name.clone(), own));
            }
        }
        let trust = trust(tls, &provider).map_err(&mut note).ok();
        let (Some(own_one), Some(trust)) = (own_one, trust) else { return (None, errors) };
        let trust = Arc::new(trust);
        let server = Arc::new(BySni {
            all: [&own_one].into_iter().chain(peers.iter().map(|(_, own)| own)).cloned().collect(),
        });
        let mut loaded = Self {
            provider,
            trust,
            client_certificates: tls.client_certificates,
            own: own_one,
            peers,
            by_id: HashMap::new(),
            server,
        };
        // As a policy numbers them that has no predecessor.
        loaded.number(|name| {
            let at = config.peers.iter().position(|p| p.name == name)?;
            u16::try_from(at).ok().map(PeerId)
        });
        (Some(loaded), errors)
    }

    /// Everything that is wrong with the files of a configuration for the node that it describes.
    pub fn check(config: &Config, now: SystemTime) -> Vec<FileError> {
        let (loaded, mut errors) = Self::gather(config);
        errors.extend(loaded.iter().flat_map(|tls| tls.misfits(config, now)));
        errors
    }

    /// Tells which peers the names stand for; numbers survive reloads, positions in the file don't.
    pub fn number(&mut self, id: impl Fn(&str) -> Option<PeerId>) {
        let numbered = self.peers.iter().filter_map(|(name, own)| Some((id(name)?, Arc::clone(&own.key))));
        self.by_id = numbered.collect();
    }

    /// The certificates that this node shows, its own first.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        [&self.own].into_iter().chain(self.peers.iter().map(|(_, own)| own)).map(|own| &own.about)
    }

    /// What is wrong with the certificates for this node and at this time, though they can be used: names that
    /// Record-Route holds and the certificate doesn't (rule 7), and validity.
    pub fn misfits(&self, config: &Config, now: SystemTime) -> Vec<FileError> {
        let mut found = Vec::new();
        for listen in config.listen.iter().filter(|l| l.transport == Transport::Tls) {
            let host = listen.advertise.as_ref().map_or(&config.node.name, |(host, _)| host);
            let named = match host {
                Host::Name(name) => self.own.presented.is_one_of(&[name.to_string()]),
                // Nobody can verify an address (RFC 5922 §7.1).
                Host::Addr(_) => false,
            };
            let told = found.iter().any(|e: &FileError| e.what.contains(&format!("\"{host}\"")));
            if !named && !told {
                found.push(FileError {
                    gravity: Gravity::Unfit,
                    setting: Setting::Certificate,
                    file: self.own.about.file.clone(),
                    what: format!(
                        "the tls listener {} is known as \"{host}\" to others, and the certificate names {}",
                        listen.bind,
                        self.own.presented.words()
                    ),
                    remedy: "get a certificate with that name as DNS or sip URI in its subjectAltName, or advertise a name that it has".to_owned(),
                });
            }
        }
        found.extend(self.certificates().filter_map(|c| validity(c, now)));
        found
    }

    /// Accepts TLS on a connection. No identity: the other end has shown no certificate.
    pub(super) async fn accept<S>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, Option<Arc<TlsIdentity>>), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(protocol)?;
        let mandatory = self.client_certificates == ClientCertificates::Require;
        let verifier = Verifier::of_client(Arc::clone(&self.trust), mandatory);
        let mut config = match self.client_certificates {
            ClientCertificates::None => builder.with_no_client_auth(),
            ClientCertificates::Request | ClientCertificates::Require => {
                builder.with_client_cert_verifier(Arc::clone(&verifier) as Arc<_>)
            }
        }
        .with_cert_resolver(Arc::clone(&self.server));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        match TlsAcceptor::from(Arc::new(config)).accept(stream).await {
            Ok(stream) => Ok((TlsStream::Server(stream), verifier.take().identity)),
            Err(error) => Err(failure(&verifier, &error)),
        }
    }

    /// Begins TLS on a connection that we have opened to `wanted`.
    pub(super) async fn connect<S>(
        &self,
        stream: S,
        wanted: &TlsExpectation,
    ) -> Result<(TlsStream<S>, Arc<TlsIdentity>), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(wanted.server_name.to_string()).map_err(|_| Failure {
            cause: Cause::NoName,
            words: format!("\"{}\" is no name that it could prove", wanted.server_name.escape_debug()),
        })?;
        let verifier = Verifier::of_server(Arc::clone(&self.trust), wanted.clone());
        let shown = wanted.peer.and_then(|p| self.by_id.get(&p)).unwrap_or(&self.own.key);
        let resolver: Arc<dyn ResolvesClientCert> =
            Arc::new(SingleCertAndKey::from(CertifiedKey::clone(shown)));
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(protocol)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>)
            .with_client_cert_resolver(resolver);
        config.resumption = Resumption::disabled();
        let outcome = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let stream = outcome.map_err(|error| failure(&verifier, &error))?;
        match verifier.take().identity {
            Some(identity) => Ok((TlsStream::Client(stream), identity)),
            // The library asks the verifier in every full handshake, and there are no others.
            None => {
                Err(Failure { cause: Cause::NoCertificate, words: "it showed no certificate".to_owned() })
            }
        }
    }
}

/// What the verifier has found says more than the error that it leads to.
fn failure(verifier: &Verifier, error: &io::Error) -> Failure {
    let (cause, words) = verifier.take().refused.unwrap_or_else(|| explain(error));
    Failure { cause, words }
}

fn protocol(error: rustls::Error) -> Failure {
    Failure { cause: Cause::Protocol, words: error.to_string() }
}

/// What there is to say about a certificate's validity now.
pub(super) fn validity(certificate: &Certificate, now: SystemTime) -> Option<FileError> {
    let complain = |gravity: Gravity, what: String, remedy: &str| FileError {
        gravity,
        setting: certificate.setting.clone(),
        file: certificate.file.clone(),
        what,
        remedy: remedy.to_owned(),
    };
    let renew = "renew it, peers will refuse it";
    let seconds = |t: SystemTime| t.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    if now < certificate.not_before {
        let what =
            format!("the certificate is valid only from {} on", words::date(seconds(certificate.not_before)));
        return Some(complain(Gravity::Unfit, what, "check the clock, or wait"));
    }
    match certificate.not_after.duration_since(now) {
        Err(_) => {
            let what = format!("the certificate expired on {}", words::date(seconds(certificate.not_after)));
            Some(complain(Gravity::Unfit, what, renew))
        }
        Ok(left) if left < SOON => {
            let what = format!(
                "the certificate expires on {}, in {} days",
                words::date(seconds(certificate.not_after)),
                left.as_secs() / 86_400
            );
            Some(complain(Gravity::Soon, what, "renew it, and reload"))
        }
        Ok(_) => None,
    }
}

/// Of our certificates, the one that a client asks for: its own by default, that of a peer where the name
/// asked for stands in it alone.
#[derive(Debug)]
struct BySni {
    all: Vec<Own>,
}

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().map(|name| [name.to_owned()]);
        let named = asked.and_then(|name| self.all.iter().find(|own| own.presented.is_one_of(&name)));
        let usable = |own: &&Own| {
            let schemes: &[SignatureScheme] = hello.signature_schemes();
            own.key.key.choose_scheme(schemes).is_some()
        };
        named.filter(usable).or_else(|| self.all.first()).map(|own| Arc::clone(&own.key))
    }
}
