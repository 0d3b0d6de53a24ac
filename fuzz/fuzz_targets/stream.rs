//! A stream: the same messages whatever the reads, and each of them indexed.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sbe::wire::{Event, Framing, Index, Limits, StreamFramer};

fn events(stream: &[u8], limits: Limits, mut next: impl FnMut() -> usize) -> Vec<Event> {
    let mut framer = StreamFramer::new(limits);
    let (mut buffer, mut found, mut rest) = (BytesMut::new(), Vec::new(), stream);
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(next().clamp(1, rest.len()));
        rest = more;
        buffer.extend_from_slice(piece);
        while let Some(event) = framer.poll(&mut buffer) {
            let over = matches!(event, Event::Broken(_) | Event::Message { last: true, .. });
            found.push(event);
            if over {
                return found;
            }
        }
    }
    found
}

fuzz_target!(|data: (u8, &[u8])| {
    let (seed, stream) = data;
    let limits = Limits {
        max_message: 2_000,
        ..Limits::default()
    };
    let whole = events(stream, limits, || usize::MAX);
    let mut n = usize::from(seed);
    let pieces = events(stream, limits, || {
        n = n.wrapping_mul(31).wrapping_add(7);
        n % 61
    });
    // A buffer that already holds more than a message may hide that its header is too long.
    if !pieces.contains(&Event::Broken(sbe::wire::Unusable::TooLarge)) {
        assert_eq!(whole, pieces);
    }
    for event in pieces {
        if let Event::Message { bytes, last } = event {
            let index = Index::parse(&bytes, &limits, Framing::Stream);
            assert!(!last || index.map_or(true, |i| i.fault().is_some()));
        }
    }
});
