use bytes::BytesMut;

use super::super::{Event, StreamFramer};
use super::*;

/// Feeds a stream in pieces of `step` octets.
fn feed(framer: &mut StreamFramer, stream: &[u8], step: usize) -> Vec<Event> {
    let mut buffer = BytesMut::new();
    let mut events = Vec::new();
    for piece in stream.chunks(step) {
        buffer.extend_from_slice(piece);
        while let Some(event) = framer.poll(&mut buffer) {
            let done = matches!(event, Event::Broken(_) | Event::Message { last: true, .. });
            events.push(event);
            if done {
                return events;
            }
        }
    }
    assert!(!framer.mid_message(&buffer), "left over: {buffer:?}");
    events
}

fn framer() -> StreamFramer {
    StreamFramer::new(Limits { max_message: 4_000, ..Limits::default() })
}

fn message(text: &str) -> Event {
    Event::Message { bytes: text.to_owned().into(), last: false }
}

#[test]
fn messages_come_out_whole_whatever_the_reads() {
    let second = with("Content-Length: 0\r\n\r\n", "l : \r\n 5\r\n\r\nab\r\n\r");
    let stream = format!("\r\n{OPTIONS}{second}\r\n{RESPONSE}");
    for step in [1, 2, 3, 7, 40, 399, stream.len()] {
        let events = feed(&mut framer(), stream.as_bytes(), step);
        assert_eq!(events, [message(OPTIONS), message(&second), message(RESPONSE)], "{step}");
    }
}

#[test]
fn half_a_message_is_waited_for() {
    let mut framer = framer();
    let mut buffer = BytesMut::from(OPTIONS);
    buffer.extend_from_slice(&OPTIONS.as_bytes()[..40]);
    assert_eq!(framer.poll(&mut buffer), Some(message(OPTIONS)));
    assert_eq!(framer.poll(&mut buffer), None);
    assert!(framer.mid_message(&buffer));
    buffer.extend_from_slice(&OPTIONS.as_bytes()[40..]);
    assert_eq!(framer.poll(&mut buffer), Some(message(OPTIONS)));
    assert!(!framer.mid_message(&buffer));
}

#[test]
fn two_line_ends_are_a_ping_and_one_is_not() {
    let stream = format!("\r\n\r\n{OPTIONS}\r\n{OPTIONS}\r\n\r\n\r\n\r\n");
    for step in [1, 2, stream.len()] {
        let events = feed(&mut framer(), stream.as_bytes(), step);
        let want = [Event::Ping, message(OPTIONS), message(OPTIONS), Event::Ping, Event::Ping];
        assert_eq!(events, want, "{step}");
    }
}

#[test]
fn answers_to_our_own_pings_are_no_pings() {
    let mut framer = framer();
    framer.expect_pong();
    assert_eq!(feed(&mut framer, b"\r\n", 2), []);
    framer.expect_pong();
    framer.expect_pong();
    assert_eq!(feed(&mut framer, b"\r\n\r\n", 4), []);
    framer.expect_pong();
    // A ping arrives whole, so this is one.
    assert_eq!(feed(&mut framer, b"\r\n\r\n", 4), [Event::Ping]);
    assert_eq!(feed(&mut framer, b"\r\n", 2), []);
}

#[test]
fn without_a_usable_length_the_header_comes_alone_and_last() {
    for bad in ["-999", "", "5 5", "+5", "0\r\nl: 3", "99999999999999999999", "100000"] {
        let stream = with("Length: 0", &format!("Length: {bad}")) + "body";
        let head = stream.len() - 4;
        let events = feed(&mut framer(), stream.as_bytes(), 50);
        let [Event::Message { bytes, last: true }] = &events[..] else { panic!("{bad:?}: {events:?}") };
        assert_eq!(bytes.len(), head);
        let limits = Limits { max_message: 4_000, ..Limits::default() };
        let index = Index::parse(bytes, &limits, Framing::Stream).unwrap();
        let status = if bad == "100000" { 513 } else { 400 };
        assert_eq!(index.fault().unwrap().status, status, "{bad:?}");
    }
    let events = feed(&mut framer(), with("Content-Length: 0\r\n", "").as_bytes(), 50);
    assert!(matches!(&events[..], [Event::Message { last: true, .. }]));
}

#[test]
fn a_header_without_end_and_what_is_not_sip_break_the_stream() {
    let endless = format!("OPTIONS sip:x SIP/2.0\r\nX: {}", "x".repeat(5_000));
    assert_eq!(feed(&mut framer(), endless.as_bytes(), 100), [Event::Broken(Unusable::TooLarge)]);
    assert_eq!(feed(&mut framer(), b"\x16\x03\x01", 1), [Event::Broken(Unusable::NotSip)]);
}

#[test]
fn a_surplus_in_a_datagram_is_the_next_message_of_a_stream() {
    let stream = format!("{OPTIONS}{OPTIONS}");
    assert_eq!(feed(&mut framer(), stream.as_bytes(), 10_000).len(), 2);
    view(stream, |m| assert_eq!(m.range().end, OPTIONS.len()));
}
