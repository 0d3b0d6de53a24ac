//! HTTP Digest: the RFC's own examples, what servers write, and what they should not.

use crate::alto::digest::{Challenge, Session, challenge};

/// RFC 7616 §3.9.1, as one header with two challenges.
const RFC: &str = "Digest realm=\"http-auth@example.org\", qop=\"auth, auth-int\", algorithm=MD5, \
    nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\"";

fn session(challenge: Challenge) -> Session {
    Session::new(challenge, [0xab; 16])
}

/// A parameter of what is sent.
fn part(header: &str, name: &str) -> String {
    let at = header.find(&format!(" {name}=")).unwrap() + name.len() + 2;
    let rest = &header[at..];
    match rest.strip_prefix('"') {
        Some(inner) => inner[..inner.find('"').unwrap()].to_owned(),
        None => rest[..rest.find(',').unwrap_or(rest.len())].to_owned(),
    }
}

/// An independent reading of RFC 7616 §3.4.1, from the parts as sent.
fn expected(header: &str, hash: fn(&str) -> String, secret: &str, method: &str) -> String {
    let part = |name| part(header, name);
    let request = hash(&format!("{method}:{}", part("uri")));
    hash(&[secret, &part("nonce"), &part("nc"), &part("cnonce"), &part("qop"), &request].join(":"))
}

fn md5(text: &str) -> String {
    use md5::Digest as _;
    md5::Md5::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

fn sha256(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_examples_of_rfc_7616_come_out() {
    // With the RFC's cnonce, "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", the hash must be the RFC's.
    let own = "Mufasa:http-auth@example.org:Circle of Life";
    let with = |hash: fn(&str) -> String| {
        let nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v";
        let cnonce = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";
        let request = hash("GET:/dir/index.html");
        hash(&format!("{}:{nonce}:00000001:{cnonce}:auth:{request}", hash(own)))
    };
    assert_eq!(with(md5), "8ca523f5e9506fed4657c9700eebdbec");
    assert_eq!(with(sha256), "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1");
    // And what is sent must be what that formula gives.
    for (algorithm, hash) in [("MD5", md5 as fn(&str) -> String), ("SHA-256", sha256)] {
        let header = RFC.replace("MD5", algorithm);
        let mut session = session(challenge([header.as_str()]).unwrap());
        for count in 1..=3 {
            let sent = session.authorization("Mufasa", "Circle of Life", "GET", "/dir/index.html");
            assert_eq!(part(&sent, "response"), expected(&sent, hash, &hash(own), "GET"));
            assert_eq!(part(&sent, "nc"), format!("{count:08x}"), "each use is counted");
            assert_eq!(part(&sent, "algorithm"), algorithm);
            assert_eq!(part(&sent, "opaque"), "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS");
            assert!(sent.starts_with("Digest username=\"Mufasa\", realm=\"http-auth@example.org\", "));
        }
    }
}

#[test]
fn a_session_key_is_of_the_first_nonce_and_the_count_begins_anew_with_the_next() {
    let header = "Digest realm=\"r\", nonce=\"one\", qop=\"auth\", algorithm=SHA-256-sess";
    let mut session = session(challenge([header]).unwrap());
    let first = session.authorization("u", "p", "POST", "/ecs?x=1");
    let secret = sha256(&format!("{}:one:{}", sha256("u:r:p"), part(&first, "cnonce")));
    assert_eq!(part(&first, "response"), expected(&first, sha256, &secret, "POST"));
    session.info("rspauth=\"0\", cnonce=\"c\", nc=00000001, qop=auth, nextnonce=\"two\"");
    let second = session.authorization("u", "p", "POST", "/ecs");
    assert_eq!((part(&second, "nonce").as_str(), part(&second, "nc").as_str()), ("two", "00000001"));
    assert_eq!(part(&second, "response"), expected(&second, sha256, &secret, "POST"));
    session.info("nextnonce=\"\"");
    assert_eq!(
        part(&session.authorization("u", "p", "POST", "/ecs"), "nc"),
        "00000002",
        "no nonce is no news"
    );
}

#[test]
fn the_strongest_challenge_is_answered_wherever_it_stands() {
    let basic = "Basic realm=\"a, Digest b\"";
    let md5 = "Digest realm=\"m\",nonce=\"n\",qop=\"auth-int,auth\"";
    let sha = "Digest realm=s , nonce=\"n\\\"q\" ,algorithm=sha-256, qop=auth ,stale=TRUE";
    for headers in [vec![basic, md5, sha], vec![sha, md5], vec![sha, basic]] {
        for joined in [vec![headers.join(", ")], headers.iter().map(ToString::to_string).collect()] {
            let found = challenge(joined.iter().map(String::as_str)).unwrap();
            assert!(found.stale, "{joined:?}");
            let sent = session(found).authorization("u", "p", "GET", "/");
            assert!(
                sent.contains("realm=\"s\", nonce=\"n\\\"q\""),
                "quotes are written as they were: {sent}"
            );
            assert!(sent.contains("algorithm=sha-256"), "{sent}");
        }
    }
    let found = challenge([basic, md5]).unwrap();
    assert!(!found.stale);
    let sent = session(found).authorization("u", "p", "GET", "/");
    assert!(!sent.contains("algorithm"), "left out as in the challenge: {sent}");
}

#[test]
fn what_cannot_be_answered_says_why() {
    for (header, why) in [
        ("", "without a challenge"),
        ("Basic realm=\"x\"", "Basic instead of Digest"),
        ("Negotiate YWJj==, Basic realm=x", "Negotiate instead of Digest, Basic instead of Digest"),
        ("Digest realm=\"r\", nonce=\"n\"", "Digest without qop=auth"),
        ("Digest realm=\"r\", nonce=\"n\", qop=\"auth-int\"", "Digest without qop=auth"),
        ("Digest realm=\"r\", nonce=\"n\", qop=auth, algorithm=SHA3", "Digest with algorithm sha3"),
        ("Digest qop=auth", "Digest without realm or nonce"),
        ("Digest qop=\"auth, realm=\"", "Digest without realm or nonce"),
        ("Digest qop=\"auth, nonce=n", "Digest without realm or nonce"),
        ("= , =\"", "without a challenge"),
    ] {
        assert_eq!(challenge([header]).unwrap_err(), why, "{header}");
    }
    let long = format!("Digest realm=\"r\", qop=auth, nonce=\"{}\"", "x".repeat(5000));
    assert_eq!(
        challenge([long.as_str()]).unwrap_err(),
        "Digest with a realm, nonce or opaque beyond measure"
    );
    let many = "Digest a=1, ".repeat(10_000);
    assert!(challenge([many.as_str()]).is_err(), "bounded");
}

#[test]
fn names_beyond_ascii_are_written_so_that_they_arrive() {
    let mut session = session(challenge(["Digest realm=\"r\", nonce=\"n\", qop=auth"]).unwrap());
    let sent = session.authorization("J\u{e4}s\u{f8}n", "p", "GET", "/");
    assert!(sent.starts_with("Digest username*=UTF-8''J%C3%A4s%C3%B8n, realm="), "{sent}");
    let sent = session.authorization("a\"b", "p", "GET", "/");
    assert!(sent.starts_with("Digest username=\"a\\\"b\", "), "{sent}");
}
