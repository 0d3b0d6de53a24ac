//! Directories: reading, delegation, choosing.

use url::Url;

use crate::alto::Service;
use crate::alto::cost_type::CostType;
use crate::alto::directory::{Closure, Document, MAX_DEPTH, MAX_DIRECTORIES, Plan, Walk, Wish, choose};
use crate::alto::error::Fault;
use crate::alto::redirect::Policy;
use crate::location::CostMode;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

fn document(text: &str) -> Document {
    Document::parse(text.as_bytes(), &url("https://alto.example.com/dir/ird"), &Policy::default()).unwrap()
}

fn closure(resources: &str) -> Closure {
    let text = format!(
        r#"{{"meta":{{"cost-types":{{"n":{{"cost-mode":"numerical","cost-metric":"routingcost"}},
        "o":{{"cost-mode":"ordinal","cost-metric":"routingcost"}},"h":{{"cost-mode":"numerical","cost-metric":"hopcount"}},
        "pv":{{"cost-mode":"array","cost-metric":"ane-path"}},"odd":7}},"default-alto-network-map":"net"}},
        "resources":{{"net":{{"uri":"/net","media-type":"application/alto-networkmap+json"}}{resources}}}}}"#
    );
    let mut walk = Walk::new(url("https://alto.example.com/dir/ird"));
    walk.arrived(&url("https://alto.example.com/dir/ird"), document(&text));
    walk.finish()
}

fn entry(id: &str, kind: &str, accepts: &str, types: &str) -> String {
    let accepts = if accepts.is_empty() {
        String::new()
    } else {
        format!(r#","accepts":"application/alto-{accepts}+json""#)
    };
    format!(
        r#","{id}":{{"uri":"{id}","media-type":"application/alto-{kind}+json"{accepts},"uses":["net"],
        "capabilities":{{"cost-type-names":{types}}}}}"#
    )
}

fn ecs(id: &str, types: &str) -> String {
    entry(id, "endpointcost", "endpointcostparams", types)
}

fn wish(mode: CostMode, service: Service, resource: Option<&str>) -> Wish {
    let cost_type = CostType { mode, metric: "routingcost".into() };
    Wish { cost_type, service, resource: resource.map(Into::into) }
}

fn chosen(resources: &str, wish: &Wish) -> Result<(String, &'static str, CostMode), Fault> {
    let plan: Plan = choose(&closure(resources), wish, &[])?;
    Ok((plan.id().to_owned(), plan.service(), plan.cost_type().mode))
}

const N: CostMode = CostMode::Numerical;
const O: CostMode = CostMode::Ordinal;

#[test]
fn endpoint_costs_go_before_maps_and_the_first_id_wins() {
    let all = [
        entry("cm", "costmap", "", r#"["n"]"#),
        entry("fcm", "costmap", "costmapfilter", r#"["n"]"#),
        ecs("ecs2", r#"["h","n"]"#),
        ecs("ecs1", r#"["pv","n"]"#),
    ];
    let from = |n: usize, service| chosen(&all[..n].concat(), &wish(N, service, None)).map(|c| c.0);
    assert_eq!(from(4, Service::Auto).unwrap(), "ecs1");
    assert_eq!(from(3, Service::Auto).unwrap(), "ecs2");
    assert_eq!(from(2, Service::Auto).unwrap(), "fcm");
    assert_eq!(from(1, Service::Auto).unwrap(), "cm");
    assert_eq!(from(4, Service::Maps).unwrap(), "cm", "a whole map tells the server nothing");
    assert!(from(2, Service::Endpoint).is_err());
    let named = wish(N, Service::Auto, Some("ecs2"));
    assert_eq!(chosen(&all.concat(), &named).unwrap().0, "ecs2");
    let gone = wish(N, Service::Auto, Some("gone"));
    assert!(matches!(chosen(&all.concat(), &gone), Err(Fault::NoResource(_))));
}

#[test]
fn numbers_may_be_replaced_by_ranks_but_ranks_not_by_numbers() {
    let ranks = ecs("r", r#"["o"]"#);
    let numbers = ecs("n", r#"["n"]"#);
    assert_eq!(chosen(&ranks, &wish(N, Service::Auto, None)).unwrap().2, O);
    let fault = chosen(&numbers, &wish(O, Service::Auto, None)).unwrap_err();
    assert_eq!(fault.to_string(), "no resource in the directory gives costs of type ordinal routingcost");
    let maps = entry("cm", "costmap", "", r#"["n"]"#);
    assert_eq!(chosen(&format!("{ranks}{maps}"), &wish(N, Service::Auto, None)).unwrap().0, "cm");
}

#[test]
fn a_resource_without_capabilities_serves_only_if_it_is_named() {
    let silent = ecs("silent", "[]");
    assert!(chosen(&silent, &wish(N, Service::Auto, None)).is_err());
    assert_eq!(chosen(&silent, &wish(N, Service::Auto, Some("silent"))).unwrap().0, "silent");
}

#[test]
fn a_cost_map_without_its_network_map_is_of_no_use() {
    let map = entry("cm", "costmap", "", r#"["n"]"#).replace(r#"["net"]"#, r#"["nowhere"]"#);
    let plan = choose(&closure(&map), &wish(N, Service::Maps, None), &[]).unwrap();
    assert!(matches!(plan, Plan::Maps { network_id, .. } if network_id == "net"), "the default one");
    let text = r#"{"meta":{"cost-types":{"n":{"cost-mode":"numerical","cost-metric":"routingcost"}}},"resources":{"cm":
        {"uri":"x","media-type":"application/alto-costmap+json","capabilities":{"cost-type-names":["n"]}}}}"#;
    let mut walk = Walk::new(url("https://alto.example.com/dir/ird"));
    walk.arrived(&url("https://alto.example.com/dir/ird"), document(text));
    assert!(choose(&walk.finish(), &wish(N, Service::Maps, None), &[]).is_err());
}

#[test]
fn what_was_refused_is_not_chosen_again() {
    let both = [ecs("a", r#"["n"]"#), ecs("b", r#"["n"]"#)].concat();
    let refused = [("a".to_owned(), CostType { mode: N, metric: "routingcost".into() })];
    let plan = choose(&closure(&both), &wish(N, Service::Auto, None), &refused).unwrap();
    assert_eq!(plan.id(), "b");
}

#[test]
fn addresses_are_relative_to_the_directory_and_stay_with_its_owner() {
    let d = document(
        r#"{"resources":{"a":{"uri":"../x?y=1#z","media-type":"application/alto-costmap+json; v=2"},
        "b":{"uri":"http://alto.example.com/b","media-type":"m/x"},"c":{"uri":"https://evil.test/","media-type":"m/x"},
        "d":{"uri":"ftp://alto.example.com/","media-type":"m/x"},"e e":{"uri":"/","media-type":"m/x"},"f":{"uri":5},
        "g":{"uri":"https://maps.example.com/g","media-type":"m/x","accepts":"m/Y"}}}"#,
    );
    assert_eq!(d.resources.keys().collect::<Vec<_>>(), ["a", "g"]);
    let a = &d.resources["a"];
    assert_eq!(
        (a.url.as_str(), a.media_type.as_str()),
        ("https://alto.example.com/x?y=1", "application/alto-costmap+json")
    );
    assert_eq!(d.resources["g"].accepts.as_deref(), Some("m/y"));
    assert_eq!(d.notes.len(), 5, "{:#?}", d.notes);
    assert!(
        d.notes.iter().any(|n| n.contains("evil.test") && n.contains("redirect_allow")),
        "{:#?}",
        d.notes
    );
}

fn delegating(to: &[String]) -> Document {
    let entries: Vec<String> = to
        .iter()
        .enumerate()
        .map(|(i, u)| format!(r#""d{i}":{{"uri":"{u}","media-type":"application/alto-directory+json"}}"#))
        .collect();
    document(&format!(r#"{{"resources":{{{}}}}}"#, entries.join(",")))
}

#[test]
fn delegation_is_followed_once_each_and_not_too_deep() {
    let mut walk = Walk::new(url("https://alto.example.com/0"));
    let mut asked = Vec::new();
    while let Some(next) = walk.next().cloned() {
        let depth: usize = next.path().trim_start_matches('/').parse().unwrap();
        asked.push(depth);
        // To the next one, back to the first, and to itself.
        walk.arrived(&next, delegating(&[format!("/{}", depth + 1), "/0".into(), format!("/{depth}")]));
    }
    assert_eq!(asked, [0, 1, 2, 3, 4]);
    assert_eq!(asked.len(), MAX_DEPTH + 1);
    let closure = walk.finish();
    assert_eq!(closure.directories, 5);
    assert!(closure.notes.iter().any(|n| n.contains("more than 4 deep")), "{:?}", closure.notes);
}

#[test]
fn directories_are_counted() {
    let mut walk = Walk::new(url("https://alto.example.com/x"));
    let many: Vec<String> = (0..100).map(|n| format!("/{n}")).collect();
    let mut asked = 0;
    while let Some(next) = walk.next().cloned() {
        asked += 1;
        walk.arrived(&next, delegating(&many));
    }
    assert_eq!(asked, MAX_DIRECTORIES);
}

#[test]
fn a_directory_that_cannot_be_had_leaves_the_others() {
    let mut walk = Walk::new(url("https://alto.example.com/x"));
    walk.arrived(&url("https://alto.example.com/x"), delegating(&["/a".into(), "/b".into()]));
    walk.failed(&Fault::Timeout(5));
    assert_eq!(walk.next().unwrap().path(), "/b");
    let b = document(r#"{"resources":{"r":{"uri":"/r","media-type":"m/x"}}}"#);
    walk.arrived(&url("https://alto.example.com/b"), b);
    assert!(walk.next().is_none());
    let closure = walk.finish();
    assert!(closure.resources.contains_key("r"));
    assert!(closure.notes[0].contains("/a is left out"), "{:?}", closure.notes);
}
