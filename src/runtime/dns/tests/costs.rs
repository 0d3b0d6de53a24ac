//! Costs change the order of kept results without a query and without a wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance};

use super::script::{Script, addrs, dns, key, resolver};
use crate::config::{AltoRule, AltoScope};
use crate::location::{Cost, CostMode, CostOrigin, CostSnapshot, RankPolicy};
use crate::runtime::dns::Resolver;

const SECOND: Duration = Duration::from_secs(1);

const DEST: &str = "
    _sip._udp.dest.test 600 SRV 10 0 5060 b1.test
    _sip._udp.dest.test 600 SRV 10 0 5060 b2.test
    _sip._udp.dest.test 600 SRV 20 0 5060 b3.test
    b1.test 600 A 192.0.2.1
    b2.test 600 A 192.0.2.2
    b3.test 600 A 192.0.2.3";

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn policy() -> RankPolicy {
    RankPolicy {
        rule: AltoRule::Classes,
        scope: AltoScope::WithinPriority,
        band: 0.1,
        band_abs: 0.0,
        min_coverage: 0.5,
        max_share: 1.0,
        persist: 2,
        hold_down: 20 * SECOND,
        pinned: false,
    }
}

/// Publishes the costs of 192.0.2.1 to .3, good for ten minutes.
fn publish(resolver: &Resolver, answer: u64, costs: [f64; 3]) {
    let mut snapshot = CostSnapshot::new(answer, CostMode::Numerical, false);
    for (n, value) in (1u8..).zip(costs) {
        let (fetched, end) = (now(), now() + 600 * SECOND);
        let origin = CostOrigin::Endpoint;
        let cost = Cost { value, answer, fetched, fresh_until: end, usable_until: end, origin };
        snapshot.insert([192, 0, 2, n].into(), cost);
    }
    resolver.ranker().publish(snapshot, now());
}

fn order(resolver: &Resolver) -> Vec<String> {
    addrs(&resolver.locate_cached(&key("dest.test"), now()).unwrap())
}

async fn located() -> (Arc<Script>, Resolver) {
    let script = Script::new();
    script.zone(DEST);
    let resolver = resolver(&script, &dns());
    resolver.ranker().configure(Some(policy()));
    resolver.locate(key("dest.test")).await;
    script.take();
    (script, resolver)
}

const PLAIN: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
const TURNED: [&str; 3] = ["192.0.2.2", "192.0.2.1", "192.0.2.3"];

#[tokio::test(start_paused = true)]
async fn a_kept_result_follows_the_costs_without_a_query() {
    let (script, resolver) = located().await;
    assert_eq!(order(&resolver), PLAIN);
    publish(&resolver, 1, [10.0, 1.0, 0.1]);
    assert_eq!(order(&resolver), TURNED);
    let first = resolver.locate_cached(&key("dest.test"), now()).unwrap();
    let second = resolver.locate_cached(&key("dest.test"), now()).unwrap();
    assert!(Arc::ptr_eq(&first, &second), "ranked once, not for each call");
    advance(40 * SECOND).await;
    assert_eq!(order(&resolver), TURNED);
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn answers_count_whether_calls_look_or_not() {
    let (script, resolver) = located().await;
    publish(&resolver, 1, [1.0, 10.0, 5.0]);
    advance(SECOND).await;
    publish(&resolver, 2, [10.0, 1.0, 5.0]);
    assert_eq!(order(&resolver), PLAIN);
    advance(SECOND).await;
    publish(&resolver, 3, [10.0, 1.0, 5.0]);
    assert_eq!(order(&resolver), TURNED);
    // Back again: a hold-down, and then without a further answer.
    advance(SECOND).await;
    publish(&resolver, 4, [1.0, 10.0, 5.0]);
    publish(&resolver, 5, [1.0, 10.0, 5.0]);
    assert_eq!(order(&resolver), TURNED);
    advance(20 * SECOND).await;
    assert_eq!(order(&resolver), PLAIN);
    assert!(script.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_order_led_by_what_is_down_is_not_held() {
    let (_script, resolver) = located().await;
    let first = resolver.locate_cached(&key("dest.test"), now()).unwrap().instances().next().unwrap();
    resolver.ranker().ask_health(Box::new(move |_| std::iter::once(first).collect()));
    publish(&resolver, 1, [1.0, 10.0, 5.0]);
    assert_eq!(order(&resolver), PLAIN);
    publish(&resolver, 2, [10.0, 1.0, 5.0]);
    assert_eq!(order(&resolver), TURNED);
}

#[tokio::test(start_paused = true)]
async fn costs_that_run_out_are_not_used_on() {
    let (_script, resolver) = located().await;
    advance(10 * SECOND).await;
    let mut snapshot = CostSnapshot::new(1, CostMode::Numerical, false);
    for (n, value) in [(1, 10.0), (2, 1.0)] {
        let (fetched, end) = (now(), now() + 30 * SECOND);
        let origin = CostOrigin::Maps;
        let cost = Cost { value, answer: 1, fetched, fresh_until: end, usable_until: end, origin };
        snapshot.insert([192, 0, 2, n].into(), cost);
    }
    resolver.ranker().publish(snapshot, now());
    advance(29 * SECOND).await;
    assert_eq!(order(&resolver), TURNED);
    advance(SECOND).await;
    assert_eq!(order(&resolver), PLAIN);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_rules_is_seen_at_the_next_look() {
    let (_script, resolver) = located().await;
    publish(&resolver, 1, [10.0, 1.0, 0.1]);
    assert_eq!(order(&resolver), TURNED);
    resolver.ranker().configure(Some(RankPolicy { scope: AltoScope::AcrossPriorities, ..policy() }));
    assert_eq!(order(&resolver), ["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
    resolver.ranker().configure(Some(RankPolicy { rule: AltoRule::Off, ..policy() }));
    assert_eq!(order(&resolver), PLAIN);
    resolver.ranker().configure(None);
    assert_eq!(order(&resolver), PLAIN);
}

#[tokio::test(start_paused = true)]
async fn sets_are_wanted_for_as_long_as_their_result_is_in_use() {
    let (_script, resolver) = located().await;
    let sets = |resolver: &Resolver| -> Vec<Vec<String>> {
        let wanted = resolver.ranker().wanted(now());
        wanted.iter().map(|set| set.iter().map(ToString::to_string).collect()).collect()
    };
    let pair = vec!["192.0.2.1".to_owned(), "192.0.2.2".to_owned()];
    assert_eq!(sets(&resolver), std::slice::from_ref(&pair), "one address alone is no choice");
    for answer in 1..=5 {
        advance(Duration::from_secs(3600)).await;
        publish(&resolver, answer, [1.0, 2.0, 3.0]);
        resolver.locate(key("dest.test")).await;
        assert_eq!(sets(&resolver), std::slice::from_ref(&pair));
    }
    advance(Duration::from_secs(3 * 3600)).await;
    assert!(sets(&resolver).is_empty(), "nobody calls there any more");
    // By agreement costs are compared across priorities, so they are asked for together.
    resolver.ranker().configure(Some(RankPolicy { scope: AltoScope::AcrossPriorities, ..policy() }));
    resolver.locate(key("dest.test")).await;
    assert_eq!(sets(&resolver), [vec!["192.0.2.1".to_owned(), pair[1].clone(), "192.0.2.3".to_owned()]]);
}

#[tokio::test(start_paused = true)]
async fn costs_go_before_the_priorities_of_the_peer_that_has_agreed_and_of_no_other() {
    let script = Script::new();
    let other = DEST.replace("dest.test", "other.test");
    script.zone(&format!("{DEST}{other}"));
    let resolver = resolver(&script, &dns());
    let config = crate::config::Config::from_toml_str(
        "[node]\nname = \"sbe.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n\
         [alto]\ndirectory = \"http://127.0.0.1/\"\n\
         [[peer]]\nname = \"dest\"\ndomains = [\"dest.test\"]\nalto_scope = \"across-priorities\"\n\
         [[peer]]\nname = \"other\"\ndomains = [\"other.test\"]\n",
    )
    .unwrap_or_else(|e| panic!("{e:#?}"));
    resolver.ranker().configure_from(&config);
    for name in ["dest.test", "other.test"] {
        resolver.locate(key(name)).await;
    }
    let sets: Vec<usize> = resolver.ranker().wanted(now()).iter().map(|set| set.len()).collect();
    assert_eq!(sets, [2, 3], "asked for together as they are compared");
    publish(&resolver, 1, [10.0, 1.0, 0.1]);
    let order = |name| resolver.locate_cached(&key(name), now()).unwrap();
    assert_eq!(addrs(&order("dest.test")), ["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
    assert!(order("dest.test").tiers[0].ranking.unwrap().overrides_priority, "and it is marked");
    assert_eq!(addrs(&order("other.test")), TURNED);
}
