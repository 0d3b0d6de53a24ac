use super::*;
use crate::flow::{TlsExpectation, TlsIdentity};
use crate::runtime::pool::NewConn;

fn from(remote: &str, direction: Direction) -> NewConn {
    NewConn {
        transport: Transport::Tcp,
        direction,
        remote: remote.parse().unwrap(),
        local: "127.0.0.1".parse().unwrap(),
        wanted: None,
    }
}

#[test]
fn one_address_gets_a_quarter_of_the_connections_and_the_rest_is_left_to_others() {
    let pool = Pool::new(1_000, 1_000);
    let now = Instant::now();
    let held: Vec<_> =
        (0..250).map(|_| pool.admit(from("192.0.2.1:1", Direction::In), now).unwrap()).collect();
    assert!(pool.admit(from("192.0.2.1:2", Direction::In), now).is_none());
    assert!(pool.admit(from("192.0.2.2:1", Direction::In), now).is_some(), "another address");
    assert!(pool.admit(from("192.0.2.1:5060", Direction::Out), now).is_some(), "what we open ourselves");
    pool.remove(&held[0]);
    pool.remove(&held[0]);
    assert!(pool.admit(from("192.0.2.1:3", Direction::In), now).is_some(), "one has gone");
    assert!(pool.admit(from("192.0.2.1:4", Direction::In), now).is_none(), "and only one");
}

#[test]
fn of_two_connections_opened_at_the_same_time_both_ends_use_the_same_one() {
    let now = Instant::now();
    let ends: [SocketAddr; 2] = ["127.0.0.1:5061".parse().unwrap(), "127.0.0.2:5061".parse().unwrap()];
    let expectation = |name: &str| TlsExpectation {
        server_name: name.into(),
        accepted: Arc::from([name.to_owned()]),
        peer: None,
    };
    // The pool of one end, with a connection to the other and one from it; gives which one is used before the
    // first is open, and then.
    let used = |me: SocketAddr, other: SocketAddr| {
        let pool = Pool::new(100, 1_000);
        let hop = Hop { tls: Some(Arc::new(expectation("other"))), ..hop(Transport::Tls, 0, other) };
        let tls = |direction, remote, wanted| NewConn {
            transport: Transport::Tls,
            direction,
            remote,
            local: me.ip(),
            wanted,
        };
        let identity = || Arc::new(TlsIdentity { names: vec!["other".to_owned()] });
        let ours = pool.admit(tls(Direction::Out, other, hop.tls.clone()), now).unwrap();
        let theirs = pool.admit(tls(Direction::In, SocketAddr::new(other.ip(), 40_000), None), now).unwrap();
        assert!(!pool.offered(&theirs, other.port()), "it has proved nothing yet");
        theirs.verified(identity());
        theirs.opened();
        assert!(pool.offered(&theirs, other.port()) && !pool.offered(&theirs, 9));
        let find = || pool.find(&hop, me, now).unwrap().direction;
        let first = find();
        ours.verified(identity());
        ours.opened();
        let fresh = Hop { fresh: true, ..hop.clone() };
        assert_eq!(pool.find(&fresh, me, now).unwrap().direction, Direction::Out);
        let then = find();
        pool.remove(&theirs);
        assert_eq!(find(), Direction::Out);
        pool.remove(&ours);
        assert!(pool.find(&hop, me, now).is_none());
        (first, then)
    };
    // The one that is open, as long as there is only one; then the one that the lower address has opened.
    assert_eq!(used(ends[0], ends[1]), (Direction::In, Direction::Out));
    assert_eq!(used(ends[1], ends[0]), (Direction::In, Direction::In));
}

#[test]
fn what_begins_a_call_leaves_a_quarter_of_the_queue_to_what_ends_calls() {
    let pool = Pool::new(100, 1_000);
    let conn = pool.admit(from("192.0.2.1:5060", Direction::In), Instant::now()).unwrap();
    let message = |start: &str| Bytes::from(format!("{start:.<300}"));
    assert_eq!(conn.push(message("INVITE sip:a"), None, true), Ok(()));
    assert_eq!(conn.push(message("INVITE sip:b"), None, true), Ok(()));
    assert_eq!(conn.push(message("INVITE sip:c"), None, true), Err(SendFailure::QueueFull));
    assert_eq!(conn.push(message("BYE sip:d"), None, true), Ok(()));
    assert_eq!(conn.push(message("SIP/2.0 200"), None, false), Err(SendFailure::QueueFull));
    conn.written(900);
    assert_eq!(conn.push(message("INVITE sip:e"), None, true), Ok(()));
}
