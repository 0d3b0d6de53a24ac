//! Servers that fail, lie, stall or complain: what is learnt stays, what is asked is bounded, and it shows.

use serde_json::json;

use super::stage::{
    Reply, Stage, costs, dsts, ecs_entry, endpoint_costs, ird, maps_entries, network, ok, settings, status,
    with,
};
use crate::alto::{Fault, Request, Target, media};

const PAIR: &[&str] = &["198.51.100.1", "198.51.100.2"];

fn path(r: &Request) -> String {
    match &r.target {
        Target::Http(url) => url.path().to_owned(),
        Target::File(path) => path.display().to_string(),
    }
}

/// A server with an endpoint cost service that answers so.
fn ecs(mut answer: impl FnMut(&Request) -> Reply) -> impl FnMut(&Request) -> Option<Reply> {
    move |r| {
        Some(match path(r).as_str() {
            "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) })),
            _ => answer(r),
        })
    }
}

fn alto_error(code: &str, more: &str) -> Reply {
    let body = format!(r#"{{"meta":{{"code":"{code}"{more}}}}}"#);
    with(status(400, &body), |h| h.content_type = Some(media::ERROR.into()))
}

fn pids() -> serde_json::Value {
    json!({ "US": { "ipv4": ["192.0.2.0/24"] }, "A": { "ipv4": ["198.51.100.0/24"] } })
}

/// A server of maps with these versions.
fn maps(tag: &'static str, dependent: &'static str, cost: u32) -> impl FnMut(&Request) -> Option<Reply> {
    move |r| {
        Some(match path(r).as_str() {
            "/ird" => ird(&maps_entries(false)),
            "/net" => network(tag, &pids()),
            _ => costs(dependent, &json!({ "US": { "A": cost } })),
        })
    }
}

#[test]
fn maps_that_do_not_fit_are_each_fetched_once_more_and_then_left() {
    let mut s = Stage::new(settings(""), maps("T1", "T0", 1));
    s.want(&[PAIR]);
    s.run(0.6);
    let order: Vec<&str> = s.log.iter().map(|(_, p)| p.as_str()).collect();
    assert_eq!(order, ["/ird", "/net", "/costs", "/net", "/costs"]);
    assert_eq!((s.snapshot.len(), s.state()), (0, "expired"));
    assert!(s.error().contains("\"T0\" of net") && s.error().contains("\"T1\" of net"), "{}", s.error());
    assert_eq!(s.outcomes().get("mismatch"), Some(&1));
    s.serve(maps("T1", "T1", 1));
    s.run(3.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(1.0), "fresh"));
}

#[test]
fn the_pair_in_use_stays_until_another_one_fits() {
    let mut s = Stage::new(settings("refresh = \"10s\""), maps("T1", "T1", 1));
    s.want(&[PAIR]);
    s.run(1.0);
    s.serve(maps("T2", "T0", 9));
    s.run(100.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(1.0), "failing"));
    assert_eq!(s.status().servers[0].vtag.as_ref().unwrap().1, "T1");
    s.serve(maps("T2", "T2", 9));
    s.run(100.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(9.0), "fresh"));
}

#[test]
fn a_new_network_map_takes_over_together_with_its_cost_map() {
    let mut s = Stage::new(settings("refresh = \"10s\""), maps("T1", "T1", 1));
    s.want(&[PAIR]);
    s.run(1.0);
    s.serve(maps("T2", "T2", 9));
    s.run(20.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(9.0), "fresh"));
    assert_eq!(s.outcomes().get("mismatch"), None, "an update is no error");
}

#[test]
fn a_body_that_is_wrong_changes_nothing_and_shows() {
    let wrong: [(&str, Reply, &str); 7] = [
        ("no JSON", ok_text(media::ENDPOINT_COST, "{nope"), "not JSON"),
        ("NaN", ok_text(media::ENDPOINT_COST, r#"{"endpoint-cost-map":{"a":{"b":NaN}}}"#), "not JSON"),
        ("deep", ok_text(media::ENDPOINT_COST, &"[".repeat(10_000)), "nested 10000 deep"),
        ("another shape", ok_text(media::ENDPOINT_COST, "[]"), "wrong shape"),
        ("HTML", ok_text("text/html", "<html>"), "of type \"text/html\""),
        ("too large", Err(Fault::TooLarge(1 << 20)), "longer than 1048576 octets"),
        ("304 unasked", status(304, ""), "304 for something that was never fetched"),
    ];
    for (what, reply, words) in wrong {
        let mut s = Stage::new(settings("refresh = \"10s\""), ecs(endpoint_costs));
        s.want(&[PAIR]);
        s.run(1.0);
        s.serve(ecs(move |_| reply.clone()));
        s.run(60.0);
        assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(1.0), "failing"), "{what}");
        assert!(s.error().contains(words), "{what}: {}", s.error());
        assert!(s.log.len() < 25, "{what}: {} requests", s.log.len());
    }
}

fn ok_text(kind: &str, text: &str) -> Reply {
    with(status(200, text), |h| h.content_type = Some(kind.into()))
}

#[test]
fn a_server_that_does_not_answer_is_asked_ever_more_seldom() {
    let mut s = Stage::new(settings(""), |_| Some(Err(Fault::Timeout(5))));
    s.want(&[PAIR]);
    s.run(3600.0);
    assert!((14..=25).contains(&s.log.len()), "{}", s.log.len());
    let gaps: Vec<f64> = s.log.windows(2).map(|w| w[1].0 - w[0].0).collect();
    assert!(gaps[0] <= 1.3 && gaps.last().unwrap() > &220.0, "{gaps:?}");
    assert_eq!(s.state(), "expired");
}

#[test]
fn retry_after_is_obeyed_and_the_costs_serve_on() {
    for code in [429, 503] {
        let mut s = Stage::new(settings("refresh = \"10s\""), ecs(endpoint_costs));
        s.want(&[PAIR]);
        s.run(1.0);
        s.serve(ecs(move |_| with(status(code, ""), |h| h.retry_after = Some("120".into()))));
        s.run(10.0);
        let before = s.log.len();
        s.run(100.0);
        assert_eq!(s.log.len(), before, "{code}: left alone");
        assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(1.0), "failing"), "{code}");
        s.serve(ecs(endpoint_costs));
        s.run(60.0);
        assert_eq!(s.state(), "fresh", "{code}");
    }
}

#[test]
fn one_address_that_a_server_cannot_take_is_found_and_left_out() {
    let bad = "203.0.113.66";
    let mut s = Stage::new(
        settings(""),
        ecs(move |r| if dsts(r).iter().any(|d| d == bad) { status(500, "boom") } else { endpoint_costs(r) }),
    );
    let list: Vec<String> = (1..=15).map(|n| format!("203.0.113.{n}")).chain([bad.to_owned()]).collect();
    s.want(&[&list.iter().map(String::as_str).collect::<Vec<_>>()]);
    s.run(30.0);
    assert_eq!(s.snapshot.len(), 15, "all the others have their costs");
    assert_eq!(s.state(), "fresh", "and the server does not count as failing");
    assert_eq!(s.status().servers[0].left_out, 1);
    assert!(s.log.len() <= 14, "{} requests", s.log.len());
}

#[test]
fn with_ranks_the_others_are_asked_for_together_again() {
    let bad = "203.0.113.3";
    let mut s = Stage::new(settings("mode = \"ordinal\""), move |r| {
        Some(match path(r).as_str() {
            "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", &["o"]) })),
            _ if dsts(r).iter().any(|d| d == bad) => status(500, "boom"),
            _ => endpoint_costs(r),
        })
    });
    s.want(&[&["203.0.113.1", "203.0.113.2", bad, "203.0.113.4"]]);
    s.run(30.0);
    let answers: Vec<u64> = s.snapshot.sorted().iter().map(|(_, c)| c.answer).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
}

#[test]
fn an_outage_by_500_loses_neither_costs_nor_addresses() {
    for more in ["refresh = \"20s\"", "refresh = \"20s\"\nmode = \"ordinal\""] {
        let types: &'static [&'static str] = if more.contains("ordinal") { &["o"] } else { &["n"] };
        let good = move |r: &Request| {
            Some(match path(r).as_str() {
                "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", types) })),
                _ => endpoint_costs(r),
            })
        };
        let bad = move |r: &Request| if path(r) == "/ird" { good(r) } else { Some(status(500, "boom")) };
        let mut s = Stage::new(settings(more), good);
        s.want(&[&["198.51.100.1", "198.51.100.2", "198.51.100.3"]]);
        s.run(1.0);
        s.serve(bad);
        s.run(600.0);
        assert_eq!((s.snapshot.len(), s.state()), (3, "failing"), "{more}");
        assert!(s.log.len() < 100, "{more}: {}", s.log.len());
        s.serve(good);
        s.run(400.0);
        assert_eq!((s.snapshot.len(), s.state()), (3, "fresh"), "{more}");
        // And so when it begins with one.
        let mut s = Stage::new(settings(more), bad);
        s.want(&[&["198.51.100.1", "198.51.100.2", "198.51.100.3"]]);
        s.run(300.0);
        assert_eq!(
            (s.snapshot.len(), s.state(), s.status().servers[0].left_out),
            (0, "expired", 0),
            "{more}"
        );
        s.serve(good);
        s.run(500.0);
        assert_eq!((s.snapshot.len(), s.state()), (3, "fresh"), "{more}");
        let answers: Vec<u64> = s.snapshot.sorted().iter().map(|(_, c)| c.answer).collect();
        assert!(answers.iter().all(|a| *a == answers[0]), "{more}: in one answer again: {answers:?}");
    }
}

#[test]
fn an_address_named_in_an_error_is_left_out_for_ten_minutes() {
    let mut s = Stage::new(
        settings("refresh = \"100s\""),
        ecs(|r| {
            if dsts(r).iter().any(|d| d == "198.51.100.2") {
                let more = r#","field":"endpoints/dsts","value":"ipv4:198.51.100.2""#;
                alto_error("E_INVALID_FIELD_VALUE", more)
            } else {
                endpoint_costs(r)
            }
        }),
    );
    s.want(&[PAIR]);
    s.run(1.0);
    assert_eq!((s.cost("198.51.100.1"), s.cost("198.51.100.2")), (Some(1.0), None));
    assert_eq!(s.asked("/ecs"), 2);
    assert_eq!(s.status().complaints, 1);
    assert_eq!(s.state(), "fresh");
}

#[test]
fn a_query_called_wrong_is_not_repeated_for_ten_minutes() {
    for (code, more) in [
        ("E_SYNTAX", r#","syntax-error":"line 1""#),
        ("E_MISSING_FIELD", r#","field":"cost-type/cost-metric""#),
        ("E_INVALID_FIELD_TYPE", r#","field":"endpoints/srcs""#),
        ("E_INVALID_FIELD_VALUE", r#","field":"endpoints/srcs","value":"5""#),
    ] {
        let more = more.to_owned();
        let mut s = Stage::new(settings(""), ecs(move |_| alto_error(code, &more)));
        s.want(&[PAIR]);
        s.run(590.0);
        assert_eq!(s.asked("/ecs"), 1, "{code}");
        assert_eq!(s.status().complaints, 1, "{code}");
        assert!(s.error().contains(code), "{}", s.error());
        let event = std::iter::from_fn(|| s.client.poll_event()).next().unwrap();
        assert!(matches!(event, crate::alto::client::Event::Complaint { .. }), "{event:?}");
        s.serve(ecs(endpoint_costs));
        s.run(30.0);
        assert_eq!(s.cost("198.51.100.1"), Some(1.0), "{code}");
    }
}

#[test]
fn a_cost_type_that_is_refused_after_all_is_replaced_by_another_resource() {
    let mut s = Stage::new(settings(""), |r| {
        Some(match path(r).as_str() {
            "/ird" => ird(&json!({ "a": ecs_entry("/a", &["n"]), "b": ecs_entry("/b", &["n"]) })),
            "/a" => {
                alto_error("E_INVALID_FIELD_VALUE", r#","field":"cost-type/cost-mode","value":"numerical""#)
            }
            _ => endpoint_costs(r),
        })
    });
    s.want(&[PAIR]);
    s.run(5.0);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0), "{:?} {}", s.log, s.error());
    assert_eq!((s.asked("/ird"), s.asked("/a"), s.asked("/b")), (2, 1, 1));
}

#[test]
fn a_resource_that_has_gone_is_looked_up_again_at_most_once_a_minute() {
    for code in [404, 410] {
        let mut s = Stage::new(settings("refresh = \"30s\""), ecs(endpoint_costs));
        s.want(&[PAIR]);
        s.run(10.0);
        s.serve(move |r| {
            Some(match path(r).as_str() {
                "/ird" => ird(&json!({ "ecs": ecs_entry("/moved", &["n"]) })),
                "/moved" => endpoint_costs(r),
                _ => status(code, ""),
            })
        });
        s.run(75.0);
        assert!(s.asked("/ird") <= 4, "{code}: {:?}", s.log);
        assert!(s.asked("/moved") > 0, "{code}: {:?}", s.log);
        assert_eq!(s.state(), "fresh", "{code}");
    }
    let mut s = Stage::new(settings(""), ecs(|_| status(404, "")));
    s.want(&[PAIR]);
    s.run(600.0);
    assert!(s.asked("/ird") <= 11 && s.asked("/ecs") <= 12, "{:?}", s.log);
    assert_eq!(s.state(), "expired");
}

#[test]
fn wrong_credentials_are_not_tried_in_a_storm() {
    for code in [401, 403] {
        let mut s = Stage::new(settings(""), move |_| Some(status(code, "")));
        s.run(300.0);
        assert!(s.log.len() <= 12, "{code}: {}", s.log.len());
        assert_eq!(s.error(), format!("HTTP {code}"));
    }
}

#[test]
fn the_next_server_takes_over_and_the_first_one_comes_back() {
    let two = "directory = [\"http://127.0.0.1:8181/ird\", \"http://127.0.0.2:8181/ird\"]\nrefresh = \"30s\"";
    let host = |r: &Request| matches!(&r.target, Target::Http(u) if u.host_str() == Some("127.0.0.1"));
    let mut s = Stage::new(settings(two), ecs(endpoint_costs));
    s.want(&[PAIR]);
    s.run(100.0);
    assert!(s.requests.iter().all(|r| r.server == 0), "the second is not asked as long as the first works");
    s.serve(
        move |r| {
            if host(r) { Some(Err(Fault::Connect("refused".into()))) } else { ecs(endpoint_costs)(r) }
        },
    );
    s.run(60.0);
    let status = s.status();
    assert_eq!([status.servers[0].in_use, status.servers[1].in_use], [false, true]);
    assert_eq!([status.servers[0].state.label(), status.servers[1].state.label()], ["failing", "fresh"]);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0));
    s.serve(ecs(endpoint_costs));
    s.run(300.0);
    let status = s.status();
    assert_eq!([status.servers[0].in_use, status.servers[1].in_use], [true, false]);
    let before = s.requests.iter().filter(|r| r.server == 1).count();
    s.run(300.0);
    assert_eq!(s.requests.iter().filter(|r| r.server == 1).count(), before);
}

#[test]
fn nothing_that_serves_is_said_in_words_and_looked_for_again() {
    let mut s = Stage::new(settings("metric = \"delay-rt\""), ecs(endpoint_costs));
    s.want(&[PAIR]);
    s.run(60.0);
    assert_eq!(s.error(), "no resource in the directory gives costs of type numerical delay-rt");
    assert_eq!(s.state(), "expired");
    assert!((5..10).contains(&s.asked("/ird")), "{:?}", s.log);
}

#[test]
fn a_delegated_directory_that_fails_does_not_take_the_others_with_it() {
    let mut s = Stage::new(settings(""), |r| {
        Some(match path(r).as_str() {
            "/ird" => ird(&json!({ "more": { "uri": "/more", "media-type": media::DIRECTORY },
                                   "ecs": ecs_entry("/ecs", &["n"]) })),
            "/more" => Err(Fault::Timeout(5)),
            _ => endpoint_costs(r),
        })
    });
    s.want(&[PAIR]);
    s.run(1.0);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0));
    assert!(
        s.status().servers[0].notes[0].contains("/more is left out"),
        "{:?}",
        s.status().servers[0].notes
    );
    assert_eq!(s.state(), "fresh");
}

#[test]
fn an_answer_to_what_is_no_longer_asked_is_ignored() {
    let mut s = Stage::new(settings(""), |_| None);
    s.run(1.0);
    let old = s.requests[0].clone();
    s.client.flush(None, s.now);
    s.run(1.0);
    assert_eq!(s.requests.len(), 2);
    let reply = ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) }));
    s.client.settle(old.server, old.ticket, reply.clone(), s.now);
    assert_eq!(s.status().servers[0].directories, 0);
    let new = s.requests[1].clone();
    s.client.settle(new.server, new.ticket, reply.clone(), s.now);
    s.client.settle(new.server, new.ticket, reply, s.now);
    assert_eq!(s.status().servers[0].directories, 1);
}

#[test]
fn a_redirect_circle_or_a_foreign_host_is_an_error_of_the_server() {
    for to in ["/ecs", "https://evil.test/"] {
        let mut s =
            Stage::new(settings(""), ecs(move |_| with(status(307, ""), |h| h.location = Some(to.into()))));
        s.want(&[PAIR]);
        s.run(120.0);
        assert!(s.error().starts_with("redirected"), "{}", s.error());
        assert!(s.log.len() < 15, "{to}: {}", s.log.len());
        assert!(
            s.requests
                .iter()
                .all(|r| matches!(&r.target, Target::Http(u) if u.host_str() == Some("127.0.0.1")))
        );
    }
}

#[test]
fn costs_refused_are_counted() {
    let mut s = Stage::new(
        settings(""),
        ecs(|r| {
            let row = json!({ "ipv4:198.51.100.1": -3, "ipv4:198.51.100.2": 8 });
            let asked = super::stage::body(r);
            ok(
                media::ENDPOINT_COST,
                &json!({ "meta": { "cost-type": asked["cost-type"] }, "endpoint-cost-map": { "ipv4:192.0.2.10": row } }),
            )
        }),
    );
    s.want(&[PAIR]);
    s.run(1.0);
    assert_eq!((s.cost("198.51.100.1"), s.cost("198.51.100.2")), (None, Some(8.0)));
    assert_eq!(s.status().bad_costs, 1);
}
