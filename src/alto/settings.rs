//! What the client needs of the configuration.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use url::Url;

use crate::config::{Alto, AltoMode, AltoService, Listen, Realm};
use crate::flow::Host;
use crate::location::CostMode;

use super::cost_type::CostType;
use super::directory::Wish;
use super::redirect::Policy;

/// Which service of a server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Endpoint costs if there are any, else maps.
    #[default]
    Auto,
    /// Endpoint costs only.
    Endpoint,
    /// Maps only.
    Maps,
}

/// Where a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a server.
    Http(Url),
    /// Costs in a file.
    File(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Http(url) => f.write_str(&super::redirect::show(url)),
            Place::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// In the order of preference.
    pub places: Vec<Place>,
    /// Whose costs are asked for, IPv4 and IPv6.
    pub sources: [Option<IpAddr>; 2],
    /// What is looked for.
    pub wish: Wish,
    /// Lifetime of answers, whatever they say.
    pub refresh: Option<Duration>,
    /// Costs serve this long beyond their lifetime.
    pub stale: Duration,
    /// And so long while the server fails.
    pub max_stale: Duration,
    /// The operator's costs.
    pub overrides: Vec<(IpNet, f64)>,
    /// Where redirects may lead.
    pub policy: Policy,
    /// Those of `places` that call their answers `application/json`, which is taken for what was asked for.
    pub accept_json: Vec<Place>,
}

impl Settings {
    /// From a checked configuration, and the listeners as they are bound.
    pub fn new(alto: &Alto, listen: &[Listen]) -> Self {
        let places: Vec<Place> = alto.directories.iter().filter_map(|text| place(text)).collect();
        let servers = places.iter().filter_map(|p| match p {
            Place::Http(url) => Some(url.clone()),
            Place::File(_) => None,
        });
        let policy = Policy { servers: servers.collect(), allow: alto.redirect_allow.clone() };
        let mode = match alto.mode {
            AltoMode::Numerical => CostMode::Numerical,
            AltoMode::Ordinal => CostMode::Ordinal,
        };
        let source = |v4: bool| {
            let own = alto.source.map(|s| s.to_canonical()).filter(|s| s.is_ipv4() == v4);
            own.or_else(|| egress(listen, v4))
        };
        Self {
            sources: [source(true), source(false)],
            wish: Wish {
                cost_type: CostType { mode, metric: alto.metric.clone() },
                service: match alto.service {
                    AltoService::Auto => Service::Auto,
                    AltoService::Endpoint => Service::Endpoint,
                    AltoService::Maps => Service::Maps,
                },
                resource: alto.resource.clone(),
            },
            refresh: alto.refresh,
            stale: alto.stale,
            max_stale: alto.max_stale,
            overrides: alto.overrides.clone(),
            accept_json: alto.accept_json.iter().filter_map(|text| place(text)).collect(),
            places,
            policy,
        }
    }

    /// Our own addresses.
    pub fn sources(&self) -> Vec<IpAddr> {
        self.sources.iter().flatten().copied().collect()
    }

    /// Whose costs towards an address are asked for.
    pub fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        let [v4, v6] = self.sources;
        if dst.to_canonical().is_ipv4() { v4 } else { v6 }
    }

    /// The operator's cost of an address: that of the longest prefix.
    pub fn override_of(&self, addr: IpAddr) -> Option<f64> {
        let addr = addr.to_canonical();
        let matching = self.overrides.iter().filter(|(net, _)| net.contains(&addr));
        matching.max_by_key(|(net, _)| net.prefix_len()).map(|(_, cost)| *cost)
    }
}

/// A directory's place from its URL.
fn place(text: &str) -> Option<Place> {
    let url = Url::parse(text).ok()?;
    match url.scheme() {
        "file" => url.to_file_path().ok().map(Place::File),
        "http" | "https" => Some(Place::Http(url)),
        _ => None,
    }
}

/// The address that peers are reached from in a family: that of the first listener towards them, or what it
/// advertises if it is bound to all addresses.
fn egress(listen: &[Listen], v4: bool) -> Option<IpAddr> {
    let towards = listen.iter().filter(|l| l.realm != Realm::Core && l.bind.is_ipv4() == v4);
    towards
        .filter_map(|l| match &l.advertise {
            _ if !l.bind.ip().is_unspecified() => Some(l.bind.ip()),
            Some((Host::Addr(addr), _)) if addr.is_ipv4() == v4 => Some(*addr),
            _ => None,
        })
        .next()
}
