//! A node with certificates from files: taken over at a reload, or refused, and what is told of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sbe::config::Realm;
use sbe::demo::world;
use sbe::flow::Transport;
use sbe::runtime::node::{Node, ReloadError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Files of a node, gone with the test.
struct Files {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("sbe-e2e-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(directory.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    /// A new certificate for the node, valid to the end of this year.
    fn renew(&self, year: i32) {
        let mut params = CertificateParams::new(vec!["edge.example.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 12, 31));
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::write(self.path("sbe.pem"), pem).unwrap();
        std::fs::write(self.path("sbe.key"), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn configuration(&self, rest: &str) -> PathBuf {
        let (at, path) = (self.directory.display(), self.path("sbe.toml"));
        let text = format!(
            "[node]\nname = \"edge.example.test\"\ndomains = [\"own.example.test\"]\n[runtime]\nworkers = 2\n\
             [[listen]]\ntransport = \"tls\"\nbind = \"127.0.0.10:0\"\nadvertise = \"edge.example.test\"\n\
             [dns]\nservers = [\"127.0.0.1:9\"]\n[core]\nnext_hops = [\"sip:127.0.0.11;transport=tls\"]\n\
             sources = [\"127.0.0.11/32\"]\n[tls]\ncertificate = \"{at}/sbe.pem\"\nkey = \"{at}/sbe.key\"\n\
             trust = [\"{at}/ca.pem\"]\nclient_certificates = \"request\"\n{rest}"
        );
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start(path: &Path) -> Arc<Node> {
    let config = world::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    Node::start(config, Some(path.to_owned()), &tokio::runtime::Handle::current()).unwrap()
}

async fn connect(node: &Node, files: &Files) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.path("ca.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let to = world::listener(node, Transport::Tls, Realm::Both).unwrap();
    let stream = TcpStream::connect(to).await.unwrap();
    let name = ServerName::try_from("edge.example.test").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn on_disk(files: &Files) -> Vec<u8> {
    CertificateDer::from_pem_file(files.path("sbe.pem")).unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_replaced_on_disk_is_shown_after_a_reload() {
    let files = Files::new("renew");
    files.renew(2060);
    let path = files.configuration("");
    let node = start(&path);
    let (first, old) = (on_disk(&files), connect(&node, &files).await);
    assert_eq!(shown(&old), first);
    files.renew(2070);
    assert_eq!(shown(&connect(&node, &files).await), first, "not before the reload");
    let reloaded = node.reload().unwrap();
    assert_eq!(reloaded.restart_needed, Vec::<&str>::new());
    assert_eq!(shown(&connect(&node, &files).await), on_disk(&files));
    assert_eq!(node.certificate_warnings(), Vec::<String>::new());
    let metrics = sbe::admin::metrics(&node);
    let line = metrics.lines().find(|l| l.starts_with("sbe_certificate_expiry_seconds{")).unwrap();
    assert!(line.contains("sbe.pem\"}") && line.ends_with(" 3187209600"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_with_a_key_of_another_certificate_is_refused_and_the_old_one_stays() {
    let files = Files::new("mismatch");
    files.renew(2060);
    let path = files.configuration("");
    let node = start(&path);
    let first = on_disk(&files);
    let key = std::fs::read(files.path("sbe.key")).unwrap();
    files.renew(2070);
    std::fs::write(files.path("sbe.key"), key).unwrap();
    let error = node.reload().unwrap_err();
    assert!(matches!(&error, ReloadError::Tls(e) if e.to_string().contains("does not belong")), "{error}");
    assert_eq!(node.reloads(), [0, 1]);
    assert_eq!(shown(&connect(&node, &files).await), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_an_expired_certificate_runs_and_says_so() {
    let files = Files::new("expired");
    files.renew(2021);
    let node = start(&files.configuration(""));
    let warnings = node.certificate_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("the certificate expired on Dec 31 00:00:00 2021"), "{warnings:?}");
}
