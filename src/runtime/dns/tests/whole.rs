//! Resolver, client and name servers on loopback together.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Record;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::script::{addrs, dns, enabled, host, key};
use super::server::{Server, records, reply};
use crate::config::{self, Families};
use crate::location::Outcome;
use crate::runtime::dns::{Resolver, WATCH_INTERVAL};

fn config(servers: &[SocketAddr]) -> config::Dns {
    config::Dns { servers: servers.to_vec(), addresses: Families::Ipv4, ..dns() }
}

fn resolver(servers: &[SocketAddr]) -> Resolver {
    Resolver::new(&config(servers), enabled(Families::Ipv4), 1000, Handle::current())
}

/// Answers from these records, aliases followed; NXDOMAIN for the rest.
async fn zone(text: &str) -> (Server, Arc<Mutex<Vec<Record>>>) {
    let zone = Arc::new(Mutex::new(records(text)));
    let shared = zone.clone();
    let server = Server::start(move |q, _| {
        let zone = shared.lock().unwrap();
        let question = &q.queries[0];
        let (mut owner, mut answers) = (question.name.clone(), Vec::new());
        loop {
            let of_owner = || zone.iter().filter(|r| r.name == owner);
            answers.extend(of_owner().filter(|r| r.record_type() == question.query_type).cloned());
            let alias = of_owner().find_map(|r| match &r.data {
                hickory_proto::rr::RData::CNAME(c) => Some((r.clone(), c.0.clone())),
                _ => None,
            });
            let Some((record, target)) = alias else { break };
            answers.insert(0, record);
            owner = target;
        }
        let mut m = reply(q, if answers.is_empty() { ResponseCode::NXDomain } else { ResponseCode::NoError });
        if answers.is_empty() {
            m.add_authorities(records("test 60 SOA 60"));
        }
        // Back to front: the order means nothing.
        answers.reverse();
        m.add_answers(answers);
        Some(m)
    })
    .await;
    (server, zone)
}

#[tokio::test]
async fn a_domain_behind_aliases_is_found_and_the_short_life_of_one_ends_the_result() {
    let text = "dest.test 60 CNAME hub.test
        hub.test 60 NAPTR 10 10 \"s\" \"SIP+D2U\" \"\" _sip._udp.hub.test
        _sip._udp.hub.test 60 SRV 10 0 5060 alias.test
        alias.test 1 CNAME real.test
        real.test 3600 A 192.0.2.1
        real2.test 3600 A 192.0.2.2";
    let (server, shared) = zone(text).await;
    let resolver = resolver(&[server.addr]);
    assert_eq!(addrs(&resolver.locate(key("dest.test")).await), ["192.0.2.1"]);
    *shared.lock().unwrap() = records(&text.replace("CNAME real.test", "CNAME real2.test"));
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(addrs(&resolver.locate(key("dest.test")).await), ["192.0.2.2"]);
}

#[tokio::test]
async fn other_servers_make_the_cache_run_out_but_not_forget() {
    let (old, _) = zone("b1.test 300 A 192.0.2.1").await;
    let (new, _) = zone("b1.test 300 A 192.0.2.2").await;
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let resolver = resolver(&[old.addr]);
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["192.0.2.1"]);
    resolver.reconfigure(&config(&[new.addr]));
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["192.0.2.2"]);
    resolver.reconfigure(&config(&[gone]));
    let located = resolver.locate(host("b1.test")).await;
    assert_eq!(addrs(&located), ["192.0.2.2"]);
    assert!(located.steps.iter().any(|s| s.stale));
}

#[tokio::test]
async fn a_dead_server_replaced_by_a_live_one_is_forgotten_at_once() {
    let dead = Server::start(|_, _| None).await;
    let (live, _) = zone("b1.test 300 A 192.0.2.1").await;
    let resolver = resolver(&[dead.addr]);
    let caller = resolver.clone();
    let early = tokio::spawn(async move { caller.locate(host("b1.test")).await });
    sleep(Duration::from_millis(50)).await;
    resolver.reconfigure(&config(&[live.addr]));
    let begun = Instant::now();
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::Found);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    early.abort();
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_a_second_later() {
    let up = Arc::new(AtomicBool::new(false));
    let flag = up.clone();
    let server = Server::start(move |q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.add_answers(records("b1.test 60 A 192.0.2.1"));
        Some(if flag.load(Ordering::Relaxed) { m } else { reply(q, ResponseCode::ServFail) })
    })
    .await;
    let resolver = resolver(&[server.addr]);
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::DnsFailure);
    up.store(true, Ordering::Relaxed);
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::Found);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_systems_configuration_is_taken_up_by_itself() {
    let dir = std::env::temp_dir().join(format!("sbe-dns-{}-watch", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("resolv.conf");
    std::fs::write(&file, "nameserver 192.0.2.53\n").unwrap();
    let resolver =
        Resolver::with_system(&config(&[]), enabled(Families::Ipv4), 100, Handle::current(), &file);
    assert_eq!(resolver.servers(), ["192.0.2.53:53".parse().unwrap()]);
    // Replaced as a whole, as resolvconf and DHCP clients do it, and of the same length.
    std::fs::write(dir.join("new"), "nameserver 192.0.2.54\n").unwrap();
    std::fs::rename(dir.join("new"), &file).unwrap();
    sleep(WATCH_INTERVAL * 2).await;
    assert_eq!(resolver.servers(), ["192.0.2.54:53".parse().unwrap()]);
    std::fs::remove_dir_all(&dir).unwrap();
}
