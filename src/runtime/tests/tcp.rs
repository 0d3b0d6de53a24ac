//! Stream connections from both sides.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Barrier;

use super::*;

const TCP: &[(Transport, &str)] = &[(Transport::Tcp, "127.0.0.1:0")];

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.addr(0)).unwrap();
    patient(stream)
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A peer that the node connects to, and the hop to it.
fn peer() -> (TcpListener, Hop) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = hop(Transport::Tcp, 0, listener.local_addr().unwrap());
    (listener, to)
}

fn accept(listener: &TcpListener) -> TcpStream {
    patient(listener.accept().unwrap().0)
}

/// Reads exactly what is expected.
fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
}

/// Waits for the other end to close, however rudely; returns what came before.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => panic!("not closed: {e}"),
        _ => got,
    }
}

fn no_connections(world: &World) {
    world.until("all connections are gone, and counted so", |h| {
        let counted = |direction| h.counters().connections(Transport::Tcp, direction);
        h.connections() == 0 && Direction::ALL.into_iter().all(|d| counted(d) == 0)
    });
}

/// This process's open sockets. Other tests open theirs meanwhile, so only growth that far exceeds
/// theirs means anything.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_message_may_come_octet_by_octet() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    for i in 0..3 {
        let message = request(i, "drops");
        for octet in &message {
            client.write_all(std::slice::from_ref(octet)).unwrap();
        }
        expect(&mut client, &response_to(&message));
    }
}

#[test]
fn pipelined_messages_are_answered_in_order_and_half_of_one_waits() {
    let world = plan(TCP).workers(2).start(answering);
    let mut client = connect(&world);
    let messages: Vec<Vec<u8>> = (0..200).map(|i| request(i * 2, "row")).collect();
    let last = request(200, "half");
    let mut stream = messages.concat();
    stream.extend_from_slice(&last[..30]);
    client.write_all(&stream).unwrap();
    for message in &messages {
        expect(&mut client, &response_to(message));
    }
    assert_eq!(world.record.count(|s| matches!(s, Seen::Message { .. })), 200);
    client.write_all(&last[30..]).unwrap();
    expect(&mut client, &response_to(&last));
    let (_, origin, _) = world.record.message("half");
    assert_eq!((origin.remote, origin.local), (client.local_addr().unwrap(), world.addr(0)));
    assert!(origin.conn.is_some());
}

#[test]
fn a_large_body_passes_whole() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    let body = vec![b'b'; 60_000];
    let head = format!("MESSAGE sip:a@b SIP/2.0\r\nCall-ID: 1\r\nContent-Length: {}\r\n\r\n", body.len());
    let message = [head.as_bytes(), &body].concat();
    client.write_all(&message).unwrap();
    expect(&mut client, &response_to(&message));
}

#[test]
fn a_double_line_end_is_answered_with_a_single_one() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    client.write_all(b"\r\n\r\n").unwrap();
    expect(&mut client, b"\r\n");
    // Also between messages.
    let message = request(1, "after");
    client.write_all(&[b"\r\n\r\n", &message[..], b"\r\n\r\n"].concat()).unwrap();
    expect(&mut client, b"\r\n");
    // The second ping and the answer race only against each other.
    let mut both = vec![0; response_to(&message).len() + 2];
    client.read_exact(&mut both).unwrap();
    assert!(both.ends_with(&response_to(&message)) || both.starts_with(&response_to(&message)));
}

#[test]
fn octets_that_are_no_sip_close_the_connection() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    client.write_all(b"\0\0\0\x01 garbage\r\n\r\n").unwrap();
    rest(&mut client);
    no_connections(&world);
    assert_eq!(world.handle.counters().dropped(DropReason::Framing), 1);
}

#[test]
fn a_message_without_a_usable_length_is_answered_and_the_connection_closed() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    let message = b"OPTIONS sip:a@b SIP/2.0\r\nCall-ID: 1\r\nContent-Length: many\r\n\r\n";
    client.write_all(message).unwrap();
    client.write_all(&request(2, "unheard")).unwrap();
    assert_eq!(rest(&mut client), response_to(message));
    no_connections(&world);
    assert_eq!(world.record.count(|s| matches!(s, Seen::Message { .. })), 1);
}

#[test]
fn requests_share_one_connection_and_its_number_is_told_before_anything_else() {
    let world = plan(TCP).start(silent);
    let (listener, to) = peer();
    // Sent in one turn: the second finds the connection that the first began to make.
    for n in 1..=3 {
        world.send(to.clone(), &request(0, &format!("n{n}")), Some(token(n)), true);
    }
    let mut stream = accept(&listener);
    for n in 1..=3 {
        expect(&mut stream, &request(0, &format!("n{n}")));
    }
    let conn = world.record.sent(token(1));
    assert_eq!((world.record.sent(token(2)), world.record.sent(token(3))), (conn, conn));
    assert_eq!(stream.peer_addr().unwrap().ip(), world.addr(0).ip());
    assert_eq!(world.handle.counters().connections(Transport::Tcp, Direction::Out), 1);
    // What the peer sends on it arrives like anything else.
    stream.write_all(b"SIP/2.0 200 OK\r\nCall-ID: 0\r\nContent-Length: 0\r\n\r\n").unwrap();
    let (_, origin, _) = world.record.message("200 OK");
    assert_eq!((origin.conn, origin.remote), (Some(conn), to.remote));
}

#[test]
fn an_accepted_connection_carries_requests_only_to_the_very_address_it_came_from() {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "hello")).unwrap();
    let (_, origin, _) = world.record.message("hello");
    world.send(
        hop(Transport::Tcp, 0, client.local_addr().unwrap()),
        &request(0, "back"),
        Some(token(1)),
        true,
    );
    expect(&mut client, &request(0, "back"));
    assert_eq!(Some(world.record.sent(token(1))), origin.conn);
    // Same host, other port: a connection of its own.
    let (listener, to) = peer();
    world.send(to, &request(0, "other"), Some(token(2)), true);
    expect(&mut accept(&listener), &request(0, "other"));
    assert_ne!(Some(world.record.sent(token(2))), origin.conn);
}

#[test]
fn a_send_that_wants_a_fresh_connection_shares_it_only_with_its_like() {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "hello")).unwrap();
    let (_, origin, _) = world.record.message("hello");
    // The peer listens where it connected from, too: only an accepted connection is there.
    let to = hop(Transport::Tcp, 0, client.local_addr().unwrap());
    world.send(Hop { fresh: true, ..to }, &request(0, "fresh"), Some(token(1)), true);
    assert_ne!(Some(world.record.sent(token(1))), origin.conn);
    // Two that find their old connection dead at the same time share the new one.
    let (listener, to) = peer();
    for n in 2..=3 {
        world.send(Hop { fresh: true, ..to.clone() }, &request(0, "again"), Some(token(n)), true);
    }
    let mut stream = accept(&listener);
    expect(&mut stream, &request(0, "again"));
    expect(&mut stream, &request(0, "again"));
    assert_eq!(world.record.sent(token(2)), world.record.sent(token(3)));
}

#[test]
fn a_refused_connection_fails_everything_that_waited_for_it() {
    let world = plan(TCP).start(silent);
    let (listener, to) = peer();
    drop(listener);
    for n in 1..=3 {
        world.send(to.clone(), &request(0, "x"), Some(token(n)), true);
    }
    for n in 1..=3 {
        assert_eq!(world.record.failure(token(n)), SendFailure::ConnectRefused);
    }
    no_connections(&world);
}

#[test]
fn a_connection_not_made_in_time_fails_as_such() {
    let mut plan = plan(TCP);
    plan.config.sip.connect_timeout = Duration::from_millis(50);
    let world = plan.start(silent);
    // A listener whose queue has room for one connection, and has it: further SYNs are dropped.
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let remote = listener.local_addr().unwrap().as_socket().unwrap();
    let _filler = TcpStream::connect(remote).unwrap();
    let begun = Instant::now();
    for n in 1..=2 {
        world.send(hop(Transport::Tcp, 0, remote), &request(0, "x"), Some(token(n)), true);
    }
    for n in 1..=2 {
        assert_eq!(world.record.failure(token(n)), SendFailure::ConnectTimeout);
    }
    assert!(begun.elapsed() >= Duration::from_millis(50));
    no_connections(&world);
}

#[test]
fn what_names_a_connection_that_has_ended_fails() {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "hello")).unwrap();
    let (_, origin, _) = world.record.message("hello");
    drop(client);
    // It still owes an answer: only writing it shows that nobody is there.
    world.send(back(&origin), &response_to(&request(0, "hello")), None, false);
    no_connections(&world);
    world.send(back(&origin), &response_to(&request(0, "hello")), Some(token(4)), false);
    assert_eq!(world.record.failure(token(4)), SendFailure::Closed { reused: true });
}

#[test]
fn the_end_of_a_connection_that_carried_requests_is_told_to_all_shards() {
    let world = plan(TCP).workers(2).start(silent);
    let (listener, to) = peer();
    world.send(to.clone(), &request(0, "x"), Some(token(1)), true);
    let mut stream = accept(&listener);
    expect(&mut stream, &request(0, "x"));
    let conn = world.record.sent(token(1));
    drop(stream);
    world.record.wait_count(2, |s| matches!(s, Seen::Closed(c) if *c == conn));
    no_connections(&world);
    // The next request opens a new one.
    world.send(to, &request(0, "y"), Some(token(2)), true);
    expect(&mut accept(&listener), &request(0, "y"));
    assert_ne!(world.record.sent(token(2)), conn);
}

#[test]
fn a_peer_that_has_said_all_still_gets_its_answer_and_then_the_end() {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "last words")).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (_, origin, bytes) = world.record.message("last words");
    // No new request goes to it.
    world.until("the half-closed connection is no longer used", |h| {
        h.counters().connections(Transport::Tcp, Direction::In) == 1
    });
    world.send(back(&origin), b"SIP/2.0 100 Trying\r\nContent-Length: 0\r\n\r\n", None, false);
    expect(&mut client, b"SIP/2.0 100 Trying\r\nContent-Length: 0\r\n\r\n");
    world.send(back(&origin), &response_to(&bytes), None, false);
    assert_eq!(rest(&mut client), response_to(&bytes));
    no_connections(&world);
}

#[test]
fn a_peer_that_closes_without_an_open_question_is_closed_at_once() {
    let world = plan(TCP).start(answering);
    drop(connect(&world));
    let mut client = connect(&world);
    client.write_all(&request(0, "x")).unwrap();
    expect(&mut client, &response_to(&request(0, "x")));
    client.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&mut client).is_empty());
    no_connections(&world);
}

#[test]
fn an_answer_that_never_comes_holds_a_half_closed_connection_for_64_t1_only() {
    let mut plan = plan(TCP);
    plan.config.sip.t1 = Duration::from_millis(2);
    let world = plan.start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "x")).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    rest(&mut client);
    no_connections(&world);
}

#[test]
fn a_quiet_connection_is_closed_after_the_idle_timeout() {
    let mut plan = plan(TCP);
    plan.config.sip.idle_timeout = Duration::from_millis(50);
    let world = plan.start(silent);
    let begun = Instant::now();
    let mut client = connect(&world);
    assert!(rest(&mut client).is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(50));
    drop(client);
    no_connections(&world);
}

#[test]
fn a_message_that_dribbles_in_too_slowly_closes_the_connection() {
    let mut plan = plan(TCP);
    plan.config.sip.message_timeout = Duration::from_millis(60);
    let world = plan.start(answering);
    let mut client = connect(&world);
    // A whole message, then one that makes progress but never ends.
    client.write_all(&request(0, "whole")).unwrap();
    expect(&mut client, &response_to(&request(0, "whole")));
    let begun = Instant::now();
    client.write_all(b"OPTIONS sip:a@b SIP/2.0\r\nSubject: ").unwrap();
    let mut drip = client.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        while drip.write_all(b"x").is_ok() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(rest(&mut client).is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(50));
    dripping.join().unwrap();
    drop(client);
    no_connections(&world);
    assert_eq!(world.handle.counters().dropped(DropReason::MessageTimeout), 1);
}

/// Sends large messages until one is refused; their number.
fn fill(world: &World, to: &Hop) -> u64 {
    // The kernel's buffers take some; the queue what is left; then it is over.
    let large = vec![b'x'; 50_000];
    let mut n = 0;
    while world.record.count(|s| matches!(s, Seen::Failed(_, SendFailure::QueueFull))) == 0 {
        n += 1;
        assert!(n < 10_000, "never full");
        world.send(to.clone(), &large, Some(token(n)), true);
    }
    n
}

#[test]
fn a_reader_that_pauses_gets_what_was_queued_and_what_comes_later() {
    let mut plan = plan(TCP);
    plan.config.limits.write_queue = 100_000;
    let world = plan.start(silent);
    let (listener, to) = peer();
    let mut stream = accept_after(&world, &listener, &to);
    expect(&mut stream, &request(0, "first"));
    let sent = fill(&world, &to);
    let last = request(1, "later");
    let end = last.clone();
    let reader = std::thread::spawn(move || {
        let (mut octets, mut tail, mut some) = (0, Vec::new(), vec![0; 1 << 20]);
        while !tail.ends_with(&end) {
            let n = stream.read(&mut some).unwrap();
            assert!(n > 0, "cut off");
            octets += n;
            tail.extend_from_slice(&some[..n]);
            tail.drain(..tail.len().saturating_sub(end.len()));
        }
        octets - end.len()
    });
    // The reader is back: nothing but what was refused is missing, and the connection serves on.
    let refused = |h: &Handle<Scripted>| h.counters().dropped(DropReason::WriteQueue);
    let written = |h: &Handle<Scripted>| h.counters().stream_messages_out.load(Ordering::Relaxed);
    world.until("all are written or refused", |h| written(h) + refused(h) == sent + 1);
    world.send(to, &last, Some(token(2_000_000)), true);
    let (octets, refused) = (reader.join().unwrap(), refused(&world.handle));
    assert!(refused > 0);
    assert_eq!(octets as u64, (sent - refused) * 50_000);
    assert_eq!(world.handle.counters().dropped(DropReason::SlowReader), 0);
}

#[test]
fn a_reader_that_takes_nothing_is_cut_off_when_its_queue_is_full() {
    let mut plan = plan(TCP);
    plan.config.limits.write_queue = 100_000;
    let world = plan.start(silent);
    let (listener, to) = peer();
    let stream = accept_after(&world, &listener, &to);
    let mut n = fill(&world, &to);
    // The kernel may have taken a little more meanwhile; what comes next finds the queue full again.
    world.until("the connection is cut", |h| {
        n += 1;
        world.send(to.clone(), &[b'x'; 50_000], Some(token(n)), true);
        h.counters().dropped(DropReason::SlowReader) == 1
    });
    let conn = world.record.sent(token(1));
    world.record.closed(conn);
    drop(stream);
}

/// Makes the node connect to `listener` first.
fn accept_after(world: &World, listener: &TcpListener, to: &Hop) -> TcpStream {
    world.send(to.clone(), &request(0, "first"), Some(token(1_000_000)), true);
    accept(listener)
}

#[test]
fn connections_beyond_the_cap_are_closed_at_once_and_counted() {
    let mut plan = plan(TCP);
    plan.config.limits.connections = 2;
    let world = plan.start(answering);
    let mut held = [connect(&world), connect(&world)];
    for client in &mut held {
        client.write_all(&request(0, "in")).unwrap();
        expect(client, &response_to(&request(0, "in")));
    }
    let mut third = connect(&world);
    assert!(rest(&mut third).is_empty());
    assert_eq!(world.handle.counters().dropped(DropReason::Connections), 1);
    // Outgoing ones count too.
    let (_listener, to) = peer();
    world.send(to, &request(0, "x"), Some(token(1)), true);
    assert_eq!(world.record.failure(token(1)), SendFailure::Local);
    // Room again once one has gone.
    let [first, _second] = held;
    drop(first);
    world.until("one is gone", |h| h.connections() == 1);
    let mut fourth = connect(&world);
    fourth.write_all(&request(0, "in")).unwrap();
    expect(&mut fourth, &response_to(&request(0, "in")));
}

#[test]
fn a_thousand_connections_that_come_and_go_leave_nothing_behind() {
    let world = plan(TCP).workers(2).start(answering);
    let before = open_descriptors();
    for i in 0..1000 {
        let mut client = connect(&world);
        client.write_all(&request(i, "hit and run")).unwrap();
        if i % 2 == 0 {
            expect(&mut client, &response_to(&request(i, "hit and run")));
        }
    }
    no_connections(&world);
    assert!(open_descriptors() < before + 300, "{} descriptors, {before} before", open_descriptors());
}

#[test]
fn stopping_writes_what_is_queued_and_closes() {
    let world = plan(TCP).start(answering);
    let mut client = connect(&world);
    client.write_all(&request(0, "farewell")).unwrap();
    expect(&mut client, &response_to(&request(0, "farewell")));
    let stopping = std::thread::spawn(move || world.handle.stop());
    assert!(rest(&mut client).is_empty());
    drop(client);
    stopping.join().unwrap();
}

/// A request, then its answer with a token once the other end has closed its side.
fn answered_after_the_end(whole: bool) -> (World, TcpStream) {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "late")).unwrap();
    let (_, origin, bytes) = world.record.message("late");
    if whole {
        let ours = client.local_addr().unwrap();
        drop(std::mem::replace(&mut client, connect(&world)));
        assert_ne!(client.local_addr().unwrap(), ours);
    } else {
        client.shutdown(Shutdown::Write).unwrap();
    }
    // Whether it has been noticed yet makes no difference.
    world.send(back(&origin), &response_to(&bytes), Some(token(9)), false);
    (world, client)
}

#[test]
fn an_answer_to_a_half_closed_connection_arrives_and_nobody_is_told_otherwise() {
    let (world, mut client) = answered_after_the_end(false);
    assert_eq!(rest(&mut client), response_to(&request(0, "late")));
    no_connections(&world);
    assert_eq!(world.record.count(|s| matches!(s, Seen::Failed(..))), 0);
}

#[test]
fn an_answer_that_the_other_end_is_no_longer_there_for_is_told_as_not_sent() {
    let (world, client) = answered_after_the_end(true);
    assert_eq!(world.record.failure(token(9)), SendFailure::Closed { reused: true });
    drop(client);
    no_connections(&world);
}

#[test]
fn that_nobody_has_taken_a_provisional_answer_is_told_before_the_final_one() {
    let world = plan(TCP).start(silent);
    let mut client = connect(&world);
    client.write_all(&request(0, "ring")).unwrap();
    let (_, origin, bytes) = world.record.message("ring");
    drop(client);
    let to = hop(Transport::Tcp, 0, origin.remote);
    world.until("the end of its side is noticed", |h| {
        h.node.pool.find(&to, world.addr(0), Instant::now()).is_none()
    });
    let ringing = String::from_utf8(response_to(&bytes)).unwrap().replacen("200 OK", "180 Ringing", 1);
    world.send(back(&origin), ringing.as_bytes(), Some(token(9)), false);
    assert_eq!(world.record.failure(token(9)), SendFailure::Closed { reused: true });
    no_connections(&world);
}

#[test]
fn what_waits_on_a_connection_while_the_worker_is_at_work_is_said_to_have_waited() {
    const WORK: Duration = Duration::from_millis(80);
    let at_work = Arc::new(Barrier::new(2));
    let begins = Arc::clone(&at_work);
    let world = plan(TCP).start(move |s: &mut Scripted, now, seen: &Seen| {
        if let Seen::Message { bytes, .. } = seen
            && String::from_utf8_lossy(bytes).contains("work")
        {
            begins.wait();
            std::thread::sleep(WORK);
        }
        answering(s, now, seen);
    });
    let (mut first, mut second) = (connect(&world), connect(&world));
    for client in [&mut first, &mut second] {
        let message = request(0, "greeting");
        client.write_all(&message).unwrap();
        expect(client, &response_to(&message));
    }
    let (work, wait) = (request(1, "work"), request(2, "waiting"));
    first.write_all(&work).unwrap();
    at_work.wait();
    second.write_all(&wait).unwrap();
    expect(&mut first, &response_to(&work));
    expect(&mut second, &response_to(&wait));
    assert!(world.record.longest_wait() >= WORK / 4, "{:?}", world.record.longest_wait());
}
