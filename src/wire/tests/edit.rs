use super::super::{
    Edit, Name, ensure_content_length, remove_top_via, remove_value, retain_values, set_max_forwards,
    stamp_via, strip_headers,
};
use super::*;

/// `text` after `change`.
fn edited(text: impl AsRef<[u8]>, change: impl FnOnce(&mut Edit<'_>)) -> String {
    let bytes = text.as_ref();
    let index = parse(bytes).unwrap();
    let mut edit = Edit::new(Message::new(bytes, &index));
    change(&mut edit);
    String::from_utf8(edit.finish()).unwrap()
}

fn stamped(via: &str, source: &str, add_rport: bool, udp: bool) -> String {
    let text = with("SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1", via);
    let out = edited(&text, |e| {
        let via = e.message().top_via().unwrap();
        stamp_via(e, &via, source.parse().unwrap(), add_rport, udp);
    });
    out.split("Via: ").nth(1).unwrap().split("\r\nMax").next().unwrap().to_owned()
}

#[test]
fn without_splices_a_message_is_what_it_was_less_what_is_not_part_of_it() {
    assert_eq!(edited(OPTIONS, |_| {}), OPTIONS);
    assert_eq!(edited(format!("\r\n{OPTIONS}surplus"), |_| {}), OPTIONS);
}

#[test]
fn splices_may_come_in_any_order() {
    let out = edited(OPTIONS, |e| {
        e.replace(8..11, b"SIPS");
        e.insert(0, b"<");
        e.insert(8, b"1");
        e.remove(0..7);
        e.insert(8, b"2");
        e.insert(0, b">");
        e.insert(OPTIONS.len(), b"!");
    });
    assert_eq!(out, format!("<> 12SIPS{}!", &OPTIONS[11..]));
}

#[test]
fn what_overlaps_goes_once_and_takes_no_text_along() {
    let out = edited(OPTIONS, |e| {
        e.replace(0..7, b"X");
        e.replace(5..8, b"Y");
        e.insert(3, b"Z");
    });
    assert_eq!(out, format!("X{}", &OPTIONS[8..]));
}

#[test]
fn many_and_long_splices_are_no_different() {
    let long = "y".repeat(2_000);
    let out = edited(OPTIONS, |e| {
        for _ in 0..40 {
            e.insert(0, b"x");
        }
        e.insert_parts(0, &[long.as_bytes(), b"z"]);
    });
    assert_eq!(out, format!("{}{long}z{OPTIONS}", "x".repeat(40)));
}

#[test]
fn received_is_added_where_the_sent_by_is_not_the_source() {
    let plain = "SIP/2.0/UDP 192.0.2.1;branch=x";
    assert_eq!(stamped(plain, "192.0.2.1:5060", false, true), plain);
    assert_eq!(stamped(plain, "192.0.2.9:5060", false, true), format!("{plain};received=192.0.2.9"));
    let named = "SIP/2.0/UDP a.test;branch=x";
    assert_eq!(stamped(named, "192.0.2.1:5060", false, true), format!("{named};received=192.0.2.1"));
}

#[test]
fn rport_is_filled_in_and_brings_received_along() {
    assert_eq!(
        stamped("SIP/2.0/UDP 192.0.2.1;rport;branch=x", "192.0.2.1:4000", false, true),
        "SIP/2.0/UDP 192.0.2.1;rport=4000;branch=x;received=192.0.2.1"
    );
    assert_eq!(
        stamped("SIP/2.0/UDP 192.0.2.1;branch=x", "192.0.2.1:4000", true, true),
        "SIP/2.0/UDP 192.0.2.1;branch=x;rport=4000;received=192.0.2.1"
    );
    assert_eq!(
        stamped("SIP/2.0/TCP 192.0.2.1;branch=x", "192.0.2.1:4000", true, false),
        "SIP/2.0/TCP 192.0.2.1;branch=x"
    );
}

#[test]
fn a_lying_received_and_rport_are_overwritten_and_doubles_go() {
    assert_eq!(
        stamped("SIP/2.0/UDP [2001:db8::7];rport;received=192.0.2.66;branch=b", "[::1]:40000", false, true),
        "SIP/2.0/UDP [2001:db8::7];rport=40000;received=::1;branch=b"
    );
    assert_eq!(
        stamped(
            "SIP/2.0/UDP 192.0.2.1;received = [::9] ;rport=9;a;Received=8.8.8.8;rport",
            "192.0.2.1:7",
            false,
            true
        ),
        "SIP/2.0/UDP 192.0.2.1;received=192.0.2.1 ;rport=7;a"
    );
}

#[test]
fn only_the_top_value_of_a_row_is_stamped_and_mapped_addresses_are_written_as_ipv4() {
    assert_eq!(
        stamped("SIP/2.0/UDP a.test;branch=x , SIP/2.0/UDP b.test", "[::ffff:192.0.2.1]:5", false, true),
        "SIP/2.0/UDP a.test;branch=x;received=192.0.2.1 , SIP/2.0/UDP b.test"
    );
}

#[test]
fn a_stamp_goes_together_with_a_via_put_on_top() {
    let out = edited(OPTIONS, |e| {
        let via = e.message().top_via().unwrap();
        stamp_via(e, &via, "192.0.2.1:7".parse().unwrap(), false, true);
        e.insert(via.row().start, b"Via: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\n");
        set_max_forwards(e, 69);
    });
    let expected = OPTIONS
        .replace("Via: ", "Via: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\nVia: ")
        .replace("bK-1\r\n", "bK-1;received=192.0.2.1\r\n")
        .replace("70", "69");
    assert_eq!(out, expected);
}

#[test]
fn the_top_via_goes_with_its_row_or_alone() {
    let out = edited(RESPONSE, |e| {
        let via = e.message().top_via().unwrap();
        remove_top_via(e, &via);
    });
    assert_eq!(out, RESPONSE.replace("Via: SIP/2.0/UDP 127.0.0.10;branch=z9hG4bK-p\r\n", ""));
    let joined = RESPONSE.replace("bK-p\r\nVia: ", "bK-p ,\r\n  ");
    let out = edited(&joined, |e| {
        let via = e.message().top_via().unwrap();
        remove_top_via(e, &via);
    });
    assert_eq!(out, RESPONSE.replace("Via: SIP/2.0/UDP 127.0.0.10;branch=z9hG4bK-p\r\n", ""));
}

const ROUTES: &str = "Route: <sip:a.test;lr>, <sip:b.test;lr> ,<sip:c.test;lr>\r\nRoute: <sip:d.test;lr>\r\n";

fn routes_left(keep: impl FnMut(usize) -> bool) -> String {
    let text = with("Max-", &format!("{ROUTES}Max-"));
    let out = edited(text, |e| retain_values(e, Name::Route, keep));
    let (_, after) = out.split_once("bK-1\r\n").unwrap();
    after.split_once("Max-").unwrap().0.to_owned()
}

#[test]
fn any_part_of_a_route_list_can_be_kept() {
    assert_eq!(routes_left(|_| true), ROUTES);
    assert_eq!(routes_left(|_| false), "");
    assert_eq!(
        routes_left(|n| n >= 1),
        "Route: <sip:b.test;lr> ,<sip:c.test;lr>\r\nRoute: <sip:d.test;lr>\r\n"
    );
    assert_eq!(routes_left(|n| n >= 3), "Route: <sip:d.test;lr>\r\n");
    assert_eq!(routes_left(|n| n < 3), "Route: <sip:a.test;lr>, <sip:b.test;lr> ,<sip:c.test;lr>\r\n");
    assert_eq!(routes_left(|n| n == 0), "Route: <sip:a.test;lr>\r\n");
    assert_eq!(routes_left(|n| n == 1), "Route: <sip:b.test;lr>\r\n");
    assert_eq!(routes_left(|n| n % 2 == 0), "Route: <sip:a.test;lr>, <sip:c.test;lr>\r\n");
}

#[test]
fn one_value_is_taken_out_with_its_comma() {
    let text = with("Max-", &format!("{ROUTES}Max-"));
    for (n, value) in
        ["<sip:a.test;lr>, ", "<sip:b.test;lr> ,", " ,<sip:c.test;lr>", "Route: <sip:d.test;lr>\r\n"]
            .into_iter()
            .enumerate()
    {
        let out = edited(&text, |e| {
            let route = e.message().routes().nth(n).unwrap().unwrap();
            remove_value(e, &route);
        });
        assert_eq!(out, text.replacen(value, "", 1));
    }
}

#[test]
fn named_headers_go_however_they_are_spelt() {
    let extra = "X-Internal-Trust : yes\r\nx-INTERNAL-trust\t: yes\r\ns: a\r\n b\r\nSubject: c\r\n";
    let out = edited(with("CSeq", &format!("{extra}CSeq")), |e| {
        strip_headers(e, &["x-internal-trust", "subject", "x-none"]);
    });
    assert_eq!(out, OPTIONS);
}

#[test]
fn max_forwards_and_content_length_are_added_where_they_lack() {
    let bare = with("Max-Forwards: 70\r\n", "").replace("Content-Length: 0\r\n\r\n", "\r\nhello");
    let out = edited(&bare, |e| {
        set_max_forwards(e, 70);
        ensure_content_length(e);
    });
    assert!(out.ends_with("OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 5\r\n\r\nhello"));
    assert_eq!(edited(OPTIONS, ensure_content_length), OPTIONS);
}
