#![allow(clippy::unwrap_used)]
//! The admin interface of a node on loopback, asked over HTTP.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;

use super::bind;
use super::client::{Admin, Answer, encoded};
use super::http::serve_with;
use crate::config;
use crate::runtime::node::Node;

/// A node with one UDP listener, a core and a peer, all sockets on ports of their own.
pub(super) struct World {
    pub(super) node: Arc<Node>,
    pub(super) admin: Admin,
    pub(super) address: String,
    pub(super) core: UdpSocket,
    pub(super) peer: UdpSocket,
    file: Option<PathBuf>,
    _runtime: Runtime,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(None)
    }

    /// `name`: of a configuration file to write, so that it can be reloaded.
    pub(super) fn with(name: Option<&str>) -> Self {
        Self::patient(name, Duration::from_secs(15))
    }

    /// With an admin interface that ends connections which are quiet for so long.
    pub(super) fn patient(name: Option<&str>, quiet: Duration) -> Self {
        Self::of(name, &configuration(""), quiet)
    }

    pub(super) fn of(name: Option<&str>, text: &str, quiet: Duration) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (core, peer) = (socket("127.0.0.11"), socket("127.0.0.21"));
        let file = name.map(|name| {
            let path = std::env::temp_dir().join(format!("sbe-admin-{}-{name}.toml", std::process::id()));
            std::fs::write(&path, text).unwrap();
            path
        });
        let (config, _) = config::parse(text, "t").unwrap();
        let node = Node::start(config, file.clone(), runtime.handle()).unwrap();
        let listener = runtime.block_on(bind("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let admin = Admin::new(&format!("http://{address}")).unwrap();
        runtime.spawn(serve_with(Arc::clone(&node), listener, quiet));
        node.set_ready();
        Self { node, admin, address, core, peer, file, _runtime: runtime }
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.admin.get(path).unwrap()
    }

    pub(super) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{path}: {e}: {answer:?}"))
    }

    pub(super) fn metrics(&self) -> String {
        String::from_utf8(self.get("/metrics").body).unwrap()
    }

    /// A call of the core to the peer's address, which the peer answers with `status`.
    pub(super) fn call(&self, call_id: &str, status: u16) {
        let sbe = self.node.listeners()[0].bind;
        let to = self.peer.local_addr().unwrap();
        let from = self.core.local_addr().unwrap();
        let invite = format!(
            "INVITE sip:bob@{to} SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{call_id};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:a@edge.test>;tag=1\r\nTo: <sip:bob@{to}>\r\nCall-ID: {call_id}\r\n\
             CSeq: 1 INVITE\r\nContact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n"
        );
        self.core.send_to(invite.as_bytes(), sbe).unwrap();
        let mut room = [0; 4096];
        let (n, back) = loop {
            // The ACK of the call before may come first.
            let (n, back) = self.peer.recv_from(&mut room).unwrap();
            if room[..n].starts_with(b"INVITE") {
                break (n, back);
            }
        };
        let kept: String = std::str::from_utf8(&room[..n])
            .unwrap()
            .split("\r\n")
            .filter(|l| ["Via:", "From:", "To:", "Call-ID:", "CSeq:"].iter().any(|k| l.starts_with(k)))
            .map(|l| if l.starts_with("To:") { format!("{l};tag=9\r\n") } else { format!("{l}\r\n") })
            .collect();
        let response = format!("SIP/2.0 {status} X\r\n{kept}Content-Length: 0\r\n\r\n");
        self.peer.send_to(response.as_bytes(), back).unwrap();
        loop {
            let (n, _) = self.core.recv_from(&mut room).unwrap();
            if !room[..n].starts_with(b"SIP/2.0 100") {
                return;
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn socket(ip: &str) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

pub(super) fn configuration(more: &str) -> String {
    format!(
        "[node]\nname = \"edge.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\n\
         [core]\nnext_hops = [\"sip:127.0.0.11:5999\"]\nsources = [\"127.0.0.11/32\"]\n\
         [dns]\nservers = [\"127.0.0.1:9\"]\ntimeout = \"200ms\"\n[runtime]\nworkers = 2\n\
         [[peer]]\nname = \"sp1\"\ndomains = [\"127.0.0.21\", \"sp1.test\"]\nsources = [\"127.0.0.21/32\"]\n{more}"
    )
}

/// The samples of a text: name with labels, and value; every line is checked.
pub(super) fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty(), "{line}");
            family = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family, "TYPE stands with its HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let name = key.split('{').next().unwrap();
            assert!(name.starts_with(&family), "{line} stands with its family {family}");
            assert!(name.starts_with("sbe_") || name.starts_with("process_"), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite(), "{line}");
            assert!(all.insert(key.to_owned(), value).is_none(), "{key} twice");
        }
    }
    all
}

#[test]
fn all_promised_metrics_are_there_from_the_start() {
    let world = World::new();
    let all = samples(&world.metrics());
    for key in [
        "sbe_requests_total{realm=\"core\",method=\"INVITE\"}",
        "sbe_requests_total{realm=\"peering\",method=\"OTHER\"}",
        "sbe_requests_total{realm=\"none\",method=\"OPTIONS\"}",
        "sbe_responses_total{realm=\"peering\",class=\"5xx\"}",
        "sbe_dropped_total{reason=\"stranger\"}",
        "sbe_dropped_total{reason=\"slow_reader\"}",
        "sbe_dropped_total{reason=\"write_queue\"}",
        "sbe_transactions{kind=\"server\"}",
        "sbe_transactions{kind=\"client\"}",
        "sbe_calls",
        "sbe_attempts_total{peer=\"sp1\",outcome=\"ok\"}",
        "sbe_failovers_total{peer=\"sp1\",reason=\"timeout\"}",
        "sbe_dns_queries_total{type=\"naptr\",outcome=\"nxdomain\"}",
        "sbe_dns_cache_total{result=\"hit\"}",
        "sbe_dns_cache_total{result=\"miss\"}",
        "sbe_dns_cache_total{result=\"stale\"}",
        "sbe_dns_cache_total{result=\"negative\"}",
        "sbe_alto_requests_total{outcome=\"ok\"}",
        "sbe_alto_age_seconds",
        "sbe_connections{transport=\"tcp\",direction=\"in\"}",
        "sbe_connections{transport=\"tls\",direction=\"out\"}",
        "sbe_retransmissions_total{direction=\"in\"}",
        "sbe_retransmissions_total{direction=\"out\"}",
        "sbe_setup_seconds_bucket{le=\"+Inf\"}",
        "sbe_setup_seconds_sum",
        "sbe_answer_delay_seconds_count",
        "sbe_overload_shed_total{peer=\"core\"}",
        "sbe_overload_shed_total{peer=\"sp1\"}",
    ] {
        assert_eq!(all.get(key), Some(&0.0), "{key}");
    }
    assert_eq!(all["sbe_ready"], 1.0);
    assert_eq!(all["sbe_overload_admit_ratio"], 1.0);
    assert!(all.contains_key("sbe_overload_delay_seconds"));
    assert_eq!(world.json("/api/v1/status")["overload"]["shedding"], false);
    assert!(world.metrics().contains("# TYPE sbe_instance_up gauge"));
    assert_eq!(world.get("/metrics").status, 200);
}

#[test]
fn a_call_shows_in_metrics_peers_and_its_record() {
    let world = World::new();
    world.call("a/1@x", 486);
    let instance = format!("udp:{}", world.peer.local_addr().unwrap());
    let all = samples(&world.metrics());
    assert_eq!(all["sbe_requests_total{realm=\"core\",method=\"INVITE\"}"], 1.0);
    assert_eq!(all["sbe_responses_total{realm=\"peering\",class=\"4xx\"}"], 1.0);
    assert_eq!(all["sbe_attempts_total{peer=\"sp1\",outcome=\"busy\"}"], 1.0);
    assert_eq!(all[&format!("sbe_instance_up{{peer=\"sp1\",instance=\"{instance}\"}}")], 1.0);
    assert_eq!(all["sbe_setup_seconds_count"], 1.0);

    let peers = world.json("/api/v1/peers");
    assert_eq!(peers["peers"][0]["name"], "sp1");
    assert_eq!(peers["peers"][0]["instances"][0]["instance"], instance.as_str());
    assert_eq!(peers["peers"][0]["attempts"]["busy"], 1);

    let record = world.json(&format!("/api/v1/calls/{}", encoded("a/1@x")));
    let request = &record["requests"][0];
    assert_eq!(request["from"], "core");
    assert_eq!(request["rule"], "peer_domain");
    assert_eq!(request["status"], 486);
    assert_eq!(request["legs"][0]["party"], "sp1");
    assert_eq!(request["legs"][0]["candidates"][0]["instance"], instance.as_str());
    let attempt = &request["attempts"][0];
    assert_eq!((&attempt["outcome"], &attempt["status"]), (&"busy".into(), &486.into()));
    assert_eq!(attempt["branch"].as_str().unwrap().len(), 16);
    let times =
        [&attempt["started_ms"], &attempt["ended_ms"], &request["ended_ms"]].map(|t| t.as_f64().unwrap());
    assert!(times.is_sorted() && times[2] < 10_000.0, "{times:?}");

    assert_eq!(world.json("/api/v1/calls?limit=5")["calls"][0]["call_id"], "a/1@x");
    assert_eq!(world.json("/api/v1/calls?limit=0")["calls"], Value::Array(Vec::new()));
    let unknown = world.get("/api/v1/calls/nobody");
    assert_eq!(unknown.status, 404);
    assert!(request["identified_by"].as_str().unwrap().contains("of its sources"), "{request}");
    assert_eq!(request["legs"][0]["candidates"][0]["tried"], 1);
    for part in ["why", "what"] {
        assert!(attempt[part].as_str().is_some_and(|t| t.len() > 10), "{part} in {attempt}");
    }
    assert!(serde_json::from_slice::<Value>(&unknown.body).unwrap()["error"].is_string());
}

#[test]
fn recent_calls_are_found_by_user_peer_outcome_method_and_time() {
    let world = World::new();
    world.call("one@x", 486);
    world.call("two@x", 200);
    let found = |query: &str| -> Vec<String> {
        let calls = world.json(&format!("/api/v1/calls?{query}"));
        calls["calls"].as_array().unwrap().iter().map(|c| c["call_id"].as_str().unwrap().to_owned()).collect()
    };
    let uri = world.json("/api/v1/calls?limit=1")["calls"][0]["uri"].as_str().unwrap().to_owned();
    let user = uri.trim_start_matches("sip:").to_ascii_uppercase();
    for query in [
        "".to_owned(),
        format!("user={}", encoded(&user)),
        "peer=sp1".into(),
        "peer=core".into(),
        "method=invite".into(),
        "since=1h".into(),
    ] {
        assert_eq!(found(&query), ["two@x", "one@x"], "{query}");
    }
    for query in ["outcome=ok", "outcome=200", "outcome=2xx"] {
        assert_eq!(found(query), ["two@x"], "{query}");
    }
    for query in ["outcome=failed", "outcome=486", "outcome=4xx"] {
        assert_eq!(found(query), ["one@x"], "{query}");
    }
    for query in [
        "outcome=cancelled",
        "outcome=failover",
        "outcome=refused",
        "method=OPTIONS",
        "until=1h",
        "user=nobody",
    ] {
        assert!(found(query).is_empty(), "{query}");
    }
    for query in ["outcome=maybe", "peer=nobody", "since=soon", "colour=red", "limit=-1"] {
        assert_eq!(world.get(&format!("/api/v1/calls?{query}")).status, 400, "{query}");
    }
}

#[test]
fn tokens_keep_others_out_and_a_reload_changes_them() {
    let dir = std::env::temp_dir().join(format!("sbe-admin-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let operator = file("operator", "first-token-of-the-operator\n");
    let reader = file("reader", "token-of-the-reader\n");
    let extra = format!(
        "[admin]\ntoken_file = \"{}\"\nread_token_file = \"{}\"\n",
        operator.display(),
        reader.display()
    );
    let world = World::of(Some("tokens"), &configuration(&extra), Duration::from_secs(15));
    let with = |token: &str| world.admin.clone().with_token(Some(token.as_bytes().into()));
    assert_eq!(world.get("/healthz").status, 200);
    let unknown = world.get("/api/v1/status");
    assert_eq!(unknown.status, 401);
    assert_eq!(with("token-of-the-reader").get("/api/v1/status").unwrap().status, 200);
    assert_eq!(with("token-of-the-reader").ask("POST", "/api/v1/drain").unwrap().status, 403);
    let first = with("first-token-of-the-operator");
    assert_eq!(first.ask("POST", "/api/v1/undrain").unwrap().status, 200);

    file("operator", "second-token-of-the-operator\n");
    assert_eq!(first.ask("POST", "/api/v1/reload").unwrap().status, 200, "not read yet");
    assert_eq!(first.ask("POST", "/api/v1/reload").unwrap().status, 401);
    let second = with("second-token-of-the-operator");
    let audit: Value = serde_json::from_slice(&second.get("/api/v1/audit").unwrap().body).unwrap();
    let seen: Vec<(String, u64)> = audit["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| {
            (
                format!("{} {}", a["role"].as_str().unwrap(), a["path"].as_str().unwrap()),
                a["status"].as_u64().unwrap(),
            )
        })
        .collect();
    let want = [
        ("nobody /api/v1/reload", 401),
        ("operator /api/v1/reload", 200),
        ("operator /api/v1/undrain", 200),
        ("nobody /api/v1/drain", 403),
    ];
    assert_eq!(seen.iter().map(|(a, s)| (a.as_str(), *s)).collect::<Vec<_>>(), want);

    // A file that is gone locks out whoever it would have let in, and nobody else gets in for it.
    std::fs::remove_file(&operator).unwrap();
    assert_eq!(second.ask("POST", "/api/v1/reload").unwrap().status, 200);
    assert_eq!(second.get("/api/v1/status").unwrap().status, 200, "the tokens stay as they were");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn draining_shows_everywhere_and_can_be_taken_back() {
    let world = World::new();
    assert_eq!((world.get("/readyz").status, world.get("/healthz").status), (200, 200));
    assert_eq!(world.admin.ask("POST", "/api/v1/drain").unwrap().status, 200);
    let unready = world.get("/readyz");
    assert_eq!((unready.status, unready.body.as_slice()), (503, b"draining\n".as_slice()));
    assert_eq!(world.get("/healthz").status, 200, "it is alive all the same");
    let status = world.json("/api/v1/status");
    assert_eq!((&status["draining"], &status["reason"]), (&true.into(), &"draining".into()));
    assert_eq!(samples(&world.metrics())["sbe_draining"], 1.0);
    assert_eq!(world.admin.ask("POST", "/api/v1/undrain").unwrap().status, 200);
    assert_eq!(world.get("/readyz").status, 200);
}

#[test]
fn a_node_is_not_ready_before_everything_stands() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (config, _) = config::parse(&configuration(""), "t").unwrap();
    let node = Node::start(config, None, runtime.handle()).unwrap();
    assert_eq!(node.unready(), Some("starting"));
    assert_eq!(world.node.unready(), None);
}

#[test]
fn a_faulty_configuration_is_refused_with_its_errors_and_a_good_one_taken_over() {
    let world = World::with(Some("reload"));
    let file = world.file.clone().unwrap();
    let reload = || {
        let answer = world.admin.ask("POST", "/api/v1/reload").unwrap();
        (answer.status, serde_json::from_slice::<Value>(&answer.body).unwrap())
    };
    std::fs::write(&file, configuration("max_call = 3\n")).unwrap();
    let (status, body) = reload();
    assert_eq!(status, 422);
    let error = body["errors"][0].as_str().unwrap();
    assert!(error.contains("-reload.toml:18:1: unknown key \"max_call\""), "{error}");
    assert_eq!(world.json("/api/v1/peers")["peers"][0]["max_calls"], Value::Null);

    let more =
        "max_calls = 7\n[[peer]]\nname = \"sp2\"\ndomains = [\"sp2.test\"]\nsources = [\"127.0.0.22/32\"]\n";
    std::fs::write(&file, configuration(more).replace("127.0.0.1:0", "127.0.0.1:5099")).unwrap();
    let (status, body) = reload();
    assert_eq!((status, &body["restart_needed"]), (200, &serde_json::json!(["[[listen]]"])), "{body}");
    let peers = world.json("/api/v1/peers");
    assert_eq!((&peers["peers"][0]["max_calls"], &peers["peers"][1]["name"]), (&7.into(), &"sp2".into()));
    let bound = world.node.listeners()[0].bind;
    assert_eq!(world.node.policy().listeners[0].bind, bound, "listeners stay as they are bound");
    let all = samples(&world.metrics());
    assert_eq!(all["sbe_reloads_total{outcome=\"ok\"}"], 1.0);
    assert_eq!(all["sbe_reloads_total{outcome=\"error\"}"], 1.0);
    world.call("after@x", 200);
}

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    let world = World::new();
    assert_eq!(world.admin.ask("POST", "/api/v1/reload").unwrap().status, 422);
}

#[test]
fn a_uri_is_located_by_the_rules_of_a_call() {
    let world = World::new();
    let look = |uri: &str| world.json(&format!("/api/v1/resolve?uri={}", encoded(uri)));
    let found = look("sip:bob@127.0.0.21:5070;transport=udp");
    assert_eq!((&found["from"], &found["rule"]), (&"core".into(), &"peer_domain".into()));
    assert_eq!(found["legs"][0]["candidates"][0]["instance"], "udp:127.0.0.21:5070");
    assert_eq!(found["legs"][0]["candidates"][0]["health"], "up");
    let own = look("sip:bob@edge.test");
    assert_eq!(
        (&own["from"], &own["rule"]),
        (&"peer".into(), &"core_next_hops".into()),
        "ours: a peer would call it"
    );
    assert_eq!(own["legs"][0]["candidates"][0]["instance"], "udp:127.0.0.11:5999");
    let foreign = look("sip:bob@192.0.2.99");
    assert_eq!(
        (&foreign["refused"]["status"], &foreign["refused"]["reason"]),
        (&403.into(), &"unknown_domain".into())
    );
    let tel = look("tel:+4412345");
    assert_eq!((&tel["refused"]["status"], &tel["candidates"]), (&416.into(), &0.into()));
    for bad in ["", "bob", "sip:a b", "sip:\r\nX: y", "http://a.example", "mailto:a@b"] {
        let answer = world.get(&format!("/api/v1/resolve?uri={}", encoded(bad)));
        assert_eq!(answer.status, 400, "{bad}");
    }
    assert_eq!(world.get("/api/v1/resolve").status, 400);
}

#[test]
fn a_candidate_supposed_to_be_down_is_tried_last() {
    let world = World::new();
    let look = |rest: &str| world.json(&format!("/api/v1/resolve?uri=sip:bob@127.0.0.21:5070{rest}"));
    let shown = |answer: &Value| {
        let c = &answer["legs"][0]["candidates"][0];
        (c["health"].clone(), c["first"].clone(), c["order"].clone(), c["supposed_down"].clone())
    };
    assert_eq!(shown(&look("")), ("up".into(), 1.0.into(), 1.into(), Value::Null));
    // It is the only one, so it is tried all the same.
    let supposed = look("&down=127.0.0.21");
    assert_eq!(shown(&supposed), ("down".into(), 1.0.into(), 1.into(), true.into()));
    assert_eq!(supposed["notes"], serde_json::json!([]));
    let slip = look("&down=127.0.0.21,127.0.0.22:5070");
    assert_eq!(
        slip["notes"],
        serde_json::json!(["127.0.0.22:5070 is supposed to be down, and is none of the candidates"])
    );
    assert_eq!(world.get("/api/v1/resolve?uri=sip:127.0.0.21&down=nobody").status, 400);
}

#[test]
fn the_dns_cache_is_shown_and_flushed() {
    let world = World::new();
    // Nobody answers at the name server's port: a failure, held for a second.
    assert_eq!(world.json("/api/v1/resolve?uri=sip:sp1.test")["candidates"], 0);
    let dns = world.json("/api/v1/dns");
    assert_eq!(dns["servers"][0], "127.0.0.1:9");
    assert!(dns["queries"].as_u64().unwrap() >= 1, "{dns}");
    assert_eq!(world.admin.ask("DELETE", "/api/v1/dns").unwrap().status, 200);
    let one = world.admin.ask("DELETE", "/api/v1/dns/sp1.test").unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&one.body).unwrap()["name"], "sp1.test");
    assert_eq!(world.admin.ask("DELETE", "/api/v1/dns/a%20b").unwrap().status, 400);
}

#[test]
fn what_is_not_there_and_what_comes_by_another_name_is_refused_in_json() {
    let world = World::new();
    for (method, path, status) in
        [("GET", "/nothing", 404), ("POST", "/api/v1/status", 405), ("GET", "/api/v1/drain", 405)]
    {
        let answer = world.admin.ask(method, path).unwrap();
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(serde_json::from_slice::<Value>(&answer.body).unwrap()["error"].is_string());
    }
    let page = world.get("/plain");
    assert_eq!(page.status, 200);
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains("edge.test") && text.contains("sp1"), "{text}");
}

#[test]
fn a_peer_that_wants_probes_is_probed_and_its_instance_listed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let target = socket("127.0.0.23");
    let more = format!(
        "[[peer]]\nname = \"probed\"\ndomains = [\"p.test\"]\nnext_hop = \"sip:{}\"\nsources = [\"127.0.0.23/32\"]\n\
         probe = {{ interval = \"50ms\", timeout = \"40ms\", down_after = 2, up_after = 1 }}\n",
        target.local_addr().unwrap()
    );
    let (config, _) = config::parse(&configuration(&more), "t").unwrap();
    let node = Node::start(config, None, runtime.handle()).unwrap();
    let mut room = [0; 4096];
    let (n, _) = target.recv_from(&mut room).unwrap();
    let text = std::str::from_utf8(&room[..n]).unwrap();
    assert!(text.starts_with(&format!("OPTIONS sip:{} SIP/2.0\r\n", target.local_addr().unwrap())), "{text}");
    // Nobody answers: with the probe after the last that counts it is down.
    for _ in 0..200 {
        target.recv_from(&mut room).unwrap();
        if node.instances(Instant::now()).iter().any(|l| l.standing.label() == "probed_down") {
            break;
        }
    }
    let metrics = super::metrics(&node);
    let key = format!("sbe_instance_up{{peer=\"probed\",instance=\"udp:{}\"}}", target.local_addr().unwrap());
    assert_eq!(samples(&metrics).get(&key), Some(&0.0), "{metrics}");
}

#[test]
fn half_sent_requests_do_not_keep_others_out() {
    use std::io::{Read, Write};
    let world = World::patient(None, Duration::from_millis(300));
    let addr = world.address.as_str();
    // More than are served at a time, half of them with half a request, half with nothing at all.
    let mut silent: Vec<std::net::TcpStream> = (0..140)
        .map(|n| {
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            if n % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n").unwrap();
            }
            stream
        })
        .collect();
    assert_eq!(world.get("/healthz").status, 200);
    let mut rest = Vec::new();
    silent[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(silent[0].read_to_end(&mut rest).is_ok(), "ended by the interface");
}
