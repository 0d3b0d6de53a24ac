use super::*;
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
