//! Datagrams and what comes back instead of them.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;

use super::*;

const UDP: &[(Transport, &str)] = &[(Transport::Udp, "127.0.0.1:0")];

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// An address where nobody is any more.
fn dead_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn bursts_go_in_and_out_whole_and_each_datagram_once() {
    let world = plan(UDP).workers(2).start(answering);
    let client = client();
    for burst in 0..20 {
        for i in 0..100 {
            client.send_to(&request(burst * 100 + i, "burst"), world.addr(0)).unwrap();
        }
        let mut answered = [false; 100];
        let mut buffer = [0; 2048];
        for _ in 0..100 {
            let n = client.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
            let id: usize = text.lines().find_map(|l| l.strip_prefix("Call-ID: ")).unwrap().parse().unwrap();
            assert_eq!(buffer[..n], response_to(&request(id, "burst")));
            assert!(!std::mem::replace(&mut answered[id - burst * 100], true), "{id} twice");
        }
    }
}

#[test]
fn a_burst_costs_far_fewer_wake_ups_than_datagrams() {
    let world = plan(UDP).start(silent);
    let client = client();
    // Nobody reads while the shard is held, so the burst is there at once when it is let go.
    world.handle.with_shard(0, |_| {
        for i in 0..128 {
            client.send_to(&request(i, "burst"), world.addr(0)).unwrap();
        }
    });
    world.record.wait_count(128, |s| matches!(s, Seen::Message { .. }));
    let wakeups = world.handle.counters().udp_wakeups.load(Ordering::Relaxed);
    assert!(wakeups <= 16, "{wakeups} wake-ups for 128 datagrams");
}

#[test]
fn origin_tells_both_ends_also_behind_a_wildcard_bind() {
    for (bind, to) in
        [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.5"), ("[::1]:0", "::1"), ("[::]:0", "::1")]
    {
        let world = plan(&[(Transport::Udp, bind)]).start(answering);
        let to = SocketAddr::new(to.parse().unwrap(), world.addr(0).port());
        let client = UdpSocket::bind(SocketAddr::new(
            if to.is_ipv4() { "127.0.0.1" } else { "::1" }.parse().unwrap(),
            0,
        ))
        .unwrap();
        client.send_to(&request(0, "where"), to).unwrap();
        let (_, origin, _) = world.record.message("where");
        assert_eq!((origin.local, origin.remote), (to, client.local_addr().unwrap()), "{bind}");
        assert_eq!((origin.transport, origin.conn), (Transport::Udp, None));
    }
}

#[test]
fn both_families_share_a_port() {
    let world = plan(&[(Transport::Udp, "0.0.0.0:0")]).start(silent);
    let v6 = format!("[::]:{}", world.addr(0).port());
    let other = plan(&[(Transport::Udp, &v6)]).start(silent);
    assert_eq!(other.addr(0).port(), world.addr(0).port());
}

#[test]
fn an_icmp_error_comes_back_with_the_start_of_the_request() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let world = plan(&[(Transport::Udp, bind)]).start(silent);
        let dead = UdpSocket::bind(bind).unwrap().local_addr().unwrap();
        let sent = request(0, "to nobody");
        world.send(hop(Transport::Udp, 0, dead), &sent, Some(token(1)), true);
        let (to, payload) = world.record.wait(|log| {
            log.iter().find_map(|(_, s)| match s {
                Seen::Undeliverable { to, payload } => Some((*to, payload.clone())),
                _ => None,
            })
        });
        assert_eq!(to, dead);
        assert_eq!(payload, sent);
    }
}

#[test]
fn an_icmp_error_goes_to_the_shard_that_owns_the_call() {
    let world = plan(UDP).workers(2).start(|s: &mut Scripted, _, seen: &Seen| {
        if let Seen::Message { bytes, .. } = seen {
            s.send(hop(Transport::Udp, 0, dead_address()), bytes.clone(), None, true);
        }
    });
    let client = client();
    for call in 0..10 {
        client.send_to(&request(call, "pass on"), world.addr(0)).unwrap();
    }
    world.record.wait_count(10, |s| matches!(s, Seen::Undeliverable { .. }));
    for (shard, seen) in world.record.0.0.lock().unwrap().iter() {
        if let Seen::Undeliverable { payload, .. } = seen {
            assert_eq!(*shard, Scripted::shard_of(payload, 0, 2));
        }
    }
}

#[test]
fn icmp_errors_neither_stop_the_socket_nor_make_it_spin() {
    let world = plan(UDP).start(answering);
    let dead = dead_address();
    let client = client();
    let mut buffer = [0; 2048];
    let counters = Arc::clone(world.handle.counters());
    for round in 0..100 {
        // A request and an answer of ours meet a closed port; real traffic goes on between them.
        world.send(hop(Transport::Udp, 0, dead), &request(round, "to nobody"), None, true);
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap();
        gone.send_to(&request(round, "and gone"), world.addr(0)).unwrap();
        drop(gone);
        client.send_to(&request(round, "alive"), world.addr(0)).unwrap();
        client.recv(&mut buffer).unwrap();
    }
    world.until("errors are counted", |h| h.counters().icmp_errors.load(Ordering::Relaxed) >= 100);
    let wakeups = counters.udp_wakeups.load(Ordering::Relaxed);
    assert!(wakeups <= 1000, "{wakeups} wake-ups for 100 rounds");
    // An answer that found nobody is told like a request.
    let answer =
        |s: &Seen| matches!(s, Seen::Undeliverable { payload, .. } if payload.starts_with(b"SIP/2.0"));
    world.record.wait_count(1, answer);
}

#[test]
fn a_datagram_too_large_fails_alone() {
    let world = plan(UDP).start(answering);
    let client = client();
    let to = hop(Transport::Udp, 0, client.local_addr().unwrap());
    world.send(to.clone(), &vec![b'x'; 66_000], Some(token(5)), true);
    assert_eq!(world.record.failure(token(5)), SendFailure::TooLarge);
    world.send(to, &vec![b'y'; 60_000], Some(token(6)), true);
    let mut buffer = vec![0; 70_000];
    assert_eq!(client.recv(&mut buffer).unwrap(), 60_000);
    assert_eq!(world.handle.counters().dropped(DropReason::Oversize), 1);
}

#[test]
fn an_unreachable_destination_fails_at_once() {
    let world = plan(UDP).start(silent);
    // A loopback source cannot reach another network, so the kernel refuses.
    world.send(
        hop(Transport::Udp, 0, "192.0.2.1:5060".parse().unwrap()),
        &request(0, "far"),
        Some(token(9)),
        true,
    );
    assert!(matches!(world.record.failure(token(9)), SendFailure::Local | SendFailure::Icmp));
}

#[test]
fn a_hop_without_a_socket_fails_as_a_local_error() {
    let world = plan(UDP).start(silent);
    world.send(
        hop(Transport::Udp, 7, "127.0.0.1:9".parse().unwrap()),
        &request(0, "x"),
        Some(token(3)),
        true,
    );
    assert_eq!(world.record.failure(token(3)), SendFailure::Local);
    world.send(
        hop(Transport::Tls, 0, "127.0.0.1:9".parse().unwrap()),
        &request(0, "x"),
        Some(token(4)),
        true,
    );
    assert_eq!(world.record.failure(token(4)), SendFailure::Tls);
}

#[test]
fn workers_join_when_one_falls_behind_and_leave_again() {
    let plan = Plan { over: SpreadOver::AsNeeded, ..plan(UDP).workers(2) };
    let world = plan.start(|s: &mut Scripted, now, seen: &Seen| {
        // A tenth of a millisecond of work for each.
        let until = Instant::now() + Duration::from_micros(100);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        answering(s, now, seen);
    });
    let counters = Arc::clone(world.handle.counters());
    assert_eq!(counters.udp_workers.load(Ordering::Relaxed), 1);
    let client = client();
    let mut buffer = [0; 2048];
    let until = Instant::now() + PATIENCE;
    while counters.udp_workers.load(Ordering::Relaxed) < 2 {
        assert!(Instant::now() < until, "never helped");
        // More than a turn takes, so that it shows on a busy machine too.
        for i in 0..600 {
            client.send_to(&request(i, "flood"), world.addr(0)).unwrap();
        }
        client.recv(&mut buffer).unwrap();
    }
    while counters.udp_workers.load(Ordering::Relaxed) > 1 {
        assert!(Instant::now() < until, "never alone again");
        client.send_to(&request(0, "trickle"), world.addr(0)).unwrap();
        client.recv(&mut buffer).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends these at once, in one turn.
fn send_at_once(world: &World, to: &[SocketAddr], datagrams: &[Vec<u8>]) {
    let send = |s: &mut Scripted| {
        for (n, (to, bytes)) in to.iter().zip(datagrams).enumerate() {
            let token = token(u64::try_from(n).unwrap());
            s.send(hop(Transport::Udp, 0, *to), bytes.clone(), Some(token), true);
        }
    };
    world.handle.with_shard(0, send).unwrap();
    world.handle.update_one(0, Update::Drain(false));
}

/// Of many lengths, alike and not, in an order that runs must keep.
fn of_many_lengths() -> Vec<Vec<u8>> {
    let lengths = [9, 9, 9, 5, 9, 9, 40, 40, 40, 40, 3, 1, 1, 50, 49, 49, 48, 48, 7];
    lengths.iter().enumerate().map(|(n, len)| request(100 + n, &"x".repeat(*len))).collect()
}

#[test]
fn what_goes_to_one_place_arrives_as_it_was_sent_and_in_its_order() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let world = plan(&[(Transport::Udp, bind)]).start(silent);
        let clients = [(); 3].map(|()| UdpSocket::bind(bind).unwrap());
        let sent = of_many_lengths();
        let whose = |n: usize| if n < 10 { 0 } else { n % 3 };
        let to: Vec<_> = (0..sent.len()).map(|n| clients[whose(n)].local_addr().unwrap()).collect();
        send_at_once(&world, &to, &sent);
        for (c, client) in clients.iter().enumerate() {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            for (n, sent) in sent.iter().enumerate().filter(|(n, _)| whose(*n) == c) {
                let mut buffer = [0; 2048];
                let received = client.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..received], &sent[..], "{n}");
            }
        }
        let out =
            |h: &Handle<Scripted>| h.counters().datagrams_out.load(Ordering::Relaxed) == sent.len() as u64;
        world.until("all are counted", out);
    }
}

#[test]
fn datagrams_leave_one_by_one_where_the_kernel_takes_no_runs() {
    let world = plan(UDP).start(silent);
    crate::runtime::sys::refuse_runs(world.addr(0));
    let client = client();
    let to = client.local_addr().unwrap();
    for round in 0..3 {
        let sent = of_many_lengths();
        send_at_once(&world, &vec![to; sent.len()], &sent);
        for sent in &sent {
            let mut buffer = [0; 2048];
            let received = client.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..received], &sent[..], "round {round}");
        }
    }
    assert_eq!(world.record.count(|s| matches!(s, Seen::Failed(..))), 0);
}

#[test]
fn a_closed_port_is_told_to_all_whose_datagrams_went_there_in_a_run() {
    for workers in [1, 2] {
        let world = plan(UDP).workers(workers).start(silent);
        let dead = dead_address();
        let via = |call| format!("x\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK{call}");
        let sent: Vec<_> = (10..16).map(|call| request(call, &via(call))).collect();
        send_at_once(&world, &[dead; 6], &sent);
        // The kernel quotes the first, if it reports the run as one.
        world.record.wait_count(1, |s| matches!(s, Seen::Undeliverable { payload, .. } if *payload == sent[0] || payload.starts_with(&sent[0])));
        for other in 1..6 {
            assert_eq!(world.record.failure(token(other)), SendFailure::Icmp);
        }
    }
}
