//! Numbers, names, addresses, lifetimes, redirects.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use url::Url;

use crate::alto::backoff::Backoff;
use crate::alto::client::Headers;
use crate::alto::cost_type::{CostType, higher_is_better};
use crate::alto::error::{Code, Fault, server_error};
use crate::alto::redirect::{Policy, follow};
use crate::alto::{address, ecs, json, life, media};
use crate::location::CostMode;

fn routingcost() -> CostType {
    CostType { mode: CostMode::Numerical, metric: "routingcost".into() }
}

#[test]
fn a_cost_is_a_json_number_finite_and_not_negative() {
    let cost = |text: &str| {
        let raw: Result<&serde_json::value::RawValue, _> = serde_json::from_str(text);
        raw.ok().and_then(json::cost)
    };
    for (text, expected) in [
        ("0", Some(0.0)),
        ("-0.0", Some(0.0)),
        ("12.5", Some(12.5)),
        ("1e3", Some(1000.0)),
        ("1e308", Some(1e308)),
        ("1e309", None),
        ("-1", None),
        ("-1e400", None),
        ("\"1\"", None),
        ("null", None),
        ("true", None),
        ("[1]", None),
        ("{}", None),
        ("NaN", None),
        ("Infinity", None),
    ] {
        assert_eq!(cost(text), expected, "{text}");
    }
    assert!(cost("-0.0").unwrap().is_sign_positive(), "so that it equals a plain zero in every way");
}

#[test]
fn a_bad_cost_is_no_cost_and_the_rest_of_the_answer_serves() {
    let dsts = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"].map(|a| a.parse().unwrap());
    let body = br#"{"meta":{"cost-type":{"cost-mode":"numerical","cost-metric":"routingcost"}},"endpoint-cost-map":
        {"ipv4:198.51.100.1":{"ipv4:192.0.2.1":1,"ipv4:192.0.2.2":-1,"ipv4:192.0.2.3":"3","ipv4:192.0.2.4":1e999}}}"#;
    let found = ecs::answer(body, &routingcost(), "198.51.100.1".parse().unwrap(), &dsts).unwrap();
    assert_eq!(found.costs.len(), 1);
    assert_eq!(found.costs.get(&dsts[0]), Some(&1.0));
    assert_eq!(found.bad, 3);
}

#[test]
fn answers_are_matched_by_address_whatever_its_spelling() {
    let dsts = ["2001:db8::1", "192.0.2.2"].map(|a| a.parse().unwrap());
    let body =
        br#"{"meta":{"cost-type":{"cost-mode":"numerical","cost-metric":"routingcost","description":"x"}},
        "endpoint-cost-map":{"ipv6:2001:0DB8:0:0:0:0:0:0001":{"ipv6:2001:DB8:0::1":4,"ipv6:2001:db8::99":5},
        "priv:x":{"ipv6:2001:db8::1":9}}}"#;
    let found = ecs::answer(body, &routingcost(), dsts[0], &dsts).unwrap();
    assert_eq!(
        found.costs.iter().collect::<Vec<_>>(),
        [(&dsts[0], &4.0)],
        "what was not asked for is left out"
    );
}

#[test]
fn a_query_names_both_lists_and_one_family() {
    let body = ecs::query(
        &routingcost(),
        "2001:db8::10".parse().unwrap(),
        &["2001:db8:0:0::1".parse().unwrap(), "::ffff:192.0.2.1".parse().unwrap()],
    );
    assert_eq!(
        String::from_utf8(body).unwrap(),
        r#"{"cost-type":{"cost-metric":"routingcost","cost-mode":"numerical"},"endpoints":{"dsts":["ipv6:2001:db8::1","ipv4:192.0.2.1"],"srcs":["ipv6:2001:db8::10"]}}"#
    );
    assert_eq!(address::parse("ipv6:[2001:db8::1]"), None);
    assert_eq!(address::parse("ipv6:fe80::1%eth0"), None);
    assert_eq!(address::parse("ipv4:192.0.2.1/32"), None);
    assert_eq!(address::parse("192.0.2.1"), None);
}

#[test]
fn costs_of_another_type_than_asked_for_are_refused() {
    let body = br#"{"meta":{"cost-type":{"cost-mode":"ordinal","cost-metric":"routingcost"}},"endpoint-cost-map":{}}"#;
    let fault = ecs::answer(body, &routingcost(), "192.0.2.1".parse().unwrap(), &[]).unwrap_err();
    assert_eq!(fault.to_string(), "costs of type ordinal routingcost instead of numerical routingcost");
    let silent = br#"{"meta":{},"endpoint-cost-map":{}}"#;
    let fault = ecs::answer(silent, &routingcost(), "192.0.2.1".parse().unwrap(), &[]).unwrap_err();
    assert!(matches!(fault, Fault::Shape(_)), "{fault}");
}

#[test]
fn nesting_is_bounded_and_brackets_in_strings_do_not_count() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n)).into_bytes();
    assert!(json::bounded(&nested(16)).is_ok());
    assert!(matches!(json::bounded(&nested(17)), Err(Fault::Json(_))));
    assert!(json::bounded(format!("[\"{}\\\"[\"]", "[{".repeat(50)).as_bytes()).is_ok());
    assert!(matches!(json::bounded(b"\"\xff\""), Err(Fault::Json(_))));
}

#[test]
fn more_is_better_for_throughput_and_bandwidth_alone() {
    let of = |mode, metric: &str| higher_is_better(&CostType { mode, metric: metric.into() });
    for metric in ["tput", "bw-residual", "bw-available", "tput:p50"] {
        assert!(of(CostMode::Numerical, metric), "{metric}");
        assert!(!of(CostMode::Ordinal, metric), "ranks are costs: {metric}");
    }
    for metric in ["routingcost", "hopcount", "delay-rt:p95", "delay-ow", "lossrate", "priv:x"] {
        assert!(!of(CostMode::Numerical, metric), "{metric}");
    }
}

#[test]
fn the_four_errors_are_told_apart_and_what_they_say_is_kept() {
    let error = |body: &str| server_error(body.as_bytes()).unwrap();
    let e = error(r#"{"meta":{"code":"E_INVALID_FIELD_VALUE","field":"endpoints/srcs","value":5}}"#);
    assert_eq!(
        (e.code, e.field.as_deref(), e.value.as_deref()),
        (Code::InvalidFieldValue, Some("endpoints/srcs"), Some("5"))
    );
    assert_eq!(error(r#"{"meta":{"code":"E_MISSING_FIELD"}}"#).code, Code::MissingField);
    assert_eq!(error(r#"{"meta":{"code":"E_INVALID_FIELD_TYPE"}}"#).code, Code::InvalidFieldType);
    let e = error(r#"{"meta":{"code":"E_SYNTAX","syntax-error":"here\u001b[2J"}}"#);
    assert_eq!(e.to_string(), "E_SYNTAX, syntax error \"here[2J\"", "nothing that a terminal would obey");
    assert_eq!(error(r#"{"meta":{"code":"E_GENERIC_HTTP"}}"#).code, Code::Other);
    assert_eq!(server_error(b"'cost-type'"), None);
}

#[test]
fn the_lifetime_is_that_of_the_caching_headers_within_bounds() {
    let headers = |cache: Option<&str>, age: Option<&str>, dates: Option<(&str, &str)>| Headers {
        cache_control: cache.map(Into::into),
        age: age.map(Into::into),
        date: dates.map(|d| d.0.into()),
        expires: dates.map(|d| d.1.into()),
        ..Headers::default()
    };
    let ten_minutes = Some(("Mon, 30 Nov 2026 10:00:00 GMT", "Mon, 30 Nov 2026 10:10:00 GMT"));
    for (cache, age, dates, seconds) in [
        (None, None, None, 300),
        (Some("max-age=120"), None, None, 120),
        (Some("public, Max-Age = 120"), Some("30"), None, 90),
        (Some("max-age=120"), Some("500"), None, 30),
        (Some("max-age=120"), None, ten_minutes, 120),
        (None, None, ten_minutes, 600),
        (None, Some("60"), ten_minutes, 540),
        (None, None, Some(("Mon, 30 Nov 2026 10:00:00 GMT", "0")), 30),
        (Some("no-cache, max-age=900"), None, None, 30),
        (Some("no-store"), None, None, 30),
        (Some("max-age=99999999999999999999"), None, None, 86_400),
        (Some("max-age=-5"), None, None, 300),
    ] {
        let found = life::lifetime(&headers(cache, age, dates), None).fresh;
        assert_eq!(found, Duration::from_secs(seconds), "{cache:?} {age:?} {dates:?}");
    }
    let second = Some(Duration::from_secs(1));
    let found = life::lifetime(&headers(Some("max-age=900, stale-if-error=60"), None, None), second);
    assert_eq!((found.fresh, found.if_error), (Duration::from_secs(1), Some(Duration::from_secs(60))));
}

#[test]
fn retry_after_is_seconds_or_a_date_and_at_most_an_hour() {
    let of = |text: &str, date: Option<&str>| {
        let headers =
            Headers { retry_after: Some(text.into()), date: date.map(Into::into), ..Headers::default() };
        life::retry_after(&headers, Duration::from_secs(784_111_777)).map(|d| d.as_secs())
    };
    assert_eq!(of("120", None), Some(120));
    assert_eq!(of("86400", None), Some(3600));
    assert_eq!(of("99999999999999999999999", None), Some(3600));
    assert_eq!(of("Sun, 06 Nov 1994 08:50:37 GMT", Some("Sun, 06 Nov 1994 08:49:37 GMT")), Some(60));
    assert_eq!(of("Sun, 06 Nov 1994 08:50:37 GMT", None), Some(60), "by our own clock");
    assert_eq!(of("Sun, 06 Nov 1994 08:00:00 GMT", None), Some(0));
    assert_eq!(of("soon", None), None);
}

#[test]
fn the_wait_doubles_to_five_minutes_with_a_quarter_of_jitter() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut backoff = Backoff::default();
    for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300] {
        let wait = backoff.fail(&mut rng).as_secs_f64();
        let expected = f64::from(expected);
        assert!((expected * 0.75..=expected * 1.25).contains(&wait), "{wait} for {expected}");
    }
    backoff.reset();
    assert!(backoff.fail(&mut rng).as_secs_f64() <= 1.25);
}

fn policy() -> Policy {
    Policy {
        servers: vec![url("https://alto.example.com/directory")],
        allow: vec!["cdn.example.net".into(), "https://other.test:8443".into()],
    }
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn redirects_go_to_hosts_of_the_same_owner_or_such_as_are_named() {
    let from = [url("https://alto.example.com/ecs")];
    let to = |location: &str| follow(&policy(), 307, Some(location), &from).map(|n| n.url.to_string());
    for good in [
        "https://alto2.example.com/ecs",
        "https://alto.example.com:8443/x",
        "https://a.alto.example.com/",
        "https://cdn.example.net/any",
        "https://other.test:8443/x",
    ] {
        assert_eq!(to(good).unwrap(), good);
    }
    assert_eq!(to("/v2/ecs#there").unwrap(), "https://alto.example.com/v2/ecs", "relative, fragment dropped");
    for bad in [
        "http://alto.example.com/ecs",
        "https://evil.test/",
        "https://alto.example.com.evil.test/",
        "https://notexample.com/",
        "https://other.test/",
        "https://127.0.0.1/",
        "file:///etc/passwd",
        "https://user:secret@alto.example.com/",
        "https://alto.example.com/ecs",
    ] {
        let fault = to(bad).unwrap_err();
        assert!(matches!(fault, Fault::Redirect(_)), "{bad}: {fault}");
        assert!(!fault.to_string().contains("secret"), "{fault}");
    }
    assert!(follow(&policy(), 307, None, &from).is_err());
}

#[test]
fn a_country_s_registry_is_no_common_owner() {
    let policy = |server: &str| Policy { servers: vec![url(server)], allow: Vec::new() };
    let to = |server: &str, target: &str| policy(server).check(&url(server), &url(target)).is_ok();
    assert!(!to("https://alto.co.uk/", "https://evil.co.uk/"));
    assert!(to("https://alto.isp.co.uk/", "https://b.isp.co.uk/"));
    assert!(!to("https://example.com/", "https://evil.com/"));
    assert!(!to("http://192.0.2.1/", "http://192.0.2.2/"));
    assert!(to("http://[2001:db8::1]:8080/", "http://[2001:db8::1]:9090/"));
}

#[test]
fn redirects_are_counted_and_circles_found() {
    let mut seen = vec![url("https://alto.example.com/0")];
    for at in 1..=5 {
        let next = follow(&policy(), 302, Some(&format!("/{at}")), &seen).unwrap();
        assert!(!next.get && !next.permanent, "302 keeps the method");
        seen.push(next.url);
    }
    assert!(follow(&policy(), 302, Some("/6"), &seen).is_err(), "the sixth");
    assert!(follow(&policy(), 302, Some("/1"), &seen[..3]).is_err(), "a circle");
    let other = follow(&policy(), 303, Some("/cached"), &seen[..1]).unwrap();
    assert!(other.get, "303: by GET");
    assert!(follow(&policy(), 308, Some("/x"), &seen[..1]).unwrap().permanent);
}

#[test]
fn media_types_are_compared_without_parameters_and_case() {
    assert_eq!(media::essence(" Application/ALTO-costmap+json ;charset=utf-8"), media::COST_MAP);
    assert_eq!(
        media::accept(media::DIRECTORY, false),
        "application/alto-directory+json,application/alto-error+json"
    );
    assert_eq!(
        media::accept(media::COST_MAP, false),
        "application/alto-costmap+json,application/alto-error+json,application/alto-directory+json"
    );
}
