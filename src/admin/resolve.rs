//! How a URI would be located (`sbe resolve`, `/api/v1/resolve`): by the same rules and the same
//! code as a call, without sending anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::whatif::{self, WhatIf};
use crate::config::{Dns, Families, Realm, SrvSelection};
use crate::flow::{Host, Transport};
use crate::location::{
    DnsStep, Enabled, Instance, LocateKey, Located, Standing, TargetUri, TransportParam, target_of,
};
use crate::peering::Party;
use crate::proxy::{Decision, Leg, Plan, Policy, decide};
use crate::runtime::dns::{EnabledByRealm, Resolver};
use crate::wire::{Framing, Index, Limits, Message, Scheme, UriRef};

use super::words;

/// Longest URI taken, octets.
pub const MAX_URI: usize = 4096;
/// Most candidates shown of one party.
const MAX_SHOWN: usize = 4096;

/// What `sbe resolve --json` and `/api/v1/resolve` give. Fields are added, never renamed.
#[derive(Clone, Debug, Serialize)]
pub struct Resolution {
    /// As asked.
    pub uri: String,
    /// Who would have to send a request for it: `core`, or `peer` for our own domains; null without a configuration.
    pub from: Option<&'static str>,
    /// The rule that chooses the parties; null without a configuration.
    pub rule: Option<&'static str>,
    /// Why a call to it would be refused before any lookup.
    pub refused: Option<Refused>,
    /// Parties in order of preference, each with what was found.
    pub legs: Vec<LegFound>,
    /// Number of candidates of all parties.
    pub candidates: usize,
    /// What else there is to know, for people.
    pub notes: Vec<String>,
}

/// A refusal.
#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    /// SIP status.
    pub status: u16,
    /// A fixed word, as in metrics and records.
    pub reason: &'static str,
    /// For people.
    pub text: &'static str,
}

/// One party, and where its requests would go.
#[derive(Clone, Debug, Serialize)]
pub struct LegFound {
    /// `core`, the peer's name, `federation`; null without a configuration.
    pub party: Option<String>,
    /// What is located, as URIs.
    pub targets: Vec<String>,
    /// The Request-URI that a request leaves with, where it is replaced.
    pub request_uri: Option<String>,
    /// What came of it.
    #[serde(flatten)]
    pub found: Found,
}

/// A located result.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// A fixed word: `found`, `no_such_name`, …
    pub outcome: &'static str,
    /// The same for people.
    pub text: &'static str,
    /// Seconds that the result is valid for.
    pub valid_for: f64,
    /// The DNS steps in the order asked.
    pub steps: Vec<Step>,
    /// Candidates: tiers in order, within a tier by share.
    pub candidates: Vec<Shown>,
    /// What was found and is not used.
    pub left_out: Vec<Omitted>,
    /// With costs that are shown and not used (`rule = "off"`): the order that they would have made; null where they
    /// would have changed nothing.
    pub shadow: Option<Vec<Shadowed>>,
}

/// A place in the order that costs would have made.
#[derive(Clone, Debug, Serialize)]
pub struct Shadowed {
    /// Number of the tier that it would be in.
    pub tier: usize,
    /// SRV priority.
    pub priority: u16,
    /// Class of its target, 0 the best.
    pub class: u16,
    /// As in the metrics.
    pub instance: String,
}

/// One DNS step.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Name asked for.
    pub name: String,
    /// Type.
    pub r#type: &'static str,
    /// A fixed word.
    pub outcome: &'static str,
    /// Seconds left to live; null without an answer.
    pub ttl: Option<u64>,
    /// Out of the cache.
    pub cached: bool,
    /// Run out, used as the DNS is down.
    pub stale: bool,
    /// The first few records.
    pub records: Vec<String>,
}

/// One candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Number of its tier, from 0; a later one is tried only after all of an earlier one.
    pub tier: usize,
    /// Order and preference of its NAPTR record.
    pub naptr: Option<(u16, u16)>,
    /// SRV priority.
    pub priority: u16,
    /// SRV weight.
    pub weight: u16,
    /// Part of the tier's load, 0 to 1; its addresses share it by turns.
    pub share: f64,
    /// Transport.
    pub transport: &'static str,
    /// Host name.
    pub target: String,
    /// Address and port.
    pub address: String,
    /// As in the metrics: `udp:192.0.2.7:5060`.
    pub instance: String,
    /// `up`, `trial`, `down`, `probed_down`; `unknown` without a running node.
    pub health: &'static str,
    /// Seconds until it is tried again.
    pub down_for: Option<f64>,
    /// ALTO cost; null where none is known.
    pub cost: Option<f64>,
    /// Seconds since the answer that it came with.
    pub cost_age: Option<f64>,
    /// Whose word it is: `endpoint_cost`, `maps`, `file`, `override`.
    pub cost_from: Option<&'static str>,
    /// Class of its target, 0 the best; null where no costs are known.
    pub class: Option<u16>,
    /// Of how many.
    pub classes: Option<u16>,
    /// What costs did to its tier, in words.
    pub ranking: Option<String>,
    /// Part of the calls that would try it first by now, 0 to 1: given health and what is supposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<f64>,
    /// Its place in the order, from 1, in which a call goes on that draws the largest share each time; left out
    /// where no call would get to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<usize>,
    /// It is supposed to be down.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub supposed_down: bool,
    /// Indices of tier, server and address.
    #[serde(skip)]
    pub(super) at: (usize, usize, usize),
}

/// Something not used.
#[derive(Clone, Debug, Serialize)]
pub struct Omitted {
    /// What.
    pub what: String,
    /// A fixed word.
    pub reason: &'static str,
}

/// What is known of instances; `None`: no node is running.
pub type Health<'a> = Option<&'a BTreeMap<Instance, Standing>>;

/// Why a text cannot be looked at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// It is no URI.
    #[error("this is no URI; write for example sip:example.com")]
    NoUri,
    /// Neither `sip:`, `sips:` nor `tel:`.
    #[error("only sip:, sips: and tel: URIs can be located")]
    Scheme,
    /// `tel:` without a configuration, or without any `[[route]]`.
    #[error("a tel: URI goes by number, so it takes a configuration with a [[route]]")]
    Tel,
    /// No transport of ours will do, whatever the DNS says.
    #[error(transparent)]
    Target(#[from] crate::location::TargetError),
}

/// Locates a URI. `policy`: by whose rules; without one, whatever the URI names is located as if
/// listeners of all transports served both sides. `what_if`: what is supposed to be down.
///
/// # Errors
/// The text is no URI that could be located.
pub async fn resolve(
    uri: &str,
    policy: Option<&Policy>,
    resolver: &Resolver,
    health: Health<'_>,
    what_if: &WhatIf,
) -> Result<Resolution, ResolveError> {
    let mode = policy.map_or(SrvSelection::Exact, |p| p.config.dns.srv_selection);
    let is_own = |i: &Instance| policy.is_some_and(|p| p.domains.is_own_socket(i.addr));
    let foresee = |found: &mut Found, located: &Located| {
        whatif::foresee(found, located, Instant::now(), mode, health, &is_own, what_if);
    };
    let parsed = parse(uri)?;
    let mut resolution = Resolution {
        uri: uri.to_owned(),
        from: None,
        rule: None,
        refused: None,
        legs: Vec::new(),
        candidates: 0,
        notes: Vec::new(),
    };
    match policy.map(|policy| (policy, planned(policy, uri))) {
        Some((policy, Ok((from, plan)))) => {
            resolution.from = Some(from);
            resolution.rule = Some(plan.rule.label());
            for leg in &plan.legs {
                let asked = Instant::now();
                let located = locate(resolver, &leg.keys).await;
                let mut found = leg_found(policy, leg, located.as_deref(), health);
                if let Some(located) = &located {
                    from_cache(&mut found.found, located, asked);
                    foresee(&mut found.found, located);
                }
                resolution.legs.push(found);
            }
        }
        other => {
            if let Some((_, Err(refused))) = other {
                resolution.refused = Some(refused);
            }
            match parsed.scheme {
                Scheme::Tel if resolution.refused.is_none() => return Err(ResolveError::Tel),
                Scheme::Sip | Scheme::Sips => {
                    let key = target(&parsed)?;
                    let asked = Instant::now();
                    let located = resolver.locate(key.clone()).await;
                    let mut found = found_of(&located, Instant::now(), health, Some(&is_own));
                    from_cache(&mut found, &located, asked);
                    foresee(&mut found, &located);
                    let targets = vec![key.to_string()];
                    resolution.legs.push(LegFound { party: None, targets, request_uri: None, found });
                }
                _ => {}
            }
        }
    }
    resolution.candidates = resolution.legs.iter().map(|l| l.found.candidates.len()).sum();
    whatif::join(&mut resolution, policy, what_if);
    Ok(resolution)
}

/// What all transports and both families can send by: for a look without a configuration.
pub fn everything(dns: &Dns) -> EnabledByRealm {
    let all = Enabled::new(&dns.transports, [true; 3], [true; 3], Families::Both);
    EnabledByRealm { peering: all.clone(), core: all.clone(), both: all }
}

fn parse(uri: &str) -> Result<UriRef<'_>, ResolveError> {
    if uri.len() > MAX_URI || !uri.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(ResolveError::NoUri);
    }
    let parsed = UriRef::parse(uri.as_bytes()).map_err(|_| ResolveError::NoUri)?;
    match parsed.scheme {
        Scheme::Other(_) if !uri.contains("://") && uri.contains('.') => Err(ResolveError::NoUri),
        Scheme::Other(_) => Err(ResolveError::Scheme),
        _ => Ok(parsed),
    }
}

/// RFC 3263 §4, seen from both realms.
fn target(uri: &UriRef<'_>) -> Result<LocateKey, ResolveError> {
    let maddr = match uri.maddr() {
        None => None,
        Some(Ok(host)) => Some(host.to_host()),
        Some(Err(_)) => return Err(ResolveError::NoUri),
    };
    let parts = TargetUri {
        sips: uri.scheme == Scheme::Sips,
        host: uri.host.to_host(),
        port: uri.port,
        transport: uri.param(b"transport").map(|v| TransportParam::from_token(v.unwrap_or_default())),
        maddr,
    };
    Ok(target_of(parts, Realm::Both)?)
}

/// What would become of an INVITE for this URI: from the core, else (for our own domains) from a peer.
fn planned(policy: &Policy, uri: &str) -> Result<(&'static str, Plan), Refused> {
    let refused = match decision(policy, Party::Core, uri) {
        Ok(plan) => return Ok(("core", plan)),
        Err(refused) => refused,
    };
    let peer = policy.peers.iter().flatten().next().map(|p| Party::Peer(p.id));
    if let Some(peer) = peer
        && let Ok(plan) = decision(policy, peer, uri)
    {
        return Ok(("peer", plan));
    }
    Err(refused)
}

fn decision(policy: &Policy, from: Party, uri: &str) -> Result<Plan, Refused> {
    let invite = format!(
        "INVITE {uri} SIP/2.0\r\nVia: SIP/2.0/UDP resolve.invalid;branch=z9hG4bK1\r\nMax-Forwards: 70\r\n\
         From: <sip:resolve@resolve.invalid>;tag=1\r\nTo: <sip:resolve@resolve.invalid>\r\n\
         Call-ID: 1\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
    );
    let no_uri = Refused { status: 400, reason: "bad_uri", text: "Bad Request-URI" };
    let limits = Limits { max_message: 2 * MAX_URI, ..policy.limits };
    let Ok(index) = Index::parse(invite.as_bytes(), &limits, Framing::Datagram) else { return Err(no_uri) };
    if index.fault().is_some() {
        return Err(no_uri);
    }
    match decide(policy, from, &Message::new(invite.as_bytes(), &index), None) {
        Decision::Forward(plan) => Ok(plan),
        Decision::Answer => Err(Refused { status: 200, reason: "local", text: "answered by this element" }),
        Decision::Refuse(reject) => {
            Err(Refused { status: reject.status, reason: reject.label, text: reject.phrase })
        }
    }
}

async fn locate(resolver: &Resolver, keys: &[LocateKey]) -> Option<Arc<Located>> {
    let mut parts = Vec::with_capacity(keys.len());
    for key in keys {
        parts.push(resolver.locate(key.clone()).await);
    }
    match parts.as_slice() {
        [only] => Some(Arc::clone(only)),
        several => Located::merge(several).map(Arc::new),
    }
}

fn leg_found(policy: &Policy, leg: &Leg, located: Option<&Located>, health: Health<'_>) -> LegFound {
    let own = |instance: &Instance| policy.domains.is_own_socket(instance.addr);
    LegFound {
        party: Some(party(policy, leg.party).to_owned()),
        targets: leg.keys.iter().map(|k| k.to_string()).collect(),
        request_uri: leg.uri.as_ref().map(|u| String::from_utf8_lossy(u).into_owned()),
        found: match located {
            Some(located) => found_of(located, Instant::now(), health, Some(&own)),
            None => Found {
                outcome: "nothing_to_locate",
                text: "No next hop",
                valid_for: 0.0,
                steps: Vec::new(),
                candidates: Vec::new(),
                left_out: Vec::new(),
                shadow: None,
            },
        },
    }
}

/// What a party is called.
pub fn party(policy: &Policy, party: Party) -> &str {
    match party {
        Party::Core => "core",
        Party::Peer(id) => policy.peer(id).map_or("(removed peer)", |p| p.config.name.as_str()),
        Party::Federation => "federation",
        Party::Stranger => "stranger",
    }
}

/// A result as it is shown. `own`: what is a listener of this element.
pub fn found_of(
    located: &Located,
    now: Instant,
    health: Health<'_>,
    own: Option<&dyn Fn(&Instance) -> bool>,
) -> Found {
    let mut left_out: Vec<Omitted> =
        located.left_out.iter().map(|l| Omitted { what: l.what.clone(), reason: l.reason.label() }).collect();
    let mut candidates = Vec::new();
    for (number, tier) in located.tiers.iter().enumerate() {
        let mut servers: Vec<(usize, f64)> = (0..tier.servers.len()).map(|at| (at, tier.share(at))).collect();
        servers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for (at, share) in servers {
            let Some(server) = tier.servers.get(at) else { continue };
            for (address, instance) in (0..server.addrs.len()).filter_map(|a| Some((a, server.instance(a)?)))
            {
                let cost = server.cost(address);
                if own.is_some_and(|own| own(&instance)) {
                    left_out.push(Omitted { what: instance.to_string(), reason: "own_listener" });
                    continue;
                }
                if candidates.len() >= MAX_SHOWN {
                    left_out.push(Omitted { what: instance.to_string(), reason: "over_limit" });
                    break;
                }
                let standing = health.map(|h| h.get(&instance).copied().unwrap_or(Standing::Up));
                candidates.push(Shown {
                    tier: number,
                    naptr: tier.naptr,
                    priority: tier.priority,
                    weight: server.weight,
                    share: (share * 10_000.0).round() / 10_000.0,
                    transport: server.transport.param(),
                    target: server.target.to_string(),
                    address: instance.addr.to_string(),
                    instance: instance.to_string(),
                    health: standing.map_or("unknown", Standing::label),
                    down_for: standing.and_then(|s| down_for(s, now)),
                    cost: cost.map(|c| c.value),
                    cost_age: cost.map(|c| round(now.saturating_duration_since(c.fetched).as_secs_f64())),
                    cost_from: cost.map(|c| c.origin.label()),
                    class: tier.ranking.map(|_| server.class),
                    classes: tier.ranking.map(|r| r.classes),
                    ranking: tier.ranking.map(|r| words::ranking(&r, server.class)),
                    first: None,
                    order: None,
                    supposed_down: false,
                    at: (number, at, address),
                });
            }
        }
    }
    Found {
        outcome: located.outcome.label(),
        text: if candidates.is_empty() { located.outcome.text() } else { "Found" },
        valid_for: round(located.expires.saturating_duration_since(now).as_secs_f64()),
        steps: located.steps.iter().map(|s| step(s, located.made, now)).collect(),
        candidates,
        left_out,
        shadow: located.shadow.as_deref().map(shadowed),
    }
}

fn shadowed(shadow: &Located) -> Vec<Shadowed> {
    let mut all = Vec::new();
    for (number, tier) in shadow.tiers.iter().enumerate() {
        for server in &tier.servers {
            all.extend((0..server.addrs.len()).filter_map(|a| server.instance(a)).map(|i| Shadowed {
                tier: number,
                priority: tier.priority,
                class: server.class,
                instance: i.to_string(),
            }));
        }
    }
    all.truncate(MAX_SHOWN);
    all
}

/// A result that was there before it was asked for: all of it came out of the cache.
pub fn from_cache(found: &mut Found, located: &Located, asked: Instant) {
    if located.made.is_some_and(|made| made < asked) {
        found.steps.iter_mut().for_each(|s| s.cached = true);
    }
}

/// Seconds until an instance is tried again.
pub fn down_for(standing: Standing, now: Instant) -> Option<f64> {
    match standing {
        Standing::Down { until } => Some(round(until.saturating_duration_since(now).as_secs_f64())),
        _ => None,
    }
}

/// To milliseconds.
pub fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// `now` may be long after the result was made.
fn step(step: &DnsStep, made: Option<Instant>, now: Instant) -> Step {
    let age = made.map_or(Duration::ZERO, |made| now.saturating_duration_since(made));
    Step {
        name: step.question.name.to_string(),
        r#type: step.question.kind.label(),
        outcome: step.outcome.label(),
        ttl: step.ttl.map(|t| t.saturating_sub(age).as_secs_f64().round() as u64),
        cached: step.cached,
        stale: step.stale,
        records: step.records.clone(),
    }
}

/// True where SRV records would not be asked for because the URI has a port or is numeric: people expect otherwise.
pub fn skips_srv(uri: &str) -> Option<&'static str> {
    let uri = UriRef::parse(uri.as_bytes()).ok()?;
    match (uri.scheme, uri.host.to_host(), uri.port, uri.param(b"transport")) {
        (Scheme::Tel | Scheme::Other(_), ..) => None,
        (_, Host::Addr(_), ..) => Some("the host is an address: no DNS (RFC 3263 section 4.2)"),
        (_, Host::Name(_), Some(_), _) => {
            Some("the URI has a port: neither NAPTR nor SRV are asked for (RFC 3263 section 4.2)")
        }
        (_, Host::Name(_), None, Some(_)) => {
            Some("the URI names a transport: NAPTR is not asked for (RFC 3263 section 4.1)")
        }
        _ => None,
    }
}

/// The transports that a configuration can send by on neither side, for a remark.
pub fn missing_transports(policy: &Policy) -> Vec<Transport> {
    let enabled = policy.enabled(Realm::Both);
    Transport::ALL.into_iter().filter(|t| !enabled.has(*t)).collect()
}
