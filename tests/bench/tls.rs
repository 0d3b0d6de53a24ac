//! What TLS costs: memory of idle connections, and time of full handshakes, both with certificates on both sides.
//!
//! ```text
//! cargo bench --bench tls                # all of it
//! cargo bench --bench tls -- idle        # 5,000 idle connections
//! cargo bench --bench tls -- handshakes  # full handshakes per second and core
//! ```
//!
//! The element runs as a process of its own; the memory is that process's proportional set size, the time is what all
//! its threads have spent on a core. The same is done to Kamailio where it is installed with its TLS module.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

/// Connections held at a time.
const IDLE: usize = 5_000;
/// The aim for one of them, octets.
const AIM: u64 = 25_000;
/// Handshakes of a round, and rounds; the first is not counted.
const HANDSHAKES: usize = 1_500;
const ROUNDS: usize = 4;
/// From so many addresses: one address gets a quarter of an element's connections at most.
const SOURCES: u8 = 8;
/// Connections that are being made at a time.
const THREADS: usize = 4;

type Connection = StreamOwned<ClientConnection, TcpStream>;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let files = Files::new();
    for subject in [Subject::element, Subject::kamailio] {
        if wants("idle")
            && let Some(subject) = subject(&files)
        {
            idle(&subject, &files);
        }
        if wants("handshakes")
            && let Some(subject) = subject(&files)
        {
            handshakes(&subject, &files);
        }
    }
}

/// Certificates and configurations, gone at the end.
struct Files {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("sbe-bench-tls-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::default();
        // Other than those of the certificates: OpenSSL takes equal names for a certificate that signed itself.
        params.distinguished_name.push(DnType::CommonName, "bench authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(directory.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let files = Self { directory, issuer: Issuer::new(params, key) };
        files.issue("node", "sbe.test");
        files.issue("peer", "peer.test");
        files
    }

    fn issue(&self, file: &str, name: &str) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2090, 1, 1));
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::write(self.path(&format!("{file}.pem")), pem).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(self.path("peer.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.path("peer.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A program under test.
struct Subject {
    name: &'static str,
    addr: SocketAddr,
    process: Child,
}

impl Subject {
    fn element(files: &Files) -> Option<Self> {
        let addr = free();
        let at = files.directory.display();
        let text = format!(
            "[node]\nname = \"sbe.test\"\ndomains = [\"sbe.test\"]\n[[listen]]\ntransport = \"tls\"\nbind = \"{addr}\"\n\
             [tls]\ncertificate = \"{at}/node.pem\"\nkey = \"{at}/node.key\"\ntrust = [\"{at}/ca.pem\"]\n\
             [core]\nnext_hops = [\"sip:127.0.0.1;transport=tls\"]\nsources = [\"127.0.0.1\"]\n\
             [[peer]]\nname = \"peer\"\ndomains = [\"peer.test\"]\n[admin]\nbind = \"\"\n[log]\nlevel = \"error\"\n"
        );
        std::fs::write(files.path("sbe.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sbe"));
        command.arg("run").arg("--config").arg(files.path("sbe.toml"));
        Some(Self::start("sbe", addr, &mut command))
    }

    /// One process for connections, as many as it may need, and no certificates but those of this bench.
    fn kamailio(files: &Files) -> Option<Self> {
        let found = |at: &str| Path::new(at).exists();
        if !found("/usr/sbin/kamailio") || !found("/usr/lib/x86_64-linux-gnu/kamailio/modules/tls.so") {
            println!("kamailio: not installed with its TLS module");
            return None;
        }
        let addr = free();
        let at = files.directory.display();
        std::fs::write(
            files.path("kamailio-tls.cfg"),
            format!(
                "[server:default]\nmethod = TLSv1.2+\nverify_certificate = yes\nrequire_certificate = yes\n\
                 certificate = {at}/node.pem\nprivate_key = {at}/node.key\nca_list = {at}/ca.pem\n"
            ),
        )
        .unwrap();
        std::fs::write(
            files.path("kamailio.cfg"),
            format!(
                "#!KAMAILIO\ndebug=0\nlog_stderror=yes\nchildren=1\ntcp_children=1\nenable_tls=yes\nlisten=tls:{addr}\n\
                 tcp_max_connections=16384\ntls_max_connections=16384\ntcp_connection_lifetime=3600\nauto_aliases=no\n\
                 loadmodule \"sl.so\"\nloadmodule \"tls.so\"\nmodparam(\"tls\", \"config\", \"{at}/kamailio-tls.cfg\")\n\
                 request_route {{ sl_send_reply(\"200\", \"OK\"); }}\n"
            ),
        )
        .unwrap();
        let mut command = Command::new("/usr/sbin/kamailio");
        command.args(["-DD", "-E", "-x", "fm", "-X", "fm", "-m", "2048", "-M", "32", "-f"]);
        command.arg(files.path("kamailio.cfg")).arg("-w").arg(&files.directory);
        command.arg("-Y").arg(&files.directory).arg("-P").arg(files.path("kamailio.pid"));
        Some(Self::start("kamailio", addr, &mut command))
    }

    fn start(name: &'static str, addr: SocketAddr, command: &mut Command) -> Self {
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(addr).is_err() {
            assert!(Instant::now() < until, "{name} does not listen on {addr}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { name, addr, process }
    }

    /// It and its children.
    fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.process.id()];
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            if parent.and_then(|p| p.parse().ok()) == Some(self.process.id()) {
                all.push(id);
            }
        }
        all
    }

    /// Octets.
    fn memory(&self) -> u64 {
        let pss = |id: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
            let line = text.lines().find_map(|l| l.strip_prefix("Pss:")).map(str::to_owned);
            line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        self.processes().iter().map(pss).sum()
    }

    /// Time on a core so far.
    fn time(&self) -> Duration {
        let of_thread = |entry: std::fs::DirEntry| {
            let text = std::fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let of = |id: &u32| {
            let threads = std::fs::read_dir(format!("/proc/{id}/task"));
            threads.into_iter().flatten().flatten().map(of_thread).sum::<u64>()
        };
        Duration::from_nanos(self.processes().iter().map(of).sum())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Asked first: one that is killed leaves its children behind.
        let id = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let until = Instant::now() + Duration::from_secs(15);
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// One connection, its handshake done.
fn connect(to: SocketAddr, number: usize, config: &Arc<ClientConfig>) -> Connection {
    let last = u8::try_from(number % usize::from(SOURCES)).unwrap() + 2;
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)), 0);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream: TcpStream = socket.into();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let name = ServerName::try_from("sbe.test").unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut stream).unwrap();
    }
    StreamOwned::new(session, stream)
}

/// A request that is answered at once.
fn ask(connection: &mut Connection, number: usize) {
    let text = format!(
        "OPTIONS sip:sbe.test SIP/2.0\r\nVia: SIP/2.0/TLS peer.test;branch=z9hG4bK{number}\r\nFrom: <sip:a@peer.test>;tag=1\r\n\
         To: <sip:sbe.test>\r\nCall-ID: {number}\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    connection.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut some = [0; 2048];
    while !answer.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = connection.read(&mut some).unwrap();
        assert!(n > 0, "the connection was closed");
        answer.extend_from_slice(&some[..n]);
    }
    assert!(answer.starts_with(b"SIP/2.0 200 "), "{}", String::from_utf8_lossy(&answer));
}

/// Runs `one` for each number, on a few threads.
fn each<R: Send>(n: usize, one: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| scope.spawn(move || (t..n).step_by(THREADS).map(one).collect::<Vec<R>>()))
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    })
}

fn idle(subject: &Subject, files: &Files) {
    let config = files.client(&TLS13);
    // What is made once is there before.
    drop(each(100, |n| ask(&mut connect(subject.addr, n, &config), n)));
    std::thread::sleep(Duration::from_millis(500));
    let before = subject.memory();
    let per = |after: u64| after.saturating_sub(before) / IDLE as u64;
    let mut held = each(IDLE, |n| connect(subject.addr, n, &config));
    std::thread::sleep(Duration::from_millis(500));
    let silent = per(subject.memory());
    for (n, connection) in held.iter_mut().enumerate() {
        ask(connection, 1_000_000 + n);
    }
    std::thread::sleep(Duration::from_millis(500));
    let used = per(subject.memory());
    // What transactions have left behind goes after 64*T1 only.
    println!(
        "idle, {}: {IDLE} connections: {silent} octets each after the handshake, {used} just after a request on each",
        subject.name
    );
    if subject.name == "sbe" {
        std::thread::sleep(Duration::from_secs(40));
        let later = per(subject.memory());
        println!("idle, {}: {later} octets each 40 s after that (aim: below {AIM})", subject.name);
        assert!(silent < AIM && later < AIM, "above the aim");
    }
    drop(held);
}

fn handshakes(subject: &Subject, files: &Files) {
    for (version, name) in [(&TLS12, "1.2"), (&TLS13, "1.3")] {
        let config = files.client(version);
        let mut costs: Vec<f64> = Vec::new();
        for round in 0..ROUNDS {
            let before = subject.time();
            // Each must have been finished by the other side too.
            drop(each(HANDSHAKES, |n| {
                let connection = connect(subject.addr, n, &config);
                assert!(!connection.conn.is_handshaking());
            }));
            std::thread::sleep(Duration::from_millis(200));
            if round > 0 {
                costs.push((subject.time() - before).as_secs_f64() / HANDSHAKES as f64);
            }
        }
        costs.sort_by(f64::total_cmp);
        let cost = costs[costs.len() / 2];
        println!(
            "handshakes, {}: TLS {name}, P-256 certificates of both sides: {:.0} us of a core each (connection and its end \
             included), {:.0} per second and core",
            subject.name,
            cost * 1e6,
            1.0 / cost
        );
    }
}
