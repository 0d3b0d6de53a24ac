//! The endpoint cost service (RFC 7285 §11.5).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::cost_type::{self, CostType, Raw};
use super::error::Fault;
use super::{address, json};

/// Most destinations of a query.
pub const MAX_DSTS: usize = 256;

/// The body of a query. Both lists are written out: an empty one would mean the address that the connection comes
/// from, and SIP need not leave by the same (RFC 7285 §11.5.1.3).
pub fn query(cost_type: &CostType, source: IpAddr, dsts: &[IpAddr]) -> Vec<u8> {
    let dsts: Vec<String> = dsts.iter().map(|a| address::typed(*a)).collect();
    json!({
        "cost-type": { "cost-mode": cost_type::mode_name(cost_type.mode), "cost-metric": cost_type.metric },
        "endpoints": { "srcs": [address::typed(source)], "dsts": dsts },
    })
    .to_string()
    .into_bytes()
}

/// What an answer says of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointCosts {
    /// By address asked for.
    pub costs: HashMap<IpAddr, f64, ahash::RandomState>,
    /// Costs that are none: negative, text, too large.
    pub bad: usize,
}

#[derive(Deserialize)]
struct Body<'a> {
    meta: Meta,
    #[serde(rename = "endpoint-cost-map", borrow)]
    map: BTreeMap<String, &'a RawValue>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "cost-type")]
    cost_type: Raw,
}

/// Reads an answer. Addresses are compared as such, whatever their spelling; those that were not asked for are left
/// out.
///
/// # Errors
/// It is no answer, or one of costs of another type.
pub fn answer(
    body: &[u8],
    asked: &CostType,
    source: IpAddr,
    dsts: &[IpAddr],
) -> Result<EndpointCosts, Fault> {
    let body: Body<'_> = json::parse(body)?;
    same_type(asked, body.meta.cost_type)?;
    let mut found = EndpointCosts::default();
    for (src, row) in &body.map {
        if address::parse(src) != Some(source.to_canonical()) {
            continue;
        }
        let Ok(row) = serde_json::from_str::<BTreeMap<String, &RawValue>>(row.get()) else {
            found.bad += 1;
            continue;
        };
        for (dst, raw) in row {
            let Some(dst) = address::parse(&dst).filter(|d| dsts.iter().any(|a| a.to_canonical() == *d))
            else {
                continue;
            };
            match json::cost(raw) {
                Some(cost) => {
                    found.costs.insert(dst, cost);
                }
                None => found.bad += 1,
            }
        }
    }
    Ok(found)
}

/// Compares the type of an answer with the one asked for (RFC 7285 §11.2.3.6, §11.5.1.6: it must say).
pub(super) fn same_type(asked: &CostType, found: Raw) -> Result<(), Fault> {
    let words = found.words();
    match CostType::of(found) {
        Some(found) if found == *asked => Ok(()),
        _ => Err(Fault::CostType { asked: asked.to_string(), found: words }),
    }
}
