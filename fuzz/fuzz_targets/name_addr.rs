//! Addresses: From, To, Route and Contact values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sbe::wire::{
    Edit, Framing, Index, Limits, Message, Name, NameAddrRef, remove_value, retain_values,
};

fuzz_target!(|value: &[u8]| {
    if let Ok(addr) = NameAddrRef::parse(value, 0..value.len()) {
        assert_eq!(&value[addr.uri_range.clone()], addr.uri);
        assert_eq!(&value[addr.params_range.clone()], addr.params);
        assert!(!addr.uri.is_empty() && addr.range.end <= value.len());
        let _ = addr.tag();
    }
    let bytes = [
        b"BYE sip:b@b.test SIP/2.0\r\nVia: SIP/2.0/UDP a.test\r\nFrom: ".as_slice(),
        value,
        b"\r\nTo: <sip:b@b.test>\r\nCall-ID: c\r\nCSeq: 1 BYE\r\nRoute: ",
        value,
        b"\r\nContact: ",
        value,
        b"\r\n\r\n",
    ]
    .concat();
    let Ok(index) = Index::parse(&bytes, &Limits::default(), Framing::Datagram) else {
        return;
    };
    if index.fault().is_some() {
        return;
    }
    let m = Message::new(&bytes, &index);
    assert_eq!(m.from_tag(), m.from().and_then(|f| f.tag()));
    let _ = m.contacts().count();
    let routes: Vec<_> = m.routes().collect();
    for keep in 0..routes.len().min(6) {
        let mut edit = Edit::new(m);
        retain_values(&mut edit, Name::Route, |n| n == keep);
        let out = edit.finish();
        let oi = Index::parse(&out, &Limits::default(), Framing::Datagram).expect("still SIP");
        let left: Vec<_> = Message::new(&out, &oi)
            .routes()
            .map(|r| r.map(|r| r.uri.bytes.to_vec()))
            .collect();
        let want = routes[keep]
            .as_ref()
            .map(|r| r.uri.bytes.to_vec())
            .map_err(|e| *e);
        assert_eq!(left, [want]);
    }
    for route in routes.iter().flatten() {
        let mut edit = Edit::new(m);
        remove_value(&mut edit, route);
        let out = edit.finish();
        let oi = Index::parse(&out, &Limits::default(), Framing::Datagram).expect("still SIP");
        assert_eq!(Message::new(&out, &oi).routes().count(), routes.len() - 1);
    }
});
