#![allow(clippy::unwrap_used)]
//! Counting the last minutes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::window::{SECONDS, Window};
use crate::flow::{PeerId, Transport};
use crate::location::{Instance, PickReason, Standing};
use crate::peering::Party;
use crate::proxy::decision::{AttemptRecord, LegRecord, Record, Rule, Words};
use crate::shard::Stats;

fn instance(n: u16) -> Instance {
    Instance { transport: Transport::Udp, addr: SocketAddr::from(([127, 0, 0, 1], n)) }
}

/// A call of the core to peer 3, that went to instances with these outcomes and statuses.
fn call(status: u16, reason: &'static str, attempts: &[(u16, &'static str, u16)]) -> Record {
    let started = Instant::now();
    let rang = started + Duration::from_millis(200);
    Record {
        words: Words::new(b"a", b"INVITE", b"", b""),
        from: Party::Core,
        identity: None,
        remote: SocketAddr::from(([127, 0, 0, 1], 5060)),
        transport: Transport::Udp,
        rule: Rule::PeerDomain,
        started,
        legs: [LegRecord {
            uri: None,
            party: Party::Peer(PeerId(3)),
            located: None,
            asked: None,
            answered: None,
            standings: Box::default(),
        }]
        .into_iter()
        .collect(),
        attempts: attempts
            .iter()
            .map(|(port, outcome, status)| AttemptRecord {
                instance: instance(*port),
                place: (0, 0, 0),
                standing: Standing::Up,
                reason: PickReason::OnlyServer,
                branch: 0,
                started,
                first_response: (*status != 0).then_some(rang),
                rang: (*status != 0).then_some(rang),
                ended: Some(rang),
                outcome,
                status: *status,
            })
            .collect::<SmallVec<[AttemptRecord; 1]>>(),
        status,
        reason,
        ended: Some(rang),
        cancelled: false,
    }
}

#[test]
fn calls_count_for_both_parties_and_attempts_for_their_instances() {
    let mut window = Window::default();
    window.record(1, &call(200, "", &[(1, "timeout", 0), (2, "ok", 200)]));
    window.record(2, &call(486, "", &[(2, "busy", 486)]));
    window.record(3, &call(302, "", &[(2, "redirect", 302)]));
    window.record(4, &call(503, "draining", &[]));
    let sum = window.sum(5);
    assert_eq!((sum.all.calls, sum.all.answered, sum.all.refused, sum.all.failed_over), (4, 1, 1, 1));
    assert_eq!(sum.all.answer_ratio(), Some(1.0 / 3.0), "a redirection is nobody's failure");
    assert_eq!(sum.all.effectiveness(), Some(2.0 / 3.0), "busy is not the network's fault");
    let delay = sum.all.delay.percentile(0.5).unwrap();
    assert!((200.0..=220.0).contains(&delay), "{delay}");
    assert_eq!(sum.parties[&Some(PeerId(3))].to.calls, 4);
    assert_eq!(sum.parties[&None].from.calls, 4);
    assert_eq!((sum.parties[&None].to.calls, sum.parties[&Some(PeerId(3))].from.calls), (0, 0));
    let one = sum.instances[&(Some(PeerId(3)), instance(1))];
    let two = sum.instances[&(Some(PeerId(3)), instance(2))];
    assert_eq!((one.all, one.ok, one.failed), (1, 0, 1));
    assert_eq!((two.all, two.ok, two.failed), (3, 1, 0), "an answer that is passed on is no failure");
    assert_eq!(
        sum.causes.into_iter().collect::<Vec<_>>(),
        [(("", 302), 1), (("", 486), 1), (("draining", 503), 1)]
    );
    assert_eq!(sum.outcomes.into_iter().collect::<Vec<_>>(), [("timeout", 1)]);
}

#[test]
fn what_is_older_than_the_window_is_forgotten() {
    let mut window = Window::default();
    for second in 0..SECONDS * 3 {
        window.record(second, &call(200, "", &[(1, "ok", 200)]));
    }
    assert_eq!(window.sum(SECONDS * 3 - 1).all.calls, SECONDS);
    assert_eq!(window.sum(SECONDS * 4 - 11).all.calls, 10, "also when nothing more comes");
    assert_eq!(window.sum(SECONDS * 10), super::window::Counts::default());
}

#[test]
fn more_instances_than_have_a_place_count_in_the_totals_only() {
    let mut window = Window::default();
    for port in 0..5000 {
        window.record(1, &call(200, "", &[(port, "ok", 200)]));
    }
    let sum = window.sum(1);
    assert_eq!((sum.all.calls, sum.instances.len()), (5000, 1024));
}

#[test]
fn rates_are_differences_of_counters_over_the_time_between() {
    let (mut window, start) = (Window::default(), Instant::now());
    let mut stats = Stats::default();
    stats.attempts.add(None, "ok", 1000);
    window.look(start, 5, &stats);
    assert_eq!(window.seconds().count(), 0, "before is nothing to compare with");
    stats.attempts.add(None, "ok", 30);
    stats.failovers.insert((None, "timeout"), 3);
    window.look(start + Duration::from_secs(3), 7, &stats);
    let second = window.seconds().next_back().copied().unwrap();
    assert_eq!((second.calls, second.attempts, second.failovers, second.refused), (7, 10, 1, 0));
    for n in 0..SECONDS * 2 {
        window.look(start + Duration::from_secs(4 + n), 7, &stats);
    }
    assert_eq!(window.seconds().count() as u64, SECONDS);
}

#[test]
fn percentiles_are_right_within_a_tenth() {
    let mut window = Window::default();
    for ms in 1..=1000u64 {
        let mut one = call(200, "", &[(1, "ok", 200)]);
        one.attempts[0].rang = Some(one.started + Duration::from_millis(ms));
        window.record(1, &one);
    }
    let delay = window.sum(1).all.delay;
    for (share, exact) in [(0.5, 500.0), (0.95, 950.0), (0.01, 10.0), (1.0, 1000.0)] {
        let found = delay.percentile(share).unwrap();
        assert!((exact..=exact * 1.1).contains(&found), "{share}: {found}");
    }
    assert_eq!(Window::default().sum(1).all.delay.percentile(0.5), None);
}
