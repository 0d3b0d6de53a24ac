//! Via rows: read, stamped, and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sbe::wire::{Edit, Framing, Index, Limits, Message, remove_top_via, stamp_via};

const REST: &[u8] =
    b"\r\nFrom: <sip:a@a.test>;tag=1\r\nTo: <sip:b@b.test>\r\nCall-ID: c\r\nCSeq: 1 BYE\r\n\r\n";

fuzz_target!(|value: &[u8]| {
    let bytes = [b"BYE sip:b@b.test SIP/2.0\r\nVia: ", value, REST].concat();
    let Ok(index) = Index::parse(&bytes, &Limits::default(), Framing::Datagram) else {
        return;
    };
    if index.fault().is_some() {
        return;
    }
    let m = Message::new(&bytes, &index);
    let vias: Vec<_> = m.vias().collect();
    let top = vias.first().expect("a sound request has one");
    let source = "192.0.2.1:4000".parse().expect("an address");
    let mut edit = Edit::new(m);
    stamp_via(&mut edit, top, source, true, true);
    let out = edit.finish();
    let oi = Index::parse(&out, &Limits::default(), Framing::Datagram).expect("still SIP");
    let o = Message::new(&out, &oi);
    assert_eq!(oi.fault(), None);
    let stamped = o.top_via().expect("still there");
    assert_eq!(
        (stamped.received(), stamped.rport()),
        (Some(source.ip()), Some(Some(4_000)))
    );
    assert_eq!(
        (stamped.branch(), stamped.sent_by()),
        (top.branch(), top.sent_by())
    );
    assert_eq!(o.via_count(), m.via_count());
    let mut edit = Edit::new(o);
    remove_top_via(&mut edit, &stamped);
    let less = edit.finish();
    let li = Index::parse(&less, &Limits::default(), Framing::Datagram).expect("still SIP");
    let l = Message::new(&less, &li);
    assert_eq!(l.via_count(), m.via_count() - 1);
    let sent_by: Vec<_> = l.vias().map(|v| v.sent_by().to_vec()).collect();
    assert_eq!(
        sent_by,
        vias[1..]
            .iter()
            .map(|v| v.sent_by().to_vec())
            .collect::<Vec<_>>()
    );
});
