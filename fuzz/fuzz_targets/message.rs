//! A datagram: index, views, a forward and its way back, and the responses a proxy makes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sbe::wire::build::{self, ResponseOptions};
use sbe::wire::{
    Edit, Framing, Index, Limits, Message, Name, ensure_content_length, remove_top_via,
    retain_values, set_max_forwards, stamp_via, strip_headers,
};

fn index(bytes: &[u8], framing: Framing) -> Index {
    let limits = Limits {
        max_message: 1 << 20,
        max_header: 1 << 17,
        max_headers: 1_000,
    };
    Index::parse(bytes, &limits, framing).expect("what we write is SIP")
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = Index::parse(bytes, &Limits::default(), Framing::Datagram) else {
        return;
    };
    let m = Message::new(bytes, &found);
    assert_eq!(Edit::new(m).finish(), bytes[m.range()]);
    let sound = found.fault().is_none();
    if !m.is_request() {
        if let (true, Some(via)) = (sound, m.top_via()) {
            let mut edit = Edit::new(m);
            remove_top_via(&mut edit, &via);
            let up = edit.finish();
            assert_eq!(
                Message::new(&up, &index(&up, Framing::Datagram)).via_count(),
                m.via_count() - 1
            );
        }
        return;
    }
    let source = "[2001:db8::1]:40000".parse().expect("an address");
    let opts = ResponseOptions {
        to_tag: Some(b"t"),
        stamp: Some(source),
        copy_record_route: true,
        extra_rows: &[],
    };
    let response = build::response(m, 400, "Bad Request", opts);
    let ri = index(&response, Framing::Stream);
    let r = Message::new(&response, &ri);
    assert_eq!((r.status(), r.range().end), (400, response.len()));
    assert_ne!(ri.fault().map(|f| f.label), Some("control_octets"));
    if !sound {
        return;
    }
    assert!(matches!(
        ri.fault().map(|f| f.label),
        None | Some("bad_via")
    ));
    for own in [
        build::ack(m, r),
        build::cancel(m, &[("Reason", b"SIP;cause=200")]),
    ] {
        let oi = index(&own, Framing::Stream);
        assert_eq!((oi.fault(), Message::new(&own, &oi).via_count()), (None, 1));
    }

    let mut edit = Edit::new(m);
    let via = m.top_via().expect("a sound request has one");
    edit.insert(
        via.row().start,
        b"Via: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\n",
    );
    stamp_via(&mut edit, &via, source, true, true);
    set_max_forwards(&mut edit, 9);
    ensure_content_length(&mut edit);
    let routes = m.routes().count();
    retain_values(&mut edit, Name::Route, |n| n > 0);
    strip_headers(&mut edit, &["subject"]);
    let sent = edit.finish();
    let si = index(&sent, Framing::Stream);
    let s = Message::new(&sent, &si);
    assert_eq!(si.fault(), None);
    assert_eq!(
        (s.via_count(), s.max_forwards(), s.body()),
        (m.via_count() + 1, Some(9), m.body())
    );
    assert_eq!(s.routes().count(), routes.saturating_sub(1));
    assert_eq!(
        (s.uri(), s.call_id(), s.cseq()),
        (m.uri(), m.call_id(), m.cseq())
    );
    assert_eq!((s.from_tag(), s.to_tag()), (m.from_tag(), m.to_tag()));
});
