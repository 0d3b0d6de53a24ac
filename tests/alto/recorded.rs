//! Every recorded exchange is read to the right result or the right error.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sbe::alto::client::{Answer, Headers};
use sbe::alto::directory::{Document, Plan, Walk, Wish, choose};
use sbe::alto::error::server_error;
use sbe::alto::maps::{CostMap, NetworkMap, source_pids};
use sbe::alto::redirect::{Policy, follow, is_redirect};
use sbe::alto::{CostType, Fault, Service, address, cost_type, ecs, life, media};
use url::Url;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/alto/recorded")
}

/// Start line, headers by lower-case name, body.
fn message(name: &str) -> Option<(String, BTreeMap<String, String>, Vec<u8>)> {
    let octets = std::fs::read(folder().join(name)).ok()?;
    let end = octets.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&octets[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let start = lines.next().unwrap().to_owned();
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    Some((start, headers, octets[end + 4..].to_vec()))
}

fn answer(name: &str) -> Answer {
    let (start, headers, body) = message(&format!("{name}.response.http")).unwrap();
    let one = |name: &str| headers.get(name).cloned();
    let length: usize = one("content-length").unwrap().parse().unwrap();
    assert!(body.len() >= length, "{name}");
    Answer {
        status: start.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: Headers {
            content_type: one("content-type"),
            cache_control: one("cache-control"),
            date: one("date"),
            location: one("location"),
            retry_after: one("retry-after"),
            ..Headers::default()
        },
        body: body[..length].to_vec(),
        wall: Duration::ZERO,
    }
}

/// What was asked: URL, Accept header's first type, body.
fn request(name: &str) -> (Url, String, serde_json::Value) {
    let Some((start, headers, body)) = message(&format!("{name}.request.http")) else {
        let url = Url::parse("https://alto.example.com/endpointcost/lookup").unwrap();
        return (url, media::ENDPOINT_COST.into(), serde_json::Value::Null);
    };
    let path = start.split(' ').nth(1).unwrap();
    let url = Url::parse(&format!("http://{}{path}", headers["host"])).unwrap();
    let wanted = headers["accept"].split(',').next().unwrap().to_owned();
    (url, wanted, serde_json::from_slice(&body).unwrap_or_default())
}

fn asked_type(body: &serde_json::Value) -> CostType {
    let word = |key: &str, default: &str| body["cost-type"][key].as_str().unwrap_or(default).to_owned();
    CostType {
        mode: cost_type::mode(&word("cost-mode", "numerical")).unwrap_or_default(),
        metric: word("cost-metric", "routingcost"),
    }
}

fn addresses(body: &serde_json::Value, which: &str) -> Vec<IpAddr> {
    let list = body["endpoints"][which].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|a| address::parse(a.as_str()?)).collect()
}

/// As the client judges: status, type, content.
fn judge(name: &str) -> Result<String, Fault> {
    let (url, wanted, body) = request(name);
    let answer = answer(name);
    if is_redirect(answer.status) {
        let policy = Policy { servers: vec![url.clone()], allow: Vec::new() };
        let next = follow(&policy, answer.status, answer.headers.location.as_deref(), &[url])?;
        return Ok(format!("{} {}", if next.get { "GET" } else { "same method" }, next.url));
    }
    if !(200..300).contains(&answer.status) {
        return Err(Fault::Status {
            status: answer.status,
            error: server_error(&answer.body).map(Box::new),
            retry_after: life::retry_after(&answer.headers, answer.wall).map(|d| d.as_secs()),
        });
    }
    let found = media::essence(answer.headers.content_type.as_deref().unwrap_or_default());
    let wrong = |wanted| Err(Fault::WrongType { wanted, found: found.clone() });
    let cost_type = asked_type(&body);
    let mut words = String::new();
    match wanted.as_str() {
        media::DIRECTORY if found == media::DIRECTORY => {
            let policy = Policy { servers: vec![url.clone()], allow: Vec::new() };
            let document = Document::parse(&answer.body, &url, &policy)?;
            let _ = write!(
                words,
                "{} resources, {} delegated, {} left out; ",
                document.resources.len(),
                document.delegated.len(),
                document.notes.len()
            );
            let mut walk = Walk::new(url.clone());
            walk.arrived(&url, Document { delegated: Vec::new(), ..document });
            let wish = Wish { cost_type, service: Service::Auto, resource: None };
            match choose(&walk.finish(), &wish, &[]) {
                Ok(Plan::Endpoint { id, .. }) => words.push_str(&id),
                Ok(Plan::Maps { network_id, cost_id, .. }) => {
                    let _ = write!(words, "{network_id} + {cost_id}");
                }
                Err(fault) => words.push_str(&fault.to_string()),
            }
        }
        media::DIRECTORY => return wrong(media::DIRECTORY),
        media::NETWORK_MAP if found == media::NETWORK_MAP => {
            let map = NetworkMap::parse(&answer.body)?;
            let _ = write!(words, "{} PIDs, {}", map.pids(), map.vtag.as_ref().unwrap());
        }
        media::NETWORK_MAP => return wrong(media::NETWORK_MAP),
        media::COST_MAP if found == media::COST_MAP => {
            let map = CostMap::parse(&answer.body, &cost_type, ["PID1".into()].into())?;
            let costs = ["PID1", "PID2", "PID3"].map(|dst| map.rows.cost("PID1", dst).unwrap());
            let _ = write!(words, "for {}, from PID1 {costs:?}", map.depends_on());
        }
        media::COST_MAP => return wrong(media::COST_MAP),
        media::ENDPOINT_COST if found == media::ENDPOINT_COST => {
            let dsts = addresses(&body, "dsts");
            for source in addresses(&body, "srcs") {
                let costs = ecs::answer(&answer.body, &cost_type, source, &dsts)?;
                let row: Vec<Option<f64>> = dsts.iter().map(|d| costs.costs.get(d).copied()).collect();
                let _ = write!(words, "{source} {row:?} ");
            }
        }
        media::ENDPOINT_COST => return wrong(media::ENDPOINT_COST),
        other => {
            let _ = write!(words, "not asked for by this client: {other}");
        }
    }
    Ok(words.trim_end().to_owned())
}

/// By file: what comes of it.
const EXPECTED: &[(&str, &str)] = &[
    ("errors-typed/e-invalid-field-type", "HTTP 400, E_INVALID_FIELD_TYPE, field \"endpoints/srcs\""),
    (
        "errors-typed/e-invalid-field-value",
        "HTTP 400, E_INVALID_FIELD_VALUE, field \"cost-type/cost-mode\", value \"foo\"",
    ),
    (
        "errors-typed/e-invalid-field-value-array",
        "HTTP 400, E_INVALID_FIELD_VALUE, field \"endpoints/srcs\", value \"5\"",
    ),
    ("errors-typed/e-missing-field", "HTTP 400, E_MISSING_FIELD, field \"cost-type/cost-metric\""),
    ("errors-typed/e-syntax", "HTTP 400, E_SYNTAX, syntax error \"line 1, offset 14: value expected\""),
    ("errors-typed/overload-503", "HTTP 503"),
    ("errors-typed/redirect-307", "same method https://alto2.example.com/endpointcost/lookup"),
    ("errors-typed/see-other-303", "GET https://alto.example.com/cached/ecs/5f1d"),
    ("openalto/01-ird", "3 resources, 0 delegated, 0 left out; geodist"),
    ("openalto/02-networkmap", "4 PIDs, \"c0256f96c92dad7433d0abed960f7ebe252617fd\" of default-networkmap"),
    (
        "openalto/03-ecs-numerical",
        "192.0.2.10 [Some(364.6759386306718), Some(9143.932854148083), Some(10269.657434269588)]",
    ),
    ("openalto/04-ecs-ipv6", "2001:db8:0:1::10 [Some(364.6759386306718)]"),
    ("openalto/05-ecs-unknown-endpoint", "HTTP 500, E_GENERIC_HTTP_500_INTERNAL_SERVER_ERROR"),
    ("openalto/06-ecs-malformed-json", "HTTP 400, E_GENERIC_HTTP"),
    ("openalto/07-ecs-missing-endpoints", "HTTP 500, E_GENERIC_HTTP_500_INTERNAL_SERVER_ERROR"),
    ("openalto/08-ecs-ordinal-requested", "192.0.2.10 [Some(364.6759386306718), Some(10269.657434269588)]"),
    ("openalto/09-ecs-wrong-content-type", "HTTP 415, E_GENERIC_HTTP"),
    ("openalto/10-ecs-get-method", "HTTP 405, E_GENERIC_HTTP"),
    ("openalto/11-ird-not-acceptable", "HTTP 406, E_GENERIC_HTTP"),
    ("openalto/12-not-found", "HTTP 404, E_GENERIC_HTTP_404_NOT_FOUND"),
    ("openalto/13-propmap-geolocation", "not asked for by this client: application/alto-propmap+json"),
    ("openalto/14-ecs-endpoints-wrong-type", "HTTP 500, E_GENERIC_HTTP_500_INTERNAL_SERVER_ERROR"),
    ("openalto/15-ecs-loopback-addresses", "127.0.0.1 [Some(0.0)]"),
    ("palto/01-ird", "6 resources, 0 delegated, 0 left out; peering-networkmap + peering-costmap-num"),
    (
        "palto/02-networkmap",
        "the answer is of type \"application/json\", not application/alto-networkmap+json",
    ),
    (
        "palto/03-costmap-numerical",
        "the answer is of type \"application/json\", not application/alto-costmap+json",
    ),
    (
        "palto/04-costmap-ordinal",
        "the answer is of type \"application/json\", not application/alto-costmap+json",
    ),
    (
        "palto/05-ecs-numerical",
        "the answer is of type \"application/json\", not application/alto-endpointcost+json",
    ),
    (
        "palto/06-ecs-ordinal",
        "the answer is of type \"application/json\", not application/alto-endpointcost+json",
    ),
    (
        "palto/07-ecs-two-sources",
        "the answer is of type \"application/json\", not application/alto-endpointcost+json",
    ),
    (
        "palto/08-ecs-unmapped-falls-to-default-pid",
        "the answer is of type \"application/json\", not application/alto-endpointcost+json",
    ),
    ("palto/09-ecs-ipv6-server-bug", "HTTP 500"),
    ("palto/10-ecs-unsupported-cost-type", "HTTP 500"),
    ("palto/11-ecs-malformed-json", "HTTP 500"),
    ("palto/12-ecs-missing-field", "HTTP 500"),
    ("palto/13-ecs-wrong-content-type-415", "HTTP 415"),
    ("palto/14-ecs-get-405", "HTTP 405"),
    ("palto/15-ird-not-acceptable-406", "HTTP 406"),
    ("palto/16-not-found-404", "HTTP 404"),
    (
        "palto/17-filtered-costmap",
        "the answer is of type \"application/json\", not application/alto-costmap+json",
    ),
    ("palto/18-filtered-costmap-missing-cost-type", "HTTP 500"),
    (
        "palto/19-filtered-networkmap",
        "the answer is of type \"application/json\", not application/alto-networkmap+json",
    ),
    ("palto/20-endpointprop-pid", "not asked for by this client: application/alto-endpointprop+json"),
    (
        "rfc7285/costmap",
        "for \"3ee2cb7e8d63d9fab71b9b34cbf764436315542e\" of my-default-network-map, from PID1 [1.0, 5.0, 10.0]",
    ),
    ("rfc7285/endpointcost", "192.0.2.2 [Some(1.0), Some(2.0), Some(3.0)]"),
    ("rfc7285/endpointprop", "not asked for by this client: application/alto-endpointprop+json"),
    (
        "rfc7285/filtered-costmap",
        "for \"75ed013b3cb58f896e839582504f622838ce670f\" of my-default-network-map, from PID1 [0.0, 1.0, 2.0]",
    ),
    ("rfc7285/filtered-networkmap", "the network map cannot be used: 198.51.100.0/24 is in PID1 and in PID2"),
    ("rfc7285/ird", "5 resources, 1 delegated, 0 left out; endpoint-cost"),
    (
        "rfc7285/ird-delegated",
        "4 resources, 0 delegated, 0 left out; no resource in the directory gives costs of type numerical routingcost",
    ),
    ("rfc7285/networkmap", "3 PIDs, \"da65eca2eb7a10ce8b059740b0b2e3f8eb1d4785\" of my-default-network-map"),
];

fn names() -> Vec<String> {
    let mut names = Vec::new();
    for origin in ["errors-typed", "openalto", "palto", "rfc7285"] {
        for entry in std::fs::read_dir(folder().join(origin)).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            if let Some(name) = file.strip_suffix(".response.http") {
                names.push(format!("{origin}/{name}"));
            }
        }
    }
    names.sort();
    names
}

#[test]
fn every_recorded_exchange_is_read_to_the_right_result_or_the_right_error() {
    let names = names();
    assert_eq!(names.len(), 51, "{names:#?}");
    let expected: BTreeMap<&str, &str> = EXPECTED.iter().copied().collect();
    let mut differences = Vec::new();
    for name in &names {
        let found = judge(name).unwrap_or_else(|fault| fault.to_string());
        if expected.get(name.as_str()) != Some(&found.as_str()) {
            differences.push(format!("    ({name:?}, {found:?}),"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(expected.len(), names.len(), "no expectation is left over");
}

/// One server gives no ALTO type with its data, which makes them unusable; they are read all the same here.
#[test]
fn the_content_of_mislabelled_answers_is_sound_where_it_is() {
    let body = |name: &str| answer(&format!("palto/{name}")).body;
    let numbers = CostType { mode: Default::default(), metric: "routingcost".into() };
    let network = NetworkMap::parse(&body("02-networkmap")).unwrap();
    let pid = |addr: &str| network.pid(addr.parse().unwrap()).unwrap().to_string();
    assert_eq!(
        [pid("198.51.100.200"), pid("8.8.8.8"), pid("2001:db8:a::5")],
        ["PEER-B", "DEFAULT", "PEER-A"]
    );
    let sources = source_pids(&network, &["192.0.2.10".parse().unwrap()]);
    for name in ["03-costmap-numerical", "17-filtered-costmap"] {
        let costs = CostMap::parse(&body(name), &numbers, sources.clone()).unwrap();
        assert!(costs.fits(&network), "{name}");
        assert_eq!(costs.rows.cost("SBE-EAST", "PEER-B"), Some(12.5), "{name}");
    }
    let ranks = body("04-costmap-ordinal");
    assert!(matches!(CostMap::parse(&ranks, &numbers, sources), Err(Fault::CostType { .. })));
    // Of two sources, it answers for the last one only.
    let (_, _, asked) = request("palto/07-ecs-two-sources");
    let (srcs, dsts) = (addresses(&asked, "srcs"), addresses(&asked, "dsts"));
    let costs = |source| ecs::answer(&body("07-ecs-two-sources"), &numbers, source, &dsts).unwrap().costs;
    assert!(costs(srcs[0]).is_empty());
    assert_eq!(costs(srcs[1]).get(&dsts[1]), Some(&8.0));
}
