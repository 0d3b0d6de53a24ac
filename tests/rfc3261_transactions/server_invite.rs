//! Figure 7: INVITE server transaction.

use super::*;

fn after(reliable: bool, statuses: &[u16]) -> ServerInvite {
    let mut machine = ServerInvite::new();
    for &status in statuses {
        assert!(machine.respond(status, LAST, reliable, &CFG, &mut Effects::new()));
    }
    machine
}

fn fresh() -> ServerInvite {
    ServerInvite::new()
}
fn proceeding() -> ServerInvite {
    after(UDP, &[100])
}
fn accepted() -> ServerInvite {
    after(UDP, &[180, 200])
}
fn completed() -> ServerInvite {
    after(UDP, &[180, 486])
}
fn confirmed() -> ServerInvite {
    let mut machine = completed();
    machine.on_ack(&mut Effects::new());
    machine
}
fn terminated() -> ServerInvite {
    let mut machine = confirmed();
    machine.on_timer(Timer::I, &mut Effects::new());
    machine
}
fn respond(machine: &mut ServerInvite, status: u16, fx: &mut Effects) {
    assert!(machine.respond(status, NEXT, UDP, &CFG, fx));
}

#[test]
fn every_arrow_of_figure_7() {
    let rows = vec![
        Row {
            arrow: "Proceeding, INVITE before any response",
            from: fresh,
            event: ServerInvite::on_retransmission,
            then: vec![],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, INVITE: the last provisional again",
            from: proceeding,
            event: ServerInvite::on_retransmission,
            then: vec![Send(LAST)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 1xx from the core",
            from: proceeding,
            event: |m, fx| {
                respond(m, 180, fx);
                m.on_retransmission(fx);
            },
            then: vec![Send(NEXT), Send(NEXT)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, transport error",
            from: proceeding,
            event: ServerInvite::on_transport_error,
            then: vec![Deliver(TransportError)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 2xx from the core",
            from: proceeding,
            event: |m, fx| respond(m, 200, fx),
            then: vec![Send(NEXT), Arm(Timer::L, SPAN)],
            to: State::Accepted,
        },
        Row {
            arrow: "Proceeding, 300-699 from the core",
            from: proceeding,
            event: |m, fx| respond(m, 300, fx),
            then: vec![Send(NEXT), Arm(Timer::G, T1), Arm(Timer::H, SPAN)],
            to: State::Completed,
        },
        Row {
            arrow: "Proceeding, 300-699 from the core, over a stream",
            from: fresh,
            event: |m, fx| assert!(m.respond(603, NEXT, TCP, &CFG, fx)),
            then: vec![Send(NEXT), Arm(Timer::H, SPAN)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, INVITE",
            from: completed,
            event: ServerInvite::on_retransmission,
            then: vec![Send(LAST)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, timer G",
            from: completed,
            event: |m, fx| m.on_timer(Timer::G, fx),
            then: vec![Send(LAST), Arm(Timer::G, 2 * T1)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, timer H",
            from: completed,
            event: |m, fx| m.on_timer(Timer::H, fx),
            then: vec![Deliver(Timeout), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Completed, transport error: stays (RFC 6026)",
            from: completed,
            event: ServerInvite::on_transport_error,
            then: vec![Deliver(TransportError)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, ACK",
            from: completed,
            event: ServerInvite::on_ack,
            then: vec![Arm(Timer::I, T4)],
            to: State::Confirmed,
        },
        Row {
            arrow: "Completed, ACK over a stream: I is zero",
            from: || after(TCP, &[486]),
            event: ServerInvite::on_ack,
            then: vec![Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Confirmed, timer I",
            from: confirmed,
            event: |m, fx| m.on_timer(Timer::I, fx),
            then: vec![Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Accepted, INVITE: absorbed",
            from: accepted,
            event: ServerInvite::on_retransmission,
            then: vec![],
            to: State::Accepted,
        },
        Row {
            arrow: "Accepted, ACK: to the core",
            from: accepted,
            event: ServerInvite::on_ack,
            then: vec![Deliver(Ack)],
            to: State::Accepted,
        },
        Row {
            arrow: "Accepted, 2xx from the core",
            from: accepted,
            event: |m, fx| respond(m, 200, fx),
            then: vec![Send(NEXT)],
            to: State::Accepted,
        },
        Row {
            arrow: "Accepted, transport error",
            from: accepted,
            event: ServerInvite::on_transport_error,
            then: vec![Deliver(TransportError)],
            to: State::Accepted,
        },
        Row {
            arrow: "Accepted, timer L",
            from: accepted,
            event: |m, fx| m.on_timer(Timer::L, fx),
            then: vec![Done],
            to: State::Terminated,
        },
    ];
    check(rows, ServerInvite::state);
}

#[test]
fn what_no_arrow_names_is_absorbed() {
    let row = |arrow, from, event, to| Row { arrow, from, event, then: vec![], to };
    let rows: Vec<Row<ServerInvite>> = vec![
        row("ACK before a final", proceeding, ServerInvite::on_ack, State::Proceeding),
        row("ACK again", confirmed, ServerInvite::on_ack, State::Confirmed),
        row("INVITE", confirmed, ServerInvite::on_retransmission, State::Confirmed),
        row("error", confirmed, ServerInvite::on_transport_error, State::Confirmed),
        row("INVITE at the end", terminated, ServerInvite::on_retransmission, State::Terminated),
        row("ACK at the end", terminated, ServerInvite::on_ack, State::Terminated),
    ];
    check(rows, ServerInvite::state);
}

#[test]
fn timers_of_another_state_do_nothing() {
    check_timers(
        vec![
            (fresh, &[]),
            (proceeding, &[]),
            (accepted, &[Timer::L]),
            (completed, &[Timer::G, Timer::H]),
            (|| after(TCP, &[486]), &[Timer::H]),
            (confirmed, &[Timer::I]),
            (terminated, &[]),
        ],
        ServerInvite::on_timer,
        ServerInvite::state,
    );
}

#[test]
fn there_is_one_final_response() {
    let mut fx = Effects::new();
    for from in [accepted, completed, confirmed, terminated] {
        for status in [100, 180, 302, 487, 603] {
            let mut machine = from();
            let before = machine.state();
            assert!(machine.has_final());
            assert!(!machine.respond(status, NEXT, UDP, &CFG, &mut fx), "{status} in {before:?}");
            assert!(fx.actions.is_empty());
            assert_eq!(machine.state(), before);
        }
    }
    assert!(!terminated().respond(200, NEXT, UDP, &CFG, &mut fx));
    assert!(!fresh().has_final() && !proceeding().has_final());
}

#[test]
fn a_late_2xx_passes_by_the_final_response_that_awaits_its_ack() {
    let mut fx = Effects::new();
    let mut machine = completed();
    assert!(machine.respond(200, NEXT, UDP, &CFG, &mut fx));
    assert_eq!(drain(&mut fx), [Send(NEXT)]);
    machine.on_timer(Timer::G, &mut fx);
    assert_eq!(drain(&mut fx), [Send(LAST), Arm(Timer::G, 2 * T1)], "its own is repeated");
    machine.on_ack(&mut fx);
    assert_eq!(drain(&mut fx), [Arm(Timer::I, T4)], "the ACK ends here");
    assert!(machine.respond(200, NEXT, UDP, &CFG, &mut fx));
    assert_eq!(drain(&mut fx), [Send(NEXT)]);
    assert_eq!(machine.state(), State::Confirmed);
}

#[test]
fn timer_g_doubles_up_to_t2_until_timer_h() {
    let expected: [(u64, &[u64]); 3] = [
        (500, &[0, 500, 1500, 3500, 7500, 11500, 15500, 19500, 23500, 27500, 31500]),
        (100, &[0, 100, 300, 700, 1500, 3100, 6300]),
        (10, &[0, 10, 30, 70, 150, 310, 630]),
    ];
    for (t1, times) in expected {
        let cfg = cfg(t1);
        let mut fx = Effects::new();
        let mut machine = fresh();
        assert!(machine.respond(486, LAST, UDP, &cfg, &mut fx));
        let log = Run::new(machine, fx, ServerInvite::on_timer).finish();
        let times: Vec<f64> = times.iter().map(|&t| t as f64).collect();
        assert_near(&sends(&log, Duration::from_millis(1)), &times);
        assert_eq!(end(&log), (cfg.timeout(), Some(Deliver(Timeout))));
    }
}

#[test]
fn the_ack_stops_the_repeating() {
    let mut fx = Effects::new();
    let mut machine = fresh();
    assert!(machine.respond(486, LAST, UDP, &CFG, &mut fx));
    let mut run = Run::new(machine, fx, ServerInvite::on_timer);
    run.at(4 * T1, ServerInvite::on_ack);
    run.at(6 * T1, ServerInvite::on_ack);
    let log = run.finish();
    assert_near(&sends(&log, T1), &[0.0, 1.0, 3.0]);
    assert_eq!(end(&log), (4 * T1 + T4, None));
}

#[test]
fn accepted_lasts_64_t1_whatever_follows() {
    let mut fx = Effects::new();
    let mut machine = fresh();
    assert!(machine.respond(200, LAST, UDP, &cfg(100), &mut fx));
    let mut run = Run::new(machine, fx, ServerInvite::on_timer);
    run.at(Duration::from_secs(3), |m, fx| {
        assert!(m.respond(200, LAST, UDP, &cfg(100), fx));
        m.on_ack(fx);
    });
    assert_eq!(end(&run.finish()), (Duration::from_millis(6400), None));
}
