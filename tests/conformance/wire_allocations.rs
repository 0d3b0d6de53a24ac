//! Memory that the wire layer asks for: none to index and read, one block to write.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sbe::wire::{
    Edit, Framing, Index, Limits, Message, Name, UriRef, retain_values, set_max_forwards, stamp_via,
    strip_headers,
};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `ptr` and `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise about `ptr`, `layout` and `size`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNT.with(Cell::get);
    let result = work();
    (COUNT.with(Cell::get) - before, result)
}

fn invite() -> Vec<u8> {
    let sdp = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
        m=audio 49170 RTP/AVP 0 8 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n";
    format!(
        "INVITE sip:+12125550101@sbe1.example.com;user=phone SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK776asdhds;rport\r\n\
         Via: SIP/2.0/TCP pc33.example.com;branch=z9hG4bKnashds8;received=192.0.2.7\r\n\
         Route: <sip:sbe1.example.com;lr>, <sip:next.example.com;lr>\r\n\
         Record-Route: <sip:192.0.2.1;lr>\r\n\
         Max-Forwards: 69\r\nTo: <sip:+12125550101@example.com;user=phone>\r\n\
         From: \"Alice\" <sip:+12125550100@example.net;user=phone>;tag=1928301774\r\n\
         Call-ID: a84b4c76e66710@pc33.example.com\r\nCSeq: 314159 INVITE\r\n\
         Contact: <sip:alice@pc33.example.com>\r\nAllow: INVITE, ACK, CANCEL, BYE, OPTIONS\r\n\
         Supported: replaces, timer\r\nSession-Expires: 1800\r\nMin-SE: 90\r\nSubject: x\r\n\
         P-Asserted-Identity: <tel:+12125550100>\r\nUser-Agent: thing/1.0\r\n\
         Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
        sdp.len()
    )
    .into_bytes()
}

/// An index that has served before, as all do on the hot path.
fn used() -> Index {
    Index::parse(&invite(), &Limits::default(), Framing::Datagram).unwrap()
}

#[test]
fn indexing_and_reading_allocate_nothing() {
    let bytes = invite();
    let mut index = used();
    let (n, read) = allocations(|| index.read(&bytes, &Limits::default(), Framing::Datagram));
    assert_eq!((n, read, index.fault()), (0, Ok(()), None));
    let m = Message::new(&bytes, &index);
    let (n, seen) = allocations(|| {
        let uri = UriRef::parse(m.uri()).unwrap();
        m.vias().count()
            + m.routes().flatten().count()
            + m.named(b"subject").count()
            + usize::from(m.from_tag().is_some() && m.to().is_some() && uri.param(b"user").is_some())
    });
    assert_eq!((n, seen), (0, 2 + 2 + 1 + 1));
}

#[test]
fn forwarding_allocates_one_block() {
    let bytes = invite();
    let index = Index::parse(&bytes, &Limits::default(), Framing::Datagram).unwrap();
    let m = Message::new(&bytes, &index);
    let (n, out) = allocations(|| {
        let mut edit = Edit::new(m);
        let via = m.top_via().unwrap();
        edit.insert_parts(
            via.row().start,
            &[b"Via: SIP/2.0/UDP sbe1.example.com;branch=", b"z9hG4bKabc", b"\r\n"],
        );
        stamp_via(&mut edit, &via, "192.0.2.1:4000".parse().unwrap(), true, true);
        retain_values(&mut edit, Name::Route, |n| n > 0);
        edit.insert(
            m.header(Name::RecordRoute).unwrap().row.start,
            b"Record-Route: <sip:sbe1.example.com;lr>\r\n",
        );
        set_max_forwards(&mut edit, 68);
        strip_headers(&mut edit, &["subject", "p-asserted-identity"]);
        edit.finish()
    });
    assert_eq!(n, 1);
    assert!(out.len() > 900 && out.capacity() >= out.len());
}

#[test]
fn refusing_allocates_nothing_to_find_the_fault() {
    let bytes = invite();
    let mut index = used();
    for at in (0..bytes.len()).step_by(7) {
        let mut broken = bytes.clone();
        broken[at] = b'\n';
        let (n, _) = allocations(|| index.read(&broken, &Limits::default(), Framing::Datagram).is_ok());
        assert_eq!(n, 0);
    }
}
