//! Where a request is to go: Route preprocessing (RFC 3261 §16.4), the target set (§16.5) and the
//! rules on who may reach whom (rules 3, 5 and 8).

use smallvec::{SmallVec, smallvec};

use crate::config::{NextHop, NumberRule, Realm};
use crate::flow::{Host, ListenerId, PeerId, Transport};
use crate::location::{LocateKey, TargetUri, TransportParam, target_of};
use crate::peering::{Owner, Party};
use crate::wire::{HostRef, Message, Method, Name, Scheme, UriRef};

use super::context::{Leg, LegNames, Plan, Routing};
use super::decision::Rule;
use super::dialog::{self, KnownToken, Remembered};
use super::numbers::normalised;
use super::policy::{PeerEntry, Policy, locate_key};
use super::validate::Reject;

/// What is to be done with a valid request.
#[derive(Debug)]
pub enum Decision {
    /// Forward it.
    Forward(Plan),
    /// An OPTIONS to this element itself (§11): 200, or 503 while draining.
    Answer,
    /// Refuse it.
    Refuse(Reject),
}

const BAD_URI: Reject = Reject::new(400, "Bad Request-URI", "bad_uri");

const FORBIDDEN: Reject = Reject::new(403, "Forbidden", "no_transit");

/// The realm that a party is reached from.
pub const fn realm_of(party: Party) -> Realm {
    match party {
        Party::Core => Realm::Core,
        _ => Realm::Peering,
    }
}

/// Decides. `from` is not a stranger. `token`: that of the call which the request belongs to, where it is known.
pub fn decide(policy: &Policy, from: Party, msg: &Message<'_>, token: Option<&KnownToken>) -> Decision {
    let mut routing = Routing::default();
    // §16.4: with a maddr of ours the URI was addressed to us as an outbound proxy. The parameter goes,
    // and with it the port and transport that brought the request here.
    let Some(received) = msg.request_uri() else { return Decision::Refuse(BAD_URI) };
    let stripped = without_own_maddr(policy, &received);
    // It is referred to, not moved: there is much in it.
    let (parsed, last_route);
    let mut request_uri = &received;
    if let Some(text) = &stripped {
        routing.uri = Some(Box::from(text.as_slice()));
        let Ok(uri) = UriRef::parse(text) else { return Decision::Refuse(BAD_URI) };
        parsed = uri;
        request_uri = &parsed;
    }
    let to_us = request_uri.is_loose() && is_own(policy, request_uri);
    if !to_us
        && msg.to_tag().is_some()
        && let Some(own) = own_routes_only(policy, msg, token)
    {
        (routing.own_routes, routing.routes) = (own.count, own.count);
        let sips = request_uri.scheme == Scheme::Sips;
        return in_dialog(policy, from, &own, request_uri, sips, routing);
    }
    let mut routes: SmallVec<[UriRef<'_>; 2]> = SmallVec::new();
    for route in msg.routes() {
        let Ok(route) = route else { return Decision::Refuse(Reject::new(400, "Bad Route", "bad_route")) };
        routes.push(route.uri);
    }
    routing.routes = u32::try_from(routes.len()).unwrap_or(u32::MAX);
    // §16.4: a strict router has put our Record-Route into the Request-URI; the real one is the last Route.
    let mut own = OwnRoutes { known: token, ..OwnRoutes::default() };
    if to_us {
        own.see(policy, msg, request_uri);
        if let Some(last) = routes.pop() {
            routing.last_is_uri = true;
            routing.uri = Some(Box::from(last.bytes));
            last_route = last;
            request_uri = &last_route;
        }
    }
    while let Some(first) = routes.get(routing.own_routes as usize)
        && is_own(policy, first)
    {
        own.see(policy, msg, first);
        routing.own_routes += 1;
    }
    // §16.6 step 7: with a SIPS Request-URI every next hop is one, whatever its own URI says.
    let sips = request_uri.scheme == Scheme::Sips;
    let next = routes.get(routing.own_routes as usize);
    if let Some(next) = next {
        routing.next_is_strict = !next.is_loose();
    }
    // A Route of ours and nothing behind it, in no dialog: we are the sender's outbound proxy, and rule 3
    // decides as if the Route had not been there.
    let outbound = own.remembered.is_none() && next.is_none() && msg.to_tag().is_none();
    if own.seen && !outbound {
        return in_dialog(policy, from, &own, next.unwrap_or(request_uri), sips, routing);
    }
    match out_of_dialog(policy, from, msg, request_uri, next, routing) {
        Ok(Some(plan)) => Decision::Forward(plan),
        Ok(None) => Decision::Answer,
        Err(reject) => Decision::Refuse(reject),
    }
}

/// What our own Routes said.
#[derive(Default)]
struct OwnRoutes<'a> {
    seen: bool,
    count: u32,
    remembered: Option<Remembered<'a>>,
    listener: Option<ListenerId>,
    /// What need not be verified.
    known: Option<&'a KnownToken>,
}

impl<'a> OwnRoutes<'a> {
    fn see(&mut self, policy: &Policy, msg: &Message<'_>, uri: &UriRef<'a>) {
        let token = uri.param(dialog::PARAM.as_bytes()).flatten();
        self.note(policy, msg, listener_of(policy, uri), token);
    }

    fn note(
        &mut self,
        policy: &Policy,
        msg: &Message<'_>,
        listener: Option<ListenerId>,
        token: Option<&'a [u8]>,
    ) {
        self.seen = true;
        self.count += 1;
        self.listener = listener;
        // Only inside a dialog: an INVITE without a To tag is a new call, whatever Route it shows.
        if msg.to_tag().is_some()
            && let Some(token) = token
            && let Some(found) = dialog::verify(&policy.dialog_secret, msg.call_id(), token, self.known)
        {
            self.remembered = Some(found);
        }
    }
}

/// What the Routes say where all of them are ours and came back to the letter as we wrote them, as
/// is usual inside a dialog: they need not be taken apart. `None`: look closer, or there are none.
fn own_routes_only<'a>(
    policy: &Policy,
    msg: &Message<'a>,
    known: Option<&'a KnownToken>,
) -> Option<OwnRoutes<'a>> {
    let mut own = OwnRoutes { known, ..OwnRoutes::default() };
    for field in msg.headers(Name::Route) {
        let mut rest = field.value;
        loop {
            let value = rest.strip_prefix(b"<sip:")?;
            let (listener, tail) = policy
                .listeners
                .iter()
                .find_map(|l| Some((l.id, value.strip_prefix(l.route_uri.as_bytes())?)))?;
            let tail = tail.strip_prefix(dialog::BEFORE.as_bytes())?;
            let end = dialog::end_of_token(tail)?;
            let (token, after) = tail.split_at_checked(end)?;
            own.note(policy, msg, Some(listener), Some(token));
            rest = match after {
                b">" => break,
                [b'>', b',', more @ ..] => more.trim_ascii_start(),
                _ => return None,
            };
        }
    }
    own.seen.then_some(own)
}

/// Rule 8. The next hop is taken directly: the remaining Route, else the Request-URI.
fn in_dialog(
    policy: &Policy,
    from: Party,
    own: &OwnRoutes<'_>,
    next: &UriRef<'_>,
    sips: bool,
    routing: Routing,
) -> Decision {
    let key = match target(next, sips) {
        Ok(key) => key,
        Err(reject) => return Decision::Refuse(reject),
    };
    let port = port_of(next);
    let reachable = || policy.reachable_from(from, &next.host, port);
    let party = match (own.remembered, from) {
        // The peer may be gone since, by a reload: its dialogs are let end.
        (Some(token), Party::Core) => {
            policy.peer_of_tag(token.peer_tag).map(Party::Peer).or_else(reachable).or(Some(Party::Federation))
        }
        // The token lets a peer reach what its dialog's route set names, but never another peer (no transit).
        (Some(token), _)
            if token.peer_tag == tag_of(policy, from) && !is_of_another_peer(policy, from, next) =>
        {
            Some(Party::Core)
        }
        // Of a removed peer only the dialogs that it had.
        _ if policy.is_departed(from) => None,
        _ => reachable(),
    };
    let Some(party) = party else {
        return Decision::Refuse(Reject::new(403, "Forbidden", "route_not_allowed"));
    };
    let names = own.remembered.map(|r| r.names).unwrap_or_default();
    let (theirs, senders) = match from {
        Party::Core => (names.peer, names.core),
        _ => (names.core, names.peer),
    };
    let key = LocateKey { realm: realm_of(party), ..key };
    Decision::Forward(Plan {
        routing,
        legs: smallvec![Leg {
            party,
            keys: smallvec![key],
            uri: None,
            names: (theirs.is_some() || senders.is_some()).then(|| {
                Box::new(LegNames { servers: theirs.map(Box::from), sender: senders.map(Box::from) })
            }),
        }],
        listener: own.listener,
        rule: Rule::RouteSet,
    })
}

/// The tag that dialog tokens of this sender carry.
fn tag_of(policy: &Policy, from: Party) -> u32 {
    from.peer().and_then(|p| policy.peer(p)).map_or(0, |p| p.tag)
}

/// True if a URI's host lies with a peer other than the sender, and not with the core.
fn is_of_another_peer(policy: &Policy, from: Party, uri: &UriRef<'_>) -> bool {
    let source = match &uri.host {
        HostRef::Addr(addr) => policy.sources.find(*addr),
        HostRef::Name(_) => None,
    };
    let owner = match policy.domains.owner(&uri.host, port_of(uri)) {
        Owner::Own => return false,
        Owner::Peer(peer) => Some(Party::Peer(peer)),
        Owner::Nobody => None,
    };
    let other = |party: Party| matches!(party, Party::Peer(_)) && party != from;
    source != Some(Party::Core) && [owner, source].into_iter().flatten().any(other)
}

/// Rule 3.
fn out_of_dialog(
    policy: &Policy,
    from: Party,
    msg: &Message<'_>,
    request_uri: &UriRef<'_>,
    next: Option<&UriRef<'_>>,
    routing: Routing,
) -> Result<Option<Plan>, Reject> {
    if policy.is_departed(from) {
        return Err(Reject::new(403, "Forbidden", "peer_removed"));
    }
    let target_uri = next.unwrap_or(request_uri);
    let sips = request_uri.scheme == Scheme::Sips || target_uri.scheme == Scheme::Sips;
    if matches!(target_uri.scheme, Scheme::Tel) {
        if from != Party::Core || !policy.has_routes() {
            return Err(Reject::new(416, "Unsupported URI Scheme", "scheme"));
        }
        return by_number(policy, msg, target_uri, routing).map(Some);
    }
    let (owner, host) = policy.domains.owner_and_host(&target_uri.host, port_of(target_uri));
    if owner == Owner::Own && msg.method() == Method::Options && request_uri.user.is_none() {
        return Ok(None);
    }
    match (from, owner) {
        (Party::Peer(_) | Party::Federation, Owner::Own) => {
            let mut routing = routing;
            if let Some(uri) = from
                .peer()
                .and_then(|p| policy.peer(p))
                .and_then(|peer| normalised(rules(msg, &peer.config.numbers_in), request_uri))
            {
                routing.uri = Some(uri.into());
            }
            to_core(policy, sips, routing).map(Some)
        }
        (Party::Core, Owner::Own) => by_number(policy, msg, target_uri, routing).map(Some),
        (Party::Core, Owner::Peer(peer)) => {
            let entry = policy.peer(peer).ok_or(FORBIDDEN)?;
            let key = match &entry.config.next_hop {
                // Indirect peering: a certificate of the transit names the transit, so SIPS ends here (S17, RFC 5630).
                Some(_) if sips => return Err(sips_indirect()),
                Some(hop) => locate_key(hop, Realm::Peering),
                None => {
                    let key = target_at(target_uri, sips, host)?;
                    allowed_maddr(policy, target_uri, from)?;
                    key
                }
            };
            let uri = normalised(rules(msg, &entry.config.numbers_out), request_uri).map(Box::from);
            Ok(Some(single(Party::Peer(peer), key, uri, routing, Rule::PeerDomain)))
        }
        (Party::Core, Owner::Nobody) if policy.config.federation_open => {
            let key = target_at(target_uri, sips, host)?;
            Ok(Some(single(Party::Federation, key, None, routing, Rule::Federation)))
        }
        (Party::Core, Owner::Nobody) => Err(Reject::new(403, "Forbidden", "unknown_domain")),
        _ => Err(FORBIDDEN),
    }
}

fn single(party: Party, key: LocateKey, uri: Option<Box<[u8]>>, routing: Routing, rule: Rule) -> Plan {
    let key = LocateKey { realm: realm_of(party), ..key };
    Plan {
        routing,
        legs: smallvec![Leg { party, keys: smallvec![key], uri, names: None }],
        listener: None,
        rule,
    }
}

/// Requests of peers for our own domains.
fn to_core(policy: &Policy, sips: bool, routing: Routing) -> Result<Plan, Reject> {
    let hops = &policy.config.core.next_hops;
    let keys: SmallVec<[LocateKey; 1]> = hops
        .iter()
        .filter_map(|h| if sips { secure_key(h) } else { Some(locate_key(h, Realm::Core)) })
        .collect();
    if keys.is_empty() && !hops.is_empty() {
        // Rule 15: never downgraded.
        return Err(Reject::new(480, "Temporarily Unavailable", "sips_core")
            .with("Warning", "399 sbe \"the next hop has no TLS, which sips needs\""));
    }
    if keys.is_empty() {
        return Err(Reject::new(480, "Temporarily Unavailable", "no_core"));
    }
    Ok(Plan {
        routing,
        legs: smallvec![Leg { party: Party::Core, keys, uri: None, names: None }],
        listener: None,
        rule: Rule::CoreNextHops,
    })
}

/// What to locate for a next hop of the core where the request is under SIPS; `None`: it has no TLS. An address
/// or a port without a transport means UDP (RFC 3263 §4.1).
fn secure_key(hop: &NextHop) -> Option<LocateKey> {
    let named = hop.transport.is_none() && hop.port.is_none() && matches!(hop.host, Host::Name(_));
    let secure = hop.sips || hop.transport == Some(Transport::Tls) || named;
    secure.then(|| locate_key(&NextHop { sips: true, ..hop.clone() }, Realm::Core))
}

fn sips_indirect() -> Reject {
    Reject::new(480, "Temporarily Unavailable", "sips_indirect")
        .with("Warning", "399 sbe \"sips is not offered through a transit\"")
}

/// `[[route]]`: the longest prefix of the user part gives the peers; the URI's host and port become
/// the peer's first domain (we are responsible for it, §16.5).
fn by_number(policy: &Policy, msg: &Message<'_>, uri: &UriRef<'_>, routing: Routing) -> Result<Plan, Reject> {
    let not_found = Reject::new(404, "Not Found", "no_route");
    let Some((_, peers)) = policy.route_by_number(uri.user.unwrap_or_default()) else {
        return Err(not_found);
    };
    let legs: SmallVec<[Leg; 1]> =
        peers.iter().filter_map(|p| number_leg(policy.peer(*p)?, msg, uri)).collect();
    if legs.is_empty() && uri.scheme == Scheme::Sips {
        return Err(sips_indirect());
    }
    if legs.is_empty() {
        return Err(not_found);
    }
    Ok(Plan { routing, legs, listener: None, rule: Rule::Number })
}

fn number_leg(peer: &PeerEntry, msg: &Message<'_>, uri: &UriRef<'_>) -> Option<Leg> {
    let domain =
        peer.first_domain.clone().or_else(|| peer.config.next_hop.as_ref().map(|h| h.host.clone()))?;
    let text = match uri.scheme {
        Scheme::Tel => tel_as_sip(uri.bytes.get(4..).unwrap_or_default(), &domain),
        _ => with_host(uri, &domain),
    };
    let rules = rules(msg, &peer.config.numbers_out);
    let anew = UriRef::parse(&text).ok().and_then(|uri| normalised(rules, &uri));
    let text = anew.unwrap_or(text);
    let key = match &peer.config.next_hop {
        Some(_) if uri.scheme == Scheme::Sips => return None,
        Some(hop) => locate_key(hop, Realm::Peering),
        None => LocateKey {
            host: domain,
            port: None,
            transport: uri.transport().and_then(Result::ok),
            sips: uri.scheme == Scheme::Sips,
            realm: Realm::Peering,
        },
    };
    Some(Leg { party: Party::Peer(peer.id), keys: smallvec![key], uri: Some(text.into()), names: None })
}

/// The rules for the number of a request: inside a dialog the Request-URI is a Contact, and stays as it is.
fn rules<'a>(msg: &Message<'_>, rules: &'a [NumberRule]) -> &'a [NumberRule] {
    if msg.to_tag().is_some() { &[] } else { rules }
}

/// The URI with another host, and without a port.
fn with_host(uri: &UriRef<'_>, domain: &Host) -> Vec<u8> {
    let (head, tail) = (uri.bytes.get(..uri.host_port_range.start), uri.bytes.get(uri.host_port_range.end..));
    [head.unwrap_or_default(), domain.to_string().as_bytes(), tail.unwrap_or_default()].concat()
}

/// RFC 3261 §19.1.6: the telephone-subscriber becomes the user part, its parameters included.
fn tel_as_sip(number: &[u8], domain: &Host) -> Vec<u8> {
    let mut out = b"sip:".to_vec();
    out.extend_from_slice(number);
    out.extend_from_slice(format!("@{domain};user=phone").as_bytes());
    out
}

/// `maddr` replaces the target, so it must itself belong to somebody admitted (rule 5).
fn allowed_maddr(policy: &Policy, uri: &UriRef<'_>, from: Party) -> Result<(), Reject> {
    match uri.maddr() {
        None => Ok(()),
        Some(Ok(host)) if policy.reachable_from(from, &host, port_of(uri)).is_some() => Ok(()),
        Some(_) => Err(Reject::new(403, "Forbidden", "maddr")),
    }
}

/// The Request-URI without a `maddr` that names this element, its port and its transport (§16.4);
/// `None` if it has no such `maddr`.
fn without_own_maddr(policy: &Policy, uri: &UriRef<'_>) -> Option<Vec<u8>> {
    let bytes = uri.bytes;
    let maddr = uri.maddr()?.ok()?;
    if !policy.domains.is_own(&maddr, port_of(uri)) {
        return None;
    }
    let end = uri.host_port_range.end;
    // The host alone: what stands between it and the parameters is the port.
    let host_end = match (uri.port, bytes.get(..end)) {
        (Some(_), Some(head)) => memchr::memrchr(b':', head).unwrap_or(end),
        _ => end,
    };
    let mut out = bytes.get(..host_end)?.to_vec();
    for param in uri.parameters() {
        if ![&b"maddr"[..], b"transport"].iter().any(|name| param.name.eq_ignore_ascii_case(name)) {
            out.extend_from_slice(uri.params.get(param.semicolon..param.range.end)?);
        }
    }
    if let Some(headers) = uri.headers {
        out.push(b'?');
        out.extend_from_slice(headers);
    }
    Some(out)
}

/// RFC 3263 §4: what to locate for a URI, as if it were a SIPS URI where `sips` says so.
fn target(uri: &UriRef<'_>, sips: bool) -> Result<LocateKey, Reject> {
    target_at(uri, sips, None)
}

/// The same; `host`: that of the URI, where it is there already.
fn target_at(uri: &UriRef<'_>, sips: bool, host: Option<Host>) -> Result<LocateKey, Reject> {
    if !uri.is_sip() {
        return Err(Reject::new(416, "Unsupported URI Scheme", "scheme"));
    }
    let maddr = match uri.maddr() {
        None => None,
        Some(Ok(host)) => Some(host.to_host()),
        Some(Err(_)) => return Err(Reject::new(400, "Bad maddr", "bad_uri")),
    };
    let parts = TargetUri {
        sips: sips || uri.scheme == Scheme::Sips,
        host: host.unwrap_or_else(|| uri.host.to_host()),
        port: uri.port,
        transport: uri.transport().map(|t| t.map_or(TransportParam::Other, TransportParam::Known)),
        maddr,
    };
    target_of(parts, Realm::Both).map_err(|e| {
        Reject::new(e.status(), "Temporarily Unavailable", "transport")
            .with("Warning", format!("399 sbe \"{e}\""))
    })
}

/// The port a URI names, or the default of its transport.
pub fn port_of(uri: &UriRef<'_>) -> u16 {
    uri.port.unwrap_or_else(|| {
        let tls = uri.scheme == Scheme::Sips || matches!(uri.transport(), Some(Ok(Transport::Tls)));
        if tls { 5061 } else { 5060 }
    })
}

/// True for a Route or Request-URI that names this element (§16.4).
pub fn is_own(policy: &Policy, uri: &UriRef<'_>) -> bool {
    matches!(uri.scheme, Scheme::Sip | Scheme::Sips) && policy.domains.is_own(&uri.host, port_of(uri))
}

/// The listener that an own Route names by host, port and transport (rule 8).
fn listener_of(policy: &Policy, uri: &UriRef<'_>) -> Option<ListenerId> {
    let transport = match (uri.scheme, uri.transport()) {
        (Scheme::Sips, _) => Transport::Tls,
        (_, Some(Ok(t))) => t,
        (_, None) => Transport::Udp,
        (_, Some(Err(_))) => return None,
    };
    let port = port_of(uri);
    policy
        .listeners
        .iter()
        .find(|l| {
            l.transport == transport
                && ((l.route_port == port && uri.host.eq_host(&l.route_host))
                    || (l.bind.port() == port && uri.host.eq_host(&Host::Addr(l.bind.ip()))))
        })
        .map(|l| l.id)
}

/// Tag of the peer of a plan, for the dialog token: the far side if that is a peer, else the sender.
pub fn dialog_peer(policy: &Policy, from: Party, to: Party) -> u32 {
    let id: Option<PeerId> = to.peer().or_else(|| from.peer());
    id.and_then(|p| policy.peer(p)).map_or(0, |p| p.tag)
}
