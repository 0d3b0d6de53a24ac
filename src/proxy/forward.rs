//! Request forwarding: RFC 3261 §16.6 steps 1 to 8 as splices on the request as it came.

use std::net::SocketAddr;

use crate::flow::Transport;
use crate::transaction::Branch;
use crate::wire::{
    Edit, Message, Method, Name, ensure_content_length, retain_values, set_max_forwards, stamp_via,
    strip_headers,
};

use super::context::Routing;
use super::dialog;
use super::policy::Listener;

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
    /// Key of dialog tokens.
    pub secret: &'a [u8; 16],
    /// Peer of the dialog, for the token.
    pub peer_tag: u32,
    /// Whom both sides have proved to be, for the token.
    pub names: dialog::Names<'a>,
    /// Requests may come back on the connection that this goes by (RFC 5923 §4).
    pub alias: bool,
    /// Header names to be removed, in lower case.
    pub strip: &'a [String],
}

/// The request as it goes to the hop.
pub fn forward(msg: &Message<'_>, f: &Forward<'_>) -> Vec<u8> {
    let mut edit = Edit::new(*msg);
    let uri = f.uri.or(f.routing.uri.as_deref()).unwrap_or(msg.uri());
    request_line(&mut edit, msg, f, uri);
    let top = msg.start_line_range().end;
    // Ours go on top of all rows, so that they stand before those of earlier hops.
    if records_route(msg.method()) {
        record_route(&mut edit, msg, f, top);
    }
    let alias: &[u8] = if f.alias { b";alias" } else { b"" };
    edit.insert_parts(top, &[&f.out.via_prefix, f.branch.as_bytes(), alias, b"\r\n"]);
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
    let strict =
        routing.next_is_strict.then(|| msg.routes().nth(routing.own_routes)).flatten().and_then(Result::ok);
    if let Some(next) = &strict {
        // The next hop is a strict router: it gets its own URI as Request-URI, and ours as the last Route.
        edit.replace(msg.uri_range(), next.uri.bytes);
        let at = msg.headers(Name::Route).last().map_or(msg.headers_end(), |f| f.row.end);
        edit.insert_parts(at, &[b"Route: <", uri, b">\r\n"]);
    } else if uri != msg.uri() {
        edit.replace(msg.uri_range(), uri);
    }
    let first = routing.own_routes + usize::from(strict.is_some());
    let last = routing.routes.saturating_sub(usize::from(routing.last_is_uri));
    if first >= last {
        for field in msg.headers(Name::Route) {
            edit.remove(field.row);
        }
    } else if first > 0 || last < routing.routes {
        retain_values(edit, Name::Route, |n| n >= first && n < last);
    }
}

/// Methods whose requests we stay in the path of (§16.6 step 4): those that make a dialog. Inside a
/// dialog too, so that an element that lost its state learns the route set again.
const fn records_route(method: Method) -> bool {
    matches!(method, Method::Invite | Method::Subscribe | Method::Refer)
}

/// Rule 7: one value, or two where the listeners differ (RFC 5658), the one that the callee's side
/// uses on top.
fn record_route(edit: &mut Edit<'_>, msg: &Message<'_>, f: &Forward<'_>, at: usize) {
    let token = dialog::mint(f.secret, msg.call_id(), f.peer_tag, f.names);
    let mut value = |listener: &Listener| {
        // §16.6 step 4: a SIPS URI for a request that is under SIPS; the transport parameter stays, for rule 8.
        // A side that sent or gets it without TLS couldn't reach us by such a URI.
        let under_sips = msg.uri().get(..5).is_some_and(|s| s.eq_ignore_ascii_case(b"sips:"));
        let scheme: &[u8] = if under_sips && listener.transport == Transport::Tls {
            b"Record-Route: <sips:"
        } else {
            b"Record-Route: <sip:"
        };
        edit.insert_parts(
            at,
            &[scheme, listener.route_uri.as_bytes(), b";", dialog::PARAM.as_bytes(), b"=", &token, b">\r\n"],
        );
    };
    value(f.out);
    if f.out.id != f.inn.id {
        value(f.inn);
    }
}
