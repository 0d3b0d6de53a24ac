//! Figure 8: non-INVITE server transaction.

use super::*;

fn after(reliable: bool, statuses: &[u16]) -> ServerNonInvite {
    let mut machine = ServerNonInvite::new();
    for &status in statuses {
        assert!(machine.respond(status, LAST, reliable, &CFG, &mut Effects::new()));
    }
    machine
}

fn trying() -> ServerNonInvite {
    ServerNonInvite::new()
}
fn proceeding() -> ServerNonInvite {
    after(UDP, &[100])
}
fn completed() -> ServerNonInvite {
    after(UDP, &[200])
}
fn terminated() -> ServerNonInvite {
    after(TCP, &[200])
}
fn respond(machine: &mut ServerNonInvite, status: u16, fx: &mut Effects) {
    assert!(machine.respond(status, NEXT, UDP, &CFG, fx));
}

#[test]
fn every_arrow_of_figure_8() {
    let rows = vec![
        Row {
            arrow: "Trying, request: absorbed",
            from: trying,
            event: ServerNonInvite::on_retransmission,
            then: vec![],
            to: State::Trying,
        },
        Row {
            arrow: "Trying, 1xx from the core",
            from: trying,
            event: |m, fx| respond(m, 100, fx),
            then: vec![Send(NEXT)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Trying, 200-699 from the core",
            from: trying,
            event: |m, fx| respond(m, 200, fx),
            then: vec![Send(NEXT), Arm(Timer::J, SPAN)],
            to: State::Completed,
        },
        Row {
            arrow: "Trying, 200-699 from the core over a stream: J is zero",
            from: trying,
            event: |m, fx| assert!(m.respond(404, NEXT, TCP, &CFG, fx)),
            then: vec![Send(NEXT), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Proceeding, request",
            from: proceeding,
            event: ServerNonInvite::on_retransmission,
            then: vec![Send(LAST)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 1xx from the core",
            from: proceeding,
            event: |m, fx| {
                respond(m, 183, fx);
                m.on_retransmission(fx);
            },
            then: vec![Send(NEXT), Send(NEXT)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, transport error: stays (RFC 6026)",
            from: proceeding,
            event: ServerNonInvite::on_transport_error,
            then: vec![Deliver(TransportError)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 200-699 from the core",
            from: proceeding,
            event: |m, fx| respond(m, 603, fx),
            then: vec![Send(NEXT), Arm(Timer::J, SPAN)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, request",
            from: completed,
            event: ServerNonInvite::on_retransmission,
            then: vec![Send(LAST)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, transport error: stays (RFC 6026)",
            from: completed,
            event: ServerNonInvite::on_transport_error,
            then: vec![Deliver(TransportError)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, timer J",
            from: completed,
            event: |m, fx| m.on_timer(Timer::J, fx),
            then: vec![Done],
            to: State::Terminated,
        },
    ];
    check(rows, ServerNonInvite::state);
}

#[test]
fn timers_of_another_state_do_nothing() {
    check_timers(
        vec![(trying, &[Timer::Trying]), (proceeding, &[]), (completed, &[Timer::J]), (terminated, &[])],
        ServerNonInvite::on_timer,
        ServerNonInvite::state,
    );
}

#[test]
fn there_is_one_final_response() {
    let mut fx = Effects::new();
    for from in [completed, terminated] {
        for status in [100, 200, 408, 503] {
            let mut machine = from();
            assert!(machine.has_final());
            assert!(!machine.respond(status, NEXT, UDP, &CFG, &mut fx));
            assert!(fx.actions.is_empty());
        }
    }
    let mut machine = completed();
    assert!(!machine.respond(500, NEXT, UDP, &CFG, &mut fx));
    machine.on_retransmission(&mut fx);
    assert_eq!(drain(&mut fx), [Send(LAST)], "the first one stands");
}

#[test]
fn a_100_falls_due_when_the_senders_timer_e_reaches_t2() {
    for (t1, due) in [(500, 3500), (100, 6300), (10, 5110), (4000, 0)] {
        let mut fx = Effects::new();
        ServerNonInvite::start(&cfg(t1), &mut fx);
        assert_eq!(drain(&mut fx), [Arm(Timer::Trying, Duration::from_millis(due))]);
    }
}

#[test]
fn the_late_100_is_made_only_if_nothing_was_answered() {
    let mut fx = Effects::new();
    let mut machine = trying();
    machine.on_timer(Timer::Trying, &mut fx);
    assert_eq!(drain(&mut fx), [MakeTrying]);
    respond(&mut machine, 100, &mut fx);
    assert_eq!(drain(&mut fx), [Send(NEXT)]);
    for mut machine in [proceeding(), completed(), terminated()] {
        machine.on_timer(Timer::Trying, &mut fx);
        assert!(fx.actions.is_empty());
    }
}

#[test]
fn without_an_answer_it_ends_in_silence() {
    let mut fx = Effects::new();
    for mut machine in [trying(), proceeding()] {
        assert!(!machine.has_final());
        machine.expire(&mut fx);
        assert_eq!(drain(&mut fx), [Done]);
        assert!(machine.is_terminated());
    }
    for mut machine in [completed(), terminated()] {
        machine.expire(&mut fx);
        assert!(fx.actions.is_empty());
    }
}

#[test]
fn completed_lasts_64_t1() {
    for t1 in [10, 100, 500] {
        let mut fx = Effects::new();
        let mut machine = trying();
        assert!(machine.respond(200, LAST, UDP, &cfg(t1), &mut fx));
        let log = Run::new(machine, fx, ServerNonInvite::on_timer).finish();
        assert_eq!(end(&log), (Duration::from_millis(64 * t1), None));
    }
}
