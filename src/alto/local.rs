//! Costs from a file, in the format of ALTO messages, for those who have no ALTO server.
//!
//! Either `endpoint-cost-map` (RFC 7285 §11.5.1.6), or `network-map` and `cost-map` (§11.2) side by side in one
//! object; `meta` may be there, and its `cost-type` is compared if it is.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::cost_type::{CostType, Raw};
use super::error::Fault;
use super::maps::{self, CostRows, NetworkMap};
use super::{address, ecs, json};

/// What a file says.
#[derive(Clone, Debug)]
pub struct LocalCosts {
    /// From a source to a destination.
    endpoints: BTreeMap<IpAddr, BTreeMap<IpAddr, f64>>,
    maps: Option<(NetworkMap, CostRows)>,
    /// Costs that are none.
    pub bad: usize,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(default)]
    meta: Meta,
    #[serde(rename = "endpoint-cost-map", borrow, default)]
    endpoints: Option<BTreeMap<String, &'a RawValue>>,
    #[serde(rename = "network-map", borrow, default)]
    network: Option<&'a RawValue>,
    #[serde(rename = "cost-map", borrow, default)]
    costs: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "cost-type")]
    cost_type: Option<Raw>,
}

/// Reads a file's octets.
///
/// # Errors
/// It is not JSON, holds no costs, or costs of another type.
pub fn read(body: &[u8], wanted: &CostType, sources: &[IpAddr]) -> Result<LocalCosts, Fault> {
    let body: Body<'_> = json::parse(body)?;
    if let Some(raw) = body.meta.cost_type {
        ecs::same_type(wanted, raw)?;
    }
    let mut found = LocalCosts { endpoints: BTreeMap::new(), maps: None, bad: 0 };
    if let (Some(network), Some(costs)) = (body.network, body.costs) {
        let network = NetworkMap::of_member(network.get())?;
        let rows = maps::source_pids(&network, sources);
        let costs = CostRows::of_member(costs.get(), &rows)?;
        found.bad += costs.bad;
        found.maps = Some((network, costs));
    }
    if let Some(endpoints) = &body.endpoints {
        for (src, row) in endpoints {
            let Some(src) = address::parse(src) else { continue };
            let Ok(row) = serde_json::from_str::<BTreeMap<String, &RawValue>>(row.get()) else {
                found.bad += 1;
                continue;
            };
            let known = found.endpoints.entry(src).or_default();
            for (dst, raw) in row {
                let Some(dst) = address::parse(&dst) else { continue };
                match json::cost(raw) {
                    Some(cost) => {
                        known.insert(dst, cost);
                    }
                    None => found.bad += 1,
                }
            }
        }
    }
    if body.endpoints.is_none() && found.maps.is_none() {
        let what = "it has neither endpoint-cost-map, nor network-map and cost-map";
        return Err(Fault::Shape(what.into()));
    }
    Ok(found)
}

impl LocalCosts {
    /// The cost from a source to a destination: of the addresses, else of their PIDs.
    pub fn cost(&self, source: IpAddr, dst: IpAddr) -> Option<f64> {
        let (source, dst) = (source.to_canonical(), dst.to_canonical());
        let endpoint = self.endpoints.get(&source).and_then(|row| row.get(&dst)).copied();
        endpoint.or_else(|| {
            let (network, costs) = self.maps.as_ref()?;
            costs.cost(network.pid(source)?, network.pid(dst)?)
        })
    }
}
