//! Network maps and cost maps.

use std::net::IpAddr;

use crate::alto::cost_type::CostType;
use crate::alto::error::Fault;
use crate::alto::local;
use crate::alto::maps::{CostMap, NetworkMap, filter, source_pids};
use crate::location::CostMode;

fn network(map: &str) -> Result<NetworkMap, Fault> {
    let text = format!(r#"{{"meta":{{"vtag":{{"resource-id":"net","tag":"T1"}}}},"network-map":{map}}}"#);
    NetworkMap::parse(text.as_bytes())
}

fn pid(map: &NetworkMap, addr: &str) -> String {
    map.pid(addr.parse().unwrap()).map_or_else(String::new, ToString::to_string)
}

fn routingcost() -> CostType {
    CostType { mode: CostMode::Numerical, metric: "routingcost".into() }
}

#[test]
fn the_longest_prefix_wins_and_an_address_outside_has_no_pid() {
    let map = network(
        r#"{"A":{"ipv4":["192.0.2.0/24","198.51.100.0/25"],"ipv6":["2001:db8::/32"]},"B":{"ipv4":["192.0.2.128/25"]},
        "C":{"ipv4":["192.0.2.129/32"],"ipv6":["2001:db8:1::/48"],"ieee802":["x"]},"EMPTY":{},"MAC":{"ieee802":[1]}}"#,
    )
    .unwrap();
    for (addr, expected) in [
        ("192.0.2.1", "A"),
        ("192.0.2.128", "B"),
        ("192.0.2.129", "C"),
        ("192.0.2.130", "B"),
        ("198.51.100.127", "A"),
        ("198.51.100.128", ""),
        ("2001:db8:1::5", "C"),
        ("2001:db8:2::5", "A"),
        ("2001:db9::1", ""),
        ("::ffff:192.0.2.129", "C"),
    ] {
        assert_eq!(pid(&map, addr), expected, "{addr}");
    }
    assert_eq!(map.pids(), 5, "PIDs without addresses that we know are still PIDs");
    let all = network(r#"{"D":{"ipv4":["0.0.0.0/0"],"ipv6":["::/0"]},"H":{"ipv6":["::1/128"]}}"#).unwrap();
    assert_eq!([pid(&all, "255.255.255.255"), pid(&all, "::1"), pid(&all, "::2")], ["D", "H", "D"]);
}

#[test]
fn a_network_map_that_is_ambiguous_is_not_used_at_all() {
    for bad in [
        r#"{"A":{"ipv4":["192.0.2.0/24"]},"B":{"ipv4":["192.0.2.0/24"]}}"#,
        // The same prefix, written with other bits beyond its length.
        r#"{"A":{"ipv4":["198.51.100.0/24"]},"B":{"ipv4":["198.51.100.128/24"]}}"#,
        r#"{"A":{"ipv4":["192.0.2.0/33"]}}"#,
        r#"{"A":{"ipv4":["2001:db8::/32"]}}"#,
        r#"{"A":{"ipv4":"192.0.2.0/24"}}"#,
        r#"{"A":{"ipv4":[1]}}"#,
        r#"{"A b":{}}"#,
    ] {
        assert!(matches!(network(bad), Err(Fault::NetworkMap(_))), "{bad}");
    }
    assert!(matches!(network("[]"), Err(Fault::Shape(_))));
    let untagged = br#"{"meta":{},"network-map":{}}"#;
    assert!(matches!(NetworkMap::parse(untagged), Err(Fault::Shape(_))));
    let spaced = br#"{"meta":{"vtag":{"resource-id":"net","tag":"a b"}},"network-map":{}}"#;
    assert!(matches!(NetworkMap::parse(spaced), Err(Fault::Shape(_))));
}

#[test]
fn maps_fit_only_if_id_and_tag_are_the_same_octets() {
    let network = network(r#"{"A":{"ipv4":["192.0.2.0/24"]}}"#).unwrap();
    let sources = source_pids(&network, &["192.0.2.1".parse().unwrap()]);
    let with = |vtags: &str| {
        let text = format!(
            r#"{{"meta":{{"dependent-vtags":{vtags},"cost-type":{{"cost-mode":"numerical","cost-metric":"routingcost"}}}},
            "cost-map":{{"A":{{"A":1,"B":-1,"C":"x","D":2.5}},"B":{{"A":7}}}}}}"#
        );
        CostMap::parse(text.as_bytes(), &routingcost(), sources.clone()).unwrap()
    };
    let good = with(r#"[{"resource-id":"other","tag":"T1"},{"resource-id":"net","tag":"T1"}]"#);
    assert!(good.fits(&network));
    assert!(!with(r#"[{"resource-id":"net","tag":"t1"}]"#).fits(&network));
    assert!(!with(r#"[{"resource-id":"NET","tag":"T1"}]"#).fits(&network));
    assert!(!with("[]").fits(&network));
    assert_eq!((good.rows.cost("A", "A"), good.rows.cost("A", "D")), (Some(1.0), Some(2.5)));
    assert_eq!((good.rows.cost("A", "B"), good.rows.cost("A", "C")), (None, None), "bad costs are none");
    assert_eq!(good.rows.bad, 2);
    assert_eq!(good.rows.cost("B", "A"), None, "only the rows of where we are are kept");
}

#[test]
fn a_filter_names_our_pids_and_those_needed() {
    let set = |pids: &[&str]| pids.iter().map(|p| (*p).into()).collect();
    let body = filter(&routingcost(), &set(&["US"]), &set(&["B", "A"]));
    assert_eq!(
        String::from_utf8(body).unwrap(),
        r#"{"cost-type":{"cost-metric":"routingcost","cost-mode":"numerical"},"pids":{"dsts":["A","B"],"srcs":["US"]}}"#
    );
}

#[test]
fn a_file_holds_endpoint_costs_or_both_maps_or_all_three() {
    let us: IpAddr = "192.0.2.10".parse().unwrap();
    let read = |text: &str| local::read(text.as_bytes(), &routingcost(), &[us]);
    let cost = |text: &str, dst: &str| read(text).unwrap().cost(us, dst.parse().unwrap());
    let endpoints =
        r#"{"endpoint-cost-map":{"ipv4:192.0.2.10":{"ipv4:198.51.100.1":3,"ipv4:198.51.100.2":"x"}}}"#;
    assert_eq!(cost(endpoints, "198.51.100.1"), Some(3.0));
    assert_eq!((cost(endpoints, "198.51.100.2"), read(endpoints).unwrap().bad), (None, 1));
    let maps = r#"{"network-map":{"US":{"ipv4":["192.0.2.0/24"]},"P":{"ipv4":["198.51.100.0/24"]}},"cost-map":{"US":{"P":9}}"#;
    assert_eq!(cost(&format!("{maps}}}"), "198.51.100.77"), Some(9.0));
    let all = format!("{maps},{}", endpoints.strip_prefix('{').unwrap());
    assert_eq!((cost(&all, "198.51.100.1"), cost(&all, "198.51.100.2")), (Some(3.0), Some(9.0)));
    assert!(matches!(read("{}"), Err(Fault::Shape(_))));
    assert!(matches!(read(r#"{"cost-map":{}}"#), Err(Fault::Shape(_))));
    let other =
        r#"{"meta":{"cost-type":{"cost-mode":"numerical","cost-metric":"hopcount"}},"endpoint-cost-map":{}}"#;
    assert!(matches!(read(other), Err(Fault::CostType { .. })));
}
