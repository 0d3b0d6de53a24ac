//! The caches in virtual time, with scripted name servers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

use super::script::{Mood, Script, addrs, dns, enabled, host, key, resolver};
use crate::config::Families;
use crate::location::{Outcome, RecordKind};
use crate::runtime::dns::Resolver;

const SECOND: Duration = Duration::from_secs(1);

const DEST: &str = "
    dest.test 60 NAPTR 10 10 SIP+D2U _sip._udp.dest.test
    _sip._udp.dest.test 60 SRV 10 0 5060 b1.test
    b1.test 60 A 192.0.2.1
    b1.test 60 AAAA 2001:db8::1";

/// The four questions for `dest.test`.
const FOUR: [&str; 4] = ["_sip._udp.dest.test. SRV", "b1.test. A", "b1.test. AAAA", "dest.test. NAPTR"];

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn cache_counts(resolver: &Resolver) -> Vec<(&'static str, u64)> {
    resolver.stats().cache().collect()
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_locations_cost_one_query_for_each_record_set() {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    let first = resolver.locate(key("dest.test")).await;
    assert_eq!(first.outcome, Outcome::Found);
    assert_eq!(addrs(&first).len(), 2);
    for _ in 0..10_000 {
        let again = resolver.locate_cached(&key("dest.test"), now()).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
    }
    assert_eq!(script.take(), FOUR);
    assert_eq!(cache_counts(&resolver), [("hit", 10_000), ("miss", 4), ("stale", 0), ("negative", 0)]);
    assert_eq!(resolver.stats().total_queries(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_ran_out_is_built_again_from_record_sets_without_waiting() {
    let script = Script::new();
    script.zone(DEST);
    script.zone("_sip._udp.dest.test 5 SRV 10 0 5060 b1.test");
    let resolver = resolver(&script, &dns());
    let first = resolver.locate(key("dest.test")).await;
    advance(5 * SECOND).await;
    assert!(resolver.locate_cached(&key("dest.test"), now()).is_none(), "the SRV set must be asked for");
    // Another key needs the same set.
    let udp = crate::location::LocateKey { transport: Some(crate::flow::Transport::Udp), ..key("dest.test") };
    assert_eq!(resolver.locate(udp).await.outcome, Outcome::Found);
    script.take();
    let second = resolver.locate_cached(&key("dest.test"), now()).unwrap();
    assert_eq!(addrs(&second), addrs(&first));
    assert_ne!(second.serial, first.serial);
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_use_is_refreshed_ahead_by_one_query_and_nobody_waits() {
    let script = Script::new();
    script.zone("b1.test 20 A 192.0.2.1\n b1.test 20 AAAA 2001:db8::1");
    script.delay("b1.test", RecordKind::A, Duration::from_millis(300));
    script.delay("b1.test", RecordKind::Aaaa, Duration::from_millis(300));
    let resolver = resolver(&script, &dns());
    resolver.locate(host("b1.test")).await;
    script.take();
    // Not in the last tenth: no refresh.
    sleep(17 * SECOND).await;
    assert!(resolver.locate_cached(&host("b1.test"), now()).is_some());
    assert!(script.take().is_empty());
    script.zone("b1.test 20 A 192.0.2.2");
    sleep(Duration::from_millis(1500)).await;
    for _ in 0..1000 {
        assert!(resolver.locate_cached(&host("b1.test"), now()).is_some());
    }
    sleep(Duration::from_millis(100)).await;
    assert!(resolver.locate_cached(&host("b1.test"), now()).is_some());
    assert_eq!(script.take(), ["b1.test. A", "b1.test. AAAA"]);
    // Beyond the first life: no call has to wait, and the news is used.
    sleep(2 * SECOND).await;
    let located = resolver.locate_cached(&host("b1.test"), now()).unwrap();
    assert!(addrs(&located).contains(&"192.0.2.2".to_owned()));
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asks_for_is_not_refreshed() {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    resolver.locate(key("dest.test")).await;
    script.take();
    sleep(Duration::from_secs(600)).await;
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_is_shared_by_those_who_wait_and_not_kept() {
    let script = Script::new();
    script.zone("b1.test 0 A 192.0.2.1");
    let config = crate::config::Dns { addresses: Families::Ipv4, ..dns() };
    let resolver = resolver(&script, &config);
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.locate(host("b1.test")).await })
        })
        .collect();
    for call in calls {
        assert_eq!(addrs(&call.await.unwrap()), ["192.0.2.1"]);
    }
    assert_eq!(script.take(), ["b1.test. A"]);
    assert!(resolver.locate_cached(&host("b1.test"), now()).is_none());
    script.zone("b1.test 0 A 192.0.2.2");
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["192.0.2.2"]);
    assert_eq!(script.take(), ["b1.test. A"]);
}

#[tokio::test(start_paused = true)]
async fn lives_are_kept_within_the_configured_bounds() {
    let script = Script::new();
    script.zone("short.test 0 A 192.0.2.1\n long.test 999999 A 192.0.2.2");
    let config =
        crate::config::Dns { addresses: Families::Ipv4, min_ttl: 3 * SECOND, max_ttl: 100 * SECOND, ..dns() };
    let resolver = resolver(&script, &config);
    resolver.locate(host("short.test")).await;
    resolver.locate(host("long.test")).await;
    let ttls: Vec<_> =
        resolver.entries(10).iter().map(|e| (e.name.clone(), e.ttl.as_secs_f32().ceil())).collect();
    assert_eq!(ttls, [("long.test".to_owned(), 100.0), ("short.test".to_owned(), 3.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_negative_answer_is_believed_as_long_as_its_soa_says_up_to_the_cap() {
    for (soa, cap, believed) in [(Some(2), 60, 2), (Some(604_800), 4, 4), (None, 60, 1)] {
        let script = Script::new();
        script.mood("", Mood::Good(soa));
        let config =
            crate::config::Dns { addresses: Families::Ipv4, negative_ttl: Duration::from_secs(cap), ..dns() };
        let resolver = resolver(&script, &config);
        assert_eq!(resolver.locate(host("new.test")).await.outcome, Outcome::NoSuchName);
        script.zone("new.test 60 A 192.0.2.1");
        sleep(believed * SECOND - Duration::from_millis(50)).await;
        assert_eq!(resolver.locate(host("new.test")).await.outcome, Outcome::NoSuchName);
        sleep(Duration::from_millis(60)).await;
        assert_eq!(resolver.locate(host("new.test")).await.outcome, Outcome::Found);
    }
}

#[tokio::test(start_paused = true)]
async fn the_other_address_family_is_waited_for_a_tenth_of_a_second() {
    let script = Script::new();
    script.zone("b1.test 60 A 192.0.2.1\n b1.test 60 AAAA 2001:db8::1");
    script.delay("b1.test", RecordKind::Aaaa, Duration::from_millis(400));
    let resolver = resolver(&script, &dns());
    let begun = Instant::now();
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["192.0.2.1"]);
    assert!(begun.elapsed() <= Duration::from_millis(110), "{:?}", begun.elapsed());
    // The late answer is not lost.
    sleep(SECOND).await;
    assert_eq!(addrs(&resolver.locate_cached(&host("b1.test"), now()).unwrap()).len(), 2);
    assert_eq!(script.take(), ["b1.test. A", "b1.test. AAAA"]);
}

#[tokio::test(start_paused = true)]
async fn a_family_without_records_does_not_hurry_the_other() {
    let script = Script::new();
    script.zone("b1.test 60 AAAA 2001:db8::1");
    script.delay("b1.test", RecordKind::Aaaa, Duration::from_millis(400));
    let resolver = resolver(&script, &dns());
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["2001:db8::1"]);
}

#[tokio::test(start_paused = true)]
async fn sets_that_came_along_are_not_asked_for() {
    let script = Script::new();
    script.zone(DEST);
    script.along("dest.test", RecordKind::Naptr, "_sip._udp.dest.test", RecordKind::Srv);
    script.along("_sip._udp.dest.test", RecordKind::Srv, "b1.test", RecordKind::A);
    let resolver = resolver(&script, &dns());
    assert_eq!(resolver.locate(key("dest.test")).await.outcome, Outcome::Found);
    assert_eq!(script.take(), ["b1.test. A", "b1.test. AAAA", "dest.test. NAPTR"]);
}

#[tokio::test(start_paused = true)]
async fn flushing_forgets_a_name_and_what_is_below_it() {
    let script = Script::new();
    script.zone(DEST);
    script.zone("xdest.test 60 A 192.0.2.9\n xdest.test 60 AAAA 2001:db8::9");
    let resolver = resolver(&script, &dns());
    resolver.locate(key("dest.test")).await;
    resolver.locate(host("xdest.test")).await;
    script.take();
    resolver.flush(Some("DEST.test."));
    assert!(resolver.locate_cached(&host("xdest.test"), now()).is_some());
    assert!(resolver.locate_cached(&key("dest.test"), now()).is_none());
    resolver.locate(key("dest.test")).await;
    assert_eq!(script.take(), ["_sip._udp.dest.test. SRV", "dest.test. NAPTR"]);
    resolver.flush(None);
    assert!(resolver.entries(10).is_empty());
    assert!(resolver.locate_cached(&host("xdest.test"), now()).is_none());
    resolver.locate(key("dest.test")).await;
    assert_eq!(script.take(), FOUR);
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_flush_does_not_come_back_into_the_cache() {
    let script = Script::new();
    script.zone("b1.test 60 A 192.0.2.1");
    script.delay("b1.test", RecordKind::A, Duration::from_millis(200));
    let resolver = resolver(&script, &crate::config::Dns { addresses: Families::Ipv4, ..dns() });
    let caller = resolver.clone();
    let early = tokio::spawn(async move { caller.locate(host("b1.test")).await });
    sleep(Duration::from_millis(100)).await;
    resolver.flush(None);
    script.zone("b1.test 60 A 192.0.2.2");
    assert_eq!(addrs(&resolver.locate(host("b1.test")).await), ["192.0.2.2"]);
    assert_eq!(addrs(&early.await.unwrap()), ["192.0.2.1"]);
    assert_eq!(addrs(&resolver.locate_cached(&host("b1.test"), now()).unwrap()), ["192.0.2.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_cache_and_takes_over_the_listeners() {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    resolver.locate(key("dest.test")).await;
    script.take();
    resolver.reconfigure(&dns());
    resolver.set_enabled(enabled(Families::Ipv4));
    assert_eq!(addrs(&resolver.locate_cached(&key("dest.test"), now()).unwrap()), ["192.0.2.1"]);
    resolver.set_enabled(enabled(Families::Ipv6));
    assert_eq!(addrs(&resolver.locate_cached(&key("dest.test"), now()).unwrap()), ["2001:db8::1"]);
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_location_that_nobody_waits_for_any_more_still_fills_the_cache() {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    let caller = resolver.clone();
    let task = tokio::spawn(async move { caller.locate(key("dest.test")).await });
    tokio::task::yield_now().await;
    task.abort();
    sleep(SECOND).await;
    assert!(resolver.locate_cached(&key("dest.test"), now()).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_cache_is_bounded() {
    let script = Script::new();
    let resolver = Resolver::with_upstream(
        script.clone(),
        &dns(),
        enabled(Families::Ipv4),
        100,
        tokio::runtime::Handle::current(),
    );
    for i in 0..1000 {
        resolver.locate(host(&format!("n{i}.test"))).await;
    }
    assert!(resolver.entry_count() <= 100, "{}", resolver.entry_count());
    assert_eq!(resolver.entries(7).len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_numeric_host_needs_no_query() {
    let script = Script::new();
    let resolver = resolver(&script, &dns());
    let literal = crate::location::LocateKey {
        host: crate::flow::Host::Addr("192.0.2.7".parse().unwrap()),
        ..key("unused.test")
    };
    assert_eq!(addrs(&resolver.locate_cached(&literal, now()).unwrap()), ["192.0.2.7"]);
    assert!(script.take().is_empty());
}

/// With `--release -- --nocapture` it prints what a location out of the cache costs.
#[tokio::test(start_paused = true)]
async fn a_location_out_of_the_cache_costs_no_query() {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    resolver.locate(key("dest.test")).await;
    let (key, now, rounds) = (key("dest.test"), now(), 100_000_u32);
    let begun = std::time::Instant::now();
    for _ in 0..rounds {
        assert!(resolver.locate_cached(std::hint::black_box(&key), now).is_some());
    }
    println!("locate_cached: {:?}", begun.elapsed() / rounds);
    assert_eq!(resolver.stats().total_queries(), 4);
}
