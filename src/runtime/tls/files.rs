//! Certificates, keys, authorities and revocation lists as files, and what is wrong with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{CertRevocationList, OwnedCertRevocationList};

use crate::config;

use super::identity::Presented;
use super::verify::Trust;

/// Which setting a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `[tls] certificate`
    Certificate,
    /// `[tls] key`
    Key,
    /// `[tls] trust`
    Trust,
    /// `[tls] crl`
    Crl,
    /// `certificate` of the `[[peer]]` of this name.
    PeerCertificate(String),
    /// `key` of the `[[peer]]` of this name.
    PeerKey(String),
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gravity {
    /// The file cannot be read. A node does not start with it; it may be there on another machine.
    Missing,
    /// What is in it cannot be used. A node does not start with it.
    Unusable,
    /// It can be used, and peers will not accept it.
    Unfit,
    /// It will expire soon.
    Soon,
}

/// Why a file cannot serve, or will not serve well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}, {remedy}", file.display())]
pub struct FileError {
    /// How bad it is.
    pub gravity: Gravity,
    /// The setting that names it.
    pub setting: Setting,
    /// The file.
    pub file: PathBuf,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub remedy: String,
}

/// A certificate that this node shows.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) presented: Presented,
    pub(super) about: Certificate,
}

/// What is told of a certificate that this node shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The setting that names its file.
    pub setting: Setting,
    /// Its file, as configured.
    pub file: PathBuf,
    /// Its names that count (RFC 5922 §7.1).
    pub names: Vec<String>,
    /// From when on it is valid, itself and what is sent with it.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
}

fn error(setting: &Setting, file: &Path, what: impl Into<String>, remedy: &str) -> FileError {
    FileError {
        gravity: Gravity::Unusable,
        setting: setting.clone(),
        file: file.to_owned(),
        what: what.into(),
        remedy: remedy.to_owned(),
    }
}

/// What a PEM file's reader complains of.
fn pem_error(setting: &Setting, file: &Path, e: &pem::Error, remedy: &str) -> FileError {
    match e {
        pem::Error::Io(e) => {
            let text = e.to_string();
            let what = format!("it cannot be read ({})", text.split(" (os error").next().unwrap_or_default());
            let remedy = match e.kind() {
                std::io::ErrorKind::PermissionDenied => "let the user that runs sbe read it",
                _ => "put it there",
            };
            FileError { gravity: Gravity::Missing, ..error(setting, file, what, remedy) }
        }
        pem::Error::NoItemsFound => error(setting, file, "there is none in it", remedy),
        other => error(setting, file, format!("it is no PEM file ({other})"), remedy),
    }
}

fn certificates(setting: &Setting, file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let remedy = "it must hold PEM blocks \"-----BEGIN CERTIFICATE-----\"";
    let complaint = |e: &pem::Error| pem_error(setting, file, e, remedy);
    let found: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(|e| complaint(&e))?;
    if found.is_empty() { Err(complaint(&pem::Error::NoItemsFound)) } else { Ok(found) }
}

/// Reads a chain and its key.
pub(super) fn own(
    settings: [Setting; 2],
    chain_file: &Path,
    key_file: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Own, FileError> {
    let [setting, key_setting] = settings;
    let chain = certificates(&setting, chain_file)?;
    let presented: Vec<Presented> =
        chain.iter().map(|c| Presented::read(c)).collect::<Option<_>>().ok_or_else(|| {
            error(&setting, chain_file, "a certificate in it cannot be read", "it must be X.509 in PEM")
        })?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|e| {
        let remedy = "it must hold the key in PEM, PKCS #8, PKCS #1 or SEC 1, not encrypted";
        pem_error(&key_setting, key_file, &e, remedy)
    })?;
    intact(&setting, chain_file, &chain, provider)?;
    let key = CertifiedKey::from_der(chain, key, provider).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => error(
            &key_setting,
            key_file,
            format!("this key does not belong to the certificate in {}", chain_file.display()),
            "the first certificate there must be that of this key",
        ),
        other => error(
            &key_setting,
            key_file,
            format!("the key cannot be used ({other})"),
            "use RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519",
        ),
    })?;
    let first = presented.first().cloned();
    let Some(first) = first else {
        return Err(error(&setting, chain_file, "there is no certificate in it", "put our chain there"));
    };
    let not_before = presented.iter().map(|p| p.not_before).max().unwrap_or(first.not_before);
    let not_after = presented.iter().map(|p| p.not_after).min().unwrap_or(first.not_after);
    let about = Certificate {
        setting,
        file: chain_file.to_owned(),
        names: first.identity.names.clone(),
        not_before: time(not_before),
        not_after: time(not_after),
    };
    Ok(Own { key: Arc::new(key), presented: first, about })
}

/// Each certificate of a chain must be vouched for by the next: a peer verifies what we send.
fn intact(
    setting: &Setting,
    file: &Path,
    chain: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<(), FileError> {
    let ([first, between @ ..], Some(last)) = (chain, chain.last()) else { return Ok(()) };
    if between.is_empty() {
        return Ok(());
    }
    let remedy = "put the node's certificate first, then each issuer's, and nothing else";
    let mut roots = RootCertStore::empty();
    roots.add(last.clone()).map_err(|e| {
        error(setting, file, format!("its last certificate is of no authority ({e})"), remedy)
    })?;
    // Whether it is valid today is another question: judge it at a time when its first certificate is.
    let day = Presented::read(first).map_or(0, |p| p.not_after);
    let day = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(day).unwrap_or(0)));
    match Trust::new(roots, Vec::new(), Arc::clone(provider)).chain(first, between, day) {
        Ok(()) | Err(webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. }) => Ok(()),
        Err(e) => Err(error(setting, file, format!("its certificates make no chain ({e})"), remedy)),
    }
}

/// Authorities and revocation lists.
pub(super) fn trust(tls: &config::Tls, provider: &Arc<CryptoProvider>) -> Result<Trust, FileError> {
    let mut roots = RootCertStore::empty();
    for file in &tls.trust {
        for certificate in certificates(&Setting::Trust, file)? {
            roots.add(certificate).map_err(|e| {
                let remedy = "it must be a certificate of an authority, or of a peer to be trusted by itself";
                error(&Setting::Trust, file, format!("a certificate in it cannot be used ({e})"), remedy)
            })?;
        }
    }
    if tls.system_trust {
        let found = rustls_native_certs::load_native_certs();
        // Some of a system's certificates are usually odd; the others serve.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first().map_or_else(String::new, |e| format!(" ({e})"));
            let remedy = "install ca-certificates, or name files in trust";
            return Err(error(
                &Setting::Trust,
                Path::new("system"),
                format!("the system has no authorities{why}"),
                remedy,
            ));
        }
    }
    let mut crls = Vec::new();
    for file in &tls.crl {
        let remedy = "it must hold PEM blocks \"-----BEGIN X509 CRL-----\"";
        let found: Vec<CertificateRevocationListDer<'static>> =
            CertificateRevocationListDer::pem_file_iter(file)
                .and_then(Iterator::collect)
                .map_err(|e| pem_error(&Setting::Crl, file, &e, remedy))?;
        if found.is_empty() {
            return Err(pem_error(&Setting::Crl, file, &pem::Error::NoItemsFound, remedy));
        }
        for list in found {
            let list = OwnedCertRevocationList::from_der(&list).map_err(|e| {
                error(&Setting::Crl, file, format!("a list in it cannot be used ({e})"), remedy)
            })?;
            crls.push(CertRevocationList::from(list));
        }
    }
    Ok(Trust::new(roots, crls, Arc::clone(provider)))
}

fn time(seconds: i64) -> SystemTime {
    u64::try_from(seconds)
        .ok()
        .and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)))
        .unwrap_or(UNIX_EPOCH)
}
