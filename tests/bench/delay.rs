//! What the element adds to the way of a request, over what a relay adds that only copies octets.
//!
//! ```text
//! cargo bench --bench delay                    # 1500 requests a second, 5 rounds of 2 s each way
//! cargo bench --bench delay -- --rate 3000 --rounds 8
//! ```
//!
//! OPTIONS leave one socket evenly paced; each carries when it left. They reach another socket through the relay in
//! one round, through a border element with a real name server in the next; the answers go back the same way. The
//! records live one second, and the element reads its configuration again in each of its rounds, so that renewals fall into what is
//! measured. All of it is one process, with one clock.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sbe::config::Realm;
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

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// Copies what comes from one side to the other.
fn relay(callee: SocketAddr, end: Arc<AtomicBool>) -> SocketAddr {
    let socket = socket();
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut caller = addr;
        let mut buffer = [0u8; 4096];
        while !end.load(Ordering::Relaxed) {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else { continue };
            if from != callee {
                caller = from;
            }
            let to = if from == callee { caller } else { callee };
            socket.send_to(&buffer[..n], to).unwrap();
        }
    });
    addr
}

/// Answers every request, and notes how long it was on its way.
fn callee(socket: UdpSocket, epoch: Instant, delays: Arc<Mutex<Vec<u64>>>, end: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while !end.load(Ordering::Relaxed) {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else { continue };
            let now = u64::try_from(epoch.elapsed().as_nanos()).unwrap();
            let text = std::str::from_utf8(&buffer[..n]).unwrap();
            let mut answer = String::from("SIP/2.0 200 OK\r\n");
            for row in text.split("\r\n").skip(1) {
                if let Some(left) = row.strip_prefix("X-Left: ") {
                    delays.lock().unwrap().push(now - left.parse::<u64>().unwrap());
                } else if ["Via:", "From:", "Call-ID:", "CSeq:"].iter().any(|h| row.starts_with(h)) {
                    answer += &format!("{row}\r\n");
                } else if row.starts_with("To:") {
                    answer += &format!("{row};tag=1\r\n");
                }
            }
            answer += "Content-Length: 0\r\n\r\n";
            socket.send_to(answer.as_bytes(), from).unwrap();
        }
    });
}

/// Sends at a steady rate for a while; answers are read and forgotten.
fn send(socket: &UdpSocket, to: SocketAddr, rate: u32, time: Duration, epoch: Instant, serial: &mut u64) {
    let own = socket.local_addr().unwrap();
    let began = Instant::now();
    let count = u64::from(rate) * time.as_millis() as u64 / 1000;
    for n in 0..count {
        let due = began + time.mul_f64(n as f64 / count as f64);
        while Instant::now() < due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()).min(Duration::from_micros(200)));
        }
        *serial += 1;
        let left = epoch.elapsed().as_nanos();
        let request = format!(
            "OPTIONS sip:bob@delay.example SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK-{serial}\r\nMax-Forwards: 70\r\n\
             From: <sip:a@core.example>;tag=1\r\nTo: <sip:bob@delay.example>\r\nCall-ID: {serial}@delay\r\nCSeq: 1 OPTIONS\r\n\
             X-Left: {left}\r\nContent-Length: 0\r\n\r\n"
        );
        socket.send_to(request.as_bytes(), to).unwrap();
    }
}

fn at(sorted: &[u64], part: f64) -> f64 {
    let place = ((sorted.len() - 1) as f64 * part).round() as usize;
    sorted[place] as f64 / 1000.0
}

fn main() {
    let (rate, rounds) = (argument("--rate", 1500), argument("--rounds", 5));
    let epoch = Instant::now();
    let end = Arc::new(AtomicBool::new(false));
    let delays = Arc::new(Mutex::new(Vec::new()));
    let (caller, server) = (socket(), socket());
    let server_addr = server.local_addr().unwrap();
    callee(server, epoch, Arc::clone(&delays), Arc::clone(&end));
    let relay = relay(server_addr, Arc::clone(&end));
    // Answers to the caller are read, or its buffer would fill.
    let reader = caller.try_clone().unwrap();
    let done = Arc::clone(&end);
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while !done.load(Ordering::Relaxed) {
            let _ = reader.recv_from(&mut buffer);
        }
    });

    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let zone = Zone::new("delay.example", 1).unwrap();
    let zone =
        zone.srv("_sip._udp", 10, 10, server_addr.port(), "one").unwrap().address("one", LOOPBACK).unwrap();
    let dns = tokio.block_on(Dns::start(LOOPBACK, zone)).unwrap();
    let text = format!(
        "[node]\nname = \"core.example\"\n\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\n\n\
         [dns]\nservers = [\"{}\"]\n\n[core]\nsources = [\"127.0.0.1/32\"]\n\n\
         [[peer]]\nname = \"p\"\ndomains = [\"delay.example\"]\n\n[admin]\nbind = \"\"\n",
        dns.addr()
    );
    let file = std::env::temp_dir().join(format!("sbe-delay-{}.toml", std::process::id()));
    std::fs::write(&file, &text).unwrap();
    let node = Node::start(parse(&text).unwrap(), Some(file.clone()), tokio.handle()).unwrap();
    let element = listener(&node, Transport::Udp, Realm::Both).unwrap();

    let mut serial = 0;
    let mut seen = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (way, to) in [relay, element].into_iter().enumerate() {
            if way == 1 {
                node.reload().unwrap();
            }
            send(&caller, to, rate, Duration::from_secs(2), epoch, &mut serial);
            std::thread::sleep(Duration::from_millis(200));
            let batch = std::mem::take(&mut *delays.lock().unwrap());
            if round > 0 {
                seen[way].extend(batch);
            }
        }
    }
    end.store(true, Ordering::Relaxed);
    let _ = std::fs::remove_file(file);
    for s in &mut seen {
        s.sort_unstable();
    }
    let wanted = u64::from(rate) * 2 * u64::from(rounds);
    println!("{rate} requests/s, {rounds} rounds of 2 s each way, {wanted} sent each way");
    for (name, s) in ["relay", "element"].iter().zip(&seen) {
        println!(
            "{name:<8} {} arrived; us: median {:.0}, 99 % {:.0}, 99.9 % {:.0}, most {:.0}",
            s.len(),
            at(s, 0.5),
            at(s, 0.99),
            at(s, 0.999),
            at(s, 1.0)
        );
    }
    println!(
        "added    us: median {:.0}, 99.9 % {:.0}",
        at(&seen[1], 0.5) - at(&seen[0], 0.5),
        at(&seen[1], 0.999) - at(&seen[0], 0.999)
    );
    std::process::exit(i32::from(seen[1].len() as u64 != wanted));
}
