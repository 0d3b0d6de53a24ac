//! Certificates of all kinds against handshakes in memory, and files of all kinds against the loader.
#![allow(clippy::unwrap_used)]

pub(in crate::runtime) mod ca;
mod files;
mod matrix;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::config::ClientCertificates;
use ca::{Ask, Authority, Directory, Pair, section};

/// A node with a certificate of its own, and the authority that it and its peers have theirs from.
struct Node {
    config: Config,
    ca: Authority,
    directory: Directory,
}

impl Node {
    fn new(client_certificates: ClientCertificates) -> Self {
        let (ca, directory) = (Authority::new("Test CA"), Directory::new());
        let trust = directory.write("ca.pem", &ca.pem);
        let files = ca.named(&["DNS:sbe.test"]).write(&directory, "sbe");
        let mut config = crate::runtime::tests::config::config(&[(Transport::Tls, "127.0.0.1:5061")]);
        config.tls = Some(section(files, &trust, client_certificates));
        Self { config, ca, directory }
    }

    fn section(&mut self) -> &mut crate::config::Tls {
        self.config.tls.as_mut().unwrap()
    }

    fn load(&self) -> Tls {
        Tls::load(&self.config).unwrap().unwrap()
    }
}

/// Certificates and key of a pair as the library takes them.
fn parts(pair: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    (chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
}

fn roots(ca: &Authority) -> Arc<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    Arc::new(roots)
}

/// The other end as a server that shows `pair` and asks for no certificate.
fn server(pair: &Pair) -> TlsAcceptor {
    let (chain, key) = parts(pair);
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
}

/// The other end as a client that shows `pair`.
fn client(ca: &Authority, pair: Option<&Pair>) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots(ca));
    let config = match pair {
        Some(pair) => {
            let (chain, key) = parts(pair);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

fn wanted(name: &str, accepted: &[&str]) -> TlsExpectation {
    let accepted = accepted.iter().map(|n| (*n).to_owned()).collect();
    TlsExpectation { server_name: name.into(), accepted, peer: None }
}

/// We connect to somebody who shows `pair`; also whether an octet of ours would have been heard.
async fn outgoing(
    tls: &Tls,
    pair: &Pair,
    wanted: &TlsExpectation,
) -> (Result<Arc<TlsIdentity>, Failure>, usize) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = server(pair);
    let heard = async move {
        let Ok(mut stream) = acceptor.accept(far).await else { return 0 };
        let mut octets = Vec::new();
        let _ = stream.read_to_end(&mut octets).await;
        octets.len()
    };
    let spoken = async {
        let (mut stream, identity) = tls.connect(near, wanted).await?;
        stream.write_all(b"SIP").await.unwrap();
        stream.shutdown().await.unwrap();
        // Not to be gone before the other end has sent its tickets and read.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        Ok(identity)
    };
    tokio::join!(spoken, heard)
}

/// Somebody who shows `pair` connects to us.
async fn incoming(node: &Node, tls: &Tls, pair: Option<&Pair>) -> Result<Option<Arc<TlsIdentity>>, Failure> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let connector = client(&node.ca, pair);
    let name = ServerName::try_from("sbe.test").unwrap();
    let (ours, _theirs) = tokio::join!(tls.accept(near), connector.connect(name, far));
    ours.map(|(_, identity)| identity)
}

fn file(files: &[FileError], n: usize) -> (Gravity, Setting, &str) {
    (files[n].gravity, files[n].setting.clone(), &files[n].what)
}

fn path_of(node: &Node, name: &str) -> PathBuf {
    node.directory.path(name)
}
