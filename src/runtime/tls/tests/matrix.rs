//! The certificate matrix, both directions.

use rcgen::ExtendedKeyUsagePurpose as Eku;

use super::*;

const DEST: &str = "dest.example.test";

/// A certificate, and what we think of it: as that of a server to be [`DEST`], and of a client.
struct Row {
    what: &'static str,
    ask: Ask<'static>,
    /// By an authority that nobody trusts.
    stranger: bool,
    server: Result<(), Cause>,
    /// The names that it makes its holder known by.
    client: Result<&'static [&'static str], Cause>,
}

fn row(
    what: &'static str,
    names: &'static [&'static str],
    server: Result<(), Cause>,
    client: &'static [&'static str],
) -> Row {
    Row { what, ask: Ask { names, ..Ask::default() }, stranger: false, server, client: Ok(client) }
}

fn refused(what: &'static str, ask: Ask<'static>, stranger: bool, cause: Cause) -> Row {
    Row { what, ask, stranger, server: Err(cause), client: Err(cause) }
}

fn rows() -> Vec<Row> {
    let wrong = Err(Cause::WrongName);
    let dest: Ask<'static> = Ask { names: &["DNS:dest.example.test"], ..Ask::default() };
    let other_purpose = |purposes: Vec<Eku>, good: bool| Row {
        what: if good { "right, for one direction only" } else { "right, for signing code" },
        ask: Ask { purposes, ..dest.clone() },
        stranger: false,
        server: if good { Ok(()) } else { Err(Cause::Chain) },
        client: if good { Ok(&[DEST]) } else { Err(Cause::Chain) },
    };
    vec![
        row("sip URI", &["URI:sip:dest.example.test"], Ok(()), &[DEST]),
        row("sip URI with a port", &["URI:sip:dest.example.test:5061"], Ok(()), &[DEST]),
        row("DNS name", &["DNS:dest.example.test"], Ok(()), &[DEST]),
        row("DNS name in capitals", &["DNS:DEST.Example.TEST"], Ok(()), &[DEST]),
        row(
            "several, one right",
            &["DNS:a.example.test", "DNS:dest.example.test", "IP:192.0.2.7"],
            Ok(()),
            &["a.example.test", DEST],
        ),
        row("wrong name", &["DNS:other.example.test"], wrong, &["other.example.test"]),
        row("the name of the SRV target", &["DNS:n1.carrier.test"], wrong, &["n1.carrier.test"]),
        row("a name above it", &["DNS:example.test"], wrong, &["example.test"]),
        row("a name below it", &["DNS:x.dest.example.test"], wrong, &["x.dest.example.test"]),
        row("wildcard", &["DNS:*.example.test"], wrong, &[]),
        row("wildcard URI", &["URI:sip:*.example.test"], wrong, &[]),
        row("sip URI of a user", &["URI:sip:alice@dest.example.test"], wrong, &[]),
        row(
            "sip URI of a user and a DNS name",
            &["URI:sip:alice@other.example.test", "DNS:dest.example.test"],
            Ok(()),
            &[DEST],
        ),
        row("sips URI", &["URI:sips:dest.example.test"], wrong, &[]),
        row(
            "another sip URI and the right DNS name",
            &["URI:sip:other.example.test", "DNS:dest.example.test"],
            wrong,
            &["other.example.test"],
        ),
        row(
            "the right sip URI and another DNS name",
            &["URI:sip:dest.example.test", "DNS:other.example.test"],
            Ok(()),
            &[DEST],
        ),
        row("address", &["IP:192.0.2.7"], wrong, &[]),
        Row {
            what: "common name alone",
            ask: Ask { cn: DEST, ..Ask::default() },
            stranger: false,
            server: wrong,
            client: Ok(&[]),
        },
        Row {
            what: "common name beside another DNS name",
            ask: Ask { cn: DEST, names: &["DNS:other.example.test"], ..Ask::default() },
            stranger: false,
            server: wrong,
            client: Ok(&["other.example.test"]),
        },
        refused("expired", Ask { years: (2020, 2021), ..dest.clone() }, false, Cause::Expired),
        refused("not yet valid", Ask { years: (2080, 2081), ..dest.clone() }, false, Cause::NotYetValid),
        refused("unknown authority", dest.clone(), true, Cause::UnknownIssuer),
        refused("revoked", Ask { serial: 666, ..dest.clone() }, false, Cause::Revoked),
        other_purpose(vec![Eku::ServerAuth], true),
        other_purpose(vec![Eku::ClientAuth], true),
        other_purpose(vec![Eku::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 20])], true),
        other_purpose(Vec::new(), true),
        other_purpose(vec![Eku::CodeSigning], false),
    ]
}

#[tokio::test]
async fn certificates_are_accepted_by_the_rules_of_sip_in_both_directions() {
    let mut node = Node::new(ClientCertificates::Require);
    let list = node.ca.revoke(&[666]);
    let list = node.directory.write("crl.pem", &list);
    node.section().crl.push(list);
    let (tls, other_ca) = (node.load(), Authority::new("Unknown CA"));
    let wanted = wanted(DEST, &[DEST]);
    for row in rows() {
        let ca = if row.stranger { &other_ca } else { &node.ca };
        let pair = ca.issue(&row.ask);
        let (server, heard) = outgoing(&tls, &pair, &wanted).await;
        match (&server, &row.server) {
            (Ok(_), Ok(())) => assert_eq!(heard, 3, "{}", row.what),
            (Err(failure), Err(cause)) => {
                assert_eq!(failure.cause, *cause, "{}: {}", row.what, failure.words);
                assert_eq!(heard, 0, "{}: nothing is sent before the name is right", row.what);
            }
            (found, _) => panic!("{} as a server: {found:?}", row.what),
        }
        let client = incoming(&node, &tls, Some(&pair)).await;
        match (&client, &row.client) {
            (Ok(Some(identity)), Ok(names)) => assert_eq!(identity.names, *names, "{}", row.what),
            (Err(failure), Err(cause)) => assert_eq!(failure.cause, *cause, "{}", row.what),
            (found, _) => panic!("{} as a client: {found:?}", row.what),
        }
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_only_where_one_is_required() {
    for (setting, outcome) in [
        (ClientCertificates::Require, Err(Cause::NoCertificate)),
        (ClientCertificates::Request, Ok(None)),
        (ClientCertificates::None, Ok(None)),
    ] {
        let node = Node::new(setting);
        let found = incoming(&node, &node.load(), None).await;
        assert_eq!(found.map_err(|f| f.cause), outcome, "{setting:?}");
    }
}

#[tokio::test]
async fn without_a_request_for_it_a_client_certificate_makes_nobody_known() {
    let node = Node::new(ClientCertificates::None);
    let pair = node.ca.named(&["DNS:dest.example.test"]);
    assert_eq!(incoming(&node, &node.load(), Some(&pair)).await.unwrap(), None);
}

#[tokio::test]
async fn any_of_the_accepted_names_will_do_and_none_will_without_any() {
    let node = Node::new(ClientCertificates::Require);
    let (tls, pair) = (node.load(), node.ca.named(&["DNS:sbe.dest.example.test"]));
    let both = wanted(DEST, &["SBE.dest.example.test", DEST]);
    let (found, _) = outgoing(&tls, &pair, &both).await;
    assert_eq!(found.unwrap().names, ["sbe.dest.example.test"]);
    let (found, heard) = outgoing(&tls, &pair, &wanted(DEST, &[])).await;
    assert_eq!((found.unwrap_err().cause, heard), (Cause::WrongName, 0));
}

#[tokio::test]
async fn what_was_expected_and_what_was_shown_stands_in_the_words() {
    let node = Node::new(ClientCertificates::Require);
    let tls = node.load();
    let words = async |ask: Ask<'static>, ca: &Authority| {
        outgoing(&tls, &ca.issue(&ask), &wanted(DEST, &[DEST])).await.0.unwrap_err().words
    };
    let names: &[&str] = &["DNS:n1.carrier.test", "DNS:*.example.test"];
    assert_eq!(
        words(Ask { names, ..Ask::default() }, &node.ca).await,
        "its certificate names \"n1.carrier.test\"; not counted: DNS:*.example.test (wildcards don't count), \
         and must name \"dest.example.test\""
    );
    assert_eq!(
        words(Ask { cn: DEST, ..Ask::default() }, &node.ca).await,
        "its certificate names nobody; not counted: CN=dest.example.test (the common name doesn't count), \
         and must name \"dest.example.test\""
    );
    let expired =
        words(Ask { names: &["DNS:a.test"], years: (2020, 2021), ..Ask::default() }, &node.ca).await;
    assert!(
        expired.starts_with("its certificate (for \"a.test\") expired on Jan  1 00:00:00 2021"),
        "{expired}"
    );
    let unknown =
        words(Ask { names: &["DNS:a.test"], ..Ask::default() }, &Authority::new("Unknown CA")).await;
    assert!(unknown.contains("[tls] trust") && unknown.contains("CN=Unknown CA"), "{unknown}");
}

#[tokio::test]
async fn the_name_asked_for_is_sent_and_decides_which_certificate_is_shown() {
    let mut node = Node::new(ClientCertificates::None);
    let pair = node.ca.named(&["DNS:edge.sp2.test"]).write(&node.directory, "sp2");
    let mut peer = crate::config::Peer { name: "sp2".into(), ..crate::runtime::tests::config::peer() };
    peer.certificate = Some(pair);
    node.config.peers.push(peer);
    let tls = node.load();
    for (asked, shown) in [("sbe.test", "sbe.test"), ("edge.sp2.test", "edge.sp2.test")] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let connector = client(&node.ca, None);
        let name = ServerName::try_from(asked).unwrap();
        let (ours, theirs) = tokio::join!(tls.accept(near), connector.connect(name, far));
        let theirs = theirs.unwrap();
        let certificate = theirs.get_ref().1.peer_certificates().unwrap().first().unwrap();
        let presented = identity::Presented::read(certificate).unwrap();
        assert_eq!(presented.identity.names, [shown]);
        assert!(ours.is_ok());
    }
    // To the peer itself we come with what it knows us by, to others with our own.
    let mut far = Node::new(ClientCertificates::Require);
    let files = node.ca.named(&["DNS:dest.example.test"]).write(&node.directory, "far");
    let trust = path_of(&node, "ca.pem");
    *far.section() = section(files, &trust, ClientCertificates::Require);
    let far = far.load();
    for (peer, shown) in
        [(Some(PeerId(0)), "edge.sp2.test"), (Some(PeerId(1)), "sbe.test"), (None, "sbe.test")]
    {
        let (one, other) = tokio::io::duplex(64 * 1024);
        let expectation = TlsExpectation { peer, ..wanted(DEST, &[DEST]) };
        let (ours, theirs) = tokio::join!(tls.connect(one, &expectation), far.accept(other));
        assert!(ours.is_ok());
        assert_eq!(theirs.unwrap().1.unwrap().names, [shown], "{peer:?}");
    }
}

#[tokio::test]
async fn an_intermediate_authority_is_believed_when_it_comes_with_the_certificate() {
    let node = Node::new(ClientCertificates::Require);
    let tls = node.load();
    let between = node.ca.below("Intermediate CA");
    let alone = between.named(&["DNS:dest.example.test"]);
    let whole = Pair { certificate: format!("{}{}", alone.certificate, between.pem), ..alone.clone() };
    let wanted = wanted(DEST, &[DEST]);
    assert!(outgoing(&tls, &whole, &wanted).await.0.is_ok());
    assert_eq!(outgoing(&tls, &alone, &wanted).await.0.unwrap_err().cause, Cause::UnknownIssuer);
    assert!(incoming(&node, &tls, Some(&whole)).await.is_ok());
}

#[tokio::test]
async fn plain_sip_on_a_tls_port_is_told_as_that() {
    let node = Node::new(ClientCertificates::Require);
    let tls = node.load();
    let (near, mut far) = tokio::io::duplex(1024);
    far.write_all(b"OPTIONS sip:sbe.test SIP/2.0\r\n\r\n").await.unwrap();
    let failure = tls.accept(near).await.unwrap_err();
    assert_eq!(failure.cause, Cause::NotTls, "{}", failure.words);
    let (near, far) = tokio::io::duplex(1024);
    drop(far);
    assert_eq!(tls.accept(near).await.unwrap_err().cause, Cause::Closed);
}

#[tokio::test]
async fn a_name_that_is_none_is_not_asked_for() {
    let node = Node::new(ClientCertificates::Require);
    let (near, _far) = tokio::io::duplex(1024);
    let failure = node.load().connect(near, &wanted("", &[DEST])).await.unwrap_err();
    assert_eq!(failure.cause, Cause::NoName);
}
