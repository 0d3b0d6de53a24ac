//! Call records of real calls, and calls whose records cannot be written.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::demo::caller::Caller;
use sbe::demo::instance::Instance;
use sbe::flow::Transport;
use sbe::runtime::node::Node;
use serde_json::Value;

use super::{Edge, ip, until, zone};

/// A directory of its own, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sbe-e2e-records-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("calls.jsonl")
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file()).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A peer with one server, a caller in the core, and records into this file.
struct Calls {
    edge: Edge,
    caller: Caller,
    server: Instance,
}

impl Calls {
    async fn start(output: &Path, queue: usize) -> Self {
        let server = Instance::start("only", SocketAddr::new(ip("127.0.0.1"), 0), Duration::from_millis(5))
            .await
            .unwrap();
        // A port that nobody listens on, of the better priority.
        let dead = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let zone = zone()
            .srv("_sip._udp.dest", 10, 0, dead, "host")
            .and_then(|z| z.srv("_sip._udp.dest", 20, 0, server.addr().port(), "host"))
            .and_then(|z| z.address("host", ip("127.0.0.1")))
            .unwrap();
        let text = format!(
            "[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"core\"\n\n\
             [[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"peering\"\n\n\
             [core]\nsources = [\"127.0.0.0/8\"]\nnext_hops = [\"sip:192.0.2.1\"]\n\n\
             [records]\noutput = \"file:{}\"\nqueue = {queue}\n\n\
             [[peer]]\nname = \"sp2\"\ndomains = [\"dest.example.test\"]\n",
            output.display()
        );
        let edge = Edge::start(zone, &text).await;
        let at = edge.at(Transport::Udp, Realm::Core);
        let caller = Caller::start(ip("127.0.0.1"), Some(at), None).await.unwrap();
        Self { edge, caller, server }
    }

    /// One call through and through, and how long it took.
    async fn call(&self, call_id: &str) -> Duration {
        let begun = Instant::now();
        let uri = "sip:bob@dest.example.test;transport=udp";
        let (outcome, dialog) = self.caller.call(Transport::Udp, uri, call_id).await.unwrap();
        assert_eq!(outcome.status, 200);
        let bye = self.caller.hang_up(dialog.unwrap(), Duration::from_millis(20)).await.unwrap();
        assert_eq!(bye, 200);
        begun.elapsed()
    }

    fn outcomes(&self) -> [u64; 3] {
        outcomes(&self.edge.node)
    }
}

fn outcomes(node: &Node) -> [u64; 3] {
    node.call_records().unwrap().counts().outcomes().map(|(_, n)| n)
}

/// `2026-11-30T18:20:06.123Z`
fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap();
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z" && text > "2024"
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_leaves_one_line_with_all_its_fields_when_it_ends() {
    let directory = Directory::new("schema");
    let calls = Calls::start(&directory.file(), 1000).await;
    calls.call("record-1").await;
    until("the line is written", || calls.outcomes() == [1, 0, 0]).await;
    let [line] = &directory.lines()[..] else { panic!("one line") };

    let mut keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut known = [
        "v",
        "call_id",
        "caller",
        "uri",
        "from",
        "identified_by",
        "remote",
        "transport",
        "rule",
        "to",
        "started",
        "status",
        "reason",
        "cancelled",
        "setup_ms",
        "final_ms",
        "attempts",
        "end",
        "ended",
        "duration_ms",
    ];
    known.sort_unstable();
    assert_eq!(keys, known);
    let book =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/records.md")).unwrap();
    for key in known {
        assert!(book.contains(&format!("| `{key}` |")), "{key} is not documented");
    }

    assert_eq!((&line["v"], &line["call_id"], &line["status"]), (&1.into(), &"record-1".into(), &200.into()));
    assert!(line["caller"].as_str().unwrap().contains("sip:"), "{line}");
    assert_eq!(line["uri"], "sip:bob@dest.example.test;transport=udp");
    assert_eq!((&line["from"], &line["identified_by"]), (&"core".into(), &"source 127.0.0.0/8".into()));
    assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert_eq!((&line["transport"], &line["rule"]), (&"udp".into(), &"peer_domain".into()));
    assert_eq!(line["to"], serde_json::json!(["sp2"]));
    assert_eq!((&line["reason"], &line["cancelled"]), (&Value::Null, &false.into()));
    assert!(is_time(&line["started"]) && is_time(&line["ended"]), "{line}");
    assert!(line["started"].as_str() < line["ended"].as_str(), "{line}");
    assert_eq!(line["end"], "bye");
    assert!(number(&line["duration_ms"]) >= 20.0, "{line}");
    assert!(number(&line["setup_ms"]) <= number(&line["final_ms"]), "{line}");

    let attempts = line["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "the first server is dead: {line}");
    for attempt in attempts {
        let mut keys: Vec<&str> = attempt.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let known = [
            "ended_ms",
            "first_response_ms",
            "instance",
            "leg",
            "outcome",
            "picked",
            "standing",
            "started_ms",
            "status",
        ];
        assert_eq!(keys, known);
        for key in known {
            assert!(book.contains(&format!("| `{key}` |")), "{key} of an attempt is not documented");
        }
    }
    let (first, second) = (&attempts[0], &attempts[1]);
    assert_eq!((&first["status"], &first["first_response_ms"]), (&Value::Null, &Value::Null));
    assert_ne!(first["outcome"], "ok");
    assert_eq!(
        (&second["outcome"], &second["status"], &second["leg"]),
        (&"ok".into(), &200.into(), &0.into())
    );
    assert!(second["instance"].as_str().unwrap().contains(&calls.server.addr().to_string()), "{line}");
    assert!(number(&first["ended_ms"]) <= number(&second["started_ms"]), "{line}");
    assert!(number(&second["first_response_ms"]) <= number(&second["ended_ms"]), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_leaves_its_line_at_once_and_one_still_up_at_the_end_of_the_node() {
    let directory = Directory::new("refused");
    let calls = Calls::start(&directory.file(), 1000).await;
    let (outcome, _) =
        calls.caller.call(Transport::Udp, "sip:bob@nobody.example.test", "refused").await.unwrap();
    until("the line is written", || calls.outcomes() == [1, 0, 0]).await;
    let line = directory.lines().remove(0);
    assert_eq!(line["status"], outcome.status);
    assert_eq!((&line["reason"], &line["rule"]), (&"unknown_domain".into(), &"refused".into()));
    assert_eq!(
        (&line["end"], &line["ended"], &line["duration_ms"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(line["attempts"], serde_json::json!([]));

    let uri = "sip:bob@dest.example.test;transport=udp";
    let (outcome, dialog) = calls.caller.call(Transport::Udp, uri, "still-up").await.unwrap();
    assert_eq!(outcome.status, 200);
    let counts = || calls.edge.node.call_records().unwrap().counts().open();
    until("its line waits", || counts() == 1).await;
    assert_eq!(directory.lines().len(), 1);
    let Calls { edge, caller, server } = calls;
    tokio::task::spawn_blocking(move || drop(edge)).await.unwrap();
    drop((caller, server, dialog));
    let line = directory.lines().remove(1);
    assert_eq!((&line["call_id"], &line["end"]), (&"still-up".into(), &"stopped".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_delays_no_call_and_is_counted() {
    let calls = Calls::start(Path::new("/dev/full"), 1000).await;
    calls.call("full-0").await;
    for n in 1..=10 {
        let took = calls.call(&format!("full-{n}")).await;
        assert!(took < Duration::from_secs(1), "call {n} took {took:?}");
    }
    until("all are counted", || calls.outcomes() == [0, 0, 11]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_hangs_delays_no_call_nor_the_end_and_is_counted() {
    let directory = Directory::new("pipe");
    // Nobody reads it: opening it hangs until somebody does.
    assert!(Command::new("mkfifo").arg(directory.file()).status().unwrap().success());
    let calls = Calls::start(&directory.file(), 4).await;
    calls.call("pipe-0").await;
    for n in 1..=10 {
        let took = calls.call(&format!("pipe-{n}")).await;
        assert!(took < Duration::from_secs(1), "call {n} took {took:?}");
    }
    let counts = calls.edge.node.call_records().unwrap().counts();
    let [written, dropped, failed] = counts.outcomes().map(|(_, n)| n);
    assert_eq!((written, failed), (0, 0));
    // Of twenty-two events the writer took at most five before it hung, and four found room in the queue.
    let lost = dropped + counts.ends_lost();
    assert!((13..=20).contains(&lost), "{lost} were lost");
    let begun = Instant::now();
    let Calls { edge, caller, server } = calls;
    tokio::task::spawn_blocking(move || drop(edge)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop((caller, server));
}
