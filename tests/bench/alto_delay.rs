//! Whether calls wait for the ALTO server: what the element adds to the way of an INVITE, by how the server behaves.
//!
//! ```text
//! cargo bench --bench alto_delay                              # 60 s, 500 calls a second over all
//! cargo bench --bench alto_delay -- --seconds 120 --rate 250
//! ```
//!
//! Five elements run side by side, each with name server, ALTO server and callee of its own, and calls go to them by
//! turns, one after the other: two whose ALTO server answers at once (their difference is the noise), one whose server
//! takes 5 s, one whose server takes requests and never answers, and one whose server is a black hole: what is sent to
//! open a connection is dropped. DNS records live one second and costs 300 ms, so that sets are asked for and orders
//! made all the time. All of it is one process, with one clock.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::demo::alto::{AltoServer, Manner};
use sbe::demo::dns::{Dns, Zone};
use sbe::demo::world::{listener, parse};
use sbe::flow::Transport;
use sbe::runtime::node::Node;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn argument(name: &str, default: u32) -> u32 {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == name);
    at.and_then(|at| args.get(at + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn socket(ip: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// The header rows of a message that an answer or ACK repeats.
fn repeated(text: &str) -> String {
    let kept = |row: &&str| ["Via:", "From:", "To:", "Call-ID:"].iter().any(|name| row.starts_with(name));
    text.split("\r\n").filter(kept).map(|row| format!("{row}\r\n")).collect()
}

/// Refuses every call, and notes how long its INVITE was on its way, in ns.
fn callee(socket: UdpSocket, epoch: Instant, delays: Arc<Mutex<Vec<u64>>>, end: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while !end.load(Ordering::Relaxed) {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else { continue };
            let now = u64::try_from(epoch.elapsed().as_nanos()).unwrap();
            let text = std::str::from_utf8(&buffer[..n]).unwrap();
            if !text.starts_with("INVITE") {
                continue;
            }
            let left = text.split("\r\n").find_map(|row| row.strip_prefix("X-Left: ")).unwrap();
            delays.lock().unwrap().push(now - left.parse::<u64>().unwrap());
            let rows = repeated(text).replace("<sip:bob@dest.test>", "<sip:bob@dest.test>;tag=b");
            let answer =
                format!("SIP/2.0 486 Busy Here\r\n{rows}CSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n");
            socket.send_to(answer.as_bytes(), from).unwrap();
        }
    });
}

/// A port to which no connection can be opened: nobody accepts, and the queue is full, so that SYNs are dropped.
struct Hole {
    addr: SocketAddr,
    _held: Vec<socket2::Socket>,
}

impl Hole {
    fn new() -> Self {
        let any: SocketAddr = (LOOPBACK, 0).into();
        let made = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = made();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let mut held = vec![listener];
        for _ in 0..4 {
            let one = made();
            one.set_nonblocking(true).unwrap();
            let _ = one.connect(&addr.into());
            held.push(one);
        }
        let again = TcpStream::connect_timeout(&addr, Duration::from_millis(300));
        assert!(again.is_err(), "nothing gets through");
        Self { addr, _held: held }
    }
}

/// An element, and all around it.
struct World {
    name: &'static str,
    element: SocketAddr,
    alto: Option<AltoServer>,
    node: Arc<Node>,
    delays: Arc<Mutex<Vec<u64>>>,
    _hole: Option<Hole>,
    _dns: Dns,
}

impl World {
    async fn start(
        name: &'static str,
        manner: Option<Manner>,
        epoch: Instant,
        end: &Arc<AtomicBool>,
    ) -> Self {
        let delays = Arc::new(Mutex::new(Vec::new()));
        let mut zone = Zone::new("dest.test", 1).unwrap();
        let mut costs = Vec::new();
        for (host, last) in [("one", 51u8), ("two", 52)] {
            let ip = IpAddr::from([127, 0, 0, last]);
            let callee_socket = socket(ip);
            zone = zone.srv("_sip._udp", 10, 50, callee_socket.local_addr().unwrap().port(), host).unwrap();
            zone = zone.address(host, ip).unwrap();
            costs.push((ip, f64::from(last)));
            callee(callee_socket, epoch, Arc::clone(&delays), Arc::clone(end));
        }
        let dns = Dns::start(LOOPBACK, zone).await.unwrap();
        let (alto, hole) = match manner {
            Some(manner) => {
                let alto = AltoServer::start(LOOPBACK, &costs).await.unwrap();
                alto.set_manner(manner);
                (Some(alto), None)
            }
            None => (None, Some(Hole::new())),
        };
        let url =
            alto.as_ref().map_or_else(|| format!("http://{}/", hole.as_ref().unwrap().addr), AltoServer::url);
        let text = format!(
            "[node]\nname = \"sbe.test\"\ndomains = [\"core.test\"]\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\n\
             [runtime]\nworkers = 1\n[dns]\nservers = [\"{}\"]\nsticky = \"none\"\n[core]\nsources = [\"127.0.0.1/32\"]\n\
             [[peer]]\nname = \"dest\"\ndomains = [\"dest.test\"]\n[admin]\nbind = \"\"\n\
             [alto]\ndirectory = \"{url}\"\nrefresh = \"300ms\"\npersist = 1\nhold_down = \"0s\"\n",
            dns.addr()
        );
        let node = Node::start(parse(&text).unwrap(), None, &tokio::runtime::Handle::current()).unwrap();
        let element = listener(&node, Transport::Udp, Realm::Both).unwrap();
        Self { name, element, alto, node, delays, _hole: hole, _dns: dns }
    }
}

fn at(sorted: &[u64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize] as f64 / 1000.0
}

fn main() {
    let (rate, seconds) = (argument("--rate", 500), argument("--seconds", 60));
    let epoch = Instant::now();
    let end = Arc::new(AtomicBool::new(false));
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ways = [
        ("0 ms", Some(Manner::Good)),
        ("0 ms, again", Some(Manner::Good)),
        ("5 s", Some(Manner::Late(Duration::from_secs(5)))),
        ("never answers", Some(Manner::Silent)),
        ("black hole", None),
    ];
    let worlds: Vec<World> = tokio.block_on(async {
        let mut worlds = Vec::new();
        for (name, manner) in ways {
            worlds.push(World::start(name, manner, epoch, &end).await);
        }
        worlds
    });
    let caller = socket(LOOPBACK);
    let own = caller.local_addr().unwrap();
    let reader = caller.try_clone().unwrap();
    let (done, refused) = (Arc::clone(&end), Arc::new(AtomicU64::new(0)));
    let finals = Arc::clone(&refused);
    // Each final answer is counted and acknowledged.
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while !done.load(Ordering::Relaxed) {
            let Ok((n, from)) = reader.recv_from(&mut buffer) else { continue };
            let text = std::str::from_utf8(&buffer[..n]).unwrap();
            if text.starts_with("SIP/2.0 486") {
                finals.fetch_add(1, Ordering::Relaxed);
                let ack = format!(
                    "ACK sip:bob@dest.test SIP/2.0\r\n{}Max-Forwards: 70\r\nCSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n",
                    repeated(text)
                );
                reader.send_to(ack.as_bytes(), from).unwrap();
            }
        }
    });
    let mut serial = 0u64;
    let mut send = |world: &World| {
        serial += 1;
        let left = epoch.elapsed().as_nanos();
        let invite = format!(
            "INVITE sip:bob@dest.test SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK-{serial}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@core.test>;tag=1\r\nTo: <sip:bob@dest.test>\r\nCall-ID: {serial}@alto\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:a@{own}>\r\nX-Left: {left}\r\nContent-Length: 0\r\n\r\n"
        );
        caller.send_to(invite.as_bytes(), world.element).unwrap();
    };
    // The very first call of each has to ask the DNS; it does not count.
    for world in &worlds {
        send(world);
    }
    std::thread::sleep(Duration::from_secs(1));
    for world in &worlds {
        world.delays.lock().unwrap().clear();
    }
    let began = Instant::now();
    let count = u64::from(rate) * u64::from(seconds);
    for n in 0..count {
        let due = began + Duration::from_secs(1).mul_f64(n as f64 / f64::from(rate));
        while Instant::now() < due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        // Another order in each turn, so that nobody is always behind the same.
        let (turn, place) = (n as usize / worlds.len(), n as usize % worlds.len());
        send(&worlds[(place + turn) % worlds.len()]);
    }
    std::thread::sleep(Duration::from_secs(1));
    end.store(true, Ordering::Relaxed);
    println!(
        "{count} calls in {seconds} s, by turns to {} elements; {} ended",
        worlds.len(),
        refused.load(Ordering::Relaxed) - worlds.len() as u64
    );
    println!(
        "{:<14} {:>7} {:>11} {:>10} {:>8}  asked, costs known",
        "ALTO server", "calls", "median", "p99", "ratio"
    );
    let mut first = None;
    for world in &worlds {
        let mut delays = world.delays.lock().unwrap().clone();
        delays.sort_unstable();
        let (median, p99) = (at(&delays, 0.5), at(&delays, 0.99));
        let (m, p) = *first.get_or_insert((median, p99));
        let asked = world.alto.as_ref().map_or_else(|| "-".to_owned(), |a| a.total().to_string());
        println!(
            "{:<14} {:>7} {median:>8.1} us {p99:>7.1} us {:>8.3} / {:.3}  {asked}, {}",
            world.name,
            delays.len(),
            median / m,
            p99 / p,
            world.node.resolver().ranker().snapshot().len()
        );
    }
    tokio.block_on(async { tokio::task::spawn_blocking(move || drop(worlds)).await.unwrap() });
}
