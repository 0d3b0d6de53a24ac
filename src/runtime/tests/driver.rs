//! Shards, locks, timers, locations and news.

use std::net::UdpSocket;

use super::*;
use crate::config::Realm;
use crate::flow::Host;
use crate::location::{Instance, Observation};
use crate::shard::io::Event;

const UDP: &[(Transport, &str)] = &[(Transport::Udp, "127.0.0.1:0")];

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn key(cached: bool) -> Output {
    let key = LocateKey {
        host: Host::Name("peer.test".into()),
        port: None,
        transport: None,
        sips: false,
        realm: Realm::Both,
    };
    Output::Locate { ticket: Ticket(u64::from(cached)), key }
}

#[test]
fn all_messages_of_a_call_meet_the_same_shard_whichever_worker_gets_them() {
    let world = plan(UDP).workers(3).start(answering);
    // One client: the spreading program, not the source port, decides who receives.
    let client = client();
    let mut buffer = [0; 2048];
    for call in 0..300 {
        client.send_to(&request(call, "who"), world.addr(0)).unwrap();
        client.recv(&mut buffer).unwrap();
    }
    let log = world.record.0.0.lock().unwrap();
    for (shard, seen) in log.iter() {
        let Seen::Message { bytes, .. } = seen else { panic!("{seen:?}") };
        assert_eq!(*shard, Scripted::shard_of(bytes, 0, 3));
    }
    assert_eq!(log.len(), 300);
}

#[test]
fn a_timer_fires_without_any_traffic_and_not_before_its_time() {
    let world = plan(UDP).start(|s: &mut Scripted, now, seen: &Seen| {
        if matches!(seen, Seen::Updated) {
            s.timeout = Some(now + Duration::from_millis(30));
        }
    });
    let before = Instant::now();
    world.handle.update(&Update::Drain(true));
    world.record.wait_count(1, |s| matches!(s, Seen::Timeout));
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_deadline_made_earlier_by_another_worker_is_kept() {
    // Everything belongs to shard 0; whichever worker gets the second message, the worker that
    // keeps shard 0's timers must wake up long before its appointment of ten minutes.
    let world = plan(UDP).workers(3).start(|s: &mut Scripted, now, seen: &Seen| {
        if let Seen::Message { bytes, .. } = seen {
            let far = String::from_utf8_lossy(bytes).contains("far");
            s.timeout = Some(now + if far { Duration::from_secs(600) } else { Duration::from_millis(8) });
        }
    });
    let client = client();
    for round in 1..=20 {
        client.send_to(&request(0, &format!("far {round}.")), world.addr(0)).unwrap();
        world.record.message(&format!("far {round}."));
        client.send_to(&request(0, &format!("near {round}.")), world.addr(0)).unwrap();
        world.record.wait_count(round, |s| matches!(s, Seen::Timeout));
    }
}

#[test]
fn a_cached_location_is_answered_in_the_same_turn_and_another_one_later() {
    for cached in [true, false] {
        let plan = Plan { cached, ..plan(UDP) };
        let world = plan.start(move |s: &mut Scripted, _, seen: &Seen| {
            if let Seen::Message { .. } = seen {
                s.outputs.push_back(key(cached));
            }
        });
        let client = client();
        client.send_to(&request(0, "one"), world.addr(0)).unwrap();
        world.record.wait_count(1, |s| matches!(s, Seen::Located(Ticket(t)) if *t == u64::from(cached)));
    }
}

#[test]
fn what_one_shard_sees_of_an_instance_all_others_hear() {
    let world = plan(UDP).workers(3).start(|s: &mut Scripted, _, seen: &Seen| {
        if let Seen::Message { origin, .. } = seen {
            let instance = Instance { transport: Transport::Udp, addr: origin.remote };
            s.outputs.push_back(Output::Event(Event::Health(instance, Observation::Answered)));
        }
    });
    client().send_to(&request(1, "news"), world.addr(0)).unwrap();
    world.record.wait_count(2, |s| matches!(s, Seen::Updated));
    let (from, ..) = world.record.message("news");
    let log = world.record.0.0.lock().unwrap();
    let mut heard: Vec<usize> =
        log.iter().filter(|(_, s)| matches!(s, Seen::Updated)).map(|(n, _)| *n).collect();
    heard.sort_unstable();
    assert_eq!((from, heard), (1, vec![0, 2]));
}

#[test]
fn a_panic_costs_one_message_and_not_the_node() {
    let world = plan(UDP).start(|s: &mut Scripted, now, seen: &Seen| {
        if let Seen::Message { bytes, .. } = seen {
            assert!(!String::from_utf8_lossy(bytes).contains("poison"));
        }
        answering(s, now, seen);
    });
    let client = client();
    let mut buffer = [0; 2048];
    client.send_to(&request(0, "poison"), world.addr(0)).unwrap();
    world.until("the panic is counted", |h| {
        h.counters().panics.load(std::sync::atomic::Ordering::Relaxed) == 1
    });
    // The script was lost in the panic; the element, its lock and the socket were not.
    client.send_to(&request(0, "food"), world.addr(0)).unwrap();
    world.record.message("food");
    let _ = &mut buffer;
}

#[test]
fn a_panic_before_the_shard_is_known_leaves_the_message_to_a_shard() {
    let world = plan(UDP).workers(2).start(silent);
    let client = client();
    for text in ["unreadable", "food"] {
        client.send_to(&request(1, text), world.addr(0)).unwrap();
        world.record.message(text);
    }
}

#[test]
fn an_address_in_use_is_an_error_that_names_the_listener() {
    for transport in [Transport::Udp, Transport::Tcp] {
        for n in [1, 2] {
            let first = plan(&[(transport, "127.0.0.1:0")]).workers(n).start(silent);
            let mut config = config(&[(transport, "127.0.0.1:0")]);
            config.runtime.workers = n;
            config.listen[0].bind = first.addr(0);
            let shards = || Scripted {
                shard: 0,
                record: Record::default(),
                script: None,
                outputs: VecDeque::new(),
                timeout: None,
            };
            let shards = (0..n).map(|_| shards()).collect();
            let error = start(&config, shards, Arc::new(Known { cached: true }), 0).err().expect("in use");
            assert!(
                error.to_string().starts_with(&format!("listener 0 ({transport} {})", first.addr(0))),
                "{error}"
            );
        }
    }
}

#[test]
fn a_tls_listener_without_certificates_is_refused_with_a_reason() {
    let config = config(&[(Transport::Tls, "127.0.0.1:0")]);
    let shard = Scripted {
        shard: 0,
        record: Record::default(),
        script: None,
        outputs: VecDeque::new(),
        timeout: None,
    };
    let error = start(&config, vec![shard], Arc::new(Known { cached: true }), 0).err().expect("refused");
    assert!(matches!(error, StartError::NoTls { .. }), "{error}");
}
