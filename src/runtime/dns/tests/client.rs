//! The client against a name server on loopback.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

use super::server::{Server, asked_name, record, records, reply};
use crate::location::{Question, RecordKind, Records};
use crate::runtime::dns::client::Client;
use crate::runtime::dns::upstream::{Failure, Found, Reply, Upstream};

const NO_FILE: &str = "/nonexistent/resolv.conf";

async fn ask(servers: &[SocketAddr], name: &str, kind: RecordKind) -> Reply {
    let client = Client::new(servers, Path::new(NO_FILE));
    client.query(Question::new(name.into(), kind)).await
}

fn addrs(reply: &Reply) -> (Vec<String>, u64) {
    match &reply.found {
        Found::Records(set, ttl) => match &set.records {
            Records::Addr(v) => (v.iter().map(IpAddr::to_string).collect(), ttl.as_secs()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// A server that answers every question with these records in the answer section.
async fn answering(text: &str) -> Server {
    let all = records(text);
    Server::start(move |q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answers(all.clone());
        Some(m)
    })
    .await
}

#[tokio::test]
async fn the_least_ttl_of_a_set_counts_whatever_the_case_of_its_owner() {
    let server = answering("DEST.Example.test 300 A 192.0.2.1\n dest.example.test 60 A 192.0.2.2").await;
    let reply = ask(&[server.addr], "dest.example.test", RecordKind::A).await;
    assert_eq!(addrs(&reply), (vec!["192.0.2.1".into(), "192.0.2.2".into()], 60));
    assert_eq!(server.asked(), [("udp", "dest.example.test".into(), RecordType::A)]);
}

#[tokio::test]
async fn aliases_are_followed_in_any_order_and_their_ttl_counts() {
    for text in [
        "alias 2 CNAME mid\n mid 40 CNAME real\n real 3600 A 192.0.2.1",
        "real 3600 A 192.0.2.1\n mid 40 CNAME real\n alias 2 CNAME mid",
    ] {
        let server = answering(text).await;
        let reply = ask(&[server.addr], "alias", RecordKind::A).await;
        assert_eq!(addrs(&reply), (vec!["192.0.2.1".into()], 2));
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn an_alias_whose_target_is_not_in_the_answer_is_asked_for() {
    let server = Server::start(|q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answer(record(match asked_name(q).as_str() {
            "alias" => "alias 7 CNAME mid",
            "mid" => "mid 5 CNAME real",
            _ => "real 3600 AAAA 2001:db8::1",
        }));
        Some(m)
    })
    .await;
    let reply = ask(&[server.addr], "alias", RecordKind::Aaaa).await;
    assert_eq!(addrs(&reply), (vec!["2001:db8::1".into()], 5));
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_loop_of_aliases_ends_with_few_queries() {
    let whole = answering("x 60 CNAME y\n y 60 CNAME x").await;
    let reply = ask(&[whole.addr], "x", RecordKind::A).await;
    assert_eq!(reply.found, Found::Failure(Failure::Aliases));
    assert_eq!(whole.asked().len(), 1);

    let bit_by_bit = Server::start(|q, _| {
        let mut m = reply_to_loop(q);
        m.metadata.authoritative = true;
        Some(m)
    })
    .await;
    let reply = ask(&[bit_by_bit.addr], "x", RecordKind::A).await;
    assert_eq!(reply.found, Found::Failure(Failure::Aliases));
    assert!(bit_by_bit.asked().len() <= 9, "{}", bit_by_bit.asked().len());
}

fn reply_to_loop(q: &Message) -> Message {
    let mut m = reply(q, ResponseCode::NoError);
    m.add_answer(record(if asked_name(q) == "x" { "x 60 CNAME y" } else { "y 60 CNAME x" }));
    m
}

#[tokio::test]
async fn negative_answers_live_as_long_as_the_lesser_of_soa_ttl_and_minimum() {
    for (code, soa, want) in [
        (ResponseCode::NXDomain, Some("test 3600 SOA 2"), Found::NxDomain(Some(Duration::from_secs(2)))),
        (ResponseCode::NXDomain, Some("test 3 SOA 900"), Found::NxDomain(Some(Duration::from_secs(3)))),
        (ResponseCode::NoError, Some("test 3600 SOA 5"), Found::NoData(Some(Duration::from_secs(5)))),
        (ResponseCode::NoError, None, Found::NoData(None)),
        (ResponseCode::NXDomain, None, Found::NxDomain(None)),
    ] {
        let server = Server::start(move |q, _| {
            let mut m = reply(q, code);
            m.add_authorities(soa.map(record));
            Some(m)
        })
        .await;
        assert_eq!(ask(&[server.addr], "none.test", RecordKind::Srv).await.found, want);
    }
}

#[tokio::test]
async fn a_negative_answer_behind_an_alias_does_not_outlive_the_alias() {
    let server = Server::start(|q, _| {
        let mut m = reply(q, ResponseCode::NXDomain);
        m.add_answer(record("alias.test 2 CNAME gone.test"));
        m.add_authority(record("test 3600 SOA 3600"));
        Some(m)
    })
    .await;
    let reply = ask(&[server.addr], "alias.test", RecordKind::A).await;
    assert_eq!(reply.found, Found::NxDomain(Some(Duration::from_secs(2))));
}

#[tokio::test]
async fn failures_are_told_apart() {
    for (code, want) in [
        (ResponseCode::ServFail, Failure::ServFail),
        (ResponseCode::Refused, Failure::Refused),
        (ResponseCode::NotZone, Failure::Other),
    ] {
        let server = Server::start(move |q, _| Some(reply(q, code))).await;
        assert_eq!(ask(&[server.addr], "x.test", RecordKind::A).await.found, Found::Failure(want));
        assert_eq!(server.asked().len(), 1, "a server that says it fails is not asked again at once");
    }
}

#[tokio::test]
async fn a_truncated_answer_is_asked_for_again_by_tcp() {
    let server = Server::start(|q, by| {
        let mut m = reply(q, ResponseCode::NoError);
        if by == "udp" {
            m.metadata.truncation = true;
            m.add_answer(record("many.test 60 A 192.0.2.1"));
        } else {
            m.add_answers((1..=200).map(|i| record(&format!("many.test 60 A 192.0.2.{i}"))));
        }
        Some(m)
    })
    .await;
    let reply = ask(&[server.addr], "many.test", RecordKind::A).await;
    assert_eq!(addrs(&reply).0.len(), 200);
    assert_eq!(server.asked().iter().map(|a| a.0).collect::<Vec<_>>(), ["udp", "tcp"]);
}

#[tokio::test]
async fn edns_is_offered_and_left_out_for_a_server_from_before_it() {
    let server = Server::start(|q, _| {
        if let Some(edns) = &q.edns {
            assert_eq!(edns.max_payload(), 1232);
            return Some(reply(q, ResponseCode::FormErr));
        }
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answer(record("old.test 60 A 192.0.2.1"));
        Some(m)
    })
    .await;
    assert_eq!(addrs(&ask(&[server.addr], "old.test", RecordKind::A).await).1, 60);
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn a_server_that_fails_or_is_gone_costs_no_time_when_there_is_another() {
    let failing = Server::start(|q, _| Some(reply(q, ResponseCode::ServFail))).await;
    // A port where nobody listens any more: ICMP says so.
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let good = answering("x.test 60 A 192.0.2.1").await;
    let begun = Instant::now();
    let reply = ask(&[failing.addr, gone, good.addr], "x.test", RecordKind::A).await;
    assert_eq!(addrs(&reply).1, 60);
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_known_at_once() {
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begun = Instant::now();
    assert_eq!(ask(&[gone], "x.test", RecordKind::A).await.found, Found::Failure(Failure::Timeout));
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_silent_server_is_passed_over_and_remembered() {
    let silent = Server::start(|_, _| None).await;
    let good = answering("x.test 60 A 192.0.2.1").await;
    let client = Client::new(&[silent.addr, good.addr], Path::new(NO_FILE));
    let question = || Question::new("x.test".into(), RecordKind::A);
    let begun = Instant::now();
    assert_eq!(addrs(&client.query(question()).await).1, 60);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(addrs(&client.query(question()).await).1, 60);
    }
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(silent.asked().len(), 1);
}

#[tokio::test]
async fn silence_ends_in_a_timeout_within_three_seconds() {
    let silent = Server::start(|_, _| None).await;
    let begun = Instant::now();
    let found = ask(&[silent.addr], "x.test", RecordKind::A).await.found;
    assert_eq!(found, Found::Failure(Failure::Timeout));
    assert!(begun.elapsed() < Duration::from_millis(3500), "{:?}", begun.elapsed());
    assert_eq!(silent.asked().len(), 3);
}

#[tokio::test]
async fn a_lost_datagram_is_made_up_for() {
    let count = AtomicU32::new(0);
    let server = Server::start(move |q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answer(record("x.test 60 A 192.0.2.1"));
        (count.fetch_add(1, Ordering::Relaxed) > 0).then_some(m)
    })
    .await;
    assert_eq!(addrs(&ask(&[server.addr], "x.test", RecordKind::A).await).1, 60);
}

#[tokio::test]
async fn an_answer_to_another_question_or_with_another_id_is_no_answer() {
    for wrong_id in [true, false] {
        let server = Server::start(move |q, _| {
            let mut m = reply(q, ResponseCode::NoError);
            if wrong_id {
                m.metadata.id = m.metadata.id.wrapping_add(1);
            } else {
                m.queries[0].name = super::server::name("evil.test");
            }
            m.add_answer(record("x.test 60 A 192.0.2.66"));
            Some(m)
        })
        .await;
        let found = ask(&[server.addr], "x.test", RecordKind::A).await.found;
        assert!(matches!(found, Found::Failure(_)), "{found:?}");
    }
}

#[tokio::test]
async fn records_of_other_owners_are_no_answer() {
    let server = answering("evil.test 60 A 192.0.2.66").await;
    assert_eq!(ask(&[server.addr], "x.test", RecordKind::A).await.found, Found::NoData(None));
}

#[tokio::test]
async fn ports_and_ids_differ_from_query_to_query() {
    let ids = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = ids.clone();
    let server = Server::start(move |q, _| {
        seen.lock().unwrap().insert(q.metadata.id);
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answer(record("x.test 60 A 192.0.2.1"));
        Some(m)
    })
    .await;
    for _ in 0..50 {
        ask(&[server.addr], "x.test", RecordKind::A).await;
    }
    assert!(ids.lock().unwrap().len() > 45);
}

#[tokio::test]
async fn only_companions_of_targets_are_taken_from_the_additional_section() {
    let server = Server::start(|q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answers(records(
            "_sip._udp.x.test 60 SRV 1 2 5060 B1.x.test\n _sip._udp.x.test 60 SRV 1 2 5060 b2.x.test",
        ));
        m.add_additionals(records(
            "b1.x.test 30 A 192.0.2.1\n b1.x.test 20 A 192.0.2.2\n b2.x.test 40 AAAA 2001:db8::2
             evil.test 60 A 192.0.2.66\n b1.x.test 60 SRV 0 0 1 evil.test",
        ));
        Some(m)
    })
    .await;
    let reply = ask(&[server.addr], "_sip._udp.x.test", RecordKind::Srv).await;
    let also: Vec<_> =
        reply.also.iter().map(|(q, set, ttl)| (q.to_string(), set.len(), ttl.as_secs())).collect();
    assert_eq!(also, [("b1.x.test. A".into(), 2, 20), ("b2.x.test. AAAA".to_owned(), 1, 40)]);
}

#[tokio::test]
async fn naptr_records_bring_the_srv_records_of_their_replacements() {
    let server = Server::start(|q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answer(record("x.test 60 NAPTR 10 20 \"s\" \"SIP+D2U\" \"\" _sip._udp.x.test"));
        m.add_additionals(records("_sip._udp.x.test 50 SRV 1 2 5060 b1.x.test\n b1.x.test 40 A 192.0.2.1"));
        Some(m)
    })
    .await;
    let reply = ask(&[server.addr], "x.test", RecordKind::Naptr).await;
    let Found::Records(set, _) = &reply.found else { panic!("{:?}", reply.found) };
    let Records::Naptr(naptr) = &set.records else { panic!("{set:?}") };
    assert_eq!(
        (&*naptr[0].flags, &*naptr[0].service, &*naptr[0].replacement),
        ("s", "SIP+D2U", "_sip._udp.x.test")
    );
    assert_eq!(reply.also.iter().map(|a| a.0.to_string()).collect::<Vec<_>>(), ["_sip._udp.x.test. SRV"]);
}

#[tokio::test]
async fn the_root_as_target_is_an_empty_name() {
    let server = answering("_sip._udp.x.test 60 SRV 0 0 0 .").await;
    let reply = ask(&[server.addr], "_sip._udp.x.test", RecordKind::Srv).await;
    let Found::Records(set, _) = &reply.found else { panic!("{:?}", reply.found) };
    let Records::Srv(srv) = &set.records else { panic!("{set:?}") };
    assert_eq!(&*srv[0].target, "");
}

#[tokio::test]
async fn a_name_that_no_zone_can_hold_is_not_asked_for() {
    let server = answering("").await;
    let long = "a".repeat(64);
    let found = ask(&[server.addr], &format!("{long}.test"), RecordKind::A).await.found;
    assert!(matches!(found, Found::NxDomain(Some(_))), "{found:?}");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn the_systems_servers_are_used_without_its_search_list() {
    let dir = std::env::temp_dir().join(format!("sbe-dns-{}-system", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("resolv.conf");
    std::fs::write(
        &file,
        "search provider.test\noptions ndots:5\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n",
    )
    .unwrap();
    let client = Client::new(&[], &file);
    assert_eq!(client.servers(), ["192.0.2.53:53".parse().unwrap(), "[2001:db8::53]:53".parse().unwrap()]);
    assert!(!client.reread());
    std::fs::write(&file, "nameserver 192.0.2.54\n").unwrap();
    assert!(client.reread());
    assert_eq!(client.servers(), ["192.0.2.54:53".parse().unwrap()]);
    std::fs::write(&file, "# none\n").unwrap();
    assert!(client.reread());
    assert_eq!(client.servers(), ["127.0.0.1:53".parse().unwrap()], "the documented fallback");
    assert!(client.reconfigure(&["192.0.2.55:5353".parse().unwrap()], &file));
    assert_eq!(client.servers(), ["192.0.2.55:5353".parse().unwrap()]);
    assert_eq!(client.watched(), None);
    std::fs::remove_dir_all(&dir).unwrap();
}
