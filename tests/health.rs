//! Rule 9 as a table: what is seen of an instance, and how it stands then. Virtual time only.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use sbe::flow::{SendFailure, Transport};
use sbe::location::{Change, Health, Instance, MAX_INSTANCES, Observation, Standing};

mod zone;
use zone::health;

const INVITE: Observation = Observation::Silence { invite: true };
const OTHER: Observation = Observation::Silence { invite: false };
const GOOD: Observation = Observation::ProbeGood { up_after: 2 };
const BAD: Observation = Observation::ProbeBad { down_after: 3 };

fn at(n: u32) -> Instance {
    Instance { transport: Transport::Udp, addr: (std::net::Ipv4Addr::from(n), 5060).into() }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A script in milliseconds: what is seen when.
fn play(script: &[(u64, Observation)]) -> (Health, Instant, Vec<Option<Change>>) {
    let (mut h, t0) = (health(), Instant::now());
    let changes = script.iter().map(|(t, o)| h.observe(t0 + ms(*t), at(1), *o)).collect();
    (h, t0, changes)
}

#[test]
fn what_counts_as_a_failure() {
    let after = |s| Observation::RetryAfter(Duration::from_secs(s));
    let lost = |f| Observation::Unreachable(f);
    for (script, down) in [
        (vec![INVITE], true),
        (vec![OTHER], false),
        (vec![OTHER, OTHER], false),
        (vec![OTHER, OTHER, OTHER], true),
        (vec![OTHER, OTHER, Observation::Answered, OTHER, OTHER], false),
        (vec![OTHER, OTHER, Observation::Unavailable, OTHER], false),
        (vec![lost(SendFailure::Icmp)], true),
        (vec![lost(SendFailure::ConnectRefused)], true),
        (vec![lost(SendFailure::ConnectTimeout)], true),
        (vec![lost(SendFailure::Tls)], true),
        (vec![lost(SendFailure::Closed { reused: false })], true),
        (vec![lost(SendFailure::Closed { reused: true })], false),
        (vec![lost(SendFailure::QueueFull)], false),
        (vec![lost(SendFailure::TooLarge)], false),
        (vec![lost(SendFailure::Local)], false),
        (vec![after(5)], true),
        (vec![after(0)], false),
        (vec![Observation::Unavailable; 9], false),
        (vec![Observation::Answered], false),
        (vec![Observation::TrialBegun, Observation::TrialAbandoned], false),
        (vec![BAD, BAD], false),
        (vec![BAD, BAD, BAD], true),
        (vec![BAD, BAD, GOOD, BAD, BAD], false),
        (vec![INVITE, Observation::Answered], false),
        (vec![INVITE, Observation::Unavailable], true),
        (vec![INVITE, GOOD], false),
        (vec![after(5), Observation::Answered], false),
    ] {
        let timed: Vec<_> = script.iter().map(|o| (0, *o)).collect();
        let (h, t0, changes) = play(&timed);
        assert_eq!(h.standing(t0, &at(1)) != Standing::Up, down, "{script:?}");
        let last = changes.iter().flatten().next_back();
        assert_eq!(last.is_some_and(|c| !c.up), down, "{script:?}: {changes:?}");
        assert_eq!(h.standing(t0, &at(2)), Standing::Up, "others are not touched");
    }
}

#[test]
fn news_tells_what_changed_and_why_and_only_then() {
    let (_, _, changes) =
        play(&[(0, INVITE), (10, INVITE), (20, Observation::Answered), (30, Observation::Answered)]);
    assert_eq!(
        changes,
        [
            Some(Change { up: false, reason: "silence" }),
            None,
            Some(Change { up: true, reason: "answered" }),
            None
        ]
    );
    let (_, _, changes) = play(&[(0, Observation::Unreachable(SendFailure::Icmp))]);
    assert_eq!(changes, [Some(Change { up: false, reason: "icmp" })]);
}

#[test]
fn the_hold_down_doubles_with_each_failed_trial_up_to_its_cap() {
    let (mut h, mut now, _) = play(&[(0, INVITE)]);
    for seconds in [2u64, 4, 8, 16, 32, 60, 60, 60] {
        let hold = Duration::from_secs(seconds);
        assert_eq!(h.standing(now, &at(1)), Standing::Down { until: now + hold });
        assert!(!h.claim_trial(now + hold - ms(1), &at(1)), "not before its time");
        now += hold;
        assert_eq!(h.standing(now, &at(1)), Standing::Trial);
        assert!(h.claim_trial(now, &at(1)));
        now += ms(500);
        // On trial one silence of any request is enough.
        assert_eq!(h.observe(now, at(1), OTHER), None, "it has been down all the time");
    }
    h.observe(now, at(1), Observation::Answered);
    h.observe(now, at(1), INVITE);
    assert_eq!(
        h.standing(now, &at(1)),
        Standing::Down { until: now + Duration::from_secs(2) },
        "from the start again"
    );
}

#[test]
fn failures_of_requests_already_under_way_are_one_failure() {
    let (h, t0, _) = play(&[(0, INVITE), (10, INVITE), (900, INVITE), (1900, INVITE)]);
    assert_eq!(h.standing(t0 + ms(1900), &at(1)), Standing::Down { until: t0 + ms(2000) });
    // One that ends after the hold-down is news that it is still not there, but no failed trial.
    let (h, t0, _) = play(&[(0, INVITE), (2500, INVITE)]);
    assert_eq!(h.standing(t0 + ms(2500), &at(1)), Standing::Down { until: t0 + ms(4500) });
}

#[test]
fn one_trial_at_a_time_and_none_blocks_for_ever() {
    let (mut h, t0, _) = play(&[(0, INVITE)]);
    let now = t0 + ms(2000);
    assert!(h.claim_trial(now, &at(1)));
    assert!(!h.claim_trial(now, &at(1)));
    let end = now + ms(3000);
    assert_eq!(h.standing(now + ms(2999), &at(1)), Standing::Down { until: end });
    assert_eq!(h.standing(end, &at(1)), Standing::Trial, "the claim has run out");
    assert!(h.claim_trial(end, &at(1)));
    // Cancelled, or answered by a 503 that says nothing: the next request may try at once.
    for over in [Observation::TrialAbandoned, Observation::Unavailable] {
        h.observe(end, at(1), over);
        assert!(h.claim_trial(end, &at(1)), "{over:?}");
    }
    // Another shard's trial counts like our own.
    h.observe(end, at(1), Observation::TrialAbandoned);
    h.observe(end, at(1), Observation::TrialBegun);
    assert!(!h.claim_trial(end, &at(1)));
}

#[test]
fn retry_after_is_kept_up_to_its_cap_and_then_tried() {
    let seconds = |s| Observation::RetryAfter(Duration::from_secs(s));
    let (h, t0, _) = play(&[(0, seconds(30))]);
    assert_eq!(h.standing(t0, &at(1)), Standing::Down { until: t0 + ms(30_000) });
    assert_eq!(h.standing(t0 + ms(30_000), &at(1)), Standing::Trial);
    let (h, t0, _) = play(&[(0, seconds(1_000_000))]);
    assert_eq!(h.standing(t0, &at(1)), Standing::Down { until: t0 + ms(3_600_000) });
    let (h, t0, _) = play(&[(0, seconds(30)), (0, seconds(5)), (0, INVITE)]);
    assert_eq!(h.standing(t0, &at(1)), Standing::Down { until: t0 + ms(30_000) }, "the longer one holds");
}

#[test]
fn what_probes_took_out_only_probes_bring_back() {
    let (mut h, t0, changes) =
        play(&[(0, BAD), (1, BAD), (2, BAD), (3, Observation::Answered), (4, GOOD), (5, BAD), (6, GOOD)]);
    assert_eq!(changes[2], Some(Change { up: false, reason: "probe_failed" }));
    assert!(changes[3..].iter().all(Option::is_none));
    let late = t0 + Duration::from_secs(3600);
    assert_eq!(h.standing(late, &at(1)), Standing::ProbedDown, "however long it takes");
    assert!(!h.claim_trial(late, &at(1)), "no trial");
    assert_eq!(h.observe(late, at(1), GOOD), Some(Change { up: true, reason: "probe_answered" }));
    assert_eq!(h.standing(late, &at(1)), Standing::Up);
    assert!(h.is_clean(&at(1)), "good news of it is none");
    h.sweep(late + ms(9_999));
    assert_eq!(h.len(), 1, "it has come back, and gets its share by and by");
    h.sweep(late + ms(10_000));
    assert!(h.is_empty());
}

/// Fails, is tried after its hold-down with success, and so on; returns the time of each coming back.
fn relapse(h: &mut Health, mut now: Instant, times: usize) -> Instant {
    for _ in 0..times {
        h.observe(now, at(1), INVITE);
        while h.standing(now, &at(1)) != Standing::Up {
            match h.standing(now, &at(1)) {
                Standing::Down { until } => now = until,
                _ => {
                    assert!(h.claim_trial(now, &at(1)));
                    h.observe(now, at(1), Observation::Answered);
                }
            }
        }
        now += ms(500);
    }
    now
}

#[test]
fn what_relapses_again_and_again_is_avoided_longer_and_must_prove_itself() {
    // Relapses in a row: the next hold-down, and the good trials that it takes.
    for (relapses, hold, trials) in
        [(0, 2, 1), (1, 2, 1), (2, 4, 2), (3, 8, 3), (4, 16, 4), (5, 32, 5), (9, 60, 5)]
    {
        let mut h = health();
        let mut now = relapse(&mut h, Instant::now(), relapses);
        h.observe(now, at(1), INVITE);
        let Standing::Down { until } = h.standing(now, &at(1)) else { panic!("{relapses}") };
        assert_eq!(until, now + Duration::from_secs(hold), "{relapses}");
        now = until;
        for n in 1..=trials {
            assert_eq!(h.standing(now, &at(1)), Standing::Trial, "{relapses}: trial {n}");
            assert!(h.claim_trial(now, &at(1)));
            let change = h.observe(now, at(1), Observation::Answered);
            if n < trials {
                let Standing::Down { until } = h.standing(now, &at(1)) else { panic!("{relapses}: {n}") };
                assert!((ms(500)..=ms(2500)).contains(&(until - now)), "{:?}", until - now);
                now = until;
            } else {
                assert_eq!(change, Some(Change { up: true, reason: "answered" }), "{relapses}");
            }
        }
    }
}

#[test]
fn a_late_answer_brings_back_what_failed_once_and_not_what_flaps() {
    for (relapses, back) in [(0, true), (1, true), (2, false)] {
        let mut h = health();
        let now = relapse(&mut h, Instant::now(), relapses);
        h.observe(now, at(1), INVITE);
        h.observe(now, at(1), Observation::Answered);
        assert_eq!(h.standing(now, &at(1)) == Standing::Up, back, "{relapses}");
        // A good probe counts once the hold-down is over, as one trial.
        if !back {
            h.observe(now, at(1), GOOD);
            assert_ne!(h.standing(now, &at(1)), Standing::Up);
            h.observe(now + ms(4000), at(1), GOOD);
            let Standing::Down { until } = h.standing(now + ms(4000), &at(1)) else { panic!() };
            h.observe(until, at(1), GOOD);
            assert_eq!(h.standing(until, &at(1)), Standing::Up);
        }
    }
}

#[test]
fn a_failed_trial_among_several_begins_them_anew() {
    let mut h = health();
    let mut now = relapse(&mut h, Instant::now(), 3);
    h.observe(now, at(1), INVITE);
    now += Duration::from_secs(8);
    for (answer, down_for) in [(Observation::Answered, None), (INVITE, Some(16))] {
        assert!(h.claim_trial(now, &at(1)));
        h.observe(now, at(1), answer);
        let Standing::Down { until } = h.standing(now, &at(1)) else { panic!() };
        if let Some(seconds) = down_for {
            assert_eq!(until, now + Duration::from_secs(seconds));
        }
        now = until;
    }
    for n in 1..=3 {
        assert!(h.claim_trial(now, &at(1)));
        h.observe(now, at(1), Observation::Answered);
        match h.standing(now, &at(1)) {
            Standing::Down { until } if n < 3 => now = until,
            standing => assert_eq!((n, standing), (3, Standing::Up)),
        }
    }
}

#[test]
fn relapses_are_forgotten_after_five_hold_downs_without_a_failure() {
    for (pause, hold) in [(9_999, 8), (10_000, 2)] {
        let mut h = health();
        // It came back half a second before.
        let now = relapse(&mut h, Instant::now(), 3) - ms(500) + ms(pause);
        h.observe(now, at(1), INVITE);
        assert_eq!(h.standing(now, &at(1)), Standing::Down { until: now + Duration::from_secs(hold) });
    }
}

#[test]
fn what_comes_back_gets_its_share_by_and_by() {
    let after = |s| Observation::RetryAfter(Duration::from_secs(s));
    for (script, back) in [
        (vec![(0, INVITE), (2000, Observation::Answered)], 2000),
        (vec![(0, after(5)), (1000, Observation::Answered)], 1000),
        (vec![(0, BAD), (1, BAD), (2, BAD), (3, GOOD), (4, GOOD)], 4),
    ] {
        let (h, t0, _) = play(&script);
        for (past, share) in [(0, 0.1), (5000, 0.55), (9000, 0.91), (10_000, 1.0), (60_000, 1.0)] {
            let now = t0 + ms(back + past);
            assert!((h.ramp(now, &at(1)) - share).abs() < 1e-9, "{script:?} {past}");
            assert_eq!(h.is_ramping(now), share < 1.0);
        }
        assert!((h.ramp(t0, &at(2)) - 1.0).abs() < 1e-9, "others are not touched");
    }
    // Silences that made no failure are no coming back.
    let (h, t0, _) = play(&[(0, OTHER), (1, Observation::Answered)]);
    assert!(!h.is_ramping(t0) && h.is_empty());
}

#[test]
fn requests_and_probes_are_two_votes() {
    // Down by requests, then by probes: good probes alone clear both.
    let (h, t0, _) = play(&[(0, INVITE), (1, BAD), (2, BAD), (3, BAD)]);
    assert_eq!((h.standing(t0 + ms(3), &at(1)), h.is_disputed(&at(1))), (Standing::ProbedDown, false));
    let (h, t0, _) = play(&[(0, INVITE), (1, BAD), (2, BAD), (3, BAD), (4, GOOD)]);
    assert_eq!((h.standing(t0 + ms(4), &at(1)), h.is_disputed(&at(1))), (Standing::ProbedDown, true));
    // An answer to a request speaks against the probes, and does not overrule them.
    let (h, t0, _) = play(&[(0, INVITE), (1, BAD), (2, BAD), (3, BAD), (4, Observation::Answered)]);
    assert_eq!((h.standing(t0 + ms(4), &at(1)), h.is_disputed(&at(1))), (Standing::ProbedDown, true));
}

#[test]
fn good_instances_leave_nothing_behind() {
    let (mut h, t0, _) = play(&[(0, Observation::Answered), (0, GOOD)]);
    assert!(h.is_empty() && h.is_clean(&at(1)));
    h.observe(t0, at(1), OTHER);
    assert!(!h.is_clean(&at(1)), "an answer would be worth telling");
    h.observe(t0, at(1), Observation::Answered);
    assert!(h.is_empty());
}

#[test]
fn sweeping_forgets_what_no_longer_matters() {
    let (mut h, t0, _) = play(&[(0, INVITE)]);
    h.observe(t0, at(2), OTHER);
    for _ in 0..3 {
        h.observe(t0, at(3), BAD);
    }
    h.observe(t0, at(4), Observation::RetryAfter(Duration::from_secs(600)));
    h.sweep(t0 + ms(59_000));
    assert_eq!(h.len(), 4);
    h.sweep(t0 + ms(61_999));
    assert_eq!(h.len(), 3, "the lone silence");
    h.sweep(t0 + ms(62_000));
    assert_eq!(h.len(), 2, "a minute after its hold-down");
    let standings: Vec<_> = h.iter_sorted(t0).into_iter().map(|(i, s)| (i, s.label())).collect();
    assert_eq!(standings, [(at(3), "probed_down"), (at(4), "down")]);
    h.sweep(t0 + Duration::from_secs(25 * 3600));
    assert!(h.is_empty());
}

#[test]
fn the_table_is_bounded() {
    let (mut h, t0) = (health(), Instant::now());
    for n in 0..u32::try_from(MAX_INSTANCES).unwrap() + 5 {
        h.observe(t0, at(n), INVITE);
    }
    assert_eq!(h.len(), MAX_INSTANCES);
    assert_eq!(h.standing(t0, &at(0)).label(), "down", "what is known stays");
    let later = t0 + Duration::from_secs(120);
    assert!(h.observe(later, at(u32::MAX), INVITE).is_some(), "room is made of what ran out");
    assert_eq!(h.len(), 1);
}

#[test]
fn what_is_down_tells_since_when_and_what_took_it_down_first() {
    let lost = Observation::Unreachable(SendFailure::Icmp);
    // The hold-down is over by then; the trial fails, which is no new fall.
    let (h, t0, _) =
        play(&[(0, OTHER), (10, INVITE), (20, lost), (60_000, Observation::TrialBegun), (60_010, lost)]);
    assert_eq!(h.fallen().collect::<Vec<_>>(), [(at(1), t0 + ms(10), "silence")]);
    let (h, t0, _) = play(&[(0, lost), (10, Observation::Answered), (20, BAD), (30, BAD), (40, BAD)]);
    assert_eq!(h.fallen().collect::<Vec<_>>(), [(at(1), t0 + ms(40), "probe_failed")]);
    let (h, ..) = play(&[(0, OTHER), (10, BAD)]);
    assert_eq!(h.fallen().count(), 0, "a suspicion is no fall");
}

#[test]
fn what_comes_back_tells_the_part_of_its_share_that_it_gets() {
    let (h, t0, _) = play(&[(0, INVITE), (5_000, Observation::Answered)]);
    let parts = |t| h.ramps(t0 + ms(t)).collect::<Vec<_>>();
    let [(instance, part)] = parts(10_000)[..] else { panic!("one is on its way back") };
    assert_eq!(instance, at(1));
    assert!((0.5..0.6).contains(&part), "half the time and a tenth to begin with: {part}");
    assert_eq!(parts(15_000), [], "all of it");
    let (h, t0, _) = play(&[(0, INVITE)]);
    assert_eq!(h.ramps(t0 + ms(10)).count(), 0, "what is down gets none");
}
