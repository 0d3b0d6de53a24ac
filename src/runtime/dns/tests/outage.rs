//! What happens when name servers fail, are slow or are asked too much; in virtual time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::script::{Mood, Script, addrs, dns, host, key, resolver};
use crate::config::{self, Families};
use crate::location::{Outcome, RecordKind};
use crate::runtime::dns::Resolver;

const SECOND: Duration = Duration::from_secs(1);

const DEST: &str = "
    dest.test 60 NAPTR 10 10 SIP+D2U _sip._udp.dest.test
    _sip._udp.dest.test 60 SRV 10 0 5060 b1.test
    b1.test 60 A 192.0.2.1
    b1.test 60 AAAA 2001:db8::1";

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn cache_counts(resolver: &Resolver) -> Vec<(&'static str, u64)> {
    resolver.stats().cache().collect()
}

#[tokio::test(start_paused = true)]
async fn many_at_once_share_one_location_and_disturb_no_other() {
    let script = Script::new();
    script.zone(DEST);
    script.mood("slow.test", Mood::Silent);
    let resolver = resolver(&script, &dns());
    let begun = Instant::now();
    let mut calls = Vec::new();
    for _ in 0..500 {
        let resolver = resolver.clone();
        calls.push(tokio::spawn(async move { resolver.locate(key("slow.test")).await }));
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(script.take(), ["slow.test. NAPTR"]);
    let at = Instant::now();
    assert_eq!(resolver.locate(key("dest.test")).await.outcome, Outcome::Found);
    assert!(at.elapsed() < Duration::from_millis(10), "{:?}", at.elapsed());
    for call in calls {
        let located = call.await.unwrap();
        assert!(matches!(located.outcome, Outcome::TimedOut), "{:?}", located.outcome);
    }
    assert!(begun.elapsed() <= 5 * SECOND, "{:?}", begun.elapsed());
    let asked = script.take().into_iter().filter(|q| q.contains("slow")).count();
    assert!(asked <= 4, "{asked}");
    // The failure is held: at once, without a query.
    let again = resolver.locate_cached(&key("slow.test"), now()).unwrap();
    assert_eq!(again.outcome.status(), 500);
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_call_fails_while_the_dns_is_gone_for_less_than_the_stale_time() {
    for mood in [Mood::Silent, Mood::ServFail] {
        let script = Script::new();
        script.zone(DEST);
        let resolver = resolver(&script, &dns());
        let fresh = resolver.locate(key("dest.test")).await;
        script.mood("", mood);
        let begun = Instant::now();
        let mut slowest = Duration::ZERO;
        let mut waits = 0;
        // Stale for an hour after the minute of the TTL.
        while begun.elapsed() < Duration::from_secs(3600) {
            let at = Instant::now();
            let located = resolver.locate(key("dest.test")).await;
            assert_eq!(addrs(&located), addrs(&fresh), "{mood:?} after {:?}", begun.elapsed());
            slowest = slowest.max(at.elapsed());
            waits += u32::from(at.elapsed() > Duration::from_millis(5));
            sleep(Duration::from_millis(500)).await;
        }
        assert!(slowest <= Duration::from_millis(501), "{slowest:?}");
        assert!(waits <= 1, "{waits} calls waited");
        assert!(resolver.entries(10).iter().all(|e| e.stale && e.ttl.is_zero() && e.outcome == "found"));
        // Rule 16: at most one query a second for a name and type; four of these.
        let asked = script.take().len();
        assert!(asked <= 4 * 3600 + 8, "{asked}");
        let stale = cache_counts(&resolver)[2];
        assert!(stale.1 > 1000, "{stale:?}");

        // Over the stale time there is nothing left to say.
        sleep(Duration::from_secs(70)).await;
        assert_eq!(resolver.locate(key("dest.test")).await.outcome.status(), 500);

        // Back again.
        script.mood("", Mood::Good(Some(60)));
        sleep(2 * SECOND).await;
        assert_eq!(addrs(&resolver.locate(key("dest.test")).await), addrs(&fresh));
    }
}

#[tokio::test(start_paused = true)]
async fn stale_answers_end_when_the_dns_is_back() {
    let script = Script::new();
    script.zone("b1.test 10 A 192.0.2.1\n b1.test 10 AAAA 2001:db8::1");
    let resolver = resolver(&script, &dns());
    resolver.locate(host("b1.test")).await;
    script.mood("", Mood::ServFail);
    sleep(15 * SECOND).await;
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await).len(), 2);
    script.mood("", Mood::Good(Some(60)));
    script.zone("b1.test 10 A 192.0.2.2\n b1.test 10 AAAA 2001:db8::2");
    sleep(2 * SECOND).await;
    resolver.locate(host("b1.test")).await;
    sleep(2 * SECOND).await;
    let located = resolver.locate(host("b1.test")).await;
    assert!(addrs(&located).contains(&"192.0.2.2".to_owned()), "{:?}", addrs(&located));
}

#[tokio::test(start_paused = true)]
async fn without_a_stale_time_an_expired_entry_is_never_used() {
    let script = Script::new();
    script.zone("b1.test 10 A 192.0.2.1\n b1.test 10 AAAA 2001:db8::1");
    let resolver = resolver(&script, &crate::config::Dns { stale_ttl: Duration::ZERO, ..dns() });
    resolver.locate(host("b1.test")).await;
    script.mood("", Mood::ServFail);
    sleep(10 * SECOND).await;
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::DnsFailure);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_gone_is_not_served_stale() {
    let script = Script::new();
    script.zone("b1.test 10 A 192.0.2.1\n b1.test 10 AAAA 2001:db8::1");
    let resolver = resolver(&script, &dns());
    resolver.locate(host("b1.test")).await;
    sleep(11 * SECOND).await;
    script.forget("b1.test");
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::NoSuchName);
    script.mood("", Mood::ServFail);
    sleep(SECOND).await;
    assert_eq!(resolver.locate(host("b1.test")).await.outcome, Outcome::NoSuchName);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_held_for_a_second_and_no_longer() {
    let script = Script::new();
    script.zone("ne.test 60 A 192.0.2.1");
    script.mood("", Mood::ServFail);
    let config = crate::config::Dns { addresses: Families::Ipv4, ..dns() };
    let resolver = resolver(&script, &config);
    for _ in 0..300 {
        assert_eq!(resolver.locate(host("ne.test")).await.outcome, Outcome::DnsFailure);
        sleep(Duration::from_millis(10)).await;
    }
    let asked = script.take().len();
    assert!((3..=4).contains(&asked), "{asked}");
    script.mood("", Mood::Good(Some(60)));
    sleep(SECOND).await;
    assert_eq!(resolver.locate(host("ne.test")).await.outcome, Outcome::Found);
}

#[tokio::test(start_paused = true)]
async fn a_location_keeps_to_its_budget() {
    let script = Script::new();
    script.zone("dest.test 60 NAPTR 10 10 SIP+D2U _sip._udp.dest.test");
    script.mood("_sip._udp.dest.test", Mood::Silent);
    let resolver = resolver(&script, &crate::config::Dns { timeout: 2 * SECOND, ..dns() });
    let begun = Instant::now();
    let located = resolver.locate(key("dest.test")).await;
    assert_eq!(located.outcome, Outcome::TimedOut);
    assert_eq!(begun.elapsed().as_secs(), 2);
    assert!(located.expires <= now() + SECOND);
}

#[tokio::test(start_paused = true)]
async fn too_many_queries_wait_for_their_turn() {
    let script = Script::new();
    for i in 0..600 {
        script.zone(&format!("n{i}.test 60 A 192.0.2.1"));
        script.delay(&format!("n{i}.test"), RecordKind::A, Duration::from_millis(100));
    }
    let resolver = resolver(&script, &crate::config::Dns { addresses: Families::Ipv4, ..dns() });
    let calls: Vec<_> = (0..600)
        .map(|i| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.locate(host(&format!("n{i}.test"))).await })
        })
        .collect();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(script.take().len(), crate::runtime::dns::MAX_QUERIES);
    for call in calls {
        assert_eq!(call.await.unwrap().outcome, Outcome::Found);
    }
    assert_eq!(script.take().len(), 600 - crate::runtime::dns::MAX_QUERIES);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_is_tried_again_before_the_life_is_over() {
    let script = Script::new();
    script.zone("b1.test 600 A 192.0.2.1");
    let config = crate::config::Dns { addresses: Families::Ipv4, ..dns() };
    let resolver = resolver(&script, &config);
    resolver.locate(host("b1.test")).await;
    script.mood("", Mood::ServFail);
    sleep(Duration::from_secs(545)).await;
    for _ in 0..20 {
        assert!(resolver.locate_cached(&host("b1.test"), now()).is_some());
        sleep(SECOND).await;
    }
    let tries = script.take().len();
    assert!((3..=21).contains(&tries), "{tries}");
    script.mood("", Mood::Good(Some(60)));
    script.zone("b1.test 600 A 192.0.2.2");
    for _ in 0..60 {
        let located = resolver.locate_cached(&host("b1.test"), now()).unwrap();
        assert!(!located.steps.iter().any(|s| s.stale));
        sleep(SECOND).await;
    }
    let located = resolver.locate_cached(&host("b1.test"), now()).unwrap();
    assert_eq!(addrs(&located), ["192.0.2.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_swallows_naptr_questions_leaves_time_for_srv_and_costs_later_calls_little() {
    let script = Script::new();
    script.zone("_sip._udp.mute.test 300 SRV 10 0 5060 b1.test\nb1.test 300 A 192.0.2.1");
    script.mood("mute.test", Mood::Silent);
    script.mood("_udp.mute.test", Mood::Good(Some(60)));
    script.mood("_tcp.mute.test", Mood::Good(Some(60)));
    let resolver = resolver(&script, &config::Dns { timeout: 3 * SECOND, ..dns() });
    let begun = Instant::now();
    let located = resolver.locate(key("mute.test")).await;
    assert_eq!((located.outcome, addrs(&located)), (Outcome::Found, vec!["192.0.2.1".to_owned()]));
    assert!(begun.elapsed() < Duration::from_millis(1600), "{:?}", begun.elapsed());
    // Once the question has failed, and the result has run out, the next call waits a moment only.
    sleep(5 * SECOND).await;
    let begun = Instant::now();
    assert_eq!(resolver.locate(key("mute.test")).await.outcome, Outcome::Found);
    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_server_whose_name_is_dead_in_the_dns_does_not_hold_up_the_others() {
    let script = Script::new();
    script.zone(
        "_sip._udp.half.test 300 SRV 10 0 5060 gone.test
        _sip._udp.half.test 300 SRV 20 0 5060 b2.test
        b2.test 300 A 192.0.2.2",
    );
    script.mood("gone.test", Mood::Silent);
    let resolver = resolver(&script, &dns());
    let begun = Instant::now();
    let located = resolver.locate(key("half.test")).await;
    assert_eq!(addrs(&located), ["192.0.2.2"]);
    assert!(begun.elapsed() < Duration::from_millis(700), "{:?}", begun.elapsed());
    // It is well again: the next results have it, before the other one.
    script.zone("gone.test 300 A 192.0.2.9");
    script.mood("gone.test", Mood::Good(Some(60)));
    sleep(5 * SECOND).await;
    assert_eq!(addrs(&resolver.locate(key("half.test")).await), ["192.0.2.9", "192.0.2.2"]);
}
