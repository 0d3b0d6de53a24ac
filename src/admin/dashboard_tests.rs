#![allow(clippy::unwrap_used)]
//! The dashboard's files, its figures and its live updates, over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::assets::FILES;
use super::feed::SEATS;
use super::overview::certificates;
use super::tests::{World, configuration, samples};
use crate::config;
use crate::runtime::node::Node;

/// The head and the body of an answer.
fn whole(world: &World, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(&world.address).unwrap();
    let host = &world.address;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

/// The events of a node, and the status it answered with.
struct Events {
    lines: BufReader<TcpStream>,
    status: u16,
}

impl Events {
    fn of(world: &World) -> Self {
        let mut stream = TcpStream::connect(&world.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", world.address).unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        Self { lines, status }
    }

    /// The next piece of news; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let mut named = false;
        loop {
            line.clear();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            named |= line.trim_end() == "event: overview";
            if let Some(data) = line.strip_prefix("data: ") {
                assert!(named, "events have their name");
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn every_part_of_the_dashboard_comes_from_here_under_a_policy_that_lets_nothing_else_in() {
    let world = World::new();
    for (path, kind, text) in FILES {
        let (head, body) = whole(&world, path);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert_eq!(body, text, "{path}");
        for line in [
            &format!("content-type: {}", kind.to_ascii_lowercase()),
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.lines().any(|l| l == line), "{path}: {line} in {head}");
        }
        let policy = head.lines().find_map(|l| l.strip_prefix("content-security-policy: ")).unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|r| r == rule), "{path}: {rule} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        // Whatever a file names must be among the files.
        for (quote, prefix) in [("\"", "/ui/"), ("\"", "./")] {
            for part in text.split(quote).filter(|p| p.starts_with(prefix) && !p.contains(' ')) {
                let named = part.replacen("./", "/ui/", 1);
                assert!(FILES.iter().any(|(p, ..)| *p == named), "{path} names {part}");
            }
        }
        assert!(
            !text.contains("innerHTML") && !text.contains("insertAdjacentHTML"),
            "{path} makes no markup of text"
        );
    }
    let html = FILES[0].2;
    assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick"), "{html}");
    assert!(html.matches("<script").count() == 1, "{html}");
}

#[test]
fn the_overview_tells_how_calls_have_fared() {
    let world = World::new();
    world.call("one@x", 486);
    world.call("two@x", 200);
    let seen = until("both calls in the window", || {
        let seen = world.json("/api/v1/overview");
        (seen["window"]["calls"] == 2 && seen["second"].is_array()).then_some(seen)
    });
    let all = &seen["window"]["all"];
    assert_eq!(
        (&all["answered"], &all["answer_ratio"], &all["effectiveness"]),
        (&1.into(), &0.5.into(), &1.0.into())
    );
    assert!(all["delay_ms"]["p95"].as_f64().unwrap() > 0.0, "{all}");
    assert_eq!(seen["window"]["causes"][0]["status"], 486);
    assert_eq!((&seen["name"], &seen["ready"]), (&"edge.test".into(), &true.into()));
    let (core, peer) = (&seen["peers"][0], &seen["peers"][1]);
    assert_eq!((&core["core"], &peer["name"]), (&true.into(), &"sp1".into()));
    assert_eq!((&core["from"]["calls"], &core["to"]["calls"]), (&2.into(), &0.into()));
    assert_eq!((&peer["to"]["calls"], &peer["to"]["answered"]), (&2.into(), &1.into()));
    let instance = &peer["instances"][0];
    assert_eq!(
        (&instance["attempts"], &instance["ok"], &instance["share"]),
        (&2.into(), &1.into(), &1.0.into())
    );
    assert_eq!((&instance["standing"], &instance["reason"]), (&"up".into(), &Value::Null));
    let history = seen["history"].as_array().unwrap();
    assert_eq!(history.last(), Some(&seen["second"]), "the course ends with the last second");
    assert_eq!(seen["limits"][0]["name"], "transactions");
}

#[test]
fn an_instance_that_is_avoided_tells_since_when_and_why() {
    let world = World::new();
    let sbe = world.node.listeners()[0].bind;
    let from = world.core.local_addr().unwrap();
    let invite = format!(
        "INVITE sip:bob@127.0.0.21:9 SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bKdead;rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:a@edge.test>;tag=1\r\nTo: <sip:bob@127.0.0.21>\r\nCall-ID: dead@x\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n"
    );
    world.core.send_to(invite.as_bytes(), sbe).unwrap();
    let happened = until("the fall in the journal", || {
        let seen = world.json("/api/v1/overview");
        seen["happened"].get(0).filter(|e| e["event"] == "down").cloned()
    });
    assert_eq!(
        (&happened["instance"], &happened["peer"]),
        (&"udp:127.0.0.21:9".into(), &"sp1".into()),
        "{happened}"
    );
    assert_eq!(
        (&happened["reason"], &happened["target"]),
        (&"icmp".into(), &"127.0.0.21".into()),
        "{happened}"
    );
    let find = |value: &Value| {
        let peers = value["peers"].as_array().unwrap();
        let peer = peers.iter().find(|p| p["name"] == "sp1").unwrap();
        peer["instances"].as_array().unwrap().iter().find(|i| i["up"] == false).cloned()
    };
    for path in ["/api/v1/overview", "/api/v1/peers"] {
        let down = until("an instance that is down", || find(&world.json(path)));
        assert_eq!(
            (&down["instance"], &down["reason"]),
            (&"udp:127.0.0.21:9".into(), &"icmp".into()),
            "{down}"
        );
        assert!(down["since"].as_f64().is_some_and(|s| (0.0..20.0).contains(&s)), "{down}");
        assert!(down["reason_text"].as_str().is_some_and(|t| t.contains("ICMP")), "{down}");
    }
    let seen = until("the failure in the window", || {
        let seen = world.json("/api/v1/overview");
        (seen["window"]["calls"] == 1).then_some(seen)
    });
    assert_eq!(seen["window"]["outcomes"][0]["outcome"], "icmp");
    assert!(seen["window"]["outcomes"][0]["text"].as_str().unwrap().contains("could not be reached"));
}

#[test]
fn news_come_every_second_for_as_long_as_somebody_reads_them() {
    // Quiet for longer than this, a connection is closed: but who takes in events is not quiet.
    let world = World::patient(None, Duration::from_millis(1800));
    let mut events = Events::of(&world);
    assert_eq!(events.status, 200);
    let mut uptimes = Vec::new();
    for _ in 0..4 {
        let news = events.next().unwrap();
        assert!(news["history"].is_null(), "the course is asked for once, with the overview");
        uptimes.push(news["uptime"].as_f64().unwrap());
    }
    assert!(uptimes.is_sorted() && uptimes[3] - uptimes[0] > 2.0, "{uptimes:?}");
    world.node.drain(true);
    until("draining in the news", || (events.next().unwrap()["draining"] == true).then_some(()));
}

#[test]
fn so_many_may_watch_and_a_place_that_is_left_is_free_again() {
    let world = World::new();
    let mut watching: Vec<Events> = (0..SEATS).map(|_| Events::of(&world)).collect();
    assert!(watching.iter().all(|e| e.status == 200));
    let refused = world.get("/api/v1/events");
    assert_eq!(refused.status, 503);
    let error: Value = serde_json::from_slice(&refused.body).unwrap();
    assert!(error["error"].as_str().unwrap().contains("/api/v1/overview"), "{error}");
    assert_eq!(world.get("/api/v1/overview").status, 200, "which still answers");
    let all = samples(&world.metrics());
    assert_eq!(all["sbe_event_subscribers"], SEATS as f64);
    assert_eq!(all["sbe_event_subscriptions_total{outcome=\"ok\"}"], SEATS as f64);
    assert_eq!(all["sbe_event_subscriptions_total{outcome=\"refused\"}"], 1.0);
    watching.clear();
    until("a free place", || (Events::of(&world).status == 200).then_some(()));
}

#[test]
fn certificates_tell_the_days_they_have_left() {
    let world = World::new();
    assert_eq!(world.json("/api/v1/certificates")["certificates"], Value::Array(Vec::new()));
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["edge.test".to_owned()]).unwrap();
    params.not_before = SystemTime::now().into();
    params.not_after = (SystemTime::now() + Duration::from_secs(86_400 * 10 + 3600)).into();
    let certificate = params.self_signed(&key).unwrap();
    let directory = std::env::temp_dir().join(format!("sbe-dashboard-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (pem, key) = (file("own.pem", certificate.pem()), file("own.key", key.serialize_pem()));
    let text = format!(
        "[tls]\ncertificate = \"{pem}\"\nkey = \"{key}\"\ntrust = [\"{pem}\"]\n\
         [[listen]]\ntransport = \"tls\"\nbind = \"127.0.0.1:0\"\n"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (config, _) = config::parse(&configuration(&text), "t").unwrap();
    let node = Node::start(config, None, runtime.handle()).unwrap();
    let shown = certificates(&node);
    std::fs::remove_dir_all(&directory).unwrap();
    let one = &shown["certificates"][0];
    assert_eq!((&one["file"], &one["days_left"], &one["peer"]), (&pem.into(), &10.into(), &Value::Null));
    assert_eq!(one["names"], serde_json::json!(["edge.test"]));
}
