//! URIs: what parses can be put together again from its parts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sbe::wire::{HostRef, UriRef};

fuzz_target!(|bytes: &[u8]| {
    let Ok(uri) = UriRef::parse(bytes) else {
        return;
    };
    let _ = (uri.transport(), uri.maddr(), uri.is_loose());
    for param in uri.parameters() {
        assert!(param.range.start <= param.range.end && param.range.end <= uri.params.len());
    }
    if uri.is_sip() {
        assert!(uri.host.is_sound());
        let host_port = &bytes[uri.host_port_range.clone()];
        let host = match uri.port {
            None => host_port,
            Some(_) => &host_port[..host_port.iter().rposition(|&b| b == b':').expect("a colon")],
        };
        assert_eq!(HostRef::parse(host), Some(uri.host));
        assert!(uri.host.eq_host(&uri.host.to_host()));
        let headers = uri.headers.map_or(0, |h| h.len() + 1);
        assert_eq!(
            uri.host_port_range.end + uri.params.len() + headers,
            bytes.len()
        );
    }
});
