//! A client, a clock, and a server made of a closure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::alto::client::Status;
use crate::alto::{Answer, Client, Fault, Headers, Request, Settings, Target, media};
use crate::config::Config;
use crate::location::CostSnapshot;

/// `[alto]` with a directory at `http://127.0.0.1:8181/ird`, and what is added.
pub fn settings(more: &str) -> Settings {
    let directory =
        if more.contains("director") { "" } else { "directory = \"http://127.0.0.1:8181/ird\"\n" };
    let text = format!(
        "[node]\nname = \"sbe.test\"\ndomains = [\"sbe.test\"]\n\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n\n\
         [[listen]]\ntransport = \"udp\"\nbind = \"[2001:db8::10]:5060\"\n\n[alto]\n{directory}{more}\n"
    );
    let config = Config::from_toml_str(&text).unwrap_or_else(|errors| panic!("{errors:#?}"));
    Settings::new(config.alto.as_ref().unwrap(), &config.listen)
}

pub fn addrs(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|a| a.parse().unwrap()).collect()
}

pub fn ok(kind: &str, body: &Value) -> Result<Answer, Fault> {
    let headers = Headers { content_type: Some(kind.into()), ..Headers::default() };
    Ok(Answer { status: 200, headers, body: body.to_string().into_bytes(), ..Answer::default() })
}

pub fn status(status: u16, body: &str) -> Result<Answer, Fault> {
    Ok(Answer { status, body: body.as_bytes().to_vec(), ..Answer::default() })
}

/// With headers of this kind.
pub fn with(answer: Result<Answer, Fault>, set: impl Fn(&mut Headers)) -> Result<Answer, Fault> {
    answer.map(|mut a| {
        set(&mut a.headers);
        a
    })
}

pub fn ird(resources: &Value) -> Result<Answer, Fault> {
    let types = json!({
        "n": { "cost-mode": "numerical", "cost-metric": "routingcost" },
        "o": { "cost-mode": "ordinal", "cost-metric": "routingcost" },
    });
    ok(media::DIRECTORY, &json!({ "meta": { "cost-types": types }, "resources": resources }))
}

pub fn ecs_entry(uri: &str, types: &[&str]) -> Value {
    json!({
        "uri": uri, "media-type": media::ENDPOINT_COST, "accepts": media::ENDPOINT_COST_PARAMS,
        "capabilities": { "cost-type-names": types },
    })
}

pub fn maps_entries(filtered: bool) -> Value {
    let mut costs = json!({
        "uri": "/costs", "media-type": media::COST_MAP, "uses": ["net"], "capabilities": { "cost-type-names": ["n"] },
    });
    if filtered {
        costs["accepts"] = json!(media::COST_MAP_FILTER);
    }
    json!({ "net": { "uri": "/net", "media-type": media::NETWORK_MAP }, "costs": costs })
}

pub fn network(tag: &str, pids: &Value) -> Result<Answer, Fault> {
    let meta = json!({ "vtag": { "resource-id": "net", "tag": tag } });
    ok(media::NETWORK_MAP, &json!({ "meta": meta, "network-map": pids }))
}

pub fn costs(tag: &str, map: &Value) -> Result<Answer, Fault> {
    let meta = json!({
        "dependent-vtags": [{ "resource-id": "net", "tag": tag }],
        "cost-type": { "cost-mode": "numerical", "cost-metric": "routingcost" },
    });
    ok(media::COST_MAP, &json!({ "meta": meta, "cost-map": map }))
}

/// The body of a query.
pub fn body(request: &Request) -> Value {
    request.post.as_ref().map_or(Value::Null, |(_, body)| serde_json::from_slice(body).unwrap())
}

/// Destinations of a query, without their type.
pub fn dsts(request: &Request) -> Vec<String> {
    let body = body(request);
    let list = body["endpoints"]["dsts"].as_array().cloned().unwrap_or_default();
    list.iter().map(|d| d.as_str().unwrap().split_once(':').unwrap().1.to_owned()).collect()
}

/// Answers a query for endpoint costs: by the last octet (or group) of each destination.
pub fn endpoint_costs(request: &Request) -> Result<Answer, Fault> {
    let asked = body(request);
    let src = asked["endpoints"]["srcs"][0].as_str().unwrap();
    let row: serde_json::Map<String, Value> = asked["endpoints"]["dsts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dst| {
            let dst = dst.as_str().unwrap();
            let last: f64 = dst.rsplit(['.', ':']).next().unwrap().parse().unwrap();
            (dst.to_owned(), json!(last))
        })
        .collect();
    ok(
        media::ENDPOINT_COST,
        &json!({ "meta": { "cost-type": asked["cost-type"] }, "endpoint-cost-map": { src: row } }),
    )
}

pub type Reply = Result<Answer, Fault>;
pub type Serve = Box<dyn FnMut(&Request) -> Option<Reply>>;

/// See the module's text. What the server gives `None` for stays under way for ever.
pub struct Stage {
    pub client: Client,
    pub start: Instant,
    pub now: Instant,
    pub serve: Serve,
    /// Seconds since the start, path, of each request.
    pub log: Vec<(f64, String)>,
    pub requests: Vec<Request>,
    pub snapshot: CostSnapshot,
    pub snapshots: usize,
}

impl Stage {
    pub fn new(
        settings: Settings,
        serve: impl FnMut(&Request) -> Option<Result<Answer, Fault>> + 'static,
    ) -> Self {
        let start = Instant::now();
        Self {
            client: Client::new(settings, 0, start, [5; 32]),
            start,
            now: start,
            serve: Box::new(serve),
            log: Vec::new(),
            requests: Vec::new(),
            snapshot: CostSnapshot::default(),
            snapshots: 0,
        }
    }

    /// Another server from now on.
    pub fn serve(&mut self, serve: impl FnMut(&Request) -> Option<Result<Answer, Fault>> + 'static) {
        self.serve = Box::new(serve);
    }

    pub fn want(&mut self, sets: &[&[&str]]) {
        let sets: Vec<_> = sets.iter().map(|s| addrs(s).into()).collect();
        self.client.set_wanted(&sets, self.now);
    }

    /// Lets time pass; each request is answered at once.
    pub fn run(&mut self, seconds: f64) {
        let until = self.now + Duration::from_secs_f64(seconds);
        loop {
            while let Some(request) = self.client.poll_request(self.now) {
                let path = match &request.target {
                    Target::Http(url) => url.path().to_owned(),
                    Target::File(path) => path.display().to_string(),
                };
                self.log.push(((self.now - self.start).as_secs_f64(), path));
                self.requests.push(request.clone());
                if let Some(result) = (self.serve)(&request) {
                    self.client.settle(request.server, request.ticket, result, self.now);
                }
            }
            if let Some(snapshot) = self.client.poll_snapshot(self.now) {
                assert!(snapshot.serial > self.snapshot.serial, "serials grow");
                self.snapshot = snapshot;
                self.snapshots += 1;
            }
            match self.client.poll_timeout().filter(|at| *at <= until) {
                // The shell's timer has such a grain.
                Some(at) => self.now = at.max(self.now + Duration::from_millis(1)),
                None => break,
            }
            if self.now > until {
                break;
            }
        }
        self.now = until;
    }

    pub fn cost(&self, addr: &str) -> Option<f64> {
        self.snapshot.cost(&addr.parse().unwrap(), self.now).map(|c| c.value)
    }

    pub fn status(&self) -> Status {
        self.client.status(self.now)
    }

    pub fn state(&self) -> &'static str {
        self.status().servers[0].state.label()
    }

    pub fn error(&self) -> String {
        self.status().servers[0].last_error.as_ref().map_or_else(String::new, |(_, e)| e.clone())
    }

    pub fn asked(&self, path: &str) -> usize {
        self.log.iter().filter(|(_, p)| p == path).count()
    }

    /// Requests by outcome, those that there were.
    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        let all = self.status().outcomes;
        all.into_iter().filter(|(_, n)| *n > 0).map(|(o, n)| (o.label(), n)).collect()
    }
}
