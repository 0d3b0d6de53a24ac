//! Certificates of the demo, made anew at each start: an authority, the border element, the peer. Both ends of a
//! connection show theirs, with the names that RFC 5922 wants.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Longer than anybody looks at a demo, and than the element warns of.
const VALID: Duration = Duration::from_secs(90 * 86_400);

/// An authority that nobody else knows.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: Vec<u8>,
    pem: String,
}

/// A certificate and its key.
struct Issued {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// The files that a border element reads its certificates from; they go with this value.
pub struct Files(PathBuf);

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// No randomness.
    pub fn new() -> io::Result<Self> {
        let mut params = params(&[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let own = params.self_signed(&key).map_err(io::Error::other)?;
        Ok(Self { der: own.der().to_vec(), pem: own.pem(), issuer: Issuer::new(params, key) })
    }

    fn issue(&self, name: &str) -> io::Result<Issued> {
        let mut params = params(&[name])?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        Ok(Issued { certificate, key })
    }

    /// The TLS of a server that is `name`, and serves nobody without a certificate of this authority.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn acceptor(&self, name: &str) -> io::Result<TlsAcceptor> {
        let issued = self.issue(name)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone().into()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(issued.key.serialize_der()).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![issued.certificate.der().clone()], key)
            .map_err(io::Error::other)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Files for a border element that is `name`, in a directory that nobody else can read.
    ///
    /// # Errors
    /// No place for them.
    pub fn files(&self, name: &str) -> io::Result<Files> {
        let issued = self.issue(name)?;
        let number: u64 = rand::rng().random();
        let files =
            Files(std::env::temp_dir().join(format!("sbe-demo-{}-{number:016x}", std::process::id())));
        fs::DirBuilder::new().mode(0o700).create(&files.0)?;
        files.write("ca.pem", &self.pem)?;
        files.write("node.pem", &issued.certificate.pem())?;
        files.write("node.key", &issued.key.serialize_pem())?;
        Ok(files)
    }
}

fn params(names: &[&str]) -> io::Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    let now = SystemTime::now();
    // Clocks differ.
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + VALID).into();
    Ok(params)
}

impl Files {
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(self.0.join(name))?.write_all(text.as_bytes())
    }

    /// Where they are: `ca.pem`, `node.pem` and `node.key`.
    pub fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
