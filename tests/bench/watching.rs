//! What a call costs while it is watched, over what it costs unwatched: call records, a capture of everything, both.
//!
//! ```text
//! cargo bench --bench watching                      # 12 rounds of 1500 calls each way
//! cargo bench --bench watching -- --rounds 30 --calls 3000
//! ```
//!
//! One process holds a node for each way, and real sockets between a caller, the node and a callee. Rounds go through all ways
//! in turn, so that what else the machine does falls on all alike. The cost is CPU time as the kernel counts it for each
//! thread (`/proc/self/task/*/schedstat`), those of the caller and the callee left out; it includes the writers of records and of
//! captures, and what transactions cost until they are forgotten.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::demo::world::{listener, parse};
use sbe::flow::Transport;
use sbe::runtime::capture::{Filter, OCTETS, Wanted};
use sbe::runtime::node::Node;

// As in the program.
#[global_allocator]
static ALLOCATOR: sbe::runtime::Allocator = sbe::runtime::Allocator;

/// Calls under way at a time.
const WINDOW: usize = 24;
/// Longer than 64*T1: all transactions of a round are over then.
const AFTER: Duration = Duration::from_millis(1500);
const SDP: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0 8 101\r\n\
a=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\na=ptime:20\r\na=sendrecv\r\n";

fn argument(name: &str, default: usize) -> usize {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == name);
    at.and_then(|at| args.get(at + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// CPU time of all threads that are not of the bench, nanoseconds.
fn cpu() -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        if !read("comm").starts_with("bench") {
            sum += read("schedstat").split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

fn rows<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.split("\r\n").filter(|r| r.starts_with(name)).collect()
}

/// Answers INVITE and BYE until told to end.
fn callee(socket: UdpSocket, end: Arc<AtomicBool>) {
    let own = socket.local_addr().unwrap();
    let mut room = [0; 8192];
    while !end.load(Ordering::Relaxed) {
        let Ok((n, from)) = socket.recv_from(&mut room) else { continue };
        let text = std::str::from_utf8(&room[..n]).unwrap();
        if text.starts_with("ACK") {
            continue;
        }
        let mut kept: Vec<String> = Vec::new();
        for name in ["Via:", "Record-Route:", "From:", "To:", "Call-ID:", "CSeq:"] {
            kept.extend(rows(text, name).into_iter().map(str::to_owned));
        }
        let invite = text.starts_with("INVITE");
        let kept = kept.join("\r\n").replace("To: <sip:b>\r\n", "To: <sip:b>;tag=callee\r\n");
        let body = if invite { SDP } else { "" };
        let answer = format!(
            "SIP/2.0 200 OK\r\n{kept}\r\nContact: <sip:b@{own}>\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if invite {
            let ringing = format!(
                "SIP/2.0 180 Ringing\r\n{kept}\r\nContact: <sip:b@{own}>\r\nContent-Length: 0\r\n\r\n"
            );
            socket.send_to(ringing.as_bytes(), from).unwrap();
        }
        socket.send_to(answer.as_bytes(), from).unwrap();
    }
}

struct Caller {
    socket: UdpSocket,
    callee: SocketAddr,
    serial: u64,
}

impl Caller {
    fn request(&self, method: &str, uri: &str, call: &str, more: &str, body: &str) -> String {
        let own = self.socket.local_addr().unwrap();
        let number = if method == "BYE" { 2 } else { 1 };
        let tag = if method == "INVITE" { "" } else { ";tag=callee" };
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK{call}{method};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:+442079460000@core.example>;tag={call}\r\nTo: <sip:b>{tag}\r\nCall-ID: {call}\r\nCSeq: {number} {method}\r\n\
             Contact: <sip:a@{own}>\r\nUser-Agent: bench\r\nAllow: INVITE, ACK, BYE, CANCEL, OPTIONS\r\n{more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn invite(&mut self, to: SocketAddr) {
        self.serial += 1;
        let (uri, call) = (format!("sip:b@{}", self.callee), format!("w{}", self.serial));
        let more = "Content-Type: application/sdp\r\n";
        let text = self.request("INVITE", &uri, &call, more, SDP);
        self.socket.send_to(text.as_bytes(), to).unwrap();
    }

    /// Makes so many calls; how many came to their end.
    fn calls(&mut self, to: SocketAddr, count: usize) -> usize {
        let (mut begun, mut over) = (0, 0);
        let mut room = [0; 8192];
        while begun < count.min(WINDOW) {
            self.invite(to);
            begun += 1;
        }
        while over < count {
            let Ok((n, _)) = self.socket.recv_from(&mut room) else { break };
            let text = std::str::from_utf8(&room[..n]).unwrap();
            if !text.starts_with("SIP/2.0 2") {
                continue;
            }
            let call = rows(text, "Call-ID: ")[0].trim_start_matches("Call-ID: ").to_owned();
            if rows(text, "CSeq: ")[0].ends_with("BYE") {
                over += 1;
                if begun < count {
                    self.invite(to);
                    begun += 1;
                }
                continue;
            }
            let mut routes = rows(text, "Record-Route:");
            routes.reverse();
            let routes: String = routes
                .iter()
                .map(|r| format!("Route:{}\r\n", r.trim_start_matches("Record-Route:")))
                .collect();
            let uri = format!("sip:b@{}", self.callee);
            for method in ["ACK", "BYE"] {
                let text = self.request(method, &uri, &call, &routes, "");
                self.socket.send_to(text.as_bytes(), to).unwrap();
            }
        }
        over
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

fn node(tokio: &tokio::runtime::Runtime, more: &str) -> Arc<Node> {
    let text = format!(
        "[node]\nname = \"core.example\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\n\
         [sip]\nt1 = \"20ms\"\n[dns]\nservers = [\"127.0.0.1:9\"]\n[core]\nsources = [\"127.0.0.1/32\"]\n\
         [[peer]]\nname = \"p\"\ndomains = [\"127.0.0.1\"]\n[runtime]\nworkers = 1\n[admin]\nbind = \"\"\n\
         [overload]\nenabled = false\n{more}"
    );
    Node::start(parse(&text).unwrap(), None, tokio.handle()).unwrap()
}

fn capture(node: &Arc<Node>) {
    let wanted = Wanted {
        filter: Filter::default(),
        words: Vec::new(),
        time: Duration::from_secs(86_400),
        octets: OCTETS[1],
        packets: None,
        attached: false,
    };
    node.captures().start(node, wanted).unwrap();
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    std::thread::Builder::new().name("bench".to_owned()).spawn(run).unwrap().join().unwrap();
}

fn run() {
    let (rounds, calls) = (argument("--rounds", 12), argument("--calls", 1500));
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let file: PathBuf = std::env::temp_dir().join(format!("sbe-watching-{}.jsonl", std::process::id()));
    let records = format!("[records]\noutput = \"file:{}\"\n", file.display());
    let ways = [
        ("unwatched", node(&tokio, "")),
        ("again", node(&tokio, "")),
        ("records", node(&tokio, &records)),
        ("capture", node(&tokio, "")),
        ("both", node(&tokio, &records.replace(".jsonl", "-2.jsonl"))),
    ];
    capture(&ways[3].1);
    capture(&ways[4].1);
    let (end, answering) = (Arc::new(AtomicBool::new(false)), socket());
    let mut caller = Caller { socket: socket(), callee: answering.local_addr().unwrap(), serial: 0 };
    let told = Arc::clone(&end);
    let thread = std::thread::Builder::new().name("bench-callee".to_owned());
    let thread = thread.spawn(move || callee(answering, told)).unwrap();
    let mut cost: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut lost = 0;
    for round in 0..=rounds {
        for at in 0..ways.len() {
            // Another order each round.
            let (name, node) = &ways[(at + round) % ways.len()];
            let to = listener(node, Transport::Udp, Realm::Both).unwrap();
            let (began, before) = (Instant::now(), cpu());
            let over = caller.calls(to, calls);
            std::thread::sleep(AFTER);
            let used = (cpu() - before) as f64 / 1000.0 / calls as f64;
            lost += calls - over;
            if round > 0 {
                cost.entry(name).or_default().push(used);
            }
            if argument("--verbose", 0) > 0 {
                println!(
                    "{round:>3} {name:<10} {used:6.1} us a call, {:.2} s",
                    began.elapsed().as_secs_f64()
                );
            }
        }
    }
    end.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    let _ = std::fs::remove_file(&file);
    let _ = std::fs::remove_file(file.with_file_name(format!("sbe-watching-{}-2.jsonl", std::process::id())));
    println!(
        "{rounds} rounds of {calls} calls each way, {lost} calls lost; CPU time a call, ratios of the same round:"
    );
    let base = cost["unwatched"].clone();
    for (name, _) in &ways {
        let all = &cost[name];
        let ratios: Vec<f64> = all.iter().zip(&base).map(|(a, b)| a / b).collect();
        println!("{name:<10} {:6.1} us  x {:.3}", median(all.clone()), median(ratios));
    }
    let dropped: Vec<u64> = ways.iter().map(|(_, n)| n.captures().counts().outcomes()[2].1).collect();
    println!(
        "dropped by captures: {dropped:?}; records: {:?}",
        ways[2].1.call_records().map(|r| r.counts().outcomes())
    );
    std::process::exit(i32::from(lost > 0));
}
