//! Bodies made to be large, deep or senseless, given to the client as a whole.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use sbe::alto::{Answer, Client, Fault, Headers, Request, Settings, Target, media};
use sbe::config::Config;
use sbe::location::CostSnapshot;

use super::memory::{ALONE, most};

/// A long map, octets: a quarter of the longest that is read. Longer ones take their time without optimisation.
const MAP: usize = 8 << 20;

fn settings() -> Settings {
    let text = "[node]\nname = \"sbe.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n\
        [alto]\ndirectory = \"http://127.0.0.1:8181/ird\"\n";
    let config = Config::from_toml_str(text).unwrap_or_else(|errors| panic!("{errors:#?}"));
    Settings::new(config.alto.as_ref().unwrap(), &config.listen)
}

fn path(request: &Request) -> String {
    match &request.target {
        Target::Http(url) => url.path().to_owned(),
        Target::File(path) => path.display().to_string(),
    }
}

fn ok(kind: &str, body: String) -> Result<Answer, Fault> {
    let headers = Headers { content_type: Some(kind.into()), ..Headers::default() };
    Ok(Answer { status: 200, headers, body: body.into_bytes(), ..Answer::default() })
}

const DIRECTORY: &str = r#"{"meta":{"cost-types":{"n":{"cost-mode":"numerical","cost-metric":"routingcost"}}},"resources":{
    "net":{"uri":"/net","media-type":"application/alto-networkmap+json"},
    "costs":{"uri":"/costs","media-type":"application/alto-costmap+json","uses":["net"],"capabilities":{"cost-type-names":["n"]}}}}"#;
const ECS: &str = r#"{"meta":{"cost-types":{"n":{"cost-mode":"numerical","cost-metric":"routingcost"}}},"resources":{
    "e":{"uri":"/ecs","media-type":"application/alto-endpointcost+json","accepts":"application/alto-endpointcostparams+json",
    "capabilities":{"cost-type-names":["n"]}}}}"#;

fn network(map: &str) -> Result<Answer, Fault> {
    ok(
        media::NETWORK_MAP,
        format!(r#"{{"meta":{{"vtag":{{"resource-id":"net","tag":"1"}}}},"network-map":{map}}}"#),
    )
}

fn costs(vtags: &str, map: &str) -> Result<Answer, Fault> {
    let meta = format!(
        r#""meta":{{"dependent-vtags":[{vtags}],"cost-type":{{"cost-mode":"numerical","cost-metric":"routingcost"}}}}"#
    );
    ok(media::COST_MAP, format!("{{{meta},\"cost-map\":{map}}}"))
}

const VTAG: &str = r#"{"resource-id":"net","tag":"1"}"#;
const PIDS: &str = r#"{"us":{"ipv4":["192.0.2.0/24"]},"them":{"ipv4":["198.51.100.0/24"]}}"#;

/// A long text of many parts, in brackets.
fn many(open: char, close: char, limit: usize, part: impl Fn(usize) -> String) -> String {
    let mut text = String::with_capacity(limit + 64);
    text.push(open);
    for at in 0.. {
        let next = part(at);
        if text.len() + next.len() + 1 > limit {
            break;
        }
        if at > 0 {
            text.push(',');
        }
        text += &next;
    }
    text.push(close);
    text
}

/// What the client makes of a server for a while: the last error, costs known, most and remaining memory in MiB besides
/// the answers themselves.
struct Found {
    error: String,
    costs: CostSnapshot,
    most: usize,
    left: usize,
    asked: usize,
}

fn run(seconds: f64, serve: impl Fn(&Request) -> Result<Answer, Fault>) -> Found {
    let settings = settings();
    let start = Instant::now();
    let set = ["198.51.100.1", "198.51.100.2"].map(|a| a.parse().unwrap());
    let ((costs, error, client, asked), most, left) = most(|| {
        let mut client = Client::new(settings, 0, start, [7; 32]);
        client.set_wanted(&[set.into()], start);
        let (mut now, mut asked) = (start, 0);
        let mut costs = CostSnapshot::default();
        while now < start + Duration::from_secs_f64(seconds) {
            while let Some(request) = client.poll_request(now) {
                asked += 1;
                let answer = serve(&request);
                client.settle(request.server, request.ticket, answer, now);
            }
            costs = client.poll_snapshot(now).unwrap_or(costs);
            let next = client.poll_timeout().unwrap_or(now + Duration::from_secs(60));
            now = next.max(now + Duration::from_millis(1));
        }
        let status = client.status(now);
        let error = status.servers[0].last_error.as_ref().map_or_else(String::new, |(_, e)| e.clone());
        (costs, error, client, asked)
    });
    drop(client);
    Found { error, costs, most, left, asked }
}

#[test]
fn maps_of_a_million_entries_are_cut_off_or_held_within_bounds() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let octets = |n: usize| format!("{}.{}.{}.{}", n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255);
    let prefixes = many('[', ']', 20 << 20, |n| format!("\"{}/32\"", octets(n)));
    let tiny = many('{', '}', MAP - 200, |n| format!("\"{n:x}\":{{}}"));
    let kinds = many('{', '}', MAP - 200, |n| format!("\"x{n:x}\":[]"));
    for (name, map, words) in [
        ("prefixes", format!("{{\"a\":{{\"ipv4\":{prefixes}}}}}"), "more than 1000000 prefixes"),
        ("PIDs", tiny, "more than 100000 PIDs"),
        ("types", format!("{{\"a\":{kinds}}}"), ""),
    ] {
        let found = run(0.7, |r| match path(r).as_str() {
            "/net" => network(&map),
            "/costs" => costs(VTAG, "{}"),
            _ => ok(media::DIRECTORY, DIRECTORY.into()),
        });
        assert!(found.error.contains(words), "{name}: {}", found.error);
        // The body itself, up to twice, is among it.
        assert!(found.most < 256, "{name}: {} MiB at the most", found.most);
        assert!(found.left < 128, "{name}: {} MiB kept", found.left);
        assert!(found.costs.is_empty(), "{name}");
    }
}

#[test]
fn a_network_map_of_a_million_prefixes_serves() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let prefixes = |from: usize| {
        let text: Vec<String> = (0..499_000)
            .map(|n: usize| format!("\"{}.{}.{}.0/24\"", 1 + from + n / 65_536, n / 256 % 256, n % 256))
            .collect();
        text.join(",")
    };
    let map = format!(
        "{{\"a\":{{\"ipv4\":[{}]}},\"b\":{{\"ipv4\":[{}]}},\"them\":{{\"ipv4\":[\"198.51.100.0/25\"]}},\"us\":{{\"ipv4\":[\"192.0.2.0/25\"]}}}}",
        prefixes(0),
        prefixes(20)
    );
    let found = run(0.7, |r| match path(r).as_str() {
        "/net" => network(&map),
        "/costs" => costs(VTAG, "{\"us\":{\"them\":7}}"),
        _ => ok(media::DIRECTORY, DIRECTORY.into()),
    });
    assert_eq!((found.error.as_str(), found.costs.len()), ("", 2));
    assert!(found.most < 256 && found.left < 128, "{} MiB at the most, {} kept", found.most, found.left);
}

#[test]
fn cost_maps_of_a_million_entries_are_cut_off_or_left_out() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let row = many('{', '}', MAP - 400, |n| format!("\"{n:x}\":1"));
    let rows = many('{', '}', MAP - 400, |n| format!("\"{n:x}\":{{}}"));
    let vtags = many(' ', ' ', MAP - 400, |n| format!("{{\"resource-id\":\"net\",\"tag\":\"{n}\"}}"));
    for (name, vtags, map, words) in [
        ("a row", VTAG, format!("{{\"us\":{row}}}"), "a list of more than 100000 entries"),
        ("rows", VTAG, rows, ""),
        ("versions", vtags.as_str(), "{}".into(), "a list of more than 64 entries"),
    ] {
        let found = run(0.7, |r| match path(r).as_str() {
            "/net" => network(PIDS),
            "/costs" => costs(vtags, &map),
            _ => ok(media::DIRECTORY, DIRECTORY.into()),
        });
        assert!(found.error.contains(words), "{name}: {}", found.error);
        assert!(found.most < 192 && found.left < 16, "{name}: {} MiB, {} kept", found.most, found.left);
        assert!(found.costs.is_empty(), "{name}");
    }
}

#[test]
fn a_directory_that_repeats_what_is_long_is_no_lever() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    // One metric of half a megabyte, named a hundred thousand times: 50 GB if each name were a copy.
    let metric = "m".repeat(500_000);
    let names = many('[', ']', 500_000, |_| "\"n\"".into());
    let entry = |names: &str| {
        format!(
            r#""e":{{"uri":"/ecs","media-type":"application/alto-endpointcost+json","accepts":"application/alto-endpointcostparams+json","capabilities":{{"cost-type-names":{names}}}}}"#
        )
    };
    let copied = format!(
        r#"{{"meta":{{"cost-types":{{"n":{{"cost-mode":"numerical","cost-metric":"{metric}"}}}}}},"resources":{{{}}}}}"#,
        entry(&names)
    );
    let named = format!(
        r#"{{"meta":{{"cost-types":{{"n":{{"cost-mode":"numerical","cost-metric":"routingcost"}}}}}},"resources":{{{}}}}}"#,
        entry(&names)
    );
    // Relative addresses below a very long one.
    let long = format!("/{}/", "p".repeat(200_000));
    let relative = format!(
        "{{\"meta\":{{}},\"resources\":{}}}",
        many('{', '}', 900_000, |n| format!(
            "\"r{n}\":{{\"uri\":\"x\",\"media-type\":\"application/alto-costmap+json\"}}"
        ))
    );
    // Directories that name ever more directories.
    let delegating = |at: usize| {
        let list = many('{', '}', 900_000, |n| {
            format!("\"r{n}\":{{\"uri\":\"/d{at}x{n}\",\"media-type\":\"application/alto-directory+json\"}}")
        });
        format!("{{\"meta\":{{}},\"resources\":{list}}}")
    };
    for (name, serve) in [
        (
            "copied",
            Box::new(|_: &Request| ok(media::DIRECTORY, copied.clone())) as Box<dyn Fn(&Request) -> _>,
        ),
        ("named", Box::new(|_: &Request| ok(media::DIRECTORY, named.clone()))),
        (
            "relative",
            Box::new(|r: &Request| {
                let answer = ok(media::DIRECTORY, relative.clone());
                if path(r) == "/ird" {
                    return answer.map(|mut a| {
                        (a.status, a.headers.location) = (302, Some(long.clone()));
                        a
                    });
                }
                answer
            }),
        ),
        ("delegating", Box::new(|r: &Request| ok(media::DIRECTORY, delegating(path(r).len())))),
    ] {
        let found = run(5.0, serve);
        assert!(found.most < 48, "{name}: {} MiB at the most", found.most);
        assert!(found.left < 16, "{name}: {} MiB kept", found.left);
        assert!(found.asked < 100, "{name}: asked {} times", found.asked);
        assert!(name == "named" || !found.error.is_empty(), "{name}: and it is seen");
    }
}

#[test]
fn endpoint_costs_that_are_none_are_refused_one_by_one_and_the_rest_serves() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let answer = |row: &str| {
        let meta = r#""meta":{"cost-type":{"cost-mode":"numerical","cost-metric":"routingcost"}}"#;
        format!(r#"{{{meta},"endpoint-cost-map":{{"ipv4:192.0.2.10":{row}}}}}"#)
    };
    let one = |value: &str| answer(&format!(r#"{{"ipv4:198.51.100.1":{value},"ipv4:198.51.100.2":3}}"#));
    // (Body, costs known, words of the error.)
    let mut cases: Vec<(String, usize, &str)> =
        ["-1", "-0.0001", "1e999", "-1e999", "\"5\"", "null", "true", "[5]", "{}", "\"NaN\""]
            .iter()
            .map(|value| (one(value), 1, ""))
            .collect();
    for value in ["NaN", "Infinity", "-Infinity", "+1", "01", ".5", "0x10", "1_000"] {
        cases.push((one(value), 0, "not JSON"));
    }
    let digits = "9".repeat(300_000);
    cases.push((one(&digits), 1, ""));
    cases.push((one(&format!("0.{digits}")), 2, ""));
    cases.push((one(&format!("1e-{digits}")), 2, ""));
    // Nesting, with and without its end; a string that hides brackets.
    for depth in [17, 1000, 400_000] {
        cases.push((format!("{}{}", "[".repeat(depth), "]".repeat(depth)), 0, "deep"));
        cases.push((one(&"{\"a\":".repeat(depth)), 0, "deep"));
    }
    cases.push((one(&format!("\"{}\"", "[{".repeat(100_000))), 1, ""));
    // Others' addresses without end, and the same address without end.
    cases.push((
        answer(&many('{', '}', 1_000_000, |n| {
            format!("\"ipv4:10.{}.{}.{}\":1", n >> 16 & 255, n >> 8 & 255, n & 255)
        })),
        0,
        "",
    ));
    cases.push((answer(&many('{', '}', 1_000_000, |_| "\"ipv4:198.51.100.1\":1".into())), 1, ""));
    cases.push((String::new(), 0, "not JSON"));
    cases.push(("\u{feff}{}".into(), 0, "not JSON"));
    for (body, known, words) in cases {
        let shown: String = body.chars().skip(90).take(80).collect();
        let found = run(20.0, |r| match path(r).as_str() {
            "/ecs" => ok(media::ENDPOINT_COST, body.clone()),
            _ => ok(media::DIRECTORY, ECS.into()),
        });
        assert_eq!(found.costs.len(), known, "{shown}: {}", found.error);
        assert!(found.error.contains(words), "{shown}: {}", found.error);
        assert!(found.most < 48 && found.left < 8, "{shown}: {} MiB, {} kept", found.most, found.left);
        assert!(found.asked < 100, "{shown}: asked {} times", found.asked);
    }
}

#[test]
fn redirects_in_a_circle_or_without_end_are_followed_five_times_and_no_storm() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let to = |location: String| {
        Ok(Answer {
            status: 307,
            headers: Headers { location: Some(location), ..Headers::default() },
            ..Answer::default()
        })
    };
    let circle = run(20.0, |r| to(if path(r) == "/ird" { "/b".into() } else { "/ird".into() }));
    assert!(circle.error.contains("in a circle"), "{}", circle.error);
    let endless = run(20.0, |r| to(format!("{}x", path(r))));
    assert!(endless.error.contains("more than 5 times"), "{}", endless.error);
    let own = run(20.0, |r| to(path(r)));
    assert!(own.error.contains("in a circle"), "{}", own.error);
    for found in [circle, endless, own] {
        assert!(found.asked < 60, "asked {} times in 20 s", found.asked);
    }
}

#[test]
fn headers_that_lie_about_time_are_clamped() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let body = r#"{"meta":{"cost-type":{"cost-mode":"numerical","cost-metric":"routingcost"}},"endpoint-cost-map":{"ipv4:192.0.2.10":{"ipv4:198.51.100.1":5}}}"#;
    for control in [
        "max-age=0",
        "max-age=99999999999999999999",
        "no-store",
        "max-age=-1",
        "max-age=\u{e9}",
        "stale-if-error=99999999999999999999",
    ] {
        let found = run(20.0, |r| match path(r).as_str() {
            "/ecs" => ok(media::ENDPOINT_COST, body.into()).map(|mut a| {
                a.headers.cache_control = Some(control.into());
                a.headers.age = Some("18446744073709551615".into());
                a.headers.expires = Some("Thu, 01 Jan 1970 00:00:00 GMT".into());
                a
            }),
            _ => ok(media::DIRECTORY, ECS.into()),
        });
        assert_eq!(found.costs.len(), 1, "{control}");
        assert!(found.asked < 10, "{control}: asked {} times in 20 s", found.asked);
    }
    let mut text = String::new();
    let _ = write!(text, "{}", u64::MAX);
    for retry in [text.as_str(), "-1", "0", "soon", "Thu, 01 Jan 1970 00:00:00 GMT"] {
        let found = run(20.0, |_| {
            Ok(Answer {
                status: 503,
                headers: Headers { retry_after: Some(retry.into()), ..Headers::default() },
                ..Answer::default()
            })
        });
        assert!(found.asked < 30, "{retry}: asked {} times in 20 s", found.asked);
    }
}
