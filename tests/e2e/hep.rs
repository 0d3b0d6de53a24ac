//! Copies of every message at a capture server.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use sbe::config::Realm;
use sbe::demo::caller::Caller;
use sbe::demo::instance::Instance;
use sbe::flow::Transport;

use super::{Edge, ip, until, zone};

/// A copy as the server reads it.
struct Copy {
    source: SocketAddr,
    target: SocketAddr,
    protocol: u8,
    agent: u32,
    password: Vec<u8>,
    at: Duration,
    first_line: String,
    payload: Vec<u8>,
}

/// Reads a packet by the specification: chunks of vendor, type, length with its header, value.
fn read(packet: &[u8]) -> Copy {
    let word = |at: usize| usize::from(u16::from_be_bytes(packet[at..at + 2].try_into().unwrap()));
    assert_eq!(&packet[..4], b"HEP3");
    assert_eq!(word(4), packet.len());
    let (mut at, mut values) = (6, vec![Vec::new(); 16]);
    while at < packet.len() {
        assert_eq!(word(at), 0, "the generic vendor");
        values[word(at + 2)] = packet[at + 6..at + word(at + 4)].to_vec();
        at += word(at + 4);
    }
    let number = |kind: usize| values[kind].iter().fold(0u64, |n, octet| (n << 8) | u64::from(*octet));
    let addr = |kind: usize, port: usize| {
        let octets: [u8; 4] = values[kind][..].try_into().unwrap();
        SocketAddr::new(octets.into(), u16::try_from(number(port)).unwrap())
    };
    assert_eq!((number(1), number(11)), (2, 1), "IPv4, SIP");
    let payload = values[15].clone();
    let first_line = String::from_utf8_lossy(&payload).lines().next().unwrap().to_owned();
    Copy {
        source: addr(3, 7),
        target: addr(4, 8),
        protocol: u8::try_from(number(2)).unwrap(),
        agent: u32::try_from(number(12)).unwrap(),
        password: values[14].clone(),
        at: Duration::from_secs(number(9)) + Duration::from_micros(number(10)),
        first_line,
        payload,
    }
}

async fn start(server: SocketAddr, queue: usize) -> (Edge, Caller, Instance) {
    let callee =
        Instance::start("only", SocketAddr::new(ip("127.0.0.1"), 0), Duration::from_millis(5)).await.unwrap();
    let zone = zone()
        .srv("_sip._udp.dest", 0, 0, callee.addr().port(), "host")
        .and_then(|z| z.srv("_sip._tcp.dest", 0, 0, callee.addr().port(), "host"))
        .and_then(|z| z.address("host", ip("127.0.0.1")))
        .unwrap();
    let listen = |transport: &str, realm: &str| {
        format!("[[listen]]\ntransport = \"{transport}\"\nbind = \"127.0.0.1:0\"\nrealm = \"{realm}\"\n\n")
    };
    let text = format!(
        "{}{}{}{}[core]\nsources = [\"127.0.0.0/8\"]\nnext_hops = [\"sip:192.0.2.1\"]\n\n\
         [hep]\nserver = \"{server}\"\nid = 77\npassword = \"secret\"\nqueue = {queue}\n\n\
         [[peer]]\nname = \"sp2\"\ndomains = [\"dest.example.test\"]\n",
        listen("udp", "core"),
        listen("tcp", "core"),
        listen("udp", "peering"),
        listen("tcp", "peering")
    );
    let edge = Edge::start(zone, &text).await;
    let (udp, tcp) = (edge.at(Transport::Udp, Realm::Core), edge.at(Transport::Tcp, Realm::Core));
    let caller = Caller::start(ip("127.0.0.1"), Some(udp), Some(tcp)).await.unwrap();
    (edge, caller, callee)
}

async fn call(caller: &Caller, transport: Transport, call_id: &str) {
    let uri = format!("sip:bob@dest.example.test;transport={transport}");
    let (outcome, dialog) = caller.call(transport, &uri, call_id).await.unwrap();
    assert_eq!(outcome.status, 200);
    assert_eq!(caller.hang_up(dialog.unwrap(), Duration::ZERO).await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_of_a_call_reaches_the_capture_server_with_its_way_and_time() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(super::PATIENCE)).unwrap();
    let (edge, caller, callee) = start(server.local_addr().unwrap(), 1000).await;
    for (transport, protocol) in [(Transport::Udp, 17), (Transport::Tcp, 6)] {
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let call_id = format!("hep-{transport}");
        call(&caller, transport, &call_id).await;
        let (mut copies, mut room) = (Vec::new(), vec![0; 65_536]);
        // In and out of each: INVITE, 180, 200, ACK, BYE, 200; and the 100s, ours and theirs.
        let count =
            |copies: &[Copy], line: &str| copies.iter().filter(|c| c.first_line.starts_with(line)).count();
        while count(&copies, "ACK ") < 2 || count(&copies, "BYE ") < 2 || count(&copies, "SIP/2.0 200 ") < 4 {
            let n = server.recv(&mut room).unwrap();
            copies.push(read(&room[..n]));
        }
        for (line, n) in [("INVITE ", 2), ("SIP/2.0 180 ", 2), ("ACK ", 2), ("BYE ", 2), ("SIP/2.0 200 ", 4)]
        {
            assert_eq!(count(&copies, line), n, "{line}");
        }
        assert!(copies.iter().all(|c| c.agent == 77 && c.password == b"secret" && c.protocol == protocol));
        let text = |c: &Copy| String::from_utf8(c.payload.clone()).unwrap();
        assert!(copies.iter().all(|c| text(c).contains(&call_id)), "the messages themselves");
        assert!(
            copies.iter().all(|c| c.at + Duration::from_millis(1) >= begun && c.at < begun + super::PATIENCE)
        );
        let invites: Vec<&Copy> = copies.iter().filter(|c| c.first_line.starts_with("INVITE ")).collect();
        assert_eq!(invites[0].target, edge.at(transport, Realm::Core));
        assert_eq!(invites[1].source, edge.at(transport, Realm::Peering));
        assert_eq!(invites[1].target, callee.addr());
        assert!(invites[0].at <= invites[1].at);
    }
    let [(_, sent), rest @ ..] = edge.node.hep().unwrap().counts().outcomes();
    assert!(sent >= 24, "{sent}");
    assert!(rest.iter().all(|(_, n)| *n == 0), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_capture_server_does_not_take_is_counted_and_calls_go_on() {
    // Nobody listens there: the kernel says so by ICMP.
    let dead = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (edge, caller, _callee) = start(dead, 1).await;
    call(&caller, Transport::Udp, "hep-dead").await;
    call(&caller, Transport::Udp, "hep-dead-2").await;
    let counts = || edge.node.hep().unwrap().counts().outcomes().map(|(_, n)| n);
    // With one place in the queue, most of a call's messages find it taken.
    until("all are accounted for", || counts().iter().sum::<u64>() >= 24).await;
    assert!(counts()[1] > 0, "dropped: {:?}", counts());
}
