#![allow(clippy::unwrap_used)]
//! What is shown of costs: beside each candidate, with each attempt, and in sentences.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use smallvec::{SmallVec, smallvec};

use super::resolve::found_of;
use super::words;
use crate::config::{AltoRule, AltoScope, Realm};
use crate::flow::{Host, Transport};
use crate::location::{
    Cost, CostMode, CostOrigin, CostSnapshot, Instance, LocateKey, Located, Memory, Outcome, PickReason,
    RankPolicy, Server, Standing, Tier, rank,
};
use crate::peering::Party;
use crate::proxy::decision::{AttemptRecord, LegRecord, Record, Rule, Words};

/// Two servers of priority 10 with costs 10 and 1, one of priority 20 with 0.5; answered 12 s ago.
fn ranked(rule: AltoRule, scope: AltoScope, now: Instant) -> Arc<Located> {
    let server = |n: u8| {
        let addrs = SmallVec::from_slice(&[[192, 0, 2, n].into()]);
        Server::new(Transport::Udp, format!("b{n}.test").into(), 5060, 1, addrs)
    };
    let tiers = vec![Tier::new(None, 10, vec![server(1), server(2)]), Tier::new(None, 20, vec![server(3)])];
    let host = Host::Name("dest.test".into());
    let key = LocateKey { host, port: None, transport: None, sips: false, realm: Realm::Peering };
    let end = now + Duration::from_secs(60);
    let mut snapshot = CostSnapshot::new(1, CostMode::Numerical, false);
    for (n, value) in [(1, 10.0), (2, 1.0), (3, 0.5)] {
        let (fetched, origin) = (now - Duration::from_secs(12), CostOrigin::Maps);
        let cost = Cost { value, answer: 1, fetched, fresh_until: end, usable_until: end, origin };
        snapshot.insert([192, 0, 2, n].into(), cost);
    }
    let policy = RankPolicy {
        rule,
        scope,
        band: 0.1,
        band_abs: 0.0,
        min_coverage: 0.5,
        max_share: 1.0,
        persist: 2,
        hold_down: Duration::ZERO,
        pinned: false,
    };
    let located = Arc::new(Located::from_tiers(key, tiers, Outcome::Found, end));
    rank(&located, &snapshot, &policy, &mut Memory::default(), &|_| false, now).located
}

/// A call whose first attempt went to the first server of a tier.
fn record(located: &Arc<Located>, tier: u16, reason: PickReason, now: Instant) -> Record {
    let instance: Instance = located.tiers[usize::from(tier)].servers[0].instance(0).unwrap();
    let attempt = AttemptRecord {
        instance,
        place: (0, tier, 0),
        standing: Standing::Up,
        reason,
        branch: 1,
        started: now,
        first_response: None,
        rang: None,
        ended: None,
        outcome: "pending",
        status: 0,
    };
    let leg = LegRecord {
        uri: None,
        party: Party::Core,
        located: Some(Arc::clone(located)),
        asked: Some(now),
        answered: Some(now),
        standings: Box::default(),
    };
    Record {
        words: Words::new(b"1", b"INVITE", b"sip:dest.test", b"<sip:a@b>"),
        from: Party::Core,
        identity: None,
        remote: "192.0.2.99:5060".parse().unwrap(),
        transport: Transport::Udp,
        rule: Rule::PeerDomain,
        started: now,
        legs: smallvec![leg],
        attempts: smallvec![attempt],
        status: 0,
        reason: "",
        ended: None,
        cancelled: false,
    }
}

fn shown(located: &Located, now: Instant) -> Value {
    serde_json::to_value(found_of(located, now, None, None)).unwrap()
}

#[test]
fn candidates_show_cost_age_class_and_rule() {
    let now = Instant::now();
    let found = shown(&ranked(AltoRule::Classes, AltoScope::WithinPriority, now), now);
    let row = |at: usize| {
        let c = &found["candidates"][at];
        let field = |k: &str| c[k].clone();
        (
            field("target"),
            field("cost"),
            field("cost_age"),
            field("cost_from"),
            field("class"),
            field("classes"),
        )
    };
    let expect = |t: &str, cost: f64, class: u8, of: u8| {
        (t.into(), cost.into(), 12.0.into(), "maps".into(), class.into(), of.into())
    };
    assert_eq!(row(0), expect("b2.test", 1.0, 0, 2));
    assert_eq!(row(1), expect("b1.test", 10.0, 1, 2));
    assert_eq!(row(2), expect("b3.test", 0.5, 0, 1));
    assert_eq!(found["candidates"][1]["ranking"], "rule \"classes\": class 1 of 2, 0 is the best");
    assert!(found["shadow"].is_null());
}

#[test]
fn an_overridden_priority_is_marked() {
    let now = Instant::now();
    let located = ranked(AltoRule::Classes, AltoScope::AcrossPriorities, now);
    let found = shown(&located, now);
    let first = &found["candidates"][0];
    assert_eq!((&first["target"], &first["priority"]), (&"b3.test".into(), &20.into()));
    assert!(first["ranking"].as_str().unwrap().ends_with("; priority overridden by agreement"));
    let why = words::chosen(&record(&located, 0, PickReason::OnlyInClass, now), 0);
    assert_eq!(
        why,
        "the only server of priority 20 in cost class 0 of 3 (0 is the best, priority overridden by agreement); \
         its cost is 0.5 (maps, 12 s old)"
    );
}

#[test]
fn an_attempt_says_which_class_it_was_drawn_from_and_what_it_costs() {
    let now = Instant::now();
    let located = ranked(AltoRule::Classes, AltoScope::WithinPriority, now);
    let mut record = record(&located, 0, PickReason::OnlyInClass, now);
    assert_eq!(
        words::chosen(&record, 0),
        "the only server of priority 10 in cost class 0 of 2 (0 is the best); its cost is 1 (maps, 12 s old)"
    );
    let mut second = record.attempts[0].clone();
    second.place.1 = 1;
    second.instance = located.tiers[1].servers[0].instance(0).unwrap();
    record.attempts[0].outcome = "timeout";
    record.attempts.push(second);
    assert_eq!(
        words::chosen(&record, 1),
        "nothing was left of the better costs: the only server of priority 10 in cost class 1 of 2 \
         (0 is the best); its cost is 10 (maps, 12 s old)"
    );
}

#[test]
fn costs_that_are_not_used_say_what_they_would_have_changed() {
    let now = Instant::now();
    let located = ranked(AltoRule::Off, AltoScope::WithinPriority, now);
    let found = shown(&located, now);
    let shadow: Vec<(u64, &str)> = found["shadow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["tier"].as_u64().unwrap(), s["instance"].as_str().unwrap()))
        .collect();
    assert_eq!(shadow, [(0, "udp:192.0.2.2:5060"), (1, "udp:192.0.2.1:5060"), (2, "udp:192.0.2.3:5060")]);
    let texts: Vec<&str> = (0..2).map(|at| found["candidates"][at]["ranking"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        [
            "shown only: rule \"classes\" would put it into class 1 of 2",
            "shown only: rule \"classes\" would put it into class 0 of 2"
        ]
    );
    assert_eq!(
        words::chosen(&record(&located, 0, PickReason::Drawn, now), 0),
        "by weight among the 2 servers of priority 10; its cost is 10 (maps, 12 s old); costs are only shown: \
         used, they would have begun with udp:192.0.2.2:5060"
    );
}
