use super::*;

#[test]
fn a_plain_request_and_a_plain_response_have_no_fault() {
    assert_eq!(fault_of(OPTIONS), None);
    assert_eq!(fault_of(RESPONSE), None);
}

#[test]
fn line_ends_and_nuls_alone_are_keep_alives() {
    for bytes in [&b""[..], b"\r\n", b"\r\n\r\n", b"\0\0\0\0", b"\n"] {
        assert_eq!(parse(bytes).unwrap_err(), Unusable::KeepAlive);
    }
}

#[test]
fn other_protocols_are_not_sip() {
    for text in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\x16\x03\x01\x02",
        "hello",
        "hello\r\n\r\n",
        "SIP/2.0\r\n\r\n",
        " SIP/2.0\r\n\r\n",
        "OPTIONS SIP/2.0\r\n\r\n",
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap_err(), Unusable::NotSip, "{text:?}");
    }
}

#[test]
fn line_ends_before_the_start_line_are_skipped() {
    view(format!("\r\n\r\n{OPTIONS}"), |m| {
        assert_eq!(m.range().start, 4);
        assert_eq!(m.uri(), b"sip:bob@dest.example.test");
    });
}

#[test]
fn another_version_is_answered_with_505() {
    assert_eq!(status_with("SIP/2.0\r\n", "SIP/3.0\r\n"), 505);
    assert_eq!(status_with("SIP/2.0\r\n", "sip/2.0\r\n"), 0);
}

#[test]
fn blanks_in_the_start_line_are_refused() {
    for (from, to) in [
        ("OPTIONS sip", "OPTIONS  sip"),
        ("test SIP/2.0", "test  SIP/2.0"),
        ("SIP/2.0\r\n", "SIP/2.0 \r\n"),
        ("SIP/2.0\r\n", "SIP/2.0\t\r\n"),
        ("sip:bob@dest.example.test SIP", "sip:bob@dest.example.test; lr SIP"),
        ("sip:bob@dest.example.test SIP", "tel:1 2 SIP"),
        ("sip:bob@dest.example.test SIP", "<sip:bob@dest.example.test> SIP"),
        ("OPTIONS sip", "OPT(IONS sip"),
    ] {
        assert_eq!(status_with(from, to), 400, "{to:?}");
    }
}

#[test]
fn a_request_uri_must_be_sound_where_its_scheme_is_ours() {
    let whole = "sip:bob@dest.example.test SIP";
    for bad in [
        "sip:bob@ SIP",
        "sip: SIP",
        "sip:@host.test SIP",
        "sip:a@b@c.test SIP",
        "sip:2001:db8::1 SIP",
        "sip:host.test:port SIP",
        "sip:host.test:0 SIP",
        "sip:host.test:65536 SIP",
        "sip:host.test: SIP",
        "sip:[2001:db8::zz] SIP",
        "sip:host..test SIP",
        "sip:.test SIP",
        "sip:300.1.1.1 SIP",
        "sip:127.1 SIP",
        "sip:bob@host.test?Subject=x SIP",
        "sip:host.test/x SIP",
        "bob SIP",
        "1sip:x SIP",
        "tel: SIP",
        "sip:\"bob\"@host.test SIP",
    ] {
        assert_eq!(status_with(whole, bad), 400, "{bad:?}");
    }
    for good in [
        "sip:host.test SIP",
        "SIPS:a:b@host.test.:5061;lr SIP",
        "tel:+123 SIP",
        "urn:service:sos SIP",
        "nobodyKnows:what SIP",
        "sip:[2001:db8::1]:5070 SIP",
        "sip:*97#@host.test SIP",
        "sip:a_b.test SIP",
    ] {
        assert_eq!(status_with(whole, good), 0, "{good:?}");
    }
}

#[test]
fn bare_line_feeds_carriage_returns_and_controls_in_the_header_are_refused() {
    for bad in [
        "Subject: hi\nRoute: <sip:127.0.0.66;lr>\r\n",
        "Subject: hi\rRoute: <sip:127.0.0.66;lr>\r\n",
        "Subject: hi\r\rthere\r\n",
        "X: a\x1b[2J\r\n",
        "X: a\0b\r\n",
        "X: a\x7fb\r\n",
        "X: \"a\x07b\"\r\n",
        "X: \"a\\\nb\"\r\n",
        "\n",
    ] {
        let text = with("Content-Length", &format!("{bad}Content-Length"));
        let fault = fault_of(text).unwrap();
        assert_eq!((fault.status, fault.label), (400, "control_octets"), "{bad:?}");
    }
    assert_eq!(status_with("OPTIONS sip:", "OPTIONS sip:\x01"), 400);
}

#[test]
fn a_control_octet_in_a_quoted_pair_is_legal() {
    view(with("To: <sip", "To: \"BEL:\\\x07 NUL:\\\0 DEL:\\\x7f\" <sip"), |m| {
        assert_eq!(m.to().unwrap().display, b"\"BEL:\\\x07 NUL:\\\0 DEL:\\\x7f\"");
    });
}

#[test]
fn control_octets_in_the_body_are_no_concern() {
    assert_eq!(fault_of(with("Content-Length: 0\r\n\r\n", "l: 4\r\n\r\n\0\r\n\n")), None);
}

#[test]
fn a_line_that_is_no_header_field_is_refused() {
    for bad in ["Foobar roobar\r\n", ": x\r\n", "Foo(bar: x\r\n", "\u{e9}: x\r\n", "Foo\r\n : x\r\n"] {
        let text = with("Content-Length", &format!("{bad}Content-Length"));
        assert_eq!(fault_of(text).unwrap().label, "header_line", "{bad:?}");
    }
    assert_eq!(fault_of(with("Via: ", " folded: start\r\nVia: ")).unwrap().label, "header_line");
}

#[test]
fn a_header_without_its_blank_line_is_refused() {
    let text = OPTIONS.strip_suffix("\r\n").unwrap();
    assert_eq!(fault_of(text).unwrap().label, "no_blank_line");
    for cut in 45..text.len() {
        let index = parse(&text.as_bytes()[..cut]).unwrap();
        assert!(index.fault().is_some(), "cut at {cut}");
    }
}

#[test]
fn fields_that_every_request_needs_must_be_there_once() {
    for (row, missing, repeated) in [
        ("From: <sip:alice@a.example.test>;tag=f-1\r\n", "missing_from", "repeated_from"),
        ("To: <sip:bob@dest.example.test>\r\n", "missing_to", "repeated_to"),
        ("Call-ID: 1@a.example.test\r\n", "missing_call_id", "repeated_call_id"),
        ("CSeq: 1 OPTIONS\r\n", "missing_cseq", "repeated_cseq"),
    ] {
        assert_eq!(fault_of(with(row, "")).unwrap().label, missing);
        assert_eq!(fault_of(with(row, &format!("{row}{row}"))).unwrap().label, repeated);
        assert_eq!(fault_of(RESPONSE.replacen(&row[..3], "X-", 1)).unwrap().status, 400);
    }
    let via = "Via: SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1\r\n";
    assert_eq!(fault_of(with(via, "")).unwrap().label, "missing_via");
    assert_eq!(fault_of(with("Max-Forwards: 70\r\n", "")), None);
}

#[test]
fn a_compact_and_a_long_row_are_the_same_field() {
    assert_eq!(fault_of(with("CSeq", "i: b\r\nCSeq")).unwrap().label, "repeated_call_id");
    assert_eq!(fault_of(with("CSeq", "l: 5\r\nCSeq")).unwrap().status, 400);
}

#[test]
fn max_forwards_is_a_number_up_to_255_and_alone() {
    for bad in ["abc", "-1", "4294967296", "256", "", "7 0", "70, 70"] {
        assert_eq!(status_with("Forwards: 70", &format!("Forwards: {bad}")), 400, "{bad:?}");
    }
    assert_eq!(status_with("Forwards: 70", "Forwards: 0255"), 0);
    assert_eq!(status_with("Max-Forwards: 70\r\n", "Max-Forwards: 70\r\nMax-Forwards: 0\r\n"), 400);
}

#[test]
fn a_cseq_is_a_number_below_2_31_and_the_method() {
    for bad in ["1", "OPTIONS", "1OPTIONS", "2147483648 OPTIONS", "-1 OPTIONS", "1 OPTIONS x", "1 INVITE", ""]
    {
        assert_eq!(status_with("1 OPTIONS", bad), 400, "{bad:?}");
    }
    assert_eq!(status_with("1 OPTIONS", "2147483647 OPTIONS"), 0);
    assert_eq!(status_with("1 OPTIONS", "0001\r\n\tOPTIONS"), 0);
    // Methods are case-sensitive.
    assert_eq!(status_with("1 OPTIONS", "1 options"), 400);
}

#[test]
fn an_unknown_method_that_its_cseq_does_not_name_is_answered_with_501() {
    assert_eq!(status_with("OPTIONS sip", "NEWMETHOD sip"), 501);
}

#[test]
fn a_content_length_that_does_not_fit_is_refused() {
    let body =
        |value: &str| with("Content-Length: 0\r\n\r\n", &format!("Content-Length: {value}\r\n\r\nhello"));
    for bad in ["50", "6", "-1", "99999999999999999999", "", "5 5", "+5", "0x5", "5,5", "5;x"] {
        assert_eq!(fault_of(body(bad)).map(|f| f.status), Some(400), "{bad:?}");
    }
    for (good, want) in
        [("5", &b"hello"[..]), ("3", b"hel"), ("0", b""), ("005", b"hello"), ("\r\n 5", b"hello")]
    {
        view(body(good), |m| assert_eq!(m.body(), want));
    }
    view(with("Content-Length: 0\r\n\r\n", "\r\nhello"), |m| {
        assert_eq!((m.body(), m.content_length()), (&b"hello"[..], None));
    });
    assert_eq!(fault_of(body("5\r\nl: 3")).unwrap().label, "conflicting_content_length");
    assert_eq!(fault_of(body("5\r\nl: 5")), None);
}

#[test]
fn on_a_stream_content_length_must_be_there_and_exact() {
    let stream = |text: &str| {
        let limits = Limits { max_message: 2_000, ..Limits::default() };
        Index::parse(text.as_bytes(), &limits, Framing::Stream).unwrap().fault().map(|f| f.status)
    };
    assert_eq!(stream(OPTIONS), None);
    assert_eq!(stream(&with("Content-Length: 0\r\n", "")), Some(400));
    assert_eq!(stream(&with("Length: 0", "Length: 10")), Some(400));
    assert_eq!(stream(&with("Length: 0", "Length: 5000")), Some(513));
}

#[test]
fn a_via_that_has_to_be_read_must_be_sound() {
    let value = "SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1";
    for bad in [
        "SIP/2.0/UDP 192.0.2.15;;,;,,",
        "SIP/2.0/UDP",
        "SIP/2.0 192.0.2.1",
        "SIP/2.0/UDP ;branch=x",
        "",
        "SIP/2.0/UDP 192.0.2.1;branch",
        "SIP/2.0/UDP 192.0.2.1:99999;branch=x",
        "SIP/2.0/UDP 2001:db8::1",
        "SIP/2.0/UDP 192.0.2.1,",
        "SIP/2.0/UDP 192.0.2.1;a=\"x",
        "SIP/2.0/UDP 192.0.2.1 x;a=b",
        "SIP/2.0/UDP 192.0.2.1;a=b c",
        "SIP/2.0/UDP [2001:db8::1;branch=x",
        "SIP/2.0/UDP192.0.2.1",
    ] {
        let expected = if bad.ends_with(";branch") { 0 } else { 400 };
        assert_eq!(status_with(value, bad), expected, "{bad:?}");
    }
    // Further down, it is for those who wrote it.
    assert_eq!(status_with("Max-", "Via: what\r\nMax-"), 0);
    assert_eq!(fault_of(RESPONSE.replacen("127.0.0.11:5060;", ";;", 1)).unwrap().label, "bad_via");
}

#[test]
fn a_from_or_to_that_cannot_be_split_is_refused() {
    let value = "<sip:bob@dest.example.test>";
    for bad in [
        "Watson, Thomas <sip:t@x.test>",
        "\"Watson <sip:t@x.test>",
        "<sip:t@x.test",
        "",
        "\"x\"",
        "<>",
        "<sip:t@x.test> x",
        "<sip:t@x.test>, <sip:u@x.test>",
        "sip:t@x.test, sip:u@x.test",
        "a;b <sip:t@x.test>",
        "<sip:t@x.test>;tag=a;tag=b",
        "<sip:t@x.test>;tag",
        "<sip:t@x.test>;tag=;a",
        "<sip:t@x.test>;x=\"",
        "a b c",
        "J \"B\" S <sip:x>",
    ] {
        assert_eq!(status_with(value, bad), 400, "{bad:?}");
        assert_eq!(status_with("<sip:alice@a.example.test>;tag=f-1", bad), 400, "{bad:?}");
    }
    for good in [
        "Bj\u{f6}rn (home) <sip:t@x.test>",
        "\"Roe, \\\"J\\\" <x>;tag=zz\" <sip:t@x.test>",
        "\"\" <sip:t@x.test>",
        "\"\"<sip:t@x.test>",
        "sip:t@x.test;tag=1",
        "<sip:a,b;c?d@x.test>",
        "isbn:2983792873",
        "< sip:t@x.test >",
    ] {
        assert_eq!(status_with(value, good), 0, "{good:?}");
    }
}

#[test]
fn a_call_id_is_one_word() {
    for bad in ["", "a b", "a\r\n b"] {
        assert_eq!(status_with("1@a.example.test", bad), 400, "{bad:?}");
    }
}

#[test]
fn a_status_code_beyond_the_classes_is_a_fault() {
    for bad in ["4294967301", "700", "099", "20", "abc", "", "2000", "-20"] {
        let text = RESPONSE.replacen("200 OK", &format!("{bad} x"), 1);
        let index = parse(text.as_bytes()).unwrap();
        assert_eq!(index.fault().unwrap().label, "status_code", "{bad:?}");
        assert!(!Message::new(text.as_bytes(), &index).is_request());
    }
    view(RESPONSE.replacen("200 OK", "180 ", 1), |m| {
        assert_eq!((m.status(), m.reason_phrase()), (180, &b""[..]))
    });
    view(RESPONSE.replacen("200 OK", "180", 1), |m| assert_eq!(m.status(), 180));
}

#[test]
fn what_exceeds_the_limits_is_refused_where_it_can_be_answered() {
    let huge = "x".repeat(60_000);
    let text = with("1@a.example.test", &huge);
    assert_eq!(fault_of(&text).unwrap().label, "header_too_large");
    assert_eq!(parse(format!("{text}{huge}").as_bytes()).unwrap_err(), Unusable::TooLarge);
    let uri = with("bob", &huge);
    assert_eq!(parse(uri.as_bytes()).unwrap_err(), Unusable::TooLarge);

    let via = "Via: SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1\r\n";
    let many = with(via, &via.repeat(300));
    let index = parse(many.as_bytes()).unwrap();
    assert_eq!(index.fault().unwrap().label, "too_many_headers");
    let enough = with(via, &via.repeat(200));
    view(&enough, |m| assert_eq!((m.vias().count(), m.via_count()), (200, 200)));
}
