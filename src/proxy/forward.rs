//! Request forwarding: RFC 3261 §16.6 steps 1 to 8 as splices on the request as it came.

use std::net::SocketAddr;
use std::ops::Range;

use smallvec::SmallVec;

use crate::flow::Transport;
use crate::transaction::Branch;
use crate::wire::{
    Edit, Message, Method, Name, Writer, decimal, ensure_content_length, retain_values, set_max_forwards,
    stamp_via, strip_headers,
};

use super::context::Routing;
use super::dialog;
use super::policy::{Listener, Policy};

/// What forwarding one request to one hop needs to know.
#[derive(Debug)]
pub struct Forward<'a> {
    /// The listener it leaves from.
    pub out: &'a Listener,
    /// The listener it came to.
    pub inn: &'a Listener,
    /// Where it came from.
    pub source: SocketAddr,
    /// What to do with Routes and Request-URI.
    pub routing: &'a Routing,
    /// The Request-URI of this leg, where it has one of its own.
    pub uri: Option<&'a [u8]>,
    /// The new branch.
    pub branch: &'a Branch,
    /// The token for our Record-Route; see [`dialog_token`].
    pub token: &'a [u8],
    /// Requests may come back on the connection that this goes by (RFC 5923 §4).
    pub alias: bool,
    /// Header names to be removed, in lower case.
    pub strip: &'a [String],
}

/// The request as it goes to the hop.
pub fn forward(msg: &Message<'_>, f: &Forward<'_>) -> Vec<u8> {
    in_order(msg, f).unwrap_or_else(|| by_splices(msg, f))
}

/// Most changes to rows that are written in order.
const ROWS: usize = 8;
/// What the usual changes add at most, about: Via, one or two Record-Routes, Max-Forwards.
const GROWTH: usize = 512;

/// The usual changes, written in one pass: all Routes go or there are none, nothing is stripped, the
/// request has a Max-Forwards and a Content-Length. `None`: any other request.
fn in_order(msg: &Message<'_>, f: &Forward<'_>) -> Option<Vec<u8>> {
    let routing = f.routing;
    let last = routing.routes.saturating_sub(u32::from(routing.last_is_uri));
    let routes_stay = routing.next_is_strict || routing.own_routes < last;
    if routes_stay || !f.strip.is_empty() || msg.header(Name::ContentLength).is_none() {
        return None;
    }
    let via = msg.top_via()?;
    let hops = decimal(u64::from(msg.max_forwards()?.saturating_sub(1).min(255)));
    // Where there is something to do, by place: the top Via, Max-Forwards, Routes.
    let mut rows: SmallVec<[(Range<usize>, Change); ROWS]> = SmallVec::new();
    rows.push((via.range(), Change::Stamp));
    let hops_at = msg.header(Name::MaxForwards)?.value_range;
    let mut hops_due = true;
    for route in msg.headers(Name::Route) {
        if rows.len() + 1 >= ROWS {
            return None;
        }
        if hops_due && hops_at.start < route.row.start {
            rows.push((hops_at.clone(), Change::Hops));
            hops_due = false;
        }
        rows.push((route.row, Change::Gone));
    }
    if hops_due {
        rows.push((hops_at, Change::Hops));
    }
    // Seldom stands the Via behind one of these.
    if !rows.is_sorted_by_key(|(range, _)| range.start) {
        rows.sort_unstable_by_key(|(range, _)| range.start);
    }
    let mut out = Writer::new(*msg, GROWTH);
    if let Some(uri) = f.uri.or(routing.uri.as_deref()) {
        out.replace(msg.uri_range(), uri);
    }
    out.copy_to(msg.start_line_range().end);
    if records_route(msg.method()) {
        record_route(msg, f, |parts| parts.iter().for_each(|part| out.put(part)));
    }
    out.put(&f.out.via_prefix);
    out.put(f.branch.as_bytes());
    out.put(end_of_via(f));
    for (range, change) in &rows {
        let range = range.clone();
        match change {
            Change::Stamp => out.stamp(&via, f.source),
            Change::Hops => out.replace(range, hops.as_ref()),
            Change::Gone => out.replace(range, b""),
        }
    }
    Some(out.finish())
}

/// What follows the branch in our Via: perhaps the parameter that offers the connection (RFC 5923 §4).
const fn end_of_via(f: &Forward<'_>) -> &'static [u8] {
    if f.alias { b";alias\r\n" } else { b"\r\n" }
}

/// What becomes of a row.
#[derive(Clone, Copy)]
enum Change {
    Stamp,
    Hops,
    Gone,
}

/// Any changes, as splices.
fn by_splices(msg: &Message<'_>, f: &Forward<'_>) -> Vec<u8> {
    let mut edit = Edit::new(*msg);
    let uri = f.uri.or(f.routing.uri.as_deref()).unwrap_or(msg.uri());
    request_line(&mut edit, msg, f, uri);
    let top = msg.start_line_range().end;
    // Ours go on top of all rows, so that they stand before those of earlier hops.
    if records_route(msg.method()) {
        record_route(msg, f, |parts| edit.insert_parts(top, parts));
    }
    edit.insert_parts(top, &[&f.out.via_prefix, f.branch.as_bytes(), end_of_via(f)]);
    if let Some(via) = msg.top_via() {
        stamp_via(&mut edit, &via, f.source, false, true);
    }
    let hops = msg.max_forwards().map_or(70, |n| n.saturating_sub(1));
    set_max_forwards(&mut edit, u8::try_from(hops).unwrap_or(u8::MAX));
    if !f.strip.is_empty() {
        strip_headers(&mut edit, f.strip);
    }
    ensure_content_length(&mut edit);
    edit.finish()
}

/// Request-URI and Route rows (§16.4, §16.6 step 6).
fn request_line(edit: &mut Edit<'_>, msg: &Message<'_>, f: &Forward<'_>, uri: &[u8]) {
    let routing = f.routing;
    let strict = routing
        .next_is_strict
        .then(|| msg.routes().nth(routing.own_routes as usize))
        .flatten()
        .and_then(Result::ok);
    if let Some(next) = &strict {
        // The next hop is a strict router: it gets its own URI as Request-URI, and ours as the last Route.
        edit.replace(msg.uri_range(), next.uri.bytes);
        let at = msg.headers(Name::Route).last().map_or(msg.headers_end(), |f| f.row.end);
        edit.insert_parts(at, &[b"Route: <", uri, b">\r\n"]);
    } else if uri != msg.uri() {
        edit.replace(msg.uri_range(), uri);
    }
    let first = routing.own_routes + u32::from(strict.is_some());
    let last = routing.routes.saturating_sub(u32::from(routing.last_is_uri));
    if first >= last {
        for field in msg.headers(Name::Route) {
            edit.remove(field.row);
        }
    } else if first > 0 || last < routing.routes {
        retain_values(edit, Name::Route, |n| n >= first as usize && n < last as usize);
    }
}

/// Methods whose requests we stay in the path of (§16.6 step 4): those that make a dialog. Inside a
/// dialog too, so that an element that lost its state learns the route set again.
const fn records_route(method: Method) -> bool {
    matches!(method, Method::Invite | Method::Subscribe | Method::Refer)
}

/// The token for our Record-Route in a request; empty where we write none. `peer_tag`: of the dialog's peer; `names`:
/// whom both sides have proved to be.
pub fn dialog_token(
    policy: &Policy,
    msg: &Message<'_>,
    peer_tag: u32,
    names: dialog::Names<'_>,
) -> SmallVec<[u8; 64]> {
    if !records_route(msg.method()) {
        return SmallVec::new();
    }
    dialog::mint(&policy.dialog_secret, msg.call_id(), peer_tag, names)
}

/// Rule 7: one value, or two where the listeners differ (RFC 5658), the one that the callee's side
/// uses on top.
fn record_route(msg: &Message<'_>, f: &Forward<'_>, mut put: impl FnMut(&[&[u8]])) {
    let mut value = |listener: &Listener| {
        // §16.6 step 4: a SIPS URI for a request that is under SIPS; the transport parameter stays, for rule 8.
        // A side that sent or gets it without TLS couldn't reach us by such a URI.
        let under_sips = msg.uri().get(..5).is_some_and(|s| s.eq_ignore_ascii_case(b"sips:"));
        let scheme: &[u8] = if under_sips && listener.transport == Transport::Tls {
            b"Record-Route: <sips:"
        } else {
            b"Record-Route: <sip:"
        };
        put(&[scheme, listener.route_uri.as_bytes(), dialog::BEFORE.as_bytes(), f.token, b">\r\n"]);
    };
    value(f.out);
    if f.out.id != f.inn.id {
        value(f.inn);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    use crate::config::Config;
    use crate::peering::Ledger;
    use crate::proxy::Policy;
    use crate::wire::{Framing, Index, Limits};

    const CONFIG: &str = "[node]\nname = \"sbe.example\"\n\
        [[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.1:5060\"\nrealm = \"core\"\n\
        [[listen]]\ntransport = \"tcp\"\nbind = \"192.0.2.1:5060\"\nrealm = \"peering\"\n";

    fn request(method: &str, rows: &[&str]) -> Vec<u8> {
        let rows = rows.concat();
        format!(
            "\r\n{method} sip:b@b.example SIP/2.0\r\n{rows}From: <sip:a@a.example>;tag=1\r\nTo: <sip:b@b.example>\r\n\
            Call-ID: x\r\nCSeq: 1 {method}\r\nContent-Length: 2\r\n\r\nhi and more"
        )
        .into_bytes()
    }

    #[test]
    fn both_ways_of_forwarding_write_the_same_octets() {
        let config = Arc::new(Config::from_toml_str(CONFIG).unwrap());
        let policy = Policy::new(config, Arc::new(Ledger::new(Instant::now())), [1; 16], None);
        let (via, hops) = ("Via: SIP/2.0/UDP 192.0.2.9:5070;branch=z9hG4bK1", "Max-Forwards: 9\r\n");
        let vias = [
            format!("{via}\r\n"),
            format!("{via};rport\r\n"),
            format!("{via};rport=7;received=1.2.3.4;rport=9, SIP/2.0/TCP b\r\n"),
            format!("{via}\r\nVia: SIP/2.0/UDP other.example;rport\r\n"),
        ];
        let routes = [
            "",
            "Route: <sip:192.0.2.1;lr>\r\n",
            "Route: <sip:192.0.2.1;lr>\r\nRoute: <sip:192.0.2.1;lr>, \
            <sip:192.0.2.1;lr>\r\n",
        ];
        let mut written = 0;
        for (via, route) in vias.iter().flat_map(|via| routes.map(|route| (via.as_str(), route))) {
            for rows in [[via, route, hops], [hops, via, route], [route, hops, via], [via, hops, route]] {
                for (method, uri) in [("INVITE", None), ("BYE", Some(&b"sip:c@c.example"[..])), ("ACK", None)]
                {
                    let bytes = request(method, &rows);
                    let index = Index::parse(&bytes, &Limits::default(), Framing::Datagram).unwrap();
                    let msg = Message::new(&bytes, &index);
                    let count = msg.routes().count();
                    let count = u32::try_from(count).unwrap();
                    let own = Routing { own_routes: count, routes: count, ..Routing::default() };
                    let moved = Routing {
                        own_routes: count.saturating_sub(1),
                        routes: count,
                        last_is_uri: count > 0,
                        uri: Some(Box::from(&b"sip:d@d.example"[..])),
                        ..Routing::default()
                    };
                    for routing in [own, moved] {
                        let forward = Forward {
                            out: &policy.listeners[1],
                            inn: &policy.listeners[0],
                            source: "192.0.2.9:5071".parse().unwrap(),
                            routing: &routing,
                            uri,
                            branch: &Branch::mint(0, 1, 2, 3, 4),
                            token: b"abcdefghijklmnopqrst",
                            alias: method == "INVITE",
                            strip: &[],
                        };
                        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                        let short = in_order(&msg, &forward).unwrap();
                        assert_eq!(text(short), text(by_splices(&msg, &forward)));
                        written += 1;
                    }
                }
            }
        }
        assert_eq!(written, 4 * 3 * 4 * 3 * 2);
    }

    #[test]
    fn what_is_not_usual_is_left_to_splices() {
        let config = Arc::new(Config::from_toml_str(CONFIG).unwrap());
        let policy = Policy::new(config, Arc::new(Ledger::new(Instant::now())), [1; 16], None);
        let via = "Via: SIP/2.0/UDP 192.0.2.9:5070;branch=z9hG4bK1\r\n";
        let strip = [String::from("subject")];
        let strict = Routing { next_is_strict: true, routes: 1, ..Routing::default() };
        let kept = Routing { own_routes: 1, routes: 2, ..Routing::default() };
        let plain = Routing::default();
        for (rows, routing, strip) in [
            ([via, ""], &plain, &strip[..0]),
            ([via, "Max-Forwards: 9\r\n"], &plain, &strip[..]),
            ([via, "Max-Forwards: 9\r\n"], &strict, &strip[..0]),
            ([via, "Max-Forwards: 9\r\n"], &kept, &strip[..0]),
        ] {
            let bytes = request("INVITE", &rows);
            let index = Index::parse(&bytes, &Limits::default(), Framing::Datagram).unwrap();
            let forward = Forward {
                out: &policy.listeners[1],
                inn: &policy.listeners[0],
                source: "192.0.2.9:5071".parse().unwrap(),
                routing,
                uri: None,
                branch: &Branch::mint(0, 1, 2, 3, 4),
                token: b"abcdefghijklmnopqrst",
                alias: false,
                strip,
            };
            assert!(in_order(&Message::new(&bytes, &index), &forward).is_none());
        }
    }
}
