#![allow(clippy::unwrap_used)]
//! Captures of a node on loopback, begun and fetched over HTTP.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Answer, encoded};
use super::tests::{World, samples};

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
}

fn ask(world: &World, method: &str, path: &str) -> Answer {
    world.admin.ask(method, path).unwrap()
}

/// Begins a capture; its number.
fn start(world: &World, query: &str) -> u64 {
    let answer = ask(world, "POST", &format!("/api/v1/capture?{query}"));
    assert_eq!(answer.status, 201, "{answer:?}");
    json(&answer)["id"].as_u64().unwrap()
}

/// The messages of a capture's file once there are so many: start lines with Call-IDs.
fn messages(world: &World, id: u64, n: u64) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(10);
    while world.json(&format!("/api/v1/capture/{id}"))["packets"].as_u64().unwrap() < n {
        assert!(Instant::now() < until, "{}", world.json("/api/v1/capture"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = world.get(&format!("/api/v1/capture/{id}.pcapng")).body;
    let text = String::from_utf8_lossy(&file).into_owned();
    let mut all = Vec::new();
    let mut first = "";
    for line in text.split("\r\n") {
        let start = ["INVITE ", "ACK ", "SIP/2.0 "].iter().filter_map(|s| line.rfind(s)).min();
        if let (Some(at), false) = (start, line.contains(": ")) {
            first = &line[at..];
        } else if let Some(id) = line.strip_prefix("Call-ID: ") {
            all.push(format!("{} {id}", first.split(' ').take(2).collect::<Vec<_>>().join(" ")));
        }
    }
    all
}

#[test]
fn a_capture_by_peer_has_every_message_of_its_calls() {
    let world = World::new();
    let id = start(&world, "peer=sp1");
    world.call("one", 486);
    // INVITE, 100, INVITE, 486, ACK, 486, and perhaps the core's ACK.
    let all = messages(&world, id, 6);
    let to = world.peer.local_addr().unwrap();
    let mut expected = vec![
        format!("INVITE sip:bob@{to} one"),
        "SIP/2.0 100 one".to_owned(),
        format!("INVITE sip:bob@{to} one"),
        "SIP/2.0 486 one".to_owned(),
        format!("ACK sip:bob@{to} one"),
        "SIP/2.0 486 one".to_owned(),
    ];
    let mut found = all[..6].to_vec();
    // The ACK and the response are sent in one turn.
    found[4..].sort();
    expected[4..].sort();
    assert_eq!(found, expected);
    assert_eq!(world.json(&format!("/api/v1/capture/{id}"))["calls"], 1);
    let metrics = samples(&world.metrics());
    assert!(metrics["sbe_capture_packets_total{outcome=\"kept\"}"] >= 6.0);
    assert_eq!(metrics["sbe_captures_running"], 1.0);
}

#[test]
fn other_calls_stay_out_of_a_capture_by_number_or_call_id() {
    let world = World::new();
    let [number, call, nobody] =
        ["user=BOB%40127.0.0.21", "call_id=two", "user=nobody"].map(|q| start(&world, q));
    world.call("one", 486);
    world.call("two", 503);
    assert!(messages(&world, number, 10).iter().any(|m| m.ends_with(" one")));
    let all = messages(&world, call, 5);
    assert!(!all.is_empty() && all.iter().all(|m| m.ends_with(" two")), "{all:?}");
    assert_eq!(world.json(&format!("/api/v1/capture/{nobody}"))["packets"], 0);
}

#[test]
fn captures_are_listed_stopped_and_in_the_audit_log() {
    let world = World::new();
    assert_eq!(world.json("/api/v1/capture")["captures"], Value::Array(Vec::new()));
    let id = start(&world, "seconds=1h&size=1MiB&user=44");
    let listed = &world.json("/api/v1/capture")["captures"][0];
    assert_eq!((&listed["id"], &listed["running"]), (&id.into(), &true.into()));
    assert_eq!((&listed["seconds"], &listed["size"]), (&3600.into(), &1_048_576.into()));
    assert_eq!(listed["filter"]["user"], "44");
    world.get(&format!("/api/v1/capture/{id}.pcapng"));
    assert_eq!(ask(&world, "DELETE", &format!("/api/v1/capture/{id}")).status, 200);
    assert_eq!(ask(&world, "DELETE", &format!("/api/v1/capture/{id}")).status, 404);
    assert_eq!(world.get(&format!("/api/v1/capture/{id}.pcapng")).status, 404);
    let audit = world.json("/api/v1/audit").to_string();
    for what in ["\"POST\"", "\"DELETE\"", &format!("/api/v1/capture/{id}.pcapng")] {
        assert!(audit.contains(what), "{what} in {audit}");
    }
}

#[test]
fn a_capture_that_cannot_be_is_refused_with_what_would_be_right() {
    let world = World::new();
    for (query, says) in [
        ("peer=sp9", "there is no peer \"sp9\""),
        ("seconds=0", "write 1 to 86400"),
        ("seconds=2d", "write 1 to 86400"),
        ("size=1GiB", "write 64KiB to 64MiB"),
        ("packets=0", "at least 1"),
        ("user=", "1 to 255"),
    ] {
        let answer = ask(&world, "POST", &format!("/api/v1/capture?{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert!(json(&answer)["error"].as_str().unwrap().contains(says), "{query}: {answer:?}");
    }
    assert_eq!(ask(&world, "POST", &format!("/api/v1/capture?nonsense={}", encoded("x"))).status, 400);
    for _ in 0..8 {
        start(&world, "user=44");
    }
    assert_eq!(ask(&world, "POST", "/api/v1/capture").status, 409);
}

#[test]
fn who_follows_by_http_gets_messages_as_they_come() {
    let world = World::new();
    let id = start(&world, "attached=true&seconds=60");
    let mut octets = 0;
    let mut called = false;
    let path = format!("/api/v1/capture/{id}.pcapng?follow=true");
    let end = world.admin.stream(&path, &mut |part| {
        if !called {
            world.call("live", 486);
            called = true;
        }
        octets += part.len();
        octets < 2000
    });
    assert_eq!(end.unwrap(), None);
    assert!(octets >= 2000, "more than the header of the file");
    let until = Instant::now() + Duration::from_secs(20);
    while !world.json("/api/v1/capture")["captures"].as_array().unwrap().is_empty() {
        assert!(Instant::now() < until, "it ends with its only follower");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(world.admin.stream(&path, &mut |_| true).unwrap().unwrap().status, 404);
}
