use proptest::prelude::*;

use crate::transaction::key::is_rfc3261_branch;
use crate::transaction::{Branch, BranchParts, KeySecrets, ServerKey, ServerKeyParts, loop_hash};

const INVITE: ServerKeyParts<'static> = ServerKeyParts {
    branch: Some(b"z9hG4bKnashds8"),
    sent_by_host: b"pc33.example.com",
    sent_by_port: 5060,
    method: b"INVITE",
    request_uri: b"sip:bob@example.net",
    to_tag: None,
    from_tag: Some(b"a1"),
    call_id: b"c1@pc33.example.com",
    cseq: 314,
    top_via: b"SIP/2.0/UDP pc33.example.com:5060;branch=z9hG4bKnashds8",
};

/// The same from an element of RFC 2543.
const OLD: ServerKeyParts<'static> =
    ServerKeyParts { branch: None, top_via: b"SIP/2.0/UDP pc33.example.com:5060", ..INVITE };

fn secrets() -> KeySecrets {
    KeySecrets::new([1, 2, 3, 4, 5, 6, 7, 8])
}

fn key(parts: &ServerKeyParts<'_>) -> ServerKey {
    ServerKey::of(&secrets(), parts)
}

#[test]
fn with_a_branch_of_rfc3261_only_branch_sent_by_and_method_count() {
    let same: [(&str, ServerKeyParts<'_>); 7] = [
        ("Request-URI", ServerKeyParts { request_uri: b"sip:x@y", ..INVITE }),
        ("To tag", ServerKeyParts { to_tag: Some(b"b"), ..INVITE }),
        ("From tag", ServerKeyParts { from_tag: None, ..INVITE }),
        ("Call-ID and CSeq", ServerKeyParts { call_id: b"other", cseq: 1, ..INVITE }),
        ("rest of the Via", ServerKeyParts { top_via: b"SIP/2.0/UDP pc33 ;received=1", ..INVITE }),
        ("case of the branch", ServerKeyParts { branch: Some(b"Z9HG4BKNASHDS8"), ..INVITE }),
        ("case of the host", ServerKeyParts { sent_by_host: b"PC33.Example.COM", ..INVITE }),
    ];
    for (what, parts) in same {
        assert_eq!(key(&parts), key(&INVITE), "{what}");
    }
    let other: [(&str, ServerKeyParts<'_>); 5] = [
        ("branch", ServerKeyParts { branch: Some(b"z9hG4bKnashds9"), ..INVITE }),
        ("longer branch", ServerKeyParts { branch: Some(b"z9hG4bKnashds8a"), ..INVITE }),
        ("host", ServerKeyParts { sent_by_host: b"pc34.example.com", ..INVITE }),
        ("port", ServerKeyParts { sent_by_port: 5061, ..INVITE }),
        ("no port", ServerKeyParts { sent_by_port: 0, ..INVITE }),
    ];
    for (what, parts) in other {
        assert_ne!(key(&parts), key(&INVITE), "{what}");
    }
}

#[test]
fn octets_do_not_move_between_branch_and_host() {
    let one = ServerKeyParts { branch: Some(b"z9hG4bKab"), sent_by_host: b"c", ..INVITE };
    let two = ServerKeyParts { branch: Some(b"z9hG4bKa"), sent_by_host: b"bc", ..INVITE };
    assert_ne!(key(&one), key(&two));
}

#[test]
fn long_branches_count_to_the_last_octet() {
    let long: Vec<u8> = b"z9hG4bK".iter().copied().chain([b'x'; 300]).collect();
    let upper = long.to_ascii_uppercase();
    let mut other = long.clone();
    *other.last_mut().unwrap() = b'y';
    let of = |branch: &[u8]| key(&ServerKeyParts { branch: Some(branch), ..INVITE });
    assert_eq!(of(&long), of(&upper));
    assert_ne!(of(&long), of(&other));
}

#[test]
fn an_ack_finds_its_invite() {
    for invite in [INVITE, OLD] {
        let ack = ServerKeyParts { method: b"ACK", to_tag: Some(b"b2"), ..invite };
        assert_eq!(key(&ack), key(&invite));
    }
    let of_a_2xx = ServerKeyParts { method: b"ACK", branch: Some(b"z9hG4bKnew"), ..INVITE };
    assert_ne!(key(&of_a_2xx), key(&INVITE));
}

#[test]
fn a_cancel_has_a_key_of_its_own_and_that_of_its_invite() {
    for invite in [INVITE, OLD] {
        let cancel = ServerKeyParts { method: b"CANCEL", ..invite };
        assert_ne!(key(&cancel), key(&invite));
        assert_eq!(ServerKey::of_cancelled_invite(&secrets(), &cancel), key(&invite));
    }
}

#[test]
fn methods_are_told_apart_with_case() {
    for base in [INVITE, OLD] {
        for method in [&b"BYE"[..], b"OPTIONS", b"invite", b""] {
            assert_ne!(key(&ServerKeyParts { method, ..base }), key(&base));
        }
    }
}

#[test]
fn without_the_cookie_the_rules_of_rfc2543_count() {
    let same: [(&str, ServerKeyParts<'_>); 3] = [
        ("a branch without the cookie", ServerKeyParts { branch: Some(b"1"), ..OLD }),
        ("the bare cookie", ServerKeyParts { branch: Some(b"z9hG4bK"), ..OLD }),
        ("To tag of an INVITE", ServerKeyParts { to_tag: Some(b"b"), ..OLD }),
    ];
    for (what, parts) in same {
        assert_eq!(key(&parts), key(&OLD), "{what}");
    }
    let other: [(&str, ServerKeyParts<'_>); 7] = [
        ("Request-URI", ServerKeyParts { request_uri: b"sip:Bob@example.net", ..OLD }),
        ("From tag", ServerKeyParts { from_tag: Some(b"a2"), ..OLD }),
        ("no From tag", ServerKeyParts { from_tag: None, ..OLD }),
        ("Call-ID", ServerKeyParts { call_id: b"C1@pc33.example.com", ..OLD }),
        ("CSeq", ServerKeyParts { cseq: 315, ..OLD }),
        ("Via", ServerKeyParts { top_via: b"SIP/2.0/UDP pc34.example.com:5060", ..OLD }),
        ("a branch of RFC 3261", ServerKeyParts { branch: INVITE.branch, ..OLD }),
    ];
    for (what, parts) in other {
        assert_ne!(key(&parts), key(&OLD), "{what}");
    }
    let bye = ServerKeyParts { method: b"BYE", to_tag: Some(b"b"), ..OLD };
    for to_tag in [None, Some(&b"c"[..]), Some(b"")] {
        assert_ne!(key(&ServerKeyParts { to_tag, ..bye }), key(&bye), "To tag of a BYE");
    }
    let empty = ServerKeyParts { from_tag: Some(b""), ..OLD };
    assert_ne!(key(&empty), key(&ServerKeyParts { from_tag: None, ..OLD }));
}

#[test]
fn the_key_depends_on_the_secrets() {
    let others = KeySecrets::new([1, 2, 3, 4, 5, 6, 7, 9]);
    assert_ne!(ServerKey::of(&others, &INVITE), key(&INVITE));
}

#[test]
fn a_branch_needs_more_than_the_cookie() {
    assert!(is_rfc3261_branch(b"z9hG4bK1"));
    assert!(is_rfc3261_branch(b"Z9HG4BK1"));
    for none in [&b"z9hG4bK"[..], b"z9hG4b", b"", b"y9hG4bK1", b"1"] {
        assert!(!is_rfc3261_branch(none));
    }
}

#[test]
fn a_branch_is_written_as_cookie_and_hex() {
    let branch = Branch::mint(0xab, 0x0102_0304, 5, 0x0123_4567_89ab_cdef, 0xffff_0000);
    assert_eq!(branch.as_str(), "z9hG4bK00ab01020304000000050123456789abcdefffff0000");
    assert_eq!(branch.as_bytes().len(), Branch::LEN);
    assert_eq!(branch.to_string(), branch.as_str());
    assert!(is_rfc3261_branch(branch.as_bytes()));
}

#[test]
fn foreign_branches_are_not_taken_for_ours() {
    let ours = Branch::mint(1, 2, 3, 4, 5);
    let ours = ours.as_bytes();
    let foreign: [Vec<u8>; 8] = [
        Vec::new(),
        b"z9hG4bK".to_vec(),
        b"z9hG4bKnashds8".to_vec(),
        ours[..ours.len() - 1].to_vec(),
        [ours, b"0"].concat(),
        [b"y9hG4bK", &ours[7..]].concat(),
        [&ours[..ours.len() - 1], b"g"].concat(),
        [&ours[..7], b"+", &ours[8..]].concat(),
    ];
    for branch in foreign {
        assert_eq!(Branch::parse(&branch), None, "{}", branch.escape_ascii());
    }
    assert_eq!(Branch::parse(&[0xff; Branch::LEN]), None);
}

#[test]
fn the_loop_hash_sees_every_part_and_their_borders() {
    let secret = [11, 12];
    let hash = loop_hash(&secret, &[b"sip:a@b", b"tag", b""]);
    assert_eq!(hash, loop_hash(&secret, &[b"sip:a@b", b"tag", b""]));
    let others: [&[&[u8]]; 6] = [
        &[b"sip:a@c", b"tag", b""],
        &[b"sip:a@bt", b"ag", b""],
        &[b"tag", b"sip:a@b", b""],
        &[b"sip:a@b", b"", b"tag"],
        &[b"sip:a@b", b"tag"],
        &[],
    ];
    for parts in others {
        assert_ne!(hash, loop_hash(&secret, parts));
    }
    assert_ne!(hash, loop_hash(&[11, 13], &[b"sip:a@b", b"tag", b""]));
    assert_ne!(hash, loop_hash(&[12, 11], &[b"sip:a@b", b"tag", b""]));
}

proptest! {
    #[test]
    fn a_branch_reads_back_in_either_case(
        shard: u16, slot: u32, generation: u32, random: u64, loop_hash: u32,
    ) {
        let branch = Branch::mint(shard, slot, generation, random, loop_hash);
        let parts = BranchParts { shard, slot, generation, random, loop_hash };
        prop_assert_eq!(Branch::parse(branch.as_bytes()), Some(parts));
        prop_assert_eq!(Branch::parse(&branch.as_bytes().to_ascii_uppercase()), Some(parts));
    }

    #[test]
    fn reading_a_branch_never_fails_badly(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(p) = Branch::parse(&bytes) {
            let again = Branch::mint(p.shard, p.slot, p.generation, p.random, p.loop_hash);
            prop_assert!(again.as_bytes().eq_ignore_ascii_case(&bytes));
        }
    }
}
