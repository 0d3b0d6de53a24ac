//! TLS connections from both sides: who is at the other end, which connection serves whom, and how many.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::config::ClientCertificates;
use crate::flow::{PeerId, TlsExpectation};
use crate::runtime::tls::gate;
use crate::runtime::tls::tests::ca::{Authority, Directory, Pair, section};

const TLS: &[(Transport, &str)] = &[(Transport::Tls, "127.0.0.1:0")];

type Served = StreamOwned<ServerConnection, TcpStream>;
type Calling = StreamOwned<ClientConnection, TcpStream>;

/// A node with TLS, and whom everybody trusts.
struct Secure {
    world: World,
    ca: Authority,
    directory: Directory,
    config: Config,
}

impl Secure {
    fn start<S>(setting: ClientCertificates, script: S) -> Self
    where
        S: FnMut(&mut Scripted, Instant, &Seen) + Clone + Send + 'static,
    {
        let (ca, directory) = (Authority::new("Test CA"), Directory::new());
        let trust = directory.write("ca.pem", &ca.pem);
        let files = ca.named(&["DNS:sbe.test"]).write(&directory, "sbe");
        let mut plan = plan(TLS);
        plan.config.tls = Some(section(files, &trust, setting));
        plan.config.sip.connect_timeout = Duration::from_millis(1500);
        let config = plan.config.clone();
        Self { world: plan.start(script), ca, directory, config }
    }

    /// Somebody who connects and shows `pair`; from `local` if that is given.
    fn connect(&self, pair: Option<&Pair>, local: Option<SocketAddr>) -> Calling {
        let mut connection =
            ClientConnection::new(client(&self.ca, pair), ServerName::try_from("sbe.test").unwrap()).unwrap();
        let mut stream = self.open(local);
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).unwrap();
        }
        StreamOwned::new(connection, stream)
    }

    fn open(&self, local: Option<SocketAddr>) -> TcpStream {
        let to = self.world.addr(0);
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None).unwrap();
        if let Some(local) = local {
            socket.set_reuse_address(true).unwrap();
            socket.bind(&local.into()).unwrap();
        }
        socket.connect(&to.into()).unwrap();
        let stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

fn parts(pair: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    (chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
}

fn client(ca: &Authority, pair: Option<&Pair>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match pair {
        Some(pair) => {
            let (chain, key) = parts(pair);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// A peer's server.
struct Server {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl Server {
    fn new(pair: &Pair) -> Self {
        let (chain, key) = parts(pair);
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), config: Arc::new(config) }
    }

    fn hop(&self, wanted: TlsExpectation) -> Hop {
        Hop { tls: Some(Arc::new(wanted)), ..hop(Transport::Tls, 0, self.listener.local_addr().unwrap()) }
    }

    /// Takes the next connection through its handshake; `None`: it fails.
    fn accept(&self) -> Option<Served> {
        let mut stream = self.listener.accept().unwrap().0;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = ServerConnection::new(Arc::clone(&self.config)).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).ok()?;
        }
        Some(StreamOwned::new(connection, stream))
    }

    fn is_quiet(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        self.listener.accept().is_err()
    }
}

fn wanted(name: &str, peer: Option<u16>) -> TlsExpectation {
    TlsExpectation {
        server_name: name.into(),
        accepted: Arc::from([name.to_owned()]),
        peer: peer.map(PeerId),
    }
}

fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
}

fn names(origin: &Origin) -> Option<&[String]> {
    origin.identity.as_ref().map(|i| i.names.as_slice())
}

#[test]
fn a_request_over_tls_carries_whom_its_sender_proved_to_be_and_is_answered() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let pair = node.ca.named(&["URI:sip:a.example.test", "DNS:b.example.test"]);
    let mut known = node.connect(Some(&pair), None);
    let mut unknown = node.connect(None, None);
    for (is_known, text) in [(true, "known"), (false, "unknown"), (true, "again")] {
        let stream = if is_known { &mut known } else { &mut unknown };
        let message = request(1, text);
        stream.write_all(&message).unwrap();
        expect(stream, &response_to(&message));
    }
    let origin = node.world.record.message("Subject: known").1;
    assert_eq!(names(&origin), Some(&["a.example.test".to_owned()][..]));
    assert_eq!(origin.transport, Transport::Tls);
    assert!(node.world.record.message("Subject: again").1.identity.is_some());
    assert_eq!(names(&node.world.record.message("Subject: unknown").1), None);
    assert_eq!(node.world.handle.counters().handshakes(Direction::In), 2);
    assert_eq!(node.world.handle.counters().connections(Transport::Tls, Direction::In), 2);
}

#[test]
fn requests_of_a_peer_on_a_connection_that_we_opened_carry_its_servers_identity() {
    let node = Secure::start(ClientCertificates::Require, answering);
    let server = Server::new(&node.ca.named(&["DNS:dest.example.test"]));
    node.world.send(server.hop(wanted("dest.example.test", None)), &request(0, "out"), Some(token(1)), true);
    let mut stream = server.accept().unwrap();
    expect(&mut stream, &request(0, "out"));
    stream.write_all(&request(0, "back")).unwrap();
    expect(&mut stream, &response_to(&request(0, "back")));
    let origin = node.world.record.message("Subject: back").1;
    assert_eq!(names(&origin), Some(&["dest.example.test".to_owned()][..]));
    assert_eq!(origin.conn, Some(node.world.record.sent(token(1))));
}

#[test]
fn a_server_with_another_name_gets_no_octet_and_the_sender_is_told() {
    let node = Secure::start(ClientCertificates::Require, silent);
    let server = Server::new(&node.ca.named(&["DNS:n1.carrier.test"]));
    node.world.send(server.hop(wanted("dest.example.test", None)), &request(0, "x"), Some(token(1)), true);
    assert!(server.accept().is_none());
    assert_eq!(node.world.record.failure(token(1)), SendFailure::Tls);
    assert_eq!(node.world.handle.counters().dropped(DropReason::Handshake), 1);
    node.world.until("no connection is left", |h| h.connections() == 0);
}

#[test]
fn one_connection_serves_all_requests_to_the_same_identity_and_none_to_another() {
    let node = Secure::start(ClientCertificates::Require, silent);
    let server = Server::new(&node.ca.named(&["DNS:a.example.test", "DNS:b.example.test"]));
    let send = |wanted: TlsExpectation, n: u64| {
        node.world.send(server.hop(wanted), &request(0, &format!("n{n}")), Some(token(n)), true);
    };
    // Both in one turn: the second finds the connection that is still being made.
    send(wanted("a.example.test", None), 1);
    send(wanted("a.example.test", None), 2);
    let mut first = server.accept().unwrap();
    expect(&mut first, &request(0, "n1"));
    expect(&mut first, &request(0, "n2"));
    // The certificate holds this name too, so what was verified is enough.
    send(wanted("b.example.test", None), 3);
    expect(&mut first, &request(0, "n3"));
    // Whoever is to be somebody else is not reached by this connection, though it leads to the same address.
    send(wanted("c.example.test", None), 4);
    assert!(server.accept().is_none());
    assert_eq!(node.world.record.failure(token(4)), SendFailure::Tls);
    // Nor is a peer to whom we come with another certificate.
    send(wanted("a.example.test", Some(3)), 5);
    let mut second = server.accept().unwrap();
    expect(&mut second, &request(0, "n5"));
    send(wanted("b.example.test", Some(3)), 6);
    expect(&mut second, &request(0, "n6"));
    assert!(server.is_quiet());
}

#[test]
fn a_connection_that_a_peer_opened_serves_requests_only_to_its_very_address_and_name() {
    let node = Secure::start(ClientCertificates::Request, silent);
    let server = Server::new(&node.ca.named(&["DNS:a.example.test"]));
    let from = server.listener.local_addr().unwrap();
    drop(server);
    let pair = node.ca.named(&["DNS:a.example.test"]);
    let mut stream = node.connect(Some(&pair), Some(from));
    stream.write_all(&request(0, "hello")).unwrap();
    let origin = node.world.record.message("hello").1;
    assert_eq!(origin.remote, from);
    let to = |name: &str| Hop { tls: Some(Arc::new(wanted(name, None))), ..hop(Transport::Tls, 0, from) };
    node.world.send(to("a.example.test"), &request(0, "right"), Some(token(1)), true);
    expect(&mut stream, &request(0, "right"));
    assert_eq!(Some(node.world.record.sent(token(1))), origin.conn);
    // For another name a connection of our own is made; nobody listens there.
    node.world.send(to("b.example.test"), &request(0, "wrong"), Some(token(2)), true);
    assert_eq!(node.world.record.failure(token(2)), SendFailure::ConnectRefused);
}

/// A request whose topmost Via offers its connection for requests to this port.
fn offering(transport: &str, port: u16, text: &str) -> Vec<u8> {
    let request = String::from_utf8(request(0, text)).unwrap();
    let via = format!("Via: SIP/2.0/{transport} a.example.test:{port};branch=z9hG4bK1;alias\r\nCall-ID:");
    request.replacen("Call-ID:", &via, 1).into_bytes()
}

#[test]
fn a_connection_is_used_the_other_way_if_its_opener_offers_it_and_has_proved_who_it_is() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let server = Server::new(&node.ca.named(&["DNS:a.example.test"]));
    let listens = server.listener.local_addr().unwrap();
    drop(server);
    let to = |name: &str| Hop { tls: Some(Arc::new(wanted(name, None))), ..hop(Transport::Tls, 0, listens) };
    let refused = |n: u64, name: &str| {
        node.world.send(to(name), &request(0, "refused"), Some(token(n)), true);
        assert_eq!(node.world.record.failure(token(n)), SendFailure::ConnectRefused, "{n}");
    };
    let pair = node.ca.named(&["DNS:a.example.test"]);
    // Who proves nothing, and who offers nothing, gets nothing.
    let mut unknown = node.connect(None, None);
    unknown.write_all(&offering("TLS", listens.port(), "unknown")).unwrap();
    node.world.record.message("Subject: unknown");
    let mut modest = node.connect(Some(&pair), None);
    modest.write_all(&request(0, "modest")).unwrap();
    node.world.record.message("Subject: modest");
    refused(1, "a.example.test");
    // The offer is for one port, and for the one whom the certificate names.
    let mut known = node.connect(Some(&pair), None);
    let offer = offering("TLS", listens.port(), "known");
    known.write_all(&offer).unwrap();
    expect(&mut known, &response_to(&offer));
    let origin = node.world.record.message("Subject: known").1;
    node.world.send(to("a.example.test"), &request(0, "back"), Some(token(2)), true);
    expect(&mut known, &request(0, "back"));
    assert_eq!(Some(node.world.record.sent(token(2))), origin.conn);
    refused(3, "b.example.test");
    // When it ends, so does the offer.
    drop(known);
    node.world.until("it is gone", |h| h.connections() <= 2);
    refused(4, "a.example.test");
}

#[test]
fn over_tcp_an_offer_counts_for_nothing() {
    let node = plan(&[(Transport::Tcp, "127.0.0.1:0")]).start(silent);
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let listens = gone.local_addr().unwrap();
    drop(gone);
    let mut stream = TcpStream::connect(node.addr(0)).unwrap();
    stream.write_all(&offering("TCP", listens.port(), "tcp")).unwrap();
    node.record.message("Subject: tcp");
    node.send(hop(Transport::Tcp, 0, listens), &request(0, "back"), Some(token(1)), true);
    assert_eq!(node.record.failure(token(1)), SendFailure::ConnectRefused);
}

#[test]
fn without_a_name_to_expect_nothing_is_sent_over_tls() {
    let node = Secure::start(ClientCertificates::Require, silent);
    let server = Server::new(&node.ca.named(&["DNS:a.example.test"]));
    node.world.send(
        Hop { tls: None, ..server.hop(wanted("a", None)) },
        &request(0, "x"),
        Some(token(1)),
        true,
    );
    assert_eq!(node.world.record.failure(token(1)), SendFailure::Tls);
    assert!(server.is_quiet());
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_at_the_end_of_connect_timeout() {
    let node = Secure::start(ClientCertificates::Require, silent);
    let server = Server::new(&node.ca.named(&["DNS:a.example.test"]));
    let begun = Instant::now();
    node.world.send(server.hop(wanted("a.example.test", None)), &request(0, "x"), Some(token(1)), true);
    let held = server.listener.accept().unwrap();
    assert_eq!(node.world.record.failure(token(1)), SendFailure::ConnectTimeout);
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    drop(held);
}

#[test]
fn a_slow_handshake_succeeds_and_holds_nobody_up() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let pair = node.ca.named(&["DNS:a.example.test"]);
    let mut connection =
        ClientConnection::new(client(&node.ca, Some(&pair)), ServerName::try_from("sbe.test").unwrap())
            .unwrap();
    let mut slow = node.open(None);
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    let (last, most) = hello.split_last().unwrap();
    for octet in most {
        slow.write_all(std::slice::from_ref(octet)).unwrap();
    }
    // While that one is half way, another comes and is served.
    let mut quick = node.connect(None, None);
    quick.write_all(&request(1, "quick")).unwrap();
    expect(&mut quick, &response_to(&request(1, "quick")));
    slow.write_all(std::slice::from_ref(last)).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut slow).unwrap();
    }
    let mut slow = StreamOwned::new(connection, slow);
    slow.write_all(&request(2, "slow")).unwrap();
    expect(&mut slow, &response_to(&request(2, "slow")));
    assert!(node.world.record.message("Subject: slow").1.identity.is_some());
}

#[test]
fn a_flood_of_half_open_handshakes_is_bounded_and_leaves_established_connections_alone() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let mut established = node.connect(None, None);
    let flood: Vec<TcpStream> = (0..gate::MOST_PER_SOURCE + 50).map(|_| node.open(None)).collect();
    node.world.until("the rest is turned away", |h| h.counters().dropped(DropReason::HandshakeLimit) >= 50);
    assert_eq!(node.world.handle.counters().dropped(DropReason::HandshakeLimit), 50);
    for n in 0..20 {
        established.write_all(&request(n, "still here")).unwrap();
        expect(&mut established, &response_to(&request(n, "still here")));
    }
    // Whoever comes from another address is served meanwhile.
    let mut other = node.connect(None, Some("127.0.0.2:0".parse().unwrap()));
    other.write_all(&request(1, "other")).unwrap();
    expect(&mut other, &response_to(&request(1, "other")));
    let limit = u64::try_from(gate::MOST_PER_SOURCE).unwrap();
    node.world.until("all are given up", |h| h.counters().dropped(DropReason::Handshake) == limit);
    node.world.until("their connections are gone", |h| h.connections() == 2);
    drop(flood);
    let mut again = node.connect(None, None);
    again.write_all(&request(1, "again")).unwrap();
    expect(&mut again, &response_to(&request(1, "again")));
}

#[test]
fn a_flood_of_handshakes_leaves_established_connections_alone() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let mut established = node.connect(None, None);
    let pair = node.ca.named(&["DNS:a.example.test"]);
    let over = std::sync::atomic::AtomicBool::new(false);
    let floods = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let flood = |last: u8| {
            let (node, pair, over, floods) = (&node, &pair, &over, &floods);
            scope.spawn(move || {
                let from: SocketAddr = format!("127.0.1.{last}:0").parse().unwrap();
                let mut made = 0;
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut stream = node.connect(Some(pair), Some(from));
                    stream.write_all(&request(made, "flood")).unwrap();
                    expect(&mut stream, &response_to(&request(made, "flood")));
                    made += 1;
                    floods.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            })
        };
        let running: Vec<_> = (1..=4).map(flood).collect();
        let mut rounds = 0;
        // They are served too, only not before the others.
        while rounds < 300 || floods.load(std::sync::atomic::Ordering::Relaxed) < 40 {
            established.write_all(&request(rounds, "still here")).unwrap();
            expect(&mut established, &response_to(&request(rounds, "still here")));
            rounds += 1;
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        running.into_iter().for_each(|f| f.join().unwrap());
    });
    let floods = floods.into_inner();
    assert_eq!(node.world.handle.counters().handshakes(Direction::In), floods as u64 + 1);
    assert_eq!(node.world.handle.counters().dropped(DropReason::Handshake), 0);
}

#[test]
fn a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let mut old = node.connect(None, None);
    let shown = |stream: &Calling| stream.conn.peer_certificates().unwrap()[0].clone();
    let pair = node.ca.named(&["DNS:sbe.test"]);
    pair.write(&node.directory, "sbe");
    assert_eq!(shown(&old), shown(&node.connect(None, None)), "files count when they are read");
    node.world.handle.set_tls(crate::runtime::tls::Tls::load(&node.config).unwrap().unwrap());
    let mut new = node.connect(None, None);
    assert_ne!(shown(&old), shown(&new));
    assert_eq!(shown(&new), parts(&pair).0[0]);
    for stream in [&mut old, &mut new] {
        stream.write_all(&request(1, "after")).unwrap();
        expect(stream, &response_to(&request(1, "after")));
    }
}

#[test]
fn a_server_that_does_not_like_our_certificate_is_a_failed_attempt() {
    let node = Secure::start(ClientCertificates::Require, silent);
    let mut server = Server::new(&node.ca.named(&["DNS:a.example.test"]));
    // It asks for a certificate of an authority that has not issued ours.
    let other = Authority::new("Other CA");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(other.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let (chain, key) = parts(&node.ca.named(&["DNS:a.example.test"]));
    server.config = Arc::new(
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap(),
    );
    node.world.send(server.hop(wanted("a.example.test", None)), &request(0, "x"), Some(token(1)), true);
    let mut stream = server.listener.accept().unwrap().0;
    let mut connection = ServerConnection::new(Arc::clone(&server.config)).unwrap();
    while connection.complete_io(&mut stream).is_ok() {}
    // With TLS 1.3 our side of the handshake was over before the other end looked at our certificate.
    let conn = node.world.record.sent(token(1));
    node.world.record.closed(conn);
    node.world
        .until("it is counted as a failed handshake", |h| h.counters().dropped(DropReason::Handshake) == 1);
}

#[test]
fn a_large_message_passes_both_ways_and_closing_says_so() {
    let node = Secure::start(ClientCertificates::Request, answering);
    let mut stream = node.connect(None, None);
    let body = vec![b'b'; 60_000];
    let head = format!("MESSAGE sip:a@b SIP/2.0\r\nCall-ID: 1\r\nContent-Length: {}\r\n\r\n", body.len());
    let message = [head.as_bytes(), &body].concat();
    stream.write_all(&message).unwrap();
    expect(&mut stream, &response_to(&message));
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    node.world.until("the connection is gone", |h| h.connections() == 0);
}
