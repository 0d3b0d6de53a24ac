//! What the check of a zone learns from name servers.

use hickory_proto::op::ResponseCode;

use super::server::{Server, asked_name, records, reply};
use crate::location::zone::{Facts, Severity, check};
use crate::runtime::dns::{Asked, survey};

/// A server with authority for these records, and none for the rest.
async fn serving(text: &'static str) -> Server {
    let all = records(text);
    Server::start(move |q, _| {
        let mut m = reply(q, ResponseCode::NoError);
        m.metadata.authoritative = true;
        let asked = asked_name(q);
        let kind = q.queries[0].query_type;
        let owned = |r: &&hickory_proto::rr::Record| {
            r.name.to_ascii().trim_end_matches('.') == asked
                && [kind, hickory_proto::rr::RecordType::CNAME].contains(&r.record_type())
        };
        m.add_answers(all.iter().filter(owned).cloned());
        Some(m)
    })
    .await
}

const ZONE: &str = "a.test 86400 NAPTR 1 1 \"s\" \"SIP+D2U\" \"\" _sip._udp.a.test
 _sip._udp.a.test 3600 SRV 1 1 5060 s1.a.test
 _sip._udp.a.test 3600 SRV 1 1 5060 s2.a.test
 s1.a.test 3600 A 198.51.100.1
 s2.a.test 3600 CNAME s1.a.test";

fn found(facts: &Facts) -> Vec<(Severity, &'static str)> {
    let mut codes: Vec<_> = check(facts).findings.iter().map(|f| (f.severity, f.code)).collect();
    codes.dedup();
    codes
}

#[tokio::test]
async fn aliases_and_times_are_seen_over_the_network() {
    let server = serving(ZONE).await;
    let facts = survey("a.test", &[Asked::Server(server.addr)]).await.unwrap();
    let codes = found(&facts);
    assert!(codes.contains(&(Severity::Error, "srv_target_alias")), "{codes:?}");
    assert!(codes.contains(&(Severity::Warning, "one_address")), "{codes:?}");
    assert!(codes.iter().all(|(_, code)| !code.starts_with("ttl_")), "{codes:?}");
    let mut asked = server.asked();
    let all = asked.len();
    asked.sort();
    asked.dedup();
    // The target of the alias is asked for along the way, and is a target too.
    assert!(all <= asked.len() + 2, "{asked:?}");
}

#[tokio::test]
async fn each_server_is_asked_and_one_that_differs_or_fails_is_named() {
    let good = serving(ZONE).await;
    let old = serving(
        "a.test 86400 NAPTR 1 1 \"s\" \"SIP+D2U\" \"\" _sip._udp.a.test
 _sip._udp.a.test 3600 SRV 1 1 5060 s1.a.test
 s1.a.test 3600 A 198.51.100.1",
    )
    .await;
    let failing = Server::start(|q, _| Some(reply(q, ResponseCode::ServFail))).await;
    let asked = [&good, &old, &failing].map(|s| Asked::Server(s.addr));
    let report = check(&survey("a.test", &asked).await.unwrap());
    let differ: Vec<&str> =
        report.findings.iter().filter(|f| f.code == "servers_differ").map(|f| f.about.as_str()).collect();
    assert!(differ.contains(&"_sip._udp.a.test. SRV") && !differ.contains(&"s1.a.test. A"), "{differ:?}");
    let failed: Vec<_> = report.findings.iter().filter(|f| f.code == "lookup_failed").collect();
    assert!(!failed.is_empty());
    assert!(
        failed.iter().all(|f| f.severity == Severity::Warning && f.what.contains("servfail")),
        "{failed:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_silent_to_everything_is_not_asked_again() {
    let good = serving(ZONE).await;
    // A port where nobody listens: known at once, and no different from silence.
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let facts = survey("a.test", &[Asked::Server(gone), Asked::Server(good.addr)]).await.unwrap();
    let failed: Vec<String> = check(&facts)
        .findings
        .iter()
        .filter(|f| f.code == "lookup_failed")
        .map(|f| f.about.clone())
        .collect();
    assert_eq!(failed.len(), 6, "the first questions: {failed:?}");
    let alone = survey("a.test", &[Asked::Server(gone)]).await.unwrap();
    assert_eq!(found(&alone), [(Severity::Error, "lookup_failed")]);
}
