#![allow(clippy::unwrap_used)]
//! The OpenAPI document against the routes of the source, and against what a running node answers.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::http::OPENAPI;
use super::tests::{World, configuration};

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// Paths of a text of routes, with parameters written as in the document.
fn routes_of(source: &str) -> Vec<String> {
    let rest = source.split(".route(").skip(1);
    rest.filter_map(|r| r.trim_start().strip_prefix('"')?.split('"').next())
        .map(|p| p.replace("{*", "{"))
        .collect()
}

#[test]
fn every_route_is_in_the_document_and_nothing_else_is() {
    let sources = [include_str!("http.rs"), include_str!("feed.rs"), include_str!("capture.rs")];
    let mut routes: BTreeSet<String> = sources.into_iter().flat_map(routes_of).collect();
    let files = super::assets::FILES.iter().map(|(path, ..)| *path);
    routes.extend(files.map(|p| if p.starts_with("/ui/") { "/ui/{file}".to_owned() } else { p.to_owned() }));
    assert!(routes.len() >= 25, "{routes:?}");
    let documented: BTreeSet<String> = document()["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(routes, documented);
}

#[test]
fn a_running_node_takes_the_methods_of_the_document_and_no_others() {
    let world = World::new();
    let document = document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let filled = path.replace("{file}", "app.js").replace("{id}", "99").replace("{name}", "a.test");
        let filled = filled.replace("{call_id}", "none").replace("{whose}", "sp9");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            if path == "/api/v1/events" && method == "GET" {
                // Without an end.
                continue;
            }
            let answer = world.admin.ask(method, &filled).unwrap();
            let key = method.to_ascii_lowercase();
            let known = methods.get(&key).is_some();
            assert_eq!(answer.status != 405, known, "{method} {path}: {}", answer.status);
            assert!(answer.status != 404 || !answer.body.windows(12).any(|w| w == b"no such path"), "{path}");
            if known {
                let status = answer.status.to_string();
                assert!(methods[&key]["responses"].get(&status).is_some(), "{method} {path}: {status}");
            }
        }
    }
    assert!(world.get("/api/v1/nothing").status == 404);
}

/// What of a value does not fit a schema: types, what is required, enumerations, and members that are not spoken of.
fn misfits(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{name}"));
        return misfits(document, schema, value, at, found);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = |schema: &&Value| {
            let mut found = Vec::new();
            misfits(document, schema, value, at, &mut found);
            found.is_empty()
        };
        if !any.iter().any(|s| fits(&s)) {
            found.push(format!("{at}: none of several: {value}"));
        }
        return;
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: a schema with type {other}"),
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&is) && !(is == "integer" && types.contains(&"number")) {
        found.push(format!("{at}: {value} is no {types:?}"));
        return;
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        found.push(format!("{at}: {value} is none of {words:?}"));
    }
    if let (Some(least), Some(n)) = (schema["minimum"].as_f64(), value.as_f64())
        && n < least
    {
        found.push(format!("{at}: {n} is below {least}"));
    }
    if let Some(items) = value.as_array() {
        for (i, item) in items.iter().enumerate() {
            misfits(document, &schema["items"], item, &format!("{at}[{i}]"), found);
        }
    }
    let Some(members) = value.as_object() else { return };
    let required = schema["required"].as_array().into_iter().flatten();
    found.extend(
        required
            .filter_map(Value::as_str)
            .filter(|k| !members.contains_key(*k))
            .map(|k| format!("{at}: without {k}")),
    );
    for (key, member) in members {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), schema.get("additionalProperties")) {
            (Some(schema), _) | (None, Some(schema)) => misfits(document, schema, member, &at, found),
            (None, None) => found.push(format!("{at} is not in the document")),
        }
    }
}

/// Checks one answer against the document, and gives it.
fn checked(world: &World, method: &str, path: &str, template: &str) -> Value {
    let document = document();
    let answer = world.admin.ask(method, path).unwrap();
    let value: Value = serde_json::from_slice(&answer.body).unwrap();
    let operation = &document["paths"][template][method.to_ascii_lowercase()];
    let mut response = &operation["responses"][answer.status.to_string()];
    if let Some(name) = response["$ref"].as_str() {
        response = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
    }
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path}: {} is not in the document: {value}", answer.status);
    let mut found = Vec::new();
    misfits(&document, schema, &value, "", &mut found);
    assert!(found.is_empty(), "{method} {path}: {}: {found:#?}", answer.status);
    value
}

fn world(name: Option<&str>) -> World {
    // A route by number, limits, and sources by a name that nobody answers for.
    let more = "max_calls = 10\nmax_rate = 5\nmax_calls_per_instance = 4\n\
                [[peer]]\nname = \"sp2\"\ndomains = [\"sp2.test\"]\nsources = [\"dns:gone.test\", \"127.0.0.31\"]\n\
                [[route]]\nprefix = \"+44\"\npeers = [\"sp1\"]\n";
    World::of(name, &configuration(more), Duration::from_secs(15))
}

#[test]
fn what_a_running_node_answers_is_as_the_document_says() {
    let world = world(Some("openapi"));
    world.call("one", 486);
    world.call("two", 200);
    let id = checked(&world, "POST", "/api/v1/capture?peer=sp1&seconds=60", "/api/v1/capture")["id"].clone();
    world.call("three", 503);
    let get = |path: &str| checked(&world, "GET", path, path.split('?').next().unwrap());
    for path in [
        "/api/v1/status",
        "/api/v1/peers",
        "/api/v1/overview",
        "/api/v1/dns",
        "/api/v1/dns?limit=1",
        "/api/v1/dns?limit=x",
        "/api/v1/certificates",
        "/api/v1/alto",
        "/api/v1/alto?limit=-1",
        "/api/v1/resolve",
        "/api/v1/resolve?uri=sip:sp1.test",
        "/api/v1/resolve?uri=sip:%2B4420@edge.test",
        "/api/v1/resolve?uri=sip:127.0.0.21&down=127.0.0.21",
        "/api/v1/resolve?uri=sip:nobody.test",
        "/api/v1/resolve?uri=nonsense",
        "/api/v1/resolve?uri=sip:sp1.test&down=nonsense",
        "/api/v1/calls",
        "/api/v1/calls?outcome=nonsense",
        "/api/v1/calls?nonsense=1",
        "/api/v1/calls?since=1h&limit=2",
        "/api/v1/capture",
    ] {
        get(path);
    }
    for (method, path, template) in [
        ("GET", "/api/v1/calls/one", "/api/v1/calls/{call_id}"),
        ("GET", "/api/v1/calls/nobody", "/api/v1/calls/{call_id}"),
        ("GET", "/api/v1/calls/%ff", "/api/v1/calls/{call_id}"),
        ("GET", &format!("/api/v1/capture/{id}"), "/api/v1/capture/{id}"),
        ("GET", "/api/v1/capture/x", "/api/v1/capture/{id}"),
        ("DELETE", &format!("/api/v1/capture/{id}"), "/api/v1/capture/{id}"),
        ("DELETE", "/api/v1/capture/x", "/api/v1/capture/{id}"),
        ("POST", "/api/v1/capture?peer=nobody", "/api/v1/capture"),
        ("DELETE", "/api/v1/dns", "/api/v1/dns"),
        ("DELETE", "/api/v1/dns/a.test", "/api/v1/dns/{name}"),
        ("DELETE", "/api/v1/dns/%20", "/api/v1/dns/{name}"),
        ("DELETE", "/api/v1/alto", "/api/v1/alto"),
        ("DELETE", "/api/v1/alto/sp9", "/api/v1/alto/{whose}"),
        ("POST", "/api/v1/drain", "/api/v1/drain"),
        ("GET", "/api/v1/status", "/api/v1/status"),
        ("POST", "/api/v1/undrain", "/api/v1/undrain"),
        ("POST", "/api/v1/reload", "/api/v1/reload"),
        ("GET", "/api/v1/audit", "/api/v1/audit"),
    ] {
        checked(&world, method, path, template);
    }
    let without_file = World::new();
    assert_eq!(checked(&without_file, "POST", "/api/v1/reload", "/api/v1/reload")["ok"], false);
}

#[test]
fn peers_show_their_limits_with_what_counts_against_them() {
    let world = world(None);
    world.call("one", 200);
    world.call("two", 200);
    let peers = checked(&world, "GET", "/api/v1/peers", "/api/v1/peers");
    let sp1 = &peers["peers"][0];
    assert_eq!((&sp1["calls"], &sp1["max_calls"]), (&2.into(), &10.into()));
    assert_eq!(sp1["max_rate"], 5);
    assert!((1..=2).contains(&sp1["rate"].as_u64().unwrap()), "{sp1}");
    let instance = &sp1["instances"][0];
    assert_eq!((&instance["calls"], &instance["max_calls"]), (&2.into(), &4.into()));
    assert_eq!((&instance["rate"], &instance["max_rate"]), (&0.into(), &Value::Null));
    let sp2 = &peers["peers"][1];
    assert_eq!((&sp2["max_calls"], &sp2["rate"]), (&Value::Null, &0.into()));
    let all = super::tests::samples(&world.metrics());
    assert_eq!(all["sbe_peer_calls{peer=\"sp1\"}"], 2.0);
    assert_eq!(all["sbe_peer_calls_limit{peer=\"sp1\"}"], 10.0);
    assert_eq!(all["sbe_peer_rate_limit{peer=\"sp1\"}"], 5.0);
    assert!(all["sbe_peer_rate{peer=\"sp1\"}"] <= 2.0);
    let to = format!("udp:{}", world.peer.local_addr().unwrap());
    let key = |name: &str| format!("{name}{{peer=\"sp1\",instance=\"{to}\"}}");
    assert_eq!(all[&key("sbe_instance_calls")], 2.0);
    assert_eq!(all[&key("sbe_instance_calls_limit")], 4.0);
    assert!(!all.contains_key("sbe_peer_calls_limit{peer=\"sp2\"}"), "it has none");
}

#[test]
fn a_name_in_sources_is_shown_before_it_has_led_anywhere() {
    let world = world(None);
    let peers = checked(&world, "GET", "/api/v1/peers", "/api/v1/peers");
    let published = &peers["peers"][1]["published_sources"];
    assert_eq!(published.as_array().unwrap().len(), 1, "{published}");
    assert_eq!(
        (&published[0]["name"], &published[0]["addresses"]),
        (&"gone.test".into(), &Value::Array(vec![]))
    );
    assert_eq!(peers["peers"][1]["sources"], serde_json::json!(["127.0.0.31/32", "dns:gone.test"]));
}

#[test]
fn the_request_uri_of_a_call_by_number_is_shown() {
    let world = world(None);
    let path = "/api/v1/resolve?uri=sip:%2B4420@edge.test";
    let resolved = checked(&world, "GET", path, "/api/v1/resolve");
    assert_eq!(resolved["legs"][0]["request_uri"], "sip:+4420@127.0.0.21");
    let (sbe, from) = (world.node.listeners()[0].bind, world.core.local_addr().unwrap());
    let invite = format!(
        "INVITE sip:+4420@edge.test SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bKn;rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@edge.test>;tag=1\r\nTo: <sip:+4420@edge.test>\r\nCall-ID: number\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n"
    );
    world.core.send_to(invite.as_bytes(), sbe).unwrap();
    let mut room = [0; 4096];
    loop {
        let (n, _) = world.core.recv_from(&mut room).unwrap();
        if !room[..n].starts_with(b"SIP/2.0 1") {
            break;
        }
    }
    let call = checked(&world, "GET", "/api/v1/calls/number", "/api/v1/calls/{call_id}");
    assert_eq!(call["requests"][0]["legs"][0]["request_uri"], "sip:+4420@127.0.0.21");
}
