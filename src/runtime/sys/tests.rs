use std::os::fd::AsFd;
use std::time::Instant;

use super::*;

#[test]
fn addresses_survive_the_way_through_the_kernel_form() {
    for text in ["192.0.2.7:5060", "[2001:db8::7]:5061", "[fe80::1]:5060"] {
        let address: SocketAddr = text.parse().expect("a literal");
        let mut storage = no_address();
        write_address(address, &mut storage);
        assert_eq!(read_address(&storage), Some(address));
    }
    assert_eq!(read_address(&no_address()), None);
}

#[test]
fn the_wait_of_a_datagram_and_the_queue_of_a_stream_are_known() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    receive_times(socket.as_fd());
    let mut room = RecvBatch::new();
    assert_eq!(room.waited(), None, "nothing received");
    // The kernel begins to stamp a little after it has been asked to; until then it stamps when we receive.
    let mut waits = (0..200).map(|_| {
        let before = Instant::now();
        socket.send_to(b"x", socket.local_addr().expect("bound")).expect("sent");
        while before.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert_eq!(room.receive(socket.as_fd(), false).expect("received"), 1);
        room.waited().expect("the system stamps datagrams")
    });
    assert!(waits.any(|waited| waited > Duration::from_millis(4)), "never the time it waited");
    drop(waits);

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    assert_eq!(queued(server.as_fd()), 0);
    client.write_all(&[0; 1000]).expect("written");
    server.peek(&mut [0]).expect("arrived");
    assert_eq!(queued(server.as_fd()), 1000);
    assert_eq!(unacknowledged(client.as_fd()), 0);
    // Whatever is written after the other end has gone stays unacknowledged, the reset notwithstanding.
    let mut server = server;
    server.read_exact(&mut [0; 1000]).expect("read");
    drop(server);
    client.write_all(&[0; 700]).expect("written");
    while client.take_error().expect("told").is_none() {
        std::hint::spin_loop();
    }
    assert_eq!(unacknowledged(client.as_fd()), 700);
}

#[test]
fn only_errors_that_a_transaction_should_heed_mean_unreachable() {
    assert!(means_unreachable(libc::SO_EE_ORIGIN_ICMP, 3, 3));
    assert!(means_unreachable(libc::SO_EE_ORIGIN_ICMP6, 1, 4));
    assert!(!means_unreachable(libc::SO_EE_ORIGIN_ICMP, 3, 4), "fragmentation needed");
    assert!(!means_unreachable(libc::SO_EE_ORIGIN_ICMP, 11, 0), "time exceeded");
    assert!(!means_unreachable(libc::SO_EE_ORIGIN_LOCAL, 0, 0));
}

#[test]
fn a_batch_that_is_used_again_tells_of_each_datagram_anew() {
    use std::net::UdpSocket;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    receive_local_address(socket.as_fd(), false).expect("an option");
    let to = socket.local_addr().expect("bound");
    let senders = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let mut room = RecvBatch::new();
    for (round, n) in [1, 4, 9, 1, 0, 2, 40, 3, 1, 1, 30, 5].into_iter().enumerate() {
        for with_local in [false, true, true, false] {
            let sent: Vec<_> =
                (0..n).map(|i| (&senders[(round + i) % 2], vec![i as u8; 1 + i * round])).collect();
            for (sender, octets) in &sent {
                sender.send_to(octets, to).expect("sent");
            }
            let mut received = 0;
            while let Ok(some) = room.receive(socket.as_fd(), with_local) {
                for i in 0..some {
                    let datagram = room.get(i).expect("received");
                    let (sender, octets) = &sent[received];
                    assert_eq!(datagram.remote, sender.local_addr().expect("bound"));
                    assert_eq!((datagram.bytes, datagram.truncated), (&octets[..], false));
                    assert_eq!(datagram.local, with_local.then_some(to.ip()));
                    received += 1;
                }
                assert!(room.get(some).is_none());
            }
            assert_eq!(received, n, "round {round}");
        }
    }
}

/// Has the kernel refuse runs on this process's sockets with that address: it divides none without checksums.
pub(in crate::runtime) fn refuse_runs(local: SocketAddr) {
    let mut found = false;
    for fd in 3..1024 {
        let mut storage = no_address();
        let mut len = mem::size_of_val(&storage) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` octets there, and looks the descriptor up itself.
        let rc = unsafe { libc::getsockname(fd, ptr::from_mut(&mut storage).cast(), &raw mut len) };
        if rc == 0 && read_address(&storage) == Some(local) {
            found |= set_int(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).is_ok();
        }
    }
    assert!(found, "no socket at {local}");
}

#[test]
fn runs_are_made_of_what_is_alike_and_no_longer_than_allowed() {
    use std::net::UdpSocket;
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let receivers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let to = [0, 1].map(|i: usize| receivers[i].local_addr().expect("bound"));
    let mut batch = SendBatch::new();
    let mut runs = |part: usize, datagrams: &[(usize, usize)]| {
        let octets = vec![7; RUN];
        let datagrams = datagrams.iter().map(|(whose, len)| (to[*whose], &octets[..*len]));
        batch.send(sender.as_fd(), part, datagrams).expect("sent");
        batch.sent_runs().collect::<Vec<_>>()
    };
    assert_eq!(runs(RUN, &[(0, 5), (0, 5), (0, 5)]), [3]);
    assert_eq!(runs(RUN, &[(0, 5), (0, 5), (0, 4), (0, 4)]), [3, 1], "a shorter one ends it");
    assert_eq!(runs(RUN, &[(0, 4), (0, 5), (0, 5)]), [1, 2], "a longer one begins another");
    assert_eq!(runs(RUN, &[(0, 5), (1, 5), (1, 5), (0, 5)]), [1, 2, 1]);
    assert_eq!(runs(4, &[(0, 5), (0, 5), (0, 4), (0, 4)]), [1, 1, 2]);
    assert_eq!(runs(0, &[(0, 5), (0, 5)]), [1, 1]);
    assert_eq!(runs(RUN, &[(0, 0), (0, 0), (0, 5)]), [1, 1, 1], "empty ones");
    assert_eq!(
        runs(RUN, &[(0, 25_000), (0, 25_000), (0, 25_000)]),
        [2, 1],
        "no longer than a datagram can be"
    );
    assert_eq!(runs(RUN, &[(0, 5); 40]), [BATCH]);
}
