//! The client with a server that does its part: what is asked when, what comes of it.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::stage::{
    Reply, Stage, addrs, body, costs, dsts, ecs_entry, endpoint_costs, ird, maps_entries, network, ok,
    settings, status, with,
};
use crate::alto::{Request, Target, media};
use crate::location::{CostMode, CostOrigin};

/// A server with endpoint costs of these types.
fn ecs(types: &'static [&'static str]) -> impl FnMut(&crate::alto::Request) -> Option<super::stage::Reply> {
    move |r| {
        Some(match &r.target {
            Target::Http(url) if url.path() == "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", types) })),
            _ => endpoint_costs(r),
        })
    }
}

#[test]
fn endpoint_costs_are_asked_ahead_for_the_sets_wanted_one_family_at_a_time() {
    let mut s = Stage::new(settings(""), ecs(&["n"]));
    s.run(1.0);
    assert_eq!(s.log.len(), 1, "the directory; nothing is wanted yet: {:?}", s.log);
    assert_eq!(s.state(), "empty");
    s.want(&[
        &["198.51.100.1", "198.51.100.2", "2001:db8:a::1", "2001:db8:a::2"],
        &["198.51.100.3", "198.51.100.4"],
    ]);
    s.run(1.0);
    let asked: Vec<Vec<String>> = s.requests.iter().skip(1).map(dsts).collect();
    assert_eq!(
        asked,
        [
            vec!["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"],
            vec!["2001:db8:a::1", "2001:db8:a::2"]
        ]
    );
    let sources: Vec<_> =
        s.requests.iter().skip(1).map(|r| body(r)["endpoints"]["srcs"].to_string()).collect();
    assert_eq!(
        sources,
        [r#"["ipv4:192.0.2.10"]"#, r#"["ipv6:2001:db8::10"]"#],
        "the egress address of the family"
    );
    assert_eq!((s.cost("198.51.100.3"), s.cost("2001:db8:a::2")), (Some(3.0), Some(2.0)));
    let (_, cost) = s.snapshot.sorted()[0];
    assert_eq!(cost.origin, CostOrigin::Endpoint);
    assert_eq!(s.state(), "fresh");
    assert_eq!(s.requests[1].accept, media::accept(media::ENDPOINT_COST, false));
}

#[test]
fn a_new_set_is_asked_for_alone_and_joins_the_others_later() {
    let mut s = Stage::new(settings("refresh = \"100s\""), ecs(&["n"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(60.0);
    s.want(&[&["198.51.100.1", "198.51.100.2"], &["198.51.100.3", "198.51.100.4"]]);
    s.run(1.0);
    assert_eq!(dsts(s.requests.last().unwrap()), ["198.51.100.3", "198.51.100.4"]);
    s.run(3600.0);
    let late = s.requests.iter().filter(|r| r.post.is_some()).map(dsts).next_back().unwrap();
    assert!(late.len() == 4 || late.len() == 2, "{late:?}");
    s.want(&[&["198.51.100.3", "198.51.100.4"]]);
    s.run(1.0);
    assert_eq!(s.cost("198.51.100.1"), None, "what is no longer wanted is forgotten");
    assert_eq!(s.cost("198.51.100.3"), Some(3.0));
}

#[test]
fn ranks_of_one_comparison_come_from_one_answer() {
    let mut s = Stage::new(settings("mode = \"ordinal\"\nrefresh = \"100s\""), ecs(&["o"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"], &["198.51.100.8", "198.51.100.9"]]);
    s.run(2.0);
    assert_eq!(s.snapshot.mode, CostMode::Ordinal);
    let answer = |addr: &str| s.snapshot.cost(&addr.parse().unwrap(), s.now).unwrap().answer;
    assert_eq!(answer("198.51.100.1"), answer("198.51.100.2"));
    assert_eq!(answer("198.51.100.8"), answer("198.51.100.9"));
    assert_ne!(answer("198.51.100.1"), answer("198.51.100.8"), "others are another query");
    // The DNS gives another set now.
    s.serve(|_| None);
    s.want(&[&["198.51.100.1", "198.51.100.2", "198.51.100.4"], &["198.51.100.8", "198.51.100.9"]]);
    s.run(0.5);
    assert_eq!(s.cost("198.51.100.1"), None, "the old ranks mean nothing among others");
    assert_eq!(s.cost("198.51.100.8"), Some(8.0), "and stay where nothing has changed");
}

#[test]
fn an_address_in_two_sets_has_a_rank_in_each_from_the_answer_to_that_set() {
    // A server that ranks as the RFC means it: relative to all that was asked for.
    let serve = |r: &Request| {
        if r.post.is_none() {
            return Some(ird(&json!({ "e": ecs_entry("/ecs", &["o"]) })));
        }
        let ranks = [("198.51.100.1", 3), ("198.51.100.2", 2), ("198.51.100.3", 1)];
        let asked = dsts(r);
        let mut known: Vec<_> = ranks.iter().filter(|(a, _)| asked.iter().any(|d| d == a)).collect();
        known.sort_by_key(|(_, rank)| *rank);
        let row: serde_json::Map<String, Value> =
            known.iter().zip(1..).map(|((a, _), rank)| (format!("ipv4:{a}"), json!(rank))).collect();
        let map = json!({ "ipv4:192.0.2.10": row });
        Some(ok(
            media::ENDPOINT_COST,
            &json!({ "meta": { "cost-type": body(r)["cost-type"] }, "endpoint-cost-map": map }),
        ))
    };
    let mut s = Stage::new(
        settings(
            "mode = \"ordinal\"\nrefresh = \"100s\"\n[[alto.override]]\nprefix = \"198.51.100.9\"\ncost = 7",
        ),
        serve,
    );
    let (one, two) = (["198.51.100.1", "198.51.100.2"], ["198.51.100.2", "198.51.100.3", "198.51.100.9"]);
    s.want(&[&one, &two]);
    for _ in 0..4 {
        s.run(100.0);
        let rank = |set: &[&str], addr: &str| {
            let answer = s.snapshot.answer_for(&addrs(set), s.now)?;
            s.snapshot.rank(&addr.parse().unwrap(), answer, s.now).map(|c| c.value)
        };
        assert_eq!(one.map(|a| rank(&one, a)), [Some(2.0), Some(1.0)]);
        assert_eq!(
            two.map(|a| rank(&two, a)),
            [Some(2.0), Some(1.0), Some(7.0)],
            "and the operator's among them"
        );
    }
    assert_eq!(s.status().servers[0].costs, 3, "addresses are counted once");
    // A third set beside them takes nothing from these two.
    s.serve(|_| None);
    s.want(&[&one, &two, &["198.51.100.1", "198.51.100.3"]]);
    s.run(0.5);
    assert_eq!(
        s.snapshot
            .answer_for(&addrs(&one), s.now)
            .and_then(|a| s.snapshot.rank(&addrs(&one)[0], a, s.now))
            .map(|c| c.value),
        Some(2.0)
    );
}

#[test]
fn plain_json_is_taken_only_from_servers_that_are_named_for_it() {
    let plain = |serve: fn(&Request) -> Reply| {
        move |r: &Request| {
            Some(with(serve(r), |h| h.content_type = Some("application/json; charset=utf-8".into())))
        }
    };
    let maps: fn(&Request) -> Reply = |r| match &r.target {
        Target::Http(url) if url.path() == "/net" => network(
            "1",
            &json!({ "us": { "ipv4": ["192.0.2.0/24"] }, "them": { "ipv4": ["198.51.100.0/24"] } }),
        ),
        Target::Http(url) if url.path() == "/costs" => costs("1", &json!({ "us": { "them": 5 } })),
        _ => ird(&maps_entries(false)),
    };
    let mut s = Stage::new(settings(""), plain(maps));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!(s.error(), "the answer is of type \"application/json\", not application/alto-directory+json");
    let mut s = Stage::new(settings("accept_json = [\"http://127.0.0.1:8181/ird\"]"), plain(maps));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!((s.cost("198.51.100.2"), s.error().as_str()), (Some(5.0), ""));
    let server = &s.status().servers[0];
    assert!(server.accepts_json);
    assert_eq!(server.called_json, 3);
    assert!(s.requests.iter().all(|r| r.accept.ends_with(",application/json")), "and it is asked for");
    // Other types stay wrong.
    s.serve(|r| {
        Some(with(ird(&json!({})), |h| {
            h.content_type = Some(if r.post.is_none() { "text/html" } else { "x" }.into())
        }))
    });
    s.client.flush(None, s.now);
    s.run(1.0);
    assert!(s.error().contains("\"text/html\""), "{}", s.error());
}

#[test]
fn numbers_grow_with_each_answer() {
    let mut s = Stage::new(settings("refresh = \"10s\""), ecs(&["n"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    let mut last = 0;
    for _ in 0..5 {
        s.run(10.0);
        let cost = *s.snapshot.cost(&"198.51.100.1".parse().unwrap(), s.now).unwrap();
        assert!(cost.answer > last, "{} after {last}", cost.answer);
        assert!(cost.fetched <= cost.fresh_until && cost.fresh_until <= cost.usable_until);
        last = cost.answer;
    }
}

#[test]
fn no_more_than_ten_queries_go_out_in_a_second() {
    let mut s = Stage::new(settings("mode = \"ordinal\""), ecs(&["o"]));
    let sets: Vec<[String; 2]> =
        (0..100).map(|n| [format!("198.51.100.{n}"), format!("203.0.113.{n}")]).collect();
    let sets: Vec<Vec<&str>> = sets.iter().map(|s| s.iter().map(String::as_str).collect()).collect();
    s.want(&sets.iter().map(Vec::as_slice).collect::<Vec<_>>());
    s.run(20.0);
    assert_eq!(s.log.len(), 101);
    for window in s.log.windows(11) {
        assert!(window[10].0 - window[0].0 >= 1.0 - 1e-9, "{window:?}");
    }
    assert!(s.log.last().unwrap().0 < 11.5, "and no slower than that");
}

#[test]
fn large_sets_are_asked_for_in_parts_and_all_of_them_are_bounded() {
    let mut s = Stage::new(settings(""), ecs(&["n"]));
    let many: Vec<String> = (0..11_000).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    s.want(&[&many]);
    s.run(10.0);
    assert!(s.requests.iter().all(|r| dsts(r).len() <= 256));
    assert_eq!(s.snapshot.len(), 10_000);
}

#[test]
fn refresh_comes_at_four_fifths_of_the_lifetime() {
    let mut s = Stage::new(settings(""), |r| {
        Some(match &r.target {
            Target::Http(url) if url.path() == "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) })),
            _ => with(endpoint_costs(r), |h| h.cache_control = Some("max-age=1000".into())),
        })
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1500.0);
    let times: Vec<f64> = s.log.iter().filter(|(_, p)| p == "/ecs").map(|(t, _)| *t).collect();
    assert_eq!(times.len(), 2, "{times:?}");
    assert!((719.0..=882.0).contains(&(times[1] - times[0])), "{times:?}");
}

#[test]
fn costs_serve_ten_minutes_beyond_their_lifetime_and_an_hour_while_the_server_fails() {
    let mut s = Stage::new(settings("refresh = \"100s\""), ecs(&["n"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    // It hangs: no answer, and no failure yet.
    s.serve(|_| None);
    s.run(120.0);
    assert_eq!((s.state(), s.cost("198.51.100.1")), ("stale", Some(1.0)));
    s.run(600.0);
    assert_eq!((s.state(), s.cost("198.51.100.1")), ("empty", None), "not used beyond `stale`");

    let mut s = Stage::new(settings("refresh = \"100s\""), ecs(&["n"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    s.serve(|_| Some(Err(crate::alto::Fault::Timeout(5))));
    s.run(1000.0);
    assert_eq!((s.state(), s.cost("198.51.100.1")), ("failing", Some(1.0)));
    assert!(s.error().contains("no whole answer within 5 s"), "{}", s.error());
    s.run(2900.0);
    assert_eq!((s.state(), s.cost("198.51.100.1")), ("expired", None), "not used beyond `max_stale`");
    s.serve(ecs(&["n"]));
    s.run(400.0);
    assert_eq!(
        (s.state(), s.cost("198.51.100.1")),
        ("fresh", Some(1.0)),
        "found again within the longest wait"
    );
}

#[test]
fn stale_if_error_is_obeyed_within_our_own_bound() {
    let mut s = Stage::new(settings(""), |r| {
        Some(match &r.target {
            Target::Http(url) if url.path() == "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) })),
            _ => with(endpoint_costs(r), |h| {
                h.cache_control =
                    Some("max-age=100, stale-if-error=60, stale-while-revalidate=9999999".into());
            }),
        })
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    let (_, cost) = s.snapshot.sorted()[0];
    assert_eq!(
        (cost.usable_until - cost.fresh_until).as_secs(),
        600,
        "`stale`, not what the server would allow"
    );
    s.serve(|_| Some(status(502, "")));
    s.run(100.0 + 30.0);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0));
    s.run(60.0);
    assert_eq!(s.cost("198.51.100.1"), None);
}

fn pids() -> serde_json::Value {
    json!({ "US": { "ipv4": ["192.0.2.0/24"] }, "A": { "ipv4": ["198.51.100.0/24"] },
            "B": { "ipv4": ["198.51.100.2/32"] }, "REST": { "ipv4": ["0.0.0.0/0"] } })
}

#[test]
fn maps_are_read_once_and_answer_for_every_address_at_once() {
    let mut s = Stage::new(settings(""), |r| {
        let Target::Http(url) = &r.target else { return None };
        Some(match url.path() {
            "/ird" => ird(&maps_entries(false)),
            "/net" => network("T1", &pids()),
            _ => costs("T1", &json!({ "US": { "A": 10, "B": 1.5 }, "A": { "A": 0 } })),
        })
    });
    s.run(1.0);
    assert_eq!(s.log.iter().map(|(_, p)| p.as_str()).collect::<Vec<_>>(), ["/ird", "/net", "/costs"]);
    assert!(s.requests.iter().all(|r| r.post.is_none()), "nothing tells the server whom we call");
    s.want(&[&["198.51.100.1", "198.51.100.2", "203.0.113.1"]]);
    s.run(0.1);
    assert_eq!(s.log.len(), 3, "no query for it");
    assert_eq!((s.cost("198.51.100.1"), s.cost("198.51.100.2")), (Some(10.0), Some(1.5)));
    assert_eq!(s.cost("203.0.113.1"), None, "a PID without a cost");
    let vtag = s.status().servers[0].vtag.clone().unwrap();
    assert_eq!(vtag, ("net".to_owned(), "T1".to_owned()));
}

#[test]
fn a_filtered_cost_map_is_asked_for_our_pids_and_those_needed_only() {
    let mut s = Stage::new(settings(""), |r| {
        let Target::Http(url) = &r.target else { return None };
        Some(match url.path() {
            "/ird" => ird(&maps_entries(true)),
            "/net" => network("T1", &pids()),
            _ => costs("T1", &json!({ "US": { "A": 10, "B": 1 } })),
        })
    });
    s.run(1.0);
    assert_eq!(s.asked("/costs"), 0, "nothing is wanted");
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    let asked = body(s.requests.last().unwrap());
    assert_eq!(asked["pids"], json!({ "srcs": ["US"], "dsts": ["A", "B"] }));
    assert_eq!(s.cost("198.51.100.2"), Some(1.0));
    s.want(&[&["198.51.100.1", "198.51.100.2"], &["203.0.113.1", "203.0.113.2"]]);
    s.run(1.0);
    assert_eq!(
        body(s.requests.last().unwrap())["pids"]["dsts"],
        json!(["A", "B", "REST"]),
        "another PID is needed"
    );
}

#[test]
fn etags_are_sent_and_304_renews() {
    let etag = Rc::new(RefCell::new("\"1\"".to_owned()));
    let (shared, now) = (Rc::clone(&etag), json!({ "US": { "A": 10, "B": 1 } }));
    let mut s = Stage::new(settings("refresh = \"100s\""), move |r| {
        let Target::Http(url) = &r.target else { return None };
        let etag = shared.borrow().clone();
        if r.if_none_match.as_ref() == Some(&etag) {
            return Some(status(304, ""));
        }
        let answer = match url.path() {
            "/ird" => ird(&maps_entries(false)),
            "/net" => network(&etag, &pids()),
            _ => costs(&etag, &now),
        };
        Some(with(answer, |h| h.etag = Some(etag.clone())))
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    let answer = |s: &Stage| s.snapshot.cost(&"198.51.100.1".parse().unwrap(), s.now).unwrap().answer;
    let first = answer(&s);
    assert!(s.requests.iter().all(|r| r.if_none_match.is_none()));
    s.run(100.0);
    assert_eq!(s.outcomes(), [("not_modified", 3), ("ok", 3)].into());
    assert!(answer(&s) > first, "a confirmed answer counts as a fresh one");
    assert_eq!(s.state(), "fresh");
    *etag.borrow_mut() = "\"2\"".into();
    s.run(100.0);
    assert_eq!(s.status().servers[0].vtag.as_ref().unwrap().1, "\"2\"");
    assert_eq!(s.state(), "fresh");
}

#[test]
fn a_redirect_is_followed_and_a_permanent_one_remembered() {
    let mut s = Stage::new(settings("refresh = \"40s\""), |r| {
        let Target::Http(url) = &r.target else { return None };
        let to = |code, to: &str| with(status(code, ""), |h| h.location = Some(to.into()));
        Some(match url.path() {
            "/ird" => ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) })),
            "/ecs" => to(308, "/ecs2"),
            "/ecs2" => to(303, "/cached/17"),
            _ => {
                assert!(r.post.is_none(), "303: GET, without the body");
                let row = json!({ "ipv4:198.51.100.1": 7, "ipv4:198.51.100.2": 8 });
                super::stage::ok(
                    media::ENDPOINT_COST,
                    &json!({ "meta": { "cost-type": { "cost-mode": "numerical", "cost-metric": "routingcost" } },
                             "endpoint-cost-map": { "ipv4:192.0.2.10": row } }),
                )
            }
        })
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!(
        s.log.iter().map(|(_, p)| p.as_str()).collect::<Vec<_>>(),
        ["/ird", "/ecs", "/ecs2", "/cached/17"]
    );
    assert!(s.requests[2].post.is_some(), "308: the same method and body");
    assert_eq!(s.cost("198.51.100.2"), Some(8.0));
    s.run(36.0);
    assert_eq!((s.asked("/ecs"), s.asked("/ecs2")), (1, 2), "{:?}", s.log);
}

#[test]
fn credentials_go_to_the_configured_servers_only() {
    let mut s = Stage::new(settings("redirect_allow = [\"127.0.0.2\"]"), |r| {
        let Target::Http(url) = &r.target else { return None };
        Some(match (url.host_str(), url.path()) {
            (_, "/ird") => ird(&json!({ "ecs": ecs_entry("/ecs", &["n"]) })),
            (Some("127.0.0.1"), _) => {
                with(status(307, ""), |h| h.location = Some("http://127.0.0.2/ecs".into()))
            }
            _ => endpoint_costs(r),
        })
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!(s.requests.iter().map(|r| r.credentials).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0));
}

#[test]
fn a_directory_in_place_of_the_resource_is_looked_into_once() {
    let mut s = Stage::new(settings(""), |r| {
        let Target::Http(url) = &r.target else { return None };
        Some(match url.path() {
            "/ird" => ird(&json!({ "ecs": ecs_entry("/old", &["n"]) })),
            "/old" => ird(&json!({ "ecs": ecs_entry("/new", &["n"]) })),
            _ => endpoint_costs(r),
        })
    });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!(s.log.iter().map(|(_, p)| p.as_str()).collect::<Vec<_>>(), ["/ird", "/old", "/new"]);
    assert_eq!(s.cost("198.51.100.1"), Some(1.0));
    s.serve(|_| Some(ird(&json!({ "ecs": ecs_entry("/old", &["n"]) }))));
    s.run(500.0);
    assert_eq!(s.state(), "failing");
    assert!(s.error().contains("alto-directory+json"), "{}", s.error());
    assert!(s.log.len() < 100, "no loop: {}", s.log.len());
}

#[test]
fn the_operator_s_costs_go_before_all_others_and_need_no_server() {
    let more = "[[alto.override]]\nprefix = \"198.51.100.0/24\"\ncost = 50\n[[alto.override]]\nprefix = \"198.51.100.2/32\"\ncost = 0.5\n";
    let mut s = Stage::new(settings(more), |_| Some(Err(crate::alto::Fault::Connect("refused".into()))));
    s.want(&[&["198.51.100.1", "198.51.100.2", "203.0.113.7"]]);
    s.run(1.0);
    assert_eq!(
        (s.cost("198.51.100.1"), s.cost("198.51.100.2"), s.cost("203.0.113.7")),
        (Some(50.0), Some(0.5), None)
    );
    s.serve(ecs(&["n"]));
    s.run(10.0);
    assert_eq!((s.cost("198.51.100.1"), s.cost("203.0.113.7")), (Some(50.0), Some(7.0)));
    let origin = |a: &str| s.snapshot.cost(&a.parse().unwrap(), s.now).unwrap().origin;
    assert_eq!((origin("198.51.100.1"), origin("203.0.113.7")), (CostOrigin::Override, CostOrigin::Endpoint));
}

#[test]
fn among_ranks_the_operator_s_costs_are_of_the_same_answer() {
    let more = "mode = \"ordinal\"\n[[alto.override]]\nprefix = \"198.51.100.2/32\"\ncost = 0\n";
    let mut s = Stage::new(settings(more), ecs(&["o"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    let [one, two] = [0, 1].map(|at| s.snapshot.sorted()[at].1);
    assert_eq!((two.value, two.origin), (0.0, CostOrigin::Override));
    assert_eq!(one.answer, two.answer);
}

#[test]
fn a_file_is_read_again_and_again() {
    let cost = Rc::new(RefCell::new("3"));
    let shared = Rc::clone(&cost);
    let mut s =
        Stage::new(settings("directory = \"file:///etc/sbe/costs.json\"\nrefresh = \"10s\""), move |r| {
            assert_eq!(r.target, Target::File("/etc/sbe/costs.json".into()));
            let text = format!(
                "{{\"endpoint-cost-map\":{{\"ipv4:192.0.2.10\":{{\"ipv4:198.51.100.1\":{}}}}}}}",
                shared.borrow()
            );
            Some(status(200, &text))
        });
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(3.0), "fresh"));
    *cost.borrow_mut() = "4";
    s.run(10.0);
    assert_eq!(s.cost("198.51.100.1"), Some(4.0));
    *cost.borrow_mut() = "oops";
    s.run(10.0);
    assert_eq!((s.cost("198.51.100.1"), s.state()), (Some(4.0), "failing"), "the last good content serves");
    assert!(s.error().contains("not JSON"), "{}", s.error());
}

#[test]
fn a_flush_forgets_and_asks_anew() {
    let mut s = Stage::new(settings("mode = \"ordinal\""), ecs(&["o"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"], &["198.51.100.3", "198.51.100.4"]]);
    s.run(1.0);
    let before = s.log.len();
    s.client.flush(Some(&super::stage::addrs(&["198.51.100.3"])), s.now);
    s.run(0.05);
    assert_eq!(s.log.len(), before + 1, "the set of that address: {:?}", s.log);
    s.serve(|_| None);
    s.client.flush(None, s.now);
    s.run(1.0);
    assert_eq!((s.snapshot.len(), s.log.last().unwrap().1.as_str()), (0, "/ird"));
}

#[test]
fn equal_wishes_change_nothing() {
    let mut s = Stage::new(settings(""), ecs(&["n"]));
    s.want(&[&["198.51.100.1", "198.51.100.2"]]);
    s.run(1.0);
    let snapshots = s.snapshots;
    s.want(&[&["198.51.100.2", "198.51.100.1"]]);
    s.run(1.0);
    assert_eq!(s.snapshots, snapshots);
}
