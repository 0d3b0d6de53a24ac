//! A zone file in the place of name servers.

use std::sync::Arc;

use crate::config::{Dns, Realm};
use crate::flow::{Host, Transport};
use crate::location::{Enabled, LocateKey, Outcome, Question, RecordKind, Records};
use crate::runtime::dns::upstream::{Failure, Found, Reply, Upstream};
use crate::runtime::dns::{EnabledByRealm, Resolver, ZoneFault, ZoneFile};

const ZONES: &str = r#"
$ORIGIN example.com.
$TTL 1d
@           IN SOA  ns hostmaster.example.net. ( 2026010101 ; serial
                    1h 15m 1w
                    600 )       ; what "nothing" is worth
            IN NS   ns
            IN NAPTR 10 10 "s" "SIPS+D2T" "" _sips._tcp
            IN NAPTR 20 10 s SIP+D2U "" _sip._udp
_sips._tcp  3600 IN SRV 1 10 5061 sbe1
            3600 IN SRV 1 30 5061 SBE2.Example.COM.
_sip._udp   IN 1h SRV 1 0 5060 sbe1
            1h IN SRV 2 0 5060 sbe.other.test.
sbe1        60 A 192.0.2.1
            60 AAAA 2001:db8::1
sbe2        A 192.0.2.2
alias       30 CNAME sbe1
far         CNAME www.elsewhere.test.
loop        CNAME loop2
loop2       CNAME loop
*.wild      A 192.0.2.9
text        TXT "a ; b ( c" "d"
deep.er     LOC 51 30 12.748 N 0 7 39.612 W 0.00m
$ORIGIN other.test.
@  SOA ns hostmaster 1 1h 15m 1w 600
   NS @
   A 198.51.100.1
sbe A 198.51.100.7
"#;

fn zone(text: &str) -> ZoneFile {
    ZoneFile::parse(text, "z.zone", None).unwrap()
}

async fn ask(zone: &ZoneFile, name: &str, kind: RecordKind) -> Reply {
    zone.query(Question::new(name.into(), kind)).await
}

async fn addrs(zone: &ZoneFile, name: &str, kind: RecordKind) -> (Vec<String>, u64) {
    match ask(zone, name, kind).await.found {
        Found::Records(set, ttl) => match &set.records {
            Records::Addr(v) => (v.iter().map(ToString::to_string).collect(), ttl.as_secs()),
            other => panic!("{other:?}"),
        },
        other => panic!("{name}: {other:?}"),
    }
}

fn faults(text: &str) -> Vec<String> {
    let faults: Vec<ZoneFault> = ZoneFile::parse(text, "z.zone", None).unwrap_err();
    faults.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn names_ttls_and_owners_are_filled_in_and_each_zone_of_the_file_answers() {
    let zone = zone(ZONES);
    assert_eq!(zone.warnings(), []);
    assert_eq!(addrs(&zone, "sbe1.example.com", RecordKind::A).await, (vec!["192.0.2.1".into()], 60));
    assert_eq!(addrs(&zone, "sbe2.example.com", RecordKind::A).await, (vec!["192.0.2.2".into()], 86400));
    assert_eq!(addrs(&zone, "sbe1.example.com", RecordKind::Aaaa).await, (vec!["2001:db8::1".into()], 60));
    assert_eq!(addrs(&zone, "sbe.other.test", RecordKind::A).await.0, ["198.51.100.7"]);
    assert_eq!(addrs(&zone, "other.test", RecordKind::A).await.0, ["198.51.100.1"]);
    let Found::Records(set, ttl) = ask(&zone, "example.com", RecordKind::Naptr).await.found else { panic!() };
    assert_eq!(ttl.as_secs(), 86400);
    let Records::Naptr(naptr) = &set.records else { panic!() };
    let shown: Vec<String> = naptr.iter().map(|n| n.describe()).collect();
    assert_eq!(
        shown,
        [
            r#"10 10 "s" "SIPS+D2T" "" _sips._tcp.example.com."#,
            r#"20 10 "s" "SIP+D2U" "" _sip._udp.example.com."#
        ]
    );
}

#[tokio::test]
async fn what_the_records_point_to_comes_along() {
    let zone = zone(ZONES);
    let reply = ask(&zone, "_sip._udp.example.com", RecordKind::Srv).await;
    let also: Vec<String> = reply.also.iter().map(|(q, _, ttl)| format!("{q} {}", ttl.as_secs())).collect();
    assert_eq!(also, ["sbe.other.test. A 86400", "sbe1.example.com. A 60", "sbe1.example.com. AAAA 60"]);
    let reply = ask(&zone, "example.com", RecordKind::Naptr).await;
    let also: Vec<String> = reply.also.iter().map(|(q, _, _)| q.to_string()).collect();
    assert_eq!(also, ["_sip._udp.example.com. SRV", "_sips._tcp.example.com. SRV"]);
}

#[tokio::test]
async fn aliases_are_followed_and_told() {
    let zone = zone(ZONES);
    assert_eq!(addrs(&zone, "alias.example.com", RecordKind::A).await, (vec!["192.0.2.1".into()], 30));
    let look =
        super::super::client::look(&zone, &Question::new("alias.example.com".into(), RecordKind::A)).await;
    assert_eq!(look.aliases, ["sbe1.example.com".into()]);
    assert!(look.authoritative && !look.uneven);
    let looped = ask(&zone, "loop.example.com", RecordKind::A).await.found;
    assert_eq!(looped, Found::Failure(Failure::Aliases));
    assert_eq!(ask(&zone, "far.example.com", RecordKind::A).await.found, Found::NxDomain(None));
    assert_eq!(zone.outside(), ["www.elsewhere.test"]);
}

#[tokio::test]
async fn nothing_is_told_apart_from_no_such_name() {
    let zone = zone(ZONES);
    let ten_minutes = Some(std::time::Duration::from_secs(600));
    for (name, want) in [
        ("example.com", Found::NoData(ten_minutes)),
        ("text.example.com", Found::NoData(ten_minutes)),
        ("deep.er.example.com", Found::NoData(ten_minutes)),
        // A name between others exists too.
        ("er.example.com", Found::NoData(ten_minutes)),
        ("_tcp.example.com", Found::NoData(ten_minutes)),
        ("none.example.com", Found::NxDomain(ten_minutes)),
        ("er.wild.none.example.com", Found::NxDomain(ten_minutes)),
        ("elsewhere.test", Found::NxDomain(None)),
        ("com", Found::NxDomain(None)),
    ] {
        assert_eq!(ask(&zone, name, RecordKind::Srv).await.found, want, "{name}");
    }
    assert_eq!(zone.outside(), ["com", "elsewhere.test"]);
    assert_eq!(addrs(&zone, "a.b.wild.example.com", RecordKind::A).await.0, ["192.0.2.9"]);
    assert_eq!(ask(&zone, "a.wild.example.com", RecordKind::Aaaa).await.found, Found::NoData(ten_minutes));
}

#[test]
fn a_file_without_soa_is_taken_from_its_highest_names_down() {
    let zone = zone(
        "_sip._udp.a.test. 60 SRV 0 0 5060 b.a.test.\na.test. 60 A 192.0.2.1\nx.b.test. 60 A 192.0.2.2\n",
    );
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert_eq!(ask(&zone, "b.a.test", RecordKind::A).await.found, Found::NxDomain(None));
        assert!(zone.outside().is_empty());
        assert_eq!(ask(&zone, "b.test", RecordKind::A).await.found, Found::NxDomain(None));
        assert_eq!(zone.outside(), ["b.test"]);
    });
}

#[test]
fn an_origin_can_be_given_for_a_file_without_one() {
    let zone = ZoneFile::parse("@ 60 A 192.0.2.1\nb 60 CNAME @\n", "z", Some("A.test")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(addrs(&zone, "b.a.test", RecordKind::A)).0, ["192.0.2.1"]);
}

#[test]
fn every_fault_has_its_line() {
    for (text, want) in [
        ("a.test. 60 A 192.0.2.1\nb.test. 60 A 192.0.2\n", "z.zone:2: A: "),
        ("a.test. 60 SRV 1 1 x b.test.\n", "z.zone:1: SRV: "),
        ("a.test. 60 SRV 1 1 5060\n", "z.zone:1: SRV has 4 items of data; here are 3"),
        ("\n\na 60 A 192.0.2.1\n", "z.zone:3: a is a relative name, and no $ORIGIN stands before it"),
        ("a.test. 60 CNAME b\n", "z.zone:1: b is a relative name, and no $ORIGIN"),
        ("a.test. 60 SRV 1 1 1 @\n", "z.zone:1: @ is a relative name, and no $ORIGIN"),
        ("a.test. A 192.0.2.1\n", "z.zone:1: no TTL: write one, or $TTL before the first record"),
        ("a.test. 60 SVR 1 1 1 b.test.\n", "z.zone:1: SVR is no record type"),
        ("a.test. 60 CH A 192.0.2.1\n", "z.zone:1: class CH: only IN has a meaning here"),
        ("a.test. 60\n", "z.zone:1: a record has a type and data: these are missing"),
        ("  60 A 192.0.2.1\n", "z.zone:1: no owner"),
        ("$TTL often\n", "z.zone:1: often is no TTL"),
        ("$INCLUDE other\n", "z.zone:1: $INCLUDE is not followed"),
        ("$ORIGIN a.test. b.test.\n", "z.zone:1: $ORIGIN takes one value"),
        ("$ORIG a.test.\n", "z.zone:1: $ORIG is no directive"),
        ("a.test. 60 TXT \"x\nb.test. 60 A 192.0.2.1\n", "z.zone:1: a quoted text does not end in its line"),
        ("a.test. 60 (\nA 192.0.2.1\n", "z.zone:1: a ( without its )"),
        ("a.test. 60 A 192.0.2.1 )\n", "z.zone:1: a ) without its ("),
        (
            "a.test. 60 A 192.0.2.1\na.test. 60 CNAME b.test.\n",
            "z.zone:2: a.test. has a CNAME and other records",
        ),
        (
            "a.test. 60 CNAME b.test.\na.test. 60 CNAME c.test.\n",
            "z.zone:2: a.test. has more than one CNAME record",
        ),
        ("; nothing\n", "z.zone: no record in it"),
    ] {
        let faults = faults(text);
        assert!(faults.len() == 1 && faults[0].starts_with(want), "{text}: {faults:?}");
    }
    let several = faults("a 60 A 192.0.2.1\nb.test. 60 A 192.0.2.1\nc.test. 60 A 192.0.2.x\n");
    assert_eq!(several.len(), 2, "{several:?}");
    let missing = ZoneFile::read(std::path::Path::new("/nonexistent/zone"), None).unwrap_err();
    assert!(missing[0].to_string().starts_with("/nonexistent/zone: No such file"), "{missing:?}");
}

#[test]
fn records_that_stand_twice_and_sets_of_several_ttls_are_remarked() {
    let zone = zone("a.test. 60 A 192.0.2.1\nA.TEST. 60 A 192.0.2.1\na.test. 90 A 192.0.2.2\n");
    let warnings: Vec<String> = zone.warnings().iter().map(ToString::to_string).collect();
    assert!(warnings[0].starts_with("z.zone:2: this A record of a.test. stands here twice"), "{warnings:?}");
    assert!(warnings[1].starts_with("z.zone:3: the TTL 90 differs from the 60"), "{warnings:?}");
}

#[tokio::test]
async fn a_location_by_the_file_is_one_by_the_dns() {
    let all = Enabled::new(&Transport::ALL, [true; 3], [true; 3], crate::config::Families::Both);
    let enabled = EnabledByRealm { peering: all.clone(), core: all.clone(), both: all };
    let handle = tokio::runtime::Handle::current();
    let resolver = Resolver::with_upstream(Arc::new(zone(ZONES)), &Dns::default(), enabled, 100, handle);
    let key = |host: &str| LocateKey {
        host: Host::Name(host.into()),
        port: None,
        transport: None,
        sips: false,
        realm: Realm::Both,
    };
    let found = resolver.locate(key("example.com")).await;
    let instances: Vec<String> = found.instances().map(|i| i.to_string()).collect();
    assert_eq!(
        instances,
        [
            "tls:[2001:db8::1]:5061",
            "tls:192.0.2.1:5061",
            "tls:192.0.2.2:5061",
            "udp:[2001:db8::1]:5060",
            "udp:192.0.2.1:5060",
            "udp:198.51.100.7:5060"
        ]
    );
    assert_eq!(resolver.locate(key("elsewhere.test")).await.outcome, Outcome::NoSuchName);
}
