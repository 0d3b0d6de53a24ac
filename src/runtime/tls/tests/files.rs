//! Files as operators leave them.

use std::time::UNIX_EPOCH;

use super::*;

fn now() -> SystemTime {
    SystemTime::now()
}

fn year(n: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs((n - 1970) * 31_556_952)
}

#[test]
fn a_good_node_has_nothing_to_complain_of() {
    let node = Node::new(ClientCertificates::Require);
    assert_eq!(Tls::check(&node.config, now()), []);
    let tls = node.load();
    let certificates: Vec<_> = tls.certificates().collect();
    assert_eq!(certificates.len(), 1);
    assert_eq!(certificates[0].names, ["sbe.test"]);
    assert_eq!(Tls::load(&Config { tls: None, ..node.config.clone() }).unwrap().map(|_| ()), None);
}

#[test]
fn every_file_that_cannot_serve_is_named_with_its_setting_and_what_to_do() {
    let mut node = Node::new(ClientCertificates::Require);
    let other = node.ca.named(&["DNS:sbe.test"]).write(&node.directory, "other");
    node.section().key = other.1;
    node.section().trust = vec![path_of(&node, "nothing.pem")];
    let found = Tls::check(&node.config, now());
    let (gravity, setting, what) = file(&found, 0);
    assert_eq!((gravity, setting), (Gravity::Unusable, Setting::Key));
    assert!(what.starts_with("this key does not belong to the certificate in "), "{what}");
    let (gravity, setting, what) = file(&found, 1);
    assert_eq!((gravity, setting), (Gravity::Missing, Setting::Trust));
    assert_eq!(what, "it cannot be read (No such file or directory)");
    assert_eq!(found.len(), 2);
    assert_eq!(Tls::load(&node.config).unwrap_err(), found[0]);
}

#[test]
fn a_file_without_the_right_kind_of_block_is_no_file_for_it() {
    for (name, text) in
        [("empty.pem", ""), ("text.pem", "hello"), ("half.pem", "-----BEGIN CERTIFICATE-----\nMII")]
    {
        let mut node = Node::new(ClientCertificates::Require);
        let path = node.directory.write(name, text);
        let crl = node.directory.write("crl.pem", text);
        node.section().certificate.clone_from(&path);
        node.section().trust = vec![path];
        node.section().crl = vec![crl];
        let found = Tls::check(&node.config, now());
        assert_eq!(
            found.iter().map(|e| (e.gravity, e.setting.clone())).collect::<Vec<_>>(),
            [(Gravity::Unusable, Setting::Certificate), (Gravity::Unusable, Setting::Trust)],
            "{name}: {found:?}"
        );
        node.section().trust = vec![path_of(&node, "ca.pem")];
        let found = Tls::check(&node.config, now());
        assert_eq!(found[1].setting, Setting::Crl, "{name}: {found:?}");
    }
}

#[test]
fn a_chain_in_the_wrong_order_or_with_a_stranger_in_it_is_no_chain() {
    let mut node = Node::new(ClientCertificates::Require);
    let between = node.ca.below("Intermediate CA");
    let pair = between.named(&["DNS:sbe.test"]);
    let stranger = Authority::new("Stranger");
    for (order, good) in [
        ([&pair.certificate, &between.pem], true),
        ([&pair.certificate, &stranger.pem], false),
        ([&pair.certificate, &pair.certificate], false),
    ] {
        let text = order.map(String::as_str).concat();
        let files = Pair { certificate: text, key: pair.key.clone() }.write(&node.directory, "chain");
        (node.section().certificate, node.section().key) = files;
        let found = Tls::check(&node.config, now());
        assert_eq!(found.is_empty(), good, "{found:?}");
        assert!(found.iter().all(|e| e.setting == Setting::Certificate), "{found:?}");
    }
}

#[test]
fn the_certificate_must_hold_the_names_that_record_route_shows() {
    let mut node = Node::new(ClientCertificates::Require);
    node.config.listen[0].advertise = Some((Host::Name("edge.test".into()), Some(5061)));
    let found = Tls::check(&node.config, now());
    assert_eq!(file(&found, 0).0, Gravity::Unfit);
    assert!(found[0].what.contains("\"edge.test\"") && found[0].what.contains("\"sbe.test\""), "{found:?}");
    node.config.listen[0].advertise = Some((Host::Addr([127, 0, 0, 1].into()), None));
    assert_eq!(file(&Tls::check(&node.config, now()), 0).0, Gravity::Unfit, "nobody can verify an address");
    let files = node.ca.named(&["URI:sip:edge.test", "DNS:sbe.test"]).write(&node.directory, "edge");
    (node.section().certificate, node.section().key) = files;
    node.config.listen[0].advertise = Some((Host::Name("edge.test".into()), None));
    assert_eq!(Tls::check(&node.config, now()), []);
    node.config.listen[0].advertise = None;
    assert_eq!(file(&Tls::check(&node.config, now()), 0).0, Gravity::Unfit, "the sip URI shuts out sbe.test");
}

#[test]
fn expiry_is_told_before_it_comes_and_after() {
    let mut node = Node::new(ClientCertificates::Require);
    let pair = node.ca.issue(&Ask { names: &["DNS:sbe.test"], years: (2030, 2031), ..Ask::default() });
    (node.section().certificate, node.section().key) = pair.write(&node.directory, "short");
    let end = node.load().certificates().next().unwrap().not_after;
    let gravity = |at: SystemTime| Tls::check(&node.config, at).first().map(|e| e.gravity);
    assert_eq!(gravity(year(2025)), Some(Gravity::Unfit), "not yet");
    assert_eq!(gravity(end - SOON - Duration::from_secs(60)), None);
    assert_eq!(gravity(end - SOON + Duration::from_secs(60)), Some(Gravity::Soon));
    assert_eq!(gravity(end + Duration::from_secs(60)), Some(Gravity::Unfit));
}

#[test]
fn a_peers_certificate_is_looked_at_too() {
    let mut node = Node::new(ClientCertificates::Require);
    let certificate = (path_of(&node, "no.pem"), path_of(&node, "no.key"));
    let mut peer = crate::config::Peer { name: "sp2".into(), ..crate::runtime::tests::config::peer() };
    peer.certificate = Some(certificate);
    node.config.peers.push(peer);
    let found = Tls::check(&node.config, now());
    assert_eq!(file(&found, 0).1, Setting::PeerCertificate("sp2".into()));
    assert_eq!(found.len(), 1);
}

#[test]
fn numbers_of_peers_are_those_of_the_policy_in_force() {
    let mut node = Node::new(ClientCertificates::Require);
    let mut peer = crate::config::Peer { name: "sp2".into(), ..crate::runtime::tests::config::peer() };
    peer.certificate = Some(node.ca.named(&["DNS:edge.sp2.test"]).write(&node.directory, "sp2"));
    node.config.peers.push(peer);
    let mut tls = node.load();
    assert_eq!(tls.by_id.keys().collect::<Vec<_>>(), [&PeerId(0)]);
    tls.number(|name| (name == "sp2").then_some(PeerId(7)));
    assert_eq!(tls.by_id.keys().collect::<Vec<_>>(), [&PeerId(7)]);
}
