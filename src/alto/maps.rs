//! Network maps and cost maps (RFC 7285 §11.2, §11.3), and the versions by which they belong together (§10.3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::cost_type::{self, CostType, Raw};
use super::error::{Fault, short};
use super::{ecs, json};

/// Most prefixes of a network map.
const MAX_PREFIXES: usize = 1_000_000;
/// Most PIDs of a network map, and most costs of one row.
const MAX_PIDS: usize = 100_000;
/// Most versions of network maps that a cost map may depend on.
const MAX_VTAGS: usize = 64;

/// Which version of a network map; compared octet by octet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Vtag {
    /// The network map.
    #[serde(rename = "resource-id")]
    pub id: String,
    /// Its version.
    pub tag: String,
}

impl fmt::Display for Vtag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", short(&self.tag), short(&self.id))
    }
}

impl Vtag {
    fn is_sound(&self) -> bool {
        json::is_id(&self.id) && json::is_tag(&self.tag)
    }
}

/// Prefixes of one family by length, the longest first: (length, prefix -> number of the PID).
type Prefixes = Vec<(u8, HashMap<u128, u32, ahash::RandomState>)>;

/// The same while they are read.
type Lengths = BTreeMap<u8, HashMap<u128, u32, ahash::RandomState>>;

/// Which PID an address lies in.
#[derive(Clone, Debug, Default)]
pub struct NetworkMap {
    /// Its version; `None` only for one of a file's.
    pub vtag: Option<Vtag>,
    pids: Vec<Arc<str>>,
    v4: Prefixes,
    v6: Prefixes,
}

#[derive(Deserialize)]
struct NetworkBody<'a> {
    meta: NetworkMeta,
    #[serde(rename = "network-map", borrow)]
    map: &'a RawValue,
}

#[derive(Deserialize)]
struct NetworkMeta {
    vtag: Vtag,
}

impl NetworkMap {
    /// Reads an answer.
    ///
    /// # Errors
    /// It is no network map, or one that is ambiguous: what cannot be read as a prefix may be the longest match of
    /// something, and a prefix in two PIDs is in neither.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let body: NetworkBody<'_> = json::parse(body)?;
        if !body.meta.vtag.is_sound() {
            return Err(Fault::Shape(format!("vtag {} breaks RFC 7285 section 10.3", body.meta.vtag)));
        }
        let mut map = Self::of_member(body.map.get())?;
        map.vtag = Some(body.meta.vtag);
        Ok(map)
    }

    /// Reads the member `network-map`.
    pub(super) fn of_member(text: &str) -> Result<Self, Fault> {
        let unusable = |why: String| Fault::NetworkMap(short(&why));
        let mut map = Self::default();
        let mut lengths: [Lengths; 2] = Default::default();
        let mut count = 0;
        json::members(text, |pid, groups| {
            if !json::is_id(pid) {
                return Err(unusable(format!("{pid:?} is no name of a PID")));
            }
            let number = u32::try_from(map.pids.len()).unwrap_or(u32::MAX);
            if map.pids.len() >= MAX_PIDS {
                return Err(unusable(format!("more than {MAX_PIDS} PIDs")));
            }
            map.pids.push(pid.into());
            json::members(groups.get(), |kind, raw| {
                // Other types of addresses are not ours to read; their PIDs stay valid, and empty.
                let v4 = match kind {
                    "ipv4" => true,
                    "ipv6" => false,
                    _ => return Ok(()),
                };
                let read = json::strings(raw.get(), |text| {
                    let net = text.parse::<IpNet>().ok().filter(|n| matches!(n, IpNet::V4(_)) == v4);
                    let Some(net) = net else {
                        return Err(unusable(format!("{text:?} in {pid} is no {kind} prefix")));
                    };
                    count += 1;
                    if count > MAX_PREFIXES {
                        return Err(unusable(format!("more than {MAX_PREFIXES} prefixes")));
                    }
                    let nets = lengths[usize::from(!v4)].entry(net.prefix_len()).or_default();
                    match nets.insert(bits(net.network()), number) {
                        Some(other) if other != number => {
                            let other = map.pids.get(other as usize).map_or("?", |p| p);
                            Err(unusable(format!("{} is in {other} and in {pid}", net.trunc())))
                        }
                        _ => Ok(()),
                    }
                });
                read.map_err(|fault| match fault {
                    Fault::NetworkMap(_) => fault,
                    _ => unusable(format!("{kind} of {pid} is not a list of prefixes")),
                })
            })
        })?;
        let [v4, v6] = lengths.map(|family| family.into_iter().rev().collect());
        (map.v4, map.v6) = (v4, v6);
        Ok(map)
    }

    /// The PID with the longest prefix that holds an address (RFC 7285 §11.2.2).
    pub fn pid(&self, addr: IpAddr) -> Option<&Arc<str>> {
        let addr = addr.to_canonical();
        let (prefixes, width) = if addr.is_ipv4() { (&self.v4, 32) } else { (&self.v6, 128) };
        let all = bits(addr);
        let found = prefixes.iter().find_map(|(length, nets)| {
            let host = u32::from(width - length);
            let masked = all.checked_shr(host).unwrap_or(0).checked_shl(host).unwrap_or(0);
            nets.get(&masked)
        });
        self.pids.get(usize::try_from(*found?).ok()?)
    }

    /// Number of PIDs.
    pub fn pids(&self) -> usize {
        self.pids.len()
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The PIDs that our own addresses lie in.
pub fn source_pids(network: &NetworkMap, sources: &[IpAddr]) -> BTreeSet<Arc<str>> {
    sources.iter().filter_map(|s| network.pid(*s).cloned()).collect()
}

/// The rows of a cost map that are of use: those of the PIDs that we are in.
#[derive(Clone, Debug, Default)]
pub struct CostRows {
    rows: BTreeMap<Arc<str>, HashMap<Arc<str>, f64, ahash::RandomState>>,
    /// Costs in them that are none.
    pub bad: usize,
}

impl CostRows {
    /// Reads the rows of these sources from the member `cost-map`; a row or cost that is none is left out.
    ///
    /// # Errors
    /// It is no object, or a row is beyond measure.
    pub(super) fn of_member(text: &str, sources: &BTreeSet<Arc<str>>) -> Result<Self, Fault> {
        let mut found = Self::default();
        json::members(text, |source, raw| {
            let Some(source) = sources.get(source) else { return Ok(()) };
            let (rows, bad) = (&mut found.rows, &mut found.bad);
            let costs = rows.entry(Arc::clone(source)).or_default();
            let read = json::members(raw.get(), |pid, raw| {
                match json::cost(raw) {
                    Some(_) if costs.len() >= MAX_PIDS => return Err(Fault::TooMany(MAX_PIDS)),
                    Some(cost) if json::is_id(pid) => {
                        costs.insert(pid.into(), cost);
                    }
                    _ => *bad += 1,
                }
                Ok(())
            });
            match read {
                Err(Fault::Shape(_)) => *bad += 1,
                Err(fault) => return Err(fault),
                Ok(()) => {}
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The cost between two PIDs.
    pub fn cost(&self, source: &str, dst: &str) -> Option<f64> {
        self.rows.get(source)?.get(dst).copied()
    }
}

/// A cost map as far as it is of use.
#[derive(Clone, Debug)]
pub struct CostMap {
    /// The versions of network maps that it depends on.
    pub dependent: Vec<Vtag>,
    /// The PIDs whose rows were kept.
    pub sources: BTreeSet<Arc<str>>,
    /// These rows.
    pub rows: CostRows,
}

#[derive(Deserialize)]
struct CostBody<'a> {
    #[serde(borrow)]
    meta: CostMeta<'a>,
    #[serde(rename = "cost-map", borrow)]
    map: &'a RawValue,
}

#[derive(Deserialize)]
struct CostMeta<'a> {
    #[serde(rename = "dependent-vtags", borrow)]
    dependent: Vec<&'a RawValue>,
    #[serde(rename = "cost-type")]
    cost_type: Raw,
}

impl CostMap {
    /// Reads an answer; only the rows of `sources` are kept.
    ///
    /// # Errors
    /// It is no cost map, or one of costs of another type.
    pub fn parse(body: &[u8], asked: &CostType, sources: BTreeSet<Arc<str>>) -> Result<Self, Fault> {
        let body: CostBody<'_> = json::parse(body)?;
        ecs::same_type(asked, body.meta.cost_type)?;
        let rows = CostRows::of_member(body.map.get(), &sources)?;
        if body.meta.dependent.len() > MAX_VTAGS {
            return Err(Fault::TooMany(MAX_VTAGS));
        }
        let vtag = |raw: &&RawValue| serde_json::from_str(raw.get()).map_err(|e| Fault::Shape(e.to_string()));
        let dependent = body.meta.dependent.iter().map(vtag).collect::<Result<Vec<Vtag>, _>>()?;
        Ok(Self { dependent: dependent.into_iter().filter(Vtag::is_sound).collect(), sources, rows })
    }

    /// Whether it was made for this version of the network map.
    pub fn fits(&self, network: &NetworkMap) -> bool {
        network.vtag.as_ref().is_some_and(|vtag| self.dependent.contains(vtag))
    }

    /// What it depends on, in words.
    pub fn depends_on(&self) -> String {
        self.dependent.first().map_or_else(|| "none".to_owned(), ToString::to_string)
    }
}

/// A network map and a cost map that belong together.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Where addresses are.
    pub network: Arc<NetworkMap>,
    /// What it costs from where we are.
    pub costs: Arc<CostMap>,
}

impl Pair {
    /// The cost from a source to a destination, if both are in PIDs with a cost between them.
    pub fn cost(&self, source: IpAddr, dst: IpAddr) -> Option<f64> {
        self.costs.rows.cost(self.network.pid(source)?, self.network.pid(dst)?)
    }
}

/// The body of a query for a filtered cost map (RFC 7285 §11.3.2.3).
pub fn filter(cost_type: &CostType, srcs: &BTreeSet<Arc<str>>, dsts: &BTreeSet<Arc<str>>) -> Vec<u8> {
    let names = |pids: &BTreeSet<Arc<str>>| pids.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "cost-type": { "cost-mode": cost_type::mode_name(cost_type.mode), "cost-metric": cost_type.metric },
        "pids": { "srcs": names(srcs), "dsts": names(dsts) },
    })
    .to_string()
    .into_bytes()
}
