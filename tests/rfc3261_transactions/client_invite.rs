//! Figure 5: INVITE client transaction.

use super::*;

fn started(reliable: bool) -> ClientInvite {
    ClientInvite::start(REQUEST, reliable, &CFG, &mut Effects::new())
}

fn after(reliable: bool, responses: &[u16]) -> ClientInvite {
    let mut machine = started(reliable);
    for &status in responses {
        machine.on_response(status, &mut Effects::new());
    }
    machine
}

fn calling() -> ClientInvite {
    started(UDP)
}
fn abandoned() -> ClientInvite {
    let mut machine = started(UDP);
    machine.abandon();
    machine
}
fn proceeding() -> ClientInvite {
    after(UDP, &[180])
}
fn accepted() -> ClientInvite {
    after(UDP, &[180, 200])
}
fn unacknowledged() -> ClientInvite {
    after(UDP, &[486])
}
fn completed() -> ClientInvite {
    let mut machine = after(UDP, &[180, 486]);
    machine.store_ack(ACK);
    machine
}
fn terminated() -> ClientInvite {
    let mut machine = accepted();
    machine.on_timer(Timer::M, &mut Effects::new());
    machine
}

#[test]
fn starting_sends_the_request_and_arms_a_and_b() {
    let mut fx = Effects::new();
    let machine = ClientInvite::start(REQUEST, UDP, &CFG, &mut fx);
    assert_eq!(drain(&mut fx), [Send(REQUEST), Arm(Timer::A, T1), Arm(Timer::B, SPAN)]);
    assert_eq!(machine.state(), State::Calling);
    ClientInvite::start(REQUEST, TCP, &CFG, &mut fx);
    assert_eq!(drain(&mut fx), [Send(REQUEST), Arm(Timer::B, SPAN)]);
}

#[test]
fn every_arrow_of_figure_5() {
    let final_udp = vec![MakeAck, Deliver(Response), Arm(Timer::D, SPAN)];
    let rows = vec![
        Row {
            arrow: "Calling, timer A: repeat",
            from: calling,
            event: |m, fx| m.on_timer(Timer::A, fx),
            then: vec![Send(REQUEST), Arm(Timer::A, 2 * T1)],
            to: State::Calling,
        },
        Row {
            arrow: "Calling, timer B: timeout",
            from: calling,
            event: |m, fx| m.on_timer(Timer::B, fx),
            then: vec![Deliver(Timeout), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Calling, transport error",
            from: calling,
            event: ClientInvite::on_transport_error,
            then: vec![Deliver(TransportError), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Calling, 1xx",
            from: calling,
            event: |m, fx| m.on_response(100, fx),
            then: vec![Deliver(Response)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Calling, 2xx",
            from: calling,
            event: |m, fx| m.on_response(200, fx),
            then: vec![Deliver(Response), Arm(Timer::M, SPAN)],
            to: State::Accepted,
        },
        Row {
            arrow: "Calling, 300-699",
            from: calling,
            event: |m, fx| m.on_response(300, fx),
            then: final_udp.clone(),
            to: State::Completed,
        },
        Row {
            arrow: "Proceeding, 1xx",
            from: proceeding,
            event: |m, fx| m.on_response(183, fx),
            then: vec![Deliver(Response)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 2xx",
            from: proceeding,
            event: |m, fx| m.on_response(299, fx),
            then: vec![Deliver(Response), Arm(Timer::M, SPAN)],
            to: State::Accepted,
        },
        Row {
            arrow: "Proceeding, 300-699",
            from: proceeding,
            event: |m, fx| m.on_response(699, fx),
            then: final_udp,
            to: State::Completed,
        },
        Row {
            arrow: "Proceeding, transport error: the connection was lost",
            from: proceeding,
            event: ClientInvite::on_transport_error,
            then: vec![Deliver(TransportError), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Accepted, another 2xx",
            from: accepted,
            event: |m, fx| m.on_response(200, fx),
            then: vec![Deliver(Response)],
            to: State::Accepted,
        },
        Row {
            arrow: "Accepted, timer M",
            from: accepted,
            event: |m, fx| m.on_timer(Timer::M, fx),
            then: vec![Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Completed, 300-699 again: the ACK again",
            from: completed,
            event: |m, fx| m.on_response(486, fx),
            then: vec![Send(ACK)],
            to: State::Completed,
        },
        Row {
            arrow: "Completed, transport error",
            from: completed,
            event: ClientInvite::on_transport_error,
            then: vec![Deliver(TransportError), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Completed, timer D",
            from: completed,
            event: |m, fx| m.on_timer(Timer::D, fx),
            then: vec![Done],
            to: State::Terminated,
        },
    ];
    check(rows, ClientInvite::state);
}

#[test]
fn what_no_arrow_names_is_absorbed() {
    let row = |arrow, from, event, to| Row { arrow, from, event, then: vec![], to };
    let rows: Vec<Row<ClientInvite>> = vec![
        row("1xx after 2xx", accepted, |m, fx| m.on_response(180, fx), State::Accepted),
        row("300-699 after 2xx", accepted, |m, fx| m.on_response(486, fx), State::Accepted),
        row("1xx after 300-699", completed, |m, fx| m.on_response(180, fx), State::Completed),
        row("error in Accepted", accepted, ClientInvite::on_transport_error, State::Accepted),
        row("2xx after the end", terminated, |m, fx| m.on_response(200, fx), State::Terminated),
        row("error at the end", terminated, ClientInvite::on_transport_error, State::Terminated),
        row("expire in Accepted", accepted, ClientInvite::expire, State::Accepted),
        row("expire in Completed", completed, ClientInvite::expire, State::Completed),
    ];
    check(rows, ClientInvite::state);
}

#[test]
fn timers_of_another_state_do_nothing() {
    check_timers(
        vec![
            (calling, &[Timer::A, Timer::B]),
            (abandoned, &[Timer::B]),
            (|| started(TCP), &[Timer::B]),
            (proceeding, &[]),
            (accepted, &[Timer::M]),
            (unacknowledged, &[Timer::D]),
            (completed, &[Timer::D]),
            (terminated, &[]),
        ],
        ClientInvite::on_timer,
        ClientInvite::state,
    );
}

#[test]
fn a_2xx_after_another_final_response_is_still_delivered() {
    let mut fx = Effects::new();
    for mut machine in [completed(), unacknowledged()] {
        machine.on_response(200, &mut fx);
        assert_eq!(drain(&mut fx), [Deliver(Response)]);
        assert_eq!(machine.state(), State::Completed);
    }
    let mut machine = completed();
    machine.on_response(200, &mut fx);
    machine.on_response(486, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response), Send(ACK)]);
}

#[test]
fn over_a_stream_the_ack_is_made_before_the_end() {
    let mut fx = Effects::new();
    for responses in [&[][..], &[180]] {
        let mut machine = after(TCP, responses);
        machine.on_response(503, &mut fx);
        assert_eq!(drain(&mut fx), [MakeAck, Deliver(Response), Done]);
        assert!(machine.is_terminated());
        assert_eq!(machine.request(), Some(&REQUEST), "the ACK is built from it");
        machine.store_ack(ACK);
        assert_eq!(machine.request(), None);
        assert!(machine.is_terminated());
    }
}

#[test]
fn a_final_response_repeated_before_the_ack_was_built_asks_for_it_again() {
    let mut fx = Effects::new();
    let mut machine = unacknowledged();
    assert_eq!(machine.request(), Some(&REQUEST));
    machine.on_response(486, &mut fx);
    assert_eq!(drain(&mut fx), [MakeAck]);
    machine.store_ack(ACK);
    assert_eq!(machine.request(), None, "only the ACK is kept");
    machine.on_response(486, &mut fx);
    assert_eq!(drain(&mut fx), [Send(ACK)]);
}

#[test]
fn an_ack_that_nobody_asked_for_changes_nothing() {
    for (mut machine, state) in
        [(calling(), State::Calling), (proceeding(), State::Proceeding), (accepted(), State::Accepted)]
    {
        machine.store_ack(Bytes::from_static(b"stray"));
        assert_eq!(machine.state(), state);
    }
    let mut machine = completed();
    machine.store_ack(Bytes::from_static(b"stray"));
    let mut fx = Effects::new();
    machine.on_response(486, &mut fx);
    assert_eq!(drain(&mut fx), [Send(ACK)]);
}

#[test]
fn an_abandoned_attempt_is_silent_but_listens() {
    let mut fx = Effects::new();
    let mut machine = abandoned();
    machine.on_timer(Timer::A, &mut fx);
    assert!(fx.actions.is_empty());
    assert_eq!(machine.request(), Some(&REQUEST), "a late 1xx is answered with CANCEL");

    machine.on_response(180, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response)]);
    assert!(machine.may_cancel());

    let mut machine = abandoned();
    machine.on_response(200, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response), Arm(Timer::M, SPAN)]);

    let mut machine = abandoned();
    machine.on_response(486, &mut fx);
    assert_eq!(drain(&mut fx), [MakeAck, Deliver(Response), Arm(Timer::D, SPAN)]);

    let mut machine = abandoned();
    machine.on_timer(Timer::B, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Timeout), Done]);
}

#[test]
fn abandoning_after_a_provisional_changes_nothing() {
    let mut machine = proceeding();
    machine.abandon();
    assert!(machine.may_cancel());
    let mut fx = Effects::new();
    machine.on_response(200, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response), Arm(Timer::M, SPAN)]);
}

#[test]
fn a_branch_without_an_end_can_be_expired() {
    let mut fx = Effects::new();
    for mut machine in [calling(), abandoned(), proceeding()] {
        machine.expire(&mut fx);
        assert_eq!(drain(&mut fx), [Deliver(Timeout), Done]);
        assert!(machine.is_terminated());
        assert_eq!(machine.request(), None);
    }
}

#[test]
fn cancel_is_possible_between_provisional_and_final_only() {
    assert!(!calling().may_cancel() && !calling().saw_provisional());
    assert!(proceeding().may_cancel() && proceeding().saw_provisional());
    assert!(!accepted().may_cancel() && accepted().saw_provisional());
    assert!(!completed().may_cancel() && completed().saw_provisional());
    assert!(!unacknowledged().saw_provisional());
    assert!(!after(UDP, &[200]).saw_provisional());
    assert!(terminated().saw_provisional());
    assert!(accepted().request().is_none(), "a 2xx frees the request");
}

#[test]
fn timer_a_doubles_without_a_cap_until_timer_b() {
    for t1 in [10, 100, 500] {
        let (cfg, t1) = (cfg(t1), Duration::from_millis(t1));
        let mut fx = Effects::new();
        let machine = ClientInvite::start(REQUEST, UDP, &cfg, &mut fx);
        let log = Run::new(machine, fx, ClientInvite::on_timer).finish();
        assert_near(&sends(&log, t1), &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]);
        assert_eq!(end(&log), (64 * t1, Some(Deliver(Timeout))));
    }
}

#[test]
fn over_a_stream_nothing_is_repeated() {
    let mut fx = Effects::new();
    let machine = ClientInvite::start(REQUEST, TCP, &CFG, &mut fx);
    let log = Run::new(machine, fx, ClientInvite::on_timer).finish();
    assert_near(&sends(&log, T1), &[0.0]);
    assert_eq!(end(&log), (SPAN, Some(Deliver(Timeout))));
}

#[test]
fn a_provisional_stops_the_repeating_and_timer_b() {
    let mut fx = Effects::new();
    let machine = ClientInvite::start(REQUEST, UDP, &CFG, &mut fx);
    let mut run = Run::new(machine, fx, ClientInvite::on_timer);
    run.at(2 * T1, |m, fx| m.on_response(180, fx));
    run.at(4 * SPAN, |m, fx| m.on_response(200, fx));
    let log = run.finish();
    assert_near(&sends(&log, T1), &[0.0, 1.0]);
    assert_eq!(end(&log), (5 * SPAN, None));
}

#[test]
fn timer_d_scales_with_t1() {
    for t1 in [10, 100, 500] {
        let (cfg, t1) = (cfg(t1), Duration::from_millis(t1));
        let mut fx = Effects::new();
        let machine = ClientInvite::start(REQUEST, UDP, &cfg, &mut fx);
        let mut run = Run::new(machine, fx, ClientInvite::on_timer);
        run.at(5 * t1, |m, fx| {
            m.on_response(486, fx);
            m.store_ack(ACK);
        });
        run.at(10 * t1, |m, fx| m.on_response(486, fx));
        let log = run.finish();
        assert_near(&sends(&log, t1), &[0.0, 1.0, 3.0, 10.0]);
        assert_eq!(end(&log), (69 * t1, None));
    }
}
