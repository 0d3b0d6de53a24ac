//! Figure 6: non-INVITE client transaction.

use super::*;

fn started(reliable: bool) -> ClientNonInvite {
    ClientNonInvite::start(REQUEST, reliable, &CFG, SPAN, &mut Effects::new())
}

fn after(reliable: bool, responses: &[u16]) -> ClientNonInvite {
    let mut machine = started(reliable);
    for &status in responses {
        machine.on_response(status, &mut Effects::new());
    }
    machine
}

fn trying() -> ClientNonInvite {
    started(UDP)
}
fn proceeding() -> ClientNonInvite {
    after(UDP, &[100])
}
fn completed() -> ClientNonInvite {
    after(UDP, &[200])
}
fn terminated() -> ClientNonInvite {
    after(TCP, &[200])
}
fn abandoned() -> ClientNonInvite {
    let mut machine = trying();
    machine.abandon();
    machine
}
fn abandoned_later() -> ClientNonInvite {
    let mut machine = proceeding();
    machine.abandon();
    machine
}

#[test]
fn starting_sends_the_request_and_arms_e_and_f() {
    let mut fx = Effects::new();
    let left = Duration::from_secs(7);
    let machine = ClientNonInvite::start(REQUEST, UDP, &CFG, left, &mut fx);
    assert_eq!(drain(&mut fx), [Send(REQUEST), Arm(Timer::E, T1), Arm(Timer::F, left)]);
    assert_eq!(machine.state(), State::Trying);
    ClientNonInvite::start(REQUEST, TCP, &CFG, left, &mut fx);
    assert_eq!(drain(&mut fx), [Send(REQUEST), Arm(Timer::F, left)]);
}

#[test]
fn every_arrow_of_figure_6() {
    let rows = vec![
        Row {
            arrow: "Trying, timer E: repeat",
            from: trying,
            event: |m, fx| m.on_timer(Timer::E, fx),
            then: vec![Send(REQUEST), Arm(Timer::E, 2 * T1)],
            to: State::Trying,
        },
        Row {
            arrow: "Trying, timer F",
            from: trying,
            event: |m, fx| m.on_timer(Timer::F, fx),
            then: vec![Deliver(Timeout), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Trying, transport error",
            from: trying,
            event: ClientNonInvite::on_transport_error,
            then: vec![Deliver(TransportError), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Trying, 1xx",
            from: trying,
            event: |m, fx| m.on_response(100, fx),
            then: vec![Deliver(Response)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Trying, 200-699",
            from: trying,
            event: |m, fx| m.on_response(404, fx),
            then: vec![Deliver(Response), Arm(Timer::K, T4)],
            to: State::Completed,
        },
        Row {
            arrow: "Trying, 200-699 over a stream: K is zero",
            from: || started(TCP),
            event: |m, fx| m.on_response(200, fx),
            then: vec![Deliver(Response), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Proceeding, timer E: repeat every T2",
            from: proceeding,
            event: |m, fx| m.on_timer(Timer::E, fx),
            then: vec![Send(REQUEST), Arm(Timer::E, T2)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, timer F",
            from: proceeding,
            event: |m, fx| m.on_timer(Timer::F, fx),
            then: vec![Deliver(Timeout), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Proceeding, transport error",
            from: proceeding,
            event: ClientNonInvite::on_transport_error,
            then: vec![Deliver(TransportError), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Proceeding, 1xx",
            from: proceeding,
            event: |m, fx| m.on_response(199, fx),
            then: vec![Deliver(Response)],
            to: State::Proceeding,
        },
        Row {
            arrow: "Proceeding, 200-699",
            from: proceeding,
            event: |m, fx| m.on_response(200, fx),
            then: vec![Deliver(Response), Arm(Timer::K, T4)],
            to: State::Completed,
        },
        Row {
            arrow: "Proceeding, 200-699 over a stream",
            from: || after(TCP, &[100]),
            event: |m, fx| m.on_response(503, fx),
            then: vec![Deliver(Response), Done],
            to: State::Terminated,
        },
        Row {
            arrow: "Completed, timer K",
            from: completed,
            event: |m, fx| m.on_timer(Timer::K, fx),
            then: vec![Done],
            to: State::Terminated,
        },
    ];
    check(rows, ClientNonInvite::state);
}

#[test]
fn what_no_arrow_names_is_absorbed() {
    let row = |arrow, from, event, to| Row { arrow, from, event, then: vec![], to };
    let rows: Vec<Row<ClientNonInvite>> = vec![
        row("1xx after the final", completed, |m, fx| m.on_response(100, fx), State::Completed),
        row("final again", completed, |m, fx| m.on_response(200, fx), State::Completed),
        row("other final", completed, |m, fx| m.on_response(500, fx), State::Completed),
        row("error", completed, ClientNonInvite::on_transport_error, State::Completed),
        row("expire", completed, ClientNonInvite::expire, State::Completed),
        row("after the end", terminated, |m, fx| m.on_response(200, fx), State::Terminated),
    ];
    check(rows, ClientNonInvite::state);
}

#[test]
fn timers_of_another_state_do_nothing() {
    check_timers(
        vec![
            (trying, &[Timer::E, Timer::F]),
            (abandoned, &[Timer::F]),
            (|| started(TCP), &[Timer::F]),
            (proceeding, &[Timer::E, Timer::F]),
            (abandoned_later, &[Timer::F]),
            (completed, &[Timer::K]),
            (terminated, &[]),
        ],
        ClientNonInvite::on_timer,
        ClientNonInvite::state,
    );
}

#[test]
fn an_abandoned_attempt_is_silent_but_listens() {
    let mut fx = Effects::new();
    let mut machine = abandoned();
    machine.on_response(100, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response)]);
    machine.on_timer(Timer::E, &mut fx);
    assert!(fx.actions.is_empty(), "a provisional does not start the repeating again");
    machine.on_response(200, &mut fx);
    assert_eq!(drain(&mut fx), [Deliver(Response), Arm(Timer::K, T4)]);
}

#[test]
fn it_can_be_expired_and_holds_no_request_at_the_end() {
    let mut fx = Effects::new();
    for mut machine in [trying(), proceeding()] {
        assert_eq!(machine.request(), Some(&REQUEST));
        machine.expire(&mut fx);
        assert_eq!(drain(&mut fx), [Deliver(Timeout), Done]);
        assert!(machine.is_terminated());
        assert_eq!(machine.request(), None);
    }
    assert_eq!(completed().request(), None);
}

#[test]
fn timer_e_doubles_up_to_t2() {
    let expected: [(u64, &[u64]); 3] = [
        (500, &[0, 500, 1500, 3500, 7500, 11500, 15500, 19500, 23500, 27500, 31500]),
        (100, &[0, 100, 300, 700, 1500, 3100, 6300]),
        (10, &[0, 10, 30, 70, 150, 310, 630]),
    ];
    for (t1, times) in expected {
        let cfg = cfg(t1);
        let mut fx = Effects::new();
        let machine = ClientNonInvite::start(REQUEST, UDP, &cfg, cfg.timeout(), &mut fx);
        let log = Run::new(machine, fx, ClientNonInvite::on_timer).finish();
        let times: Vec<f64> = times.iter().map(|&t| t as f64).collect();
        assert_near(&sends(&log, Duration::from_millis(1)), &times);
        assert_eq!(end(&log), (cfg.timeout(), Some(Deliver(Timeout))));
    }
}

#[test]
fn after_a_provisional_it_repeats_every_t2() {
    let mut fx = Effects::new();
    let machine = ClientNonInvite::start(REQUEST, UDP, &CFG, SPAN, &mut fx);
    let mut run = Run::new(machine, fx, ClientNonInvite::on_timer);
    run.at(Duration::from_millis(600), |m, fx| m.on_response(100, fx));
    run.at(Duration::from_secs(11), |m, fx| m.on_response(200, fx));
    let log = run.finish();
    assert_near(&sends(&log, Duration::from_millis(1)), &[0.0, 500.0, 1500.0, 5500.0, 9500.0]);
    assert_eq!(end(&log), (Duration::from_secs(16), None));
}

#[test]
fn a_later_attempt_ends_with_the_shared_deadline() {
    let mut fx = Effects::new();
    let left = Duration::from_millis(1200);
    let machine = ClientNonInvite::start(REQUEST, UDP, &CFG, left, &mut fx);
    let log = Run::new(machine, fx, ClientNonInvite::on_timer).finish();
    assert_near(&sends(&log, T1), &[0.0, 1.0]);
    assert_eq!(end(&log), (left, Some(Deliver(Timeout))));
}
